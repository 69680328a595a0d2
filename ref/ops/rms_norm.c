#include <math.h>

#include "ops/backward.h"
#include "ops/operators.h"

/* 1 / sqrt(mean x^2 + eps). Squares are summed in double, ascending, because a row has thousands of them. */
static double exact_scale_of_row(const real *x, int64_t H, real eps)
{
    double sum = 0;
    for (int64_t i = 0; i < H; i++) sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum / (double)H + (double)eps);
}

static real scale_of_row(const real *x, int64_t H, real eps) { return (real)exact_scale_of_row(x, H, eps); }

/* Root-mean-square norm, Gemma form. SPEC 5.2
 *
 *     y[t,i] = x[t,i] / sqrt(mean over i of x[t,i]^2 + eps) * (1 + w[i])
 *
 * y [T,H] may be x; x [T,H]; w [H].  Per-head norms call it with T * heads rows of D. Often wrong: the stored weight
 * does not include the 1; eps belongs inside the root. */
int m3_rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) {
        const real *x_t = x + t * H;
        real *y_t = y + t * H, scale = scale_of_row(x_t, H, eps);

        for (int64_t i = 0; i < H; i++) y_t[i] = x_t[i] * scale * (1 + w[i]);
    }
    return M3_OK;
}

/* Root-mean-square norm, plain form. SPEC 5.3
 *
 *     y[t,i] = x[t,i] / sqrt(mean over i of x[t,i]^2 + eps) * w[i]
 *
 * Operands as above.  For configs that say use_gemma_norm false. */
int m3_rms_norm_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) {
        const real *x_t = x + t * H;
        real *y_t = y + t * H, scale = scale_of_row(x_t, H, eps);

        for (int64_t i = 0; i < H; i++) y_t[i] = x_t[i] * scale * w[i];
    }
    return M3_OK;
}

/* Both forms; one is 1 for the Gemma form, 0 for the plain one. */
static int norm_backward(struct m3_ctx *ctx, real *dx, real *dw, const real *dy, const real *x, const real *w,
                         int64_t T, int64_t H, real eps, double one)
{
    int team = m3_team(ctx, T * H);
    size_t mark = m3_scratch_mark(ctx);
    double *scale = m3_scratch_take(ctx, T, sizeof *scale);
    if (!scale) return M3_INTERNAL;

    /* 1. 1 / rms of each row, and the gradient of w while dy is there: dx may replace it. */
    for (int64_t t = 0; t < T; t++) scale[t] = exact_scale_of_row(x + t * H, H, eps);
#pragma omp parallel for num_threads(team)
    for (int64_t i = 0; i < (dw ? H : 0); i++) {
        double sum = 0;
        for (int64_t t = 0; t < T; t++) sum = sum + (double)dy[t * H + i] * ((double)x[t * H + i] * scale[t]);
        dw[i] = (real)((double)dw[i] + sum);
    }

    /* 2. The gradient of x. */
#pragma omp parallel for num_threads(team)
    for (int64_t t = 0; t < (dx ? T : 0); t++) {
        const real *x_t = x + t * H, *dy_t = dy + t * H;
        double along = 0;
        for (int64_t i = 0; i < H; i++)
            along = along + (double)dy_t[i] * (one + (double)w[i]) * ((double)x_t[i] * scale[t]);
        along = along / (double)H;
        for (int64_t i = 0; i < H; i++)
            dx[t * H + i] =
                (real)(scale[t] * ((double)dy_t[i] * (one + (double)w[i]) - (double)x_t[i] * scale[t] * along));
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* Gradient of the Gemma norm. TRAINING 19.3
 *
 *     r = 1 / sqrt(mean x^2 + eps),  n = x r,  g = dy (1 + w)
 *     dx[t,i] = r (g[i] - n[i] mean over j of g[j] n[j]),   dw[i] += sum over t of dy[t,i] n[t,i]
 *
 * dx [T,H] may be dy; dw, w [H]; dy, x [T,H].  In double, rounded once.
 * Often wrong: w for 1 + w; the second term of dx missing; eps missing in r. */
int m3_rms_norm_backward(struct m3_ctx *ctx, real *dx, real *dw, const real *dy, const real *x, const real *w,
                         int64_t T, int64_t H, real eps)
{
    return norm_backward(ctx, dx, dw, dy, x, w, T, H, eps, 1);
}

/* Gradient of the plain norm: as above with g = dy w. TRAINING 19.3 */
int m3_rms_norm_plain_backward(struct m3_ctx *ctx, real *dx, real *dw, const real *dy, const real *x, const real *w,
                               int64_t T, int64_t H, real eps)
{
    return norm_backward(ctx, dx, dw, dy, x, w, T, H, eps, 0);
}
