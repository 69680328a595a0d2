#include <math.h>

#include "ops/backward.h"
#include "ops/operators.h"

/* Layer norm of the vision tower. SPEC 5.17
 *
 *     y[t,i] = (x[t,i] - mean) / sqrt(variance + eps) * w[i] + b[i]        mean and variance over i, biased
 *
 * y [T,H] may be x; x [T,H]; w, b [H].
 * Order: mean, then the squares of the differences, each summed in double, ascending.
 * Often wrong: the 1 + w of the text norms; the mean of the squares minus the square of the mean, which cancels. */
int m3_layer_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H,
                  real eps)
{
#pragma omp parallel for num_threads(m3_team(ctx, T * H * 4))
    for (int64_t t = 0; t < T; t++) {
        const real *x_t = x + t * H;
        real *y_t = y + t * H;

        double sum = 0, squares = 0;
        for (int64_t i = 0; i < H; i++) sum = sum + (double)x_t[i];
        double mean = sum / (double)H;
        for (int64_t i = 0; i < H; i++) squares = squares + ((double)x_t[i] - mean) * ((double)x_t[i] - mean);
        double scale = 1 / sqrt(squares / (double)H + (double)eps);

        for (int64_t i = 0; i < H; i++) y_t[i] = (real)(((double)x_t[i] - mean) * scale) * w[i] + b[i];
    }
    return M3_OK;
}

/* Mean and 1 / sqrt(variance + eps) of a row. */
struct moments {
    double mean, scale;
};

static struct moments moments_of(const real *x, int64_t H, real eps)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < H; i++) sum = sum + (double)x[i];
    double mean = sum / (double)H;
    for (int64_t i = 0; i < H; i++) squares = squares + ((double)x[i] - mean) * ((double)x[i] - mean);
    return (struct moments){ mean, 1 / sqrt(squares / (double)H + (double)eps) };
}

/* Gradient of the layer norm. TRAINING 19.12
 *
 *     n = (x - mean) r,  r = 1 / sqrt(variance + eps),  g = dy w
 *     dx = r (g - mean g - n mean(g n)),   dw += sum over t of dy n,   db += sum over t of dy
 *
 * dx [T,H] may be dy; dw, db, w [H]; dy, x [T,H].  In double, rounded once.  Often wrong: mean g missing. */
int m3_layer_norm_backward(struct m3_ctx *ctx, real *dx, real *dw, real *db, const real *dy, const real *x,
                           const real *w, int64_t T, int64_t H, real eps)
{
    int team = m3_team(ctx, T * H * 4);
    size_t mark = m3_scratch_mark(ctx);
    struct moments *of = m3_scratch_take(ctx, T, sizeof *of);
    if (!of) return M3_INTERNAL;

    for (int64_t t = 0; t < T; t++) of[t] = moments_of(x + t * H, H, eps);
#pragma omp parallel for num_threads(team)
    for (int64_t i = 0; i < (dw || db ? H : 0); i++) {
        double sum_w = 0, sum_b = 0;
        for (int64_t t = 0; t < T; t++) {
            double dy_ti = (double)dy[t * H + i];
            sum_w = sum_w + dy_ti * (((double)x[t * H + i] - of[t].mean) * of[t].scale);
            sum_b = sum_b + dy_ti;
        }
        if (dw) dw[i] = (real)((double)dw[i] + sum_w);
        if (db) db[i] = (real)((double)db[i] + sum_b);
    }

#pragma omp parallel for num_threads(team)
    for (int64_t t = 0; t < (dx ? T : 0); t++) {
        const real *x_t = x + t * H, *dy_t = dy + t * H;
        double mean_g = 0, mean_gn = 0;
        for (int64_t i = 0; i < H; i++) {
            double g = (double)dy_t[i] * (double)w[i];
            mean_g = mean_g + g;
            mean_gn = mean_gn + g * (((double)x_t[i] - of[t].mean) * of[t].scale);
        }
        mean_g = mean_g / (double)H;
        mean_gn = mean_gn / (double)H;
        for (int64_t i = 0; i < H; i++) {
            double n = ((double)x_t[i] - of[t].mean) * of[t].scale;
            dx[t * H + i] = (real)(of[t].scale * ((double)dy_t[i] * (double)w[i] - mean_g - n * mean_gn));
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
