/* Who has what: the rows of a pass, and the experts.
 *
 * Rows are cut into 2 x count chunks of consecutive rows, and rank r has the chunks r and 2 count - 1 - r. A row's work
 * grows with its place, in proportion to it or not at all, so that such a pair costs the same as any other, in every
 * kind of layer. Rank 0 has the first rows and the last ones. */
#ifndef M3_RANKS_DIVISION_H
#define M3_RANKS_DIVISION_H

#include <stdint.h>

struct m3_division {
    int64_t T;          /* rows of the call, which are cut; or 0: rank 0 has all rows */
    int64_t rows;       /* of them, the first ones that exist: an MTP module has fewer than the call */
    int count;
};

/* The rows of one rank, in two runs, side by side in its memory; a run may be empty. */
struct m3_rows {
    int64_t first[2], rows[2];
};

static inline struct m3_rows m3_rows_whole(int64_t rows) { return (struct m3_rows){ { 0, 0 }, { rows, 0 } }; }
struct m3_rows m3_division_rows(const struct m3_division *d, int rank);

static inline int64_t m3_rows_count(const struct m3_rows *r) { return r->rows[0] + r->rows[1]; }
/* The row of the call that is the i-th row of the rank. */
static inline int64_t m3_rows_row(const struct m3_rows *r, int64_t i)
{
    return i < r->rows[0] ? r->first[0] + i : r->first[1] + i - r->rows[0];
}
/* How many rows of the rank, from its i-th to below `end`, follow each other in the call. */
static inline int64_t m3_rows_run(const struct m3_rows *r, int64_t i, int64_t end)
{
    const int64_t run_end = i < r->rows[0] ? r->rows[0] : end;
    return (run_end < end ? run_end : end) - i;
}
/* How many rows of the rank are before `row`. */
int64_t m3_rows_before(const struct m3_rows *r, int64_t row);
/* The rows of the call that the rank's rows see, without cached ones: up to its last row; 0 without rows. */
int64_t m3_rows_seen(const struct m3_rows *r);

/* Rank r has the experts from m3_experts_first(r) to below m3_experts_first(r + 1). */
int64_t m3_experts_first(int64_t E, int count, int rank);
int m3_experts_owner(int64_t E, int count, int64_t expert);

#endif
