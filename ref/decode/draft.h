/* Drafts by MTP modules: module m predicts, from the last known row, the token m + 1 places behind the last one. Each
 * module works on its own rows, in the cache's part of its own, exactly as in the parallel form over the tokens and the
 * drafts so far. SPEC 13.3. */
#ifndef M3_DECODE_DRAFT_H
#define M3_DECODE_DRAFT_H

#include "decode/sampling.h"
#include "model/engine.h"

struct m3_drafter;

/* The first `modules` of the model will draft. `how` is that of the main model's passes, with their cache; it must
 * stay. M3_INTERNAL without memory. */
int m3_drafter_new(struct m3_drafter **drafter, const struct m3_engine *engine, const struct m3_model *model,
                   int64_t modules, const struct m3_request *how, struct m3_error *error);
void m3_drafter_free(struct m3_drafter *drafter);                               /* NULL is fine */

/* What a pass of the main model over places [first, first + rows) gave: its final_norm [rows,H]; and the rows that
 * entered its layer 0, where m3_drafter_wants_rows, else NULL. Places follow those fed before. */
int m3_drafter_feed(struct m3_drafter *d, int64_t first, int64_t rows, const void *final_norm, const void *embedded,
                    struct m3_error *error);
int m3_drafter_wants_rows(const struct m3_drafter *d);

/* ids[n .. n + count) := drafts behind the n known tokens, count at most the modules; places 0 .. n - 2 were fed.
 * positions [n]. Draft i is drawn from q + i V; order [V] is scratch. */
int m3_drafter_draft(struct m3_drafter *d, int32_t *ids, int64_t n, int64_t count, const int64_t *positions,
                     const struct m3_sampling *sampling, double *q, int32_t *order, struct m3_error *error);

/* Of the tokens only n are known now, and the last of them was no draft: what was built on others is forgotten. */
void m3_drafter_keep(struct m3_drafter *d, int64_t n);

#endif
