#include <math.h>

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
