#include <math.h>

#include "ops/operators.h"

/* 1 / sqrt(mean x^2 + eps). Squares are summed in double, ascending, because a row has thousands of them. */
static real scale_of_row(const real *x, int64_t H, real eps)
{
    double sum = 0;
    for (int64_t i = 0; i < H; i++) sum += (double)x[i] * (double)x[i];
    return (real)(1 / sqrt(sum / (double)H + (double)eps));
}

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
