/* Which keys a row attends to, and which keys of a block it scores: shared by bounds and error propagation. */
#ifndef M3_ORACLE_ERROR_PRIVATE_ATTENDED_H
#define M3_ORACLE_ERROR_PRIVATE_ATTENDED_H

#include <stdint.h>

#include "base/context.h"
#include "ops/ops.h"
#include "oracle/error/propagate.h"

/* Row `at` of q and o [.,D]: L keys and values of D channels, at k + keys[j] * stride. */
struct m3_attended {
    const double *q, *k, *v;
    const int64_t *keys;
    int64_t L, D, stride;
    int64_t at, head;               /* k and v begin at channel `head` of their arrays */
    double *scratch;                /* of the requested size */
};

/* The keys of row t and group g, ascending; lists [G,N] of that row, or NULL: all. Returns their number. */
int64_t m3_attended_keys(int64_t *keys, const struct m3_attend *d, const int32_t *lists, int64_t t, int64_t g);

/* Number of doubles of scratch: per visible key, and in addition. */
struct m3_attended_scratch {
    int64_t per_key, fixed;
};

/* Calls run in parallel, one for each row of o. */
typedef void (*m3_at_row)(const void *self, const struct m3_attended *row);

/* blocks NULL: all keys up to the row's own. */
int m3_attended_causal(struct m3_ctx *ctx, m3_at_row visit, const void *self, struct m3_attended_scratch scratch,
                       const double *q, const double *k, const double *v, const int32_t *blocks,
                       const struct m3_attend *d);
int m3_attended_segments(struct m3_ctx *ctx, m3_at_row visit, const void *self, struct m3_attended_scratch scratch,
                         const double *q, const double *k, const double *v, const int64_t *ends, int64_t segments,
                         int64_t A, int64_t U);

/* The spread of keys or values x [keys,width], of which equal ones have equal errors; its variance is scratch memory of
 * ctx. M3_INTERNAL. */
int m3_equal_keys(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of, int64_t keys,
                  int64_t width);

/* The visible keys of block `block` for pair = t G + g; element pair B + block of the scores. */
struct m3_scored {
    const int64_t *keys;
    int64_t n, pair, block;
    double *scratch;
};
typedef void (*m3_at_block)(const void *self, const struct m3_scored *block);

int m3_scored_blocks(struct m3_ctx *ctx, m3_at_block visit, const void *self, struct m3_attended_scratch scratch,
                     const struct m3_index *d);

#endif
