#include <math.h>

#include "ops/operators.h"

/* The same bits as ops/rms_norm.c, several rows at a time: the additions of a single sum wait for each other. Short
 * rows overlap by themselves. */
enum { ROWS = 8, SHORT = 512 };

/* scale := 1 / sqrt(mean x^2 + eps) of each of `rows` rows of x [rows,H]. It is inlined with a constant `rows`. */
static inline __attribute__((always_inline)) void scales(real *scale, const real *x, const int rows, int64_t H,
                                                         real eps)
{
    double sum[ROWS] = { 0 };
    for (int64_t i = 0; i < H; i++)
        for (int r = 0; r < rows; r++) sum[r] += (double)x[r * H + i] * (double)x[r * H + i];
    for (int r = 0; r < rows; r++) scale[r] = (real)(1 / sqrt(sum[r] / (double)H + (double)eps));
}

static int norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps,
                int is_offset)
{
#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t0 = 0; t0 < T; t0 += ROWS) {
        real scale[ROWS];
        int rows = T - t0 < ROWS ? (int)(T - t0) : ROWS;
        int together = rows == ROWS && H > SHORT;
        if (together) scales(scale, x + t0 * H, ROWS, H, eps);
        for (int r = 0; r < rows && !together; r++) scales(scale + r, x + (t0 + r) * H, 1, H, eps);

        for (int r = 0; r < rows; r++) {
            const real *x_t = x + (t0 + r) * H;
            real *y_t = y + (t0 + r) * H;
            if (is_offset) {
#pragma omp simd
                for (int64_t i = 0; i < H; i++) y_t[i] = x_t[i] * scale[r] * (1 + w[i]);
            } else {
#pragma omp simd
                for (int64_t i = 0; i < H; i++) y_t[i] = x_t[i] * scale[r] * w[i];
            }
        }
    }
    return M3_OK;
}

int m3_fast_rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return norm(ctx, y, x, w, T, H, eps, 1);
}

int m3_fast_rms_norm_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return norm(ctx, y, x, w, T, H, eps, 0);
}
