#include <math.h>

#include "oracle/error/bounds.h"

/* RMSNorm. A root halves relative errors, hence half the sum's.
 *
 *     B = |y|,  steps = ceil(H/2) + 4 + c (+ 1),  walk^2 = (H/12 + f) y^2 */
int m3_bound_rms_norm(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const double *w, int64_t T, int64_t H,
                      double eps, int offset, const struct m3_arithmetic *how)
{
    out->n = (H + 1) / 2;
    out->f = 3 + how->c + offset;               /* mean and eps, halved; root; 1 + w; two products */
    double walk = sqrt((double)H / 12 + (double)out->f);

#pragma omp parallel for num_threads(m3_team(ctx, T * H))
    for (int64_t t = 0; t < T; t++) {
        const double *x_t = x + t * H;
        double sum = 0;
        for (int64_t i = 0; i < H; i++) sum += x_t[i] * x_t[i];
        double scale = 1 / sqrt(sum / (double)H + eps);

        for (int64_t i = 0; i < H; i++) {
            double y = fabs(x_t[i] * scale * (offset + w[i]));
            out->bound[t * H + i] = y;
            if (out->walk) out->walk[t * H + i] = walk * y;
        }
    }
    return M3_OK;
}

/* One row. With mean m, r = 1 / sqrt(var + eps), d = |x - m|, x1 = mean |x|, a = |w| r:
 *
 *     B = a (x1 + d) + |b| + u (H r x1)^2 a d / (2 (H + 8)),  steps = H + 4 + c
 *     walk^2 = a^2 (mean x^2 / 6 + (H/3 + 1) m^2) + (H/12 + 8) (a d)^2 + y^2
 *
 * The last term of B is the variance's error that comes from the mean's. It assumes two passes. */
static void layer_norm_row(const struct m3_bound *out, int64_t at, const double *x, const double *w, const double *b,
                           int64_t H, double eps, double u)
{
    double n = (double)H, sum = 0, mass = 0, squares = 0, var = 0;
    for (int64_t i = 0; i < H; i++) {
        sum += x[i];
        mass += fabs(x[i]);
        squares += x[i] * x[i];
    }
    double mean = sum / n, x1 = mass / n;
    for (int64_t i = 0; i < H; i++) var += (x[i] - mean) * (x[i] - mean);
    double r = 1 / sqrt(var / n + eps), of_mean = n * r * x1;
    double of_sum = squares / n / 6 + (n / 3 + 1) * mean * mean;

    for (int64_t i = 0; i < H; i++) {
        double a = fabs(w[i]) * r, d = fabs(x[i] - mean), y = w[i] * r * (x[i] - mean) + b[i];
        double of_variance = u * of_mean * of_mean * a * d / 2;
        out->bound[at + i] = a * (x1 + d) + fabs(b[i]) + of_variance / (double)(out->n + out->f);
        if (out->walk)
            out->walk[at + i] = sqrt(a * a * of_sum + (n / 12 + (double)out->f) * (a * d) * (a * d) + y * y);
    }
}

int m3_bound_layer_norm(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const double *w, const double *b,
                        int64_t T, int64_t H, double eps, const struct m3_arithmetic *how)
{
    out->n = H;
    out->f = 4 + how->c;
#pragma omp parallel for num_threads(m3_team(ctx, T * H * 4))
    for (int64_t t = 0; t < T; t++) layer_norm_row(out, t * H, x + t * H, w, b, H, eps, how->u);
    return M3_OK;
}
