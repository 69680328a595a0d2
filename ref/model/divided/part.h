/* What the stages of a pass ask of this rank's share of it: which rows it has, and that rows go to other ranks. */
#ifndef M3_MODEL_DIVIDED_PART_H
#define M3_MODEL_DIVIDED_PART_H

#include <stddef.h>
#include <stdint.h>

#include "base/real.h"
#include "model/taps.h"
#include "ranks/division.h"

struct m3_expert;
struct m3_keys;
struct m3_pass;

/* Do several ranks have rows? */
int m3_share_splits(const struct m3_pass *f);
struct m3_rows m3_share_rows(struct m3_pass *f, int64_t T, int64_t rows);
int m3_share_is_step(const struct m3_pass *f);
int64_t m3_share_modules(const struct m3_pass *f);
int64_t m3_share_p0(const struct m3_pass *f);
/* Does rank 0 want the rows that enter layer 0; those after the last norm? */
int m3_share_gives_embedded(const struct m3_pass *f);
int m3_share_gives_final_norm(const struct m3_pass *f);
/* ids of the rank's rows, `shift` rows later: for module m, m + 1. */
const int32_t *m3_share_ids(struct m3_pass *f, int64_t shift);
/* The ids of all rows from row 0 on. */
const int32_t *m3_share_all_ids(const struct m3_pass *f);

/* rows.c: taps and other rows to rank 0. */
int m3_share_shows(const struct m3_pass *f, enum m3_tap tap);
void m3_share_show(struct m3_pass *f, enum m3_tap tap, void *data);
/* all [T - from, row_bytes] on rank 0 := the rows from row `from` on; `own`: this rank's of them, side by side. */
void m3_share_gather(struct m3_pass *f, void *all, const void *own, int64_t from, size_t row_bytes);
/* own := this rank's rows of `all` [T,H] of rank 0. */
void m3_share_scatter(struct m3_pass *f, real *own, const real *all);

/* keys.c: the rows' keys, values and index keys to the ranks whose rows see them, and into their places in `all`. */
void m3_share_keys(struct m3_pass *f, const struct m3_keys *all, const struct m3_keys *own);

/* experts.c: as the stage of that name. */
void m3_share_experts(struct m3_pass *f, int each_tap, real *each, int tap, real *routed, const real *x,
                      const int32_t *ids, const real *p, const struct m3_expert *w);

#endif
