/* Drafts by MTP modules: from the last known row, module m predicts the token m + 1 places after the last one. Each
 * module works on its own rows, in its own part of the cache, exactly as in the parallel form over the tokens and the
 * drafts so far. SPEC 13.3. */
#ifndef M3_DECODE_DRAFT_H
#define M3_DECODE_DRAFT_H

#include "decode/sampling.h"
#include "model/engine.h"

struct m3_drafter;

/* The model's first `modules` MTP modules will draft. `how` is the request of the main model's passes, with their
 * cache; it must outlive the drafter. M3_INTERNAL if memory is short. */
int m3_drafter_new(struct m3_drafter **drafter, const struct m3_engine *engine, const struct m3_model *model,
                   int64_t modules, const struct m3_request *how, struct m3_error *error);
void m3_drafter_free(struct m3_drafter *drafter);                               /* NULL is fine */

/* Takes the results of a main-model pass over places [first, first + rows): its final_norm [rows,H], and the input
 * rows of its layer 0 if m3_drafter_wants_rows, otherwise NULL. The places must follow those fed before. */
int m3_drafter_feed(struct m3_drafter *d, int64_t first, int64_t rows, const void *final_norm, const void *embedded,
                    struct m3_error *error);
int m3_drafter_wants_rows(const struct m3_drafter *d);

/* ids[n .. n + count) := drafts after the n known tokens; count is at most the number of modules; places 0 .. n - 2
 * must have been fed. positions [n]. q + i V receives the distribution from which draft i is drawn; order [V] is
 * scratch. */
int m3_drafter_draft(struct m3_drafter *d, int32_t *ids, int64_t n, int64_t count, const int64_t *positions,
                     const struct m3_sampling *sampling, double *q, int32_t *order, struct m3_error *error);

/* Keeps the n tokens that are now known, of which the last was no draft; state built on other tokens is dropped. */
void m3_drafter_keep(struct m3_drafter *d, int64_t n);

#endif
