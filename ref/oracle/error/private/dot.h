/* Dot products of a few stored weight rows at a time, with the sums that bounds and error propagation need. */
#ifndef M3_ORACLE_ERROR_PRIVATE_DOT_H
#define M3_ORACLE_ERROR_PRIVATE_DOT_H

#include <stdint.h>

#include "base/context.h"
#include "base/weight.h"

enum { M3_DOT_LANES = 8 };      /* weight rows side by side */

/* For one row x [cols] with each lane, with products p_k and partial sums s_k in ascending order: */
struct m3_dots {
    double sum[M3_DOT_LANES];           /* sum p_k */
    double mass[M3_DOT_LANES];          /* sum |p_k| */
    double squares[M3_DOT_LANES];       /* sum p_k^2 */
    double walked[M3_DOT_LANES];        /* sum s_k^2 */
};

/* Weight rows [n0, n0 + lanes) transposed, [cols, M3_DOT_LANES]; missing lanes are 0. second: of the second matrix. */
struct m3_panel {
    int64_t n0, lanes;
    const double *values, *second;
};

/* Receives row t of the operand and a panel. Calls run in parallel, each (panel, t) once. */
typedef void (*m3_at_panel)(const void *self, int64_t t, const struct m3_panel *panel);

/* Visits all rows of w, and of `second` beside them (NULL: none; otherwise the same shape), with rows 0..T-1 of the
 * operand. */
int m3_dot_panels(struct m3_ctx *ctx, m3_at_panel visit, const void *self, const struct m3_weight *w,
                  const struct m3_weight *second, int64_t T);

void m3_dots(struct m3_dots *out, const double *x, const double *panel, int64_t cols);
/* For each lane w: error sum |w| e, variance sum w^2 v. e, v [cols]; results [M3_DOT_LANES]. */
void m3_dot_spread(double *error, double *variance, const double *e, const double *v, const double *panel,
                   int64_t cols);
/* walk^2 of lane l: the larger of this order's and the mean over all orders, plus roundings of the weights and the
 * bias. */
double m3_dot_walk2(const struct m3_dots *dots, int64_t l, int64_t cols, int weight_roundings, int has_bias, double y);

#endif
