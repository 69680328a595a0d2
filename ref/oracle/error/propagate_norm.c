#include <math.h>

#include "oracle/error/propagate.h"

/* One row. With r = 1 / sqrt(mean x^2 + eps):
 *
 *     dy_i/dx_j = g_i r (1[i = j] - x_i x_j r^2 / H)
 *
 * so x_i is left with 1 - x_i^2 r^2 / H of its slope, never less than 0, and the others count |x_i| |x_j| r^2 / H. */
static void rms_norm_row(struct m3_spread *out, int64_t at, const double *x, const struct m3_spread *of_x,
                         const double *w, int64_t H, double eps, int offset)
{
    const double *e = of_x->error + at, *v = of_x->variance + at;
    double squares = 0, errors = 0, variances = 0;
    for (int64_t i = 0; i < H; i++) {
        squares += x[i] * x[i];
        errors += fabs(x[i]) * e[i];
        variances += x[i] * x[i] * v[i];
    }
    double r = 1 / sqrt(squares / (double)H + eps), share = r * r / (double)H;

    for (int64_t i = 0; i < H; i++) {
        double size = fabs(x[i]), own = 1 - size * size * share, g = fabs(offset + w[i]) * r, far = size * share;
        double other_errors = errors - size * e[i], other_variances = variances - size * size * v[i];
        if (other_errors < 0) other_errors = 0;                     /* rounding */
        if (other_variances < 0) other_variances = 0;
        out->error[at + i] += g * (fabs(own) * e[i] + far * other_errors);
        out->variance[at + i] += g * g * (own * own * v[i] + far * far * other_variances);
    }
}

int m3_propagate_rms_norm(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                     const double *w, int64_t T, int64_t H, double eps, int offset)
{
    if (m3_is_exact(of_x)) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, T * H))
    for (int64_t t = 0; t < T; t++) rms_norm_row(out, t * H, x + t * H, of_x, w, H, eps, offset);
    return M3_OK;
}

/* One row. With d = x - mean, r = 1 / sqrt(var + eps):
 *
 *     dy_i/dx_j = g_i r (1[i = j] - (1 + d_i d_j r^2) / H)
 *
 * The absolute values do not come apart into a factor of i and one of j; the squares do. */
static void layer_norm_row(struct m3_spread *out, int64_t at, const double *x, const struct m3_spread *of_x,
                           const double *w, int64_t H, double eps)
{
    const double *e = of_x->error + at, *v = of_x->variance + at;
    double n = (double)H, sum = 0, squares = 0, errors = 0, v0 = 0, v1 = 0, v2 = 0;
    for (int64_t i = 0; i < H; i++) sum += x[i];
    double mean = sum / n;
    for (int64_t i = 0; i < H; i++) {
        double d = x[i] - mean;
        squares += d * d;
        errors += e[i];
        v0 += v[i];
        v1 += d * v[i];
        v2 += d * d * v[i];
    }
    if (errors == 0 && v0 == 0) return;
    double r = 1 / sqrt(squares / n + eps);

    for (int64_t i = 0; i < H; i++) {
        double d = x[i] - mean, a = d * r * r, self = (1 + a * d) / n, own = 1 - self, g = w[i] * r, far = 0;
#pragma omp simd reduction(+ : far)
        for (int64_t j = 0; j < H; j++) far += fabs(1 + a * (x[j] - mean)) * e[j];
        double all = (v0 + 2 * a * v1 + a * a * v2) / (n * n);
        out->error[at + i] += fabs(g) * (far / n + (fabs(own) - fabs(self)) * e[i]);
        out->variance[at + i] += g * g * (all + (1 - 2 * self) * v[i]);     /* own^2 - self^2 */
    }
}

int m3_propagate_layer_norm(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                       const double *w, int64_t T, int64_t H, double eps)
{
    if (m3_is_exact(of_x)) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, T * H * H))
    for (int64_t t = 0; t < T; t++) layer_norm_row(out, t * H, x + t * H, of_x, w, H, eps);
    return M3_OK;
}
