/* The gradient of attention: what its bodies for both orders of sums share. Keys come in pieces of a block, and the rows
 * that see the same keys in spans. */
#ifndef M3_OPS_FAST_ATTEND_BACKWARD_H
#define M3_OPS_FAST_ATTEND_BACKWARD_H

#include <stdint.h>

#include "base/context.h"
#include "base/real.h"

/* Rows t .. t+rows-1 see the keys from .. to-1, of which lists of blocks and the mask leave some. */
struct m3_span {
    int64_t t, rows, from, to;
};

/* The operands: ops/backward.h. A span of rows has `heads` = Q/G lanes for each row: lane r * heads + h. */
struct m3_attend_back {
    real *dq, *dk, *dv;
    const real *d_o, *q, *k, *v;
    double *lse, *delta; /* [T,Q] */
    int64_t T, Q, G, D, heads, keys;
    const unsigned char *seen; /* [keys] or NULL */
    const int32_t *blocks; /* [T,G,N] or NULL */
    int64_t block, N;
    int is_union; /* rows see the blocks of all their groups */
    struct m3_span *span; /* [spans] t ascending */
    int64_t spans, most_rows; /* of a span */
    int64_t pieces;
};

enum { M3_PIECE = 128 };

/* The keys of a piece that the mask does not hide. */
struct m3_piece {
    int64_t block, n, key[M3_PIECE];
};

/* Finds the i-th piece. */
void m3_piece_find(struct m3_piece *piece, const struct m3_attend_back *a, int64_t i);

/* How many keys of a piece the rows of a span see in group g: from *first on, one after the other. */
int64_t m3_span_sees(int64_t *first, const struct m3_attend_back *a, const struct m3_span *span, int64_t g,
                     const struct m3_piece *piece);

/* The bits of ops/attend.c: everything in double, keys, rows and heads ascending. */
int m3_attend_back_ordered(struct m3_ctx *ctx, const struct m3_attend_back *a);

/* In `real`, by products of the BLAS library. */
int m3_attend_back_blas(struct m3_ctx *ctx, const struct m3_attend_back *a);

/* attend_segments, with lse [A,P] unless it is NULL. */
int m3_fast_segments(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                     const int64_t *ends, int64_t segments, int64_t A, int64_t U);

#endif
