#include <math.h>

#include "oracle/error/propagate.h"

/* y = x_a c + x_b s (s with its sign): what the inputs are off by, what the table is, and two products and a sum. */
static void channel(struct m3_spread *out, int64_t at, const struct m3_spread *of_x, int64_t at_a, int64_t at_b,
                    double a, double b, double c, double s, double u_turn, double u_product)
{
    double products = fabs(a * c) + fabs(b * s), y = a * c + b * s;
    double squares = a * c * a * c + b * s * b * s;
    if (!m3_is_exact(of_x)) {
        out->error[at] += fabs(c) * of_x->error[at_a] + fabs(s) * of_x->error[at_b];
        out->variance[at] += c * c * of_x->variance[at_a] + s * s * of_x->variance[at_b];
    }
    out->error[at] += u_turn * products + u_product * (products + fabs(y));
    out->variance[at] += (u_turn * u_turn * squares + u_product * u_product * (squares + y * y)) / 3;
}

int m3_propagate_rope(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                 const double *cos, const double *sin, int64_t T, int64_t heads, int64_t D, int64_t R, double u_turn,
                 double u_product)
{
    int64_t half = R / 2;
    if (m3_is_exact(of_x) && u_turn == 0 && u_product == 0) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D))
    for (int64_t row = 0; row < T * heads; row++) {
        int64_t first = row * D;
        for (int64_t i = 0; i < half; i++) {
            double c = cos[row / heads * half + i], s = sin[row / heads * half + i];
            double a = x[first + i], b = x[first + i + half];
            channel(out, first + i, of_x, first + i, first + i + half, a, b, c, -s, u_turn, u_product);
            channel(out, first + i + half, of_x, first + i + half, first + i, b, a, c, s, u_turn, u_product);
        }
        for (int64_t i = first + R; i < first + D && !m3_is_exact(of_x); i++) {
            out->error[i] += of_x->error[i];
            out->variance[i] += of_x->variance[i];
        }
    }
    return M3_OK;
}
