/* Sums over the columns of a weight, as matrix products in double: those that bounds and error propagation need. */
#ifndef M3_ORACLE_ERROR_PRIVATE_PRODUCTS_H
#define M3_ORACLE_ERROR_PRIVATE_PRODUCTS_H

#include <stdint.h>

#include "base/context.h"
#include "base/weight.h"

/* What is summed over the columns, for a row w of the weight and a row x of an operand. */
enum m3_sum_kind {
    M3_SUM_PRODUCTS,    /* w x */
    M3_SUM_MASS,        /* |w| |x|; for errors, which are not negative, what they cause at most */
    M3_SUM_SQUARES,     /* w^2 x^2 */
    M3_SUM_VARIANCE,    /* w^2 x */
};

enum { M3_MOST_SUMS = 5 };

struct m3_products {
    const struct m3_weight *w, *second; /* second: another weight of the same shape; NULL: none */
    struct m3_sum {
        enum m3_sum_kind kind;
        const double *x;                /* [T,cols] */
    } sums[M3_MOST_SUMS];
    int count;
    int walks;                          /* also what m3_piece_walked gives; sums[0] is then of products */
    const int64_t (*ranges)[2];         /* [range_count] columns [first, end) to sum over; NULL: all */
    int range_count;
};

/* Rows [t0, t0 + rows) of the operands with weight rows [n0, n0 + lanes). The sum of operand row t0 + t and weight row
 * n0 + l is number l stride + t of an array. */
struct m3_piece {
    int64_t t0, rows, n0, lanes, stride;
    const struct m3_products *of;
    double *sums;
};

/* Sum i of w (0) or `second` (1) over range r. */
const double *m3_piece_sum(const struct m3_piece *piece, int weight, int r, int i);
/* Beside sum 0: sum s_k^2 of its partial sums s_k, the mean over all orders within blocks of columns, without a part that
 * is a share of sum p_k^2; m3_walk2 adds it. */
const double *m3_piece_walked(const struct m3_piece *piece, int weight);

/* Receives all pieces, each once, on several threads. */
typedef void m3_at_piece(const void *self, const struct m3_piece *piece);
int m3_products(struct m3_ctx *ctx, const struct m3_products *products, int64_t T, m3_at_piece *visit,
                const void *self);

/* walk^2 of one output: the larger mean, over all orders within blocks of columns or over all orders; plus roundings of
 * the weights and of the bias, after which the result is y. */
struct m3_walk {
    int64_t cols;
    int weight_roundings, has_bias;
};
double m3_walk2(const struct m3_walk *how, double sum, double walked, double squares, double y);

#endif
