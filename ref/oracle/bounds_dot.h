/* Dot products of a few stored weight rows at a time, with what their bounds need. Inside the oracle. */
#ifndef M3_ORACLE_BOUNDS_DOT_H
#define M3_ORACLE_BOUNDS_DOT_H

#include <stdint.h>

#include "base/weight.h"

enum { M3_DOT_LANES = 8 };      /* weight rows side by side */

/* Of one row x [cols] with each lane; products p_k, partial sums s_k in ascending order. */
struct m3_dots {
    double sum[M3_DOT_LANES];           /* sum p_k */
    double mass[M3_DOT_LANES];          /* sum |p_k| */
    double squares[M3_DOT_LANES];       /* sum p_k^2 */
    double walked[M3_DOT_LANES];        /* sum s_k^2 */
};

/* out [cols, M3_DOT_LANES] := rows [n0, n0 + lanes) of w, transposed; missing lanes are 0. row [cols] is scratch. */
void m3_dot_panel(double *out, double *row, const struct m3_weight *w, int64_t n0, int64_t lanes);
void m3_dots(struct m3_dots *out, const double *x, const double *panel, int64_t cols);
/* walk^2 of lane l: the larger of that order and the mean over all orders; roundings of the weights; the bias. */
double m3_dot_walk2(const struct m3_dots *dots, int64_t l, int64_t cols, int weight_roundings, int has_bias, double y);

#endif
