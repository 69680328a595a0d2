#include <math.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/operators.h"

/* The same bits as ops/rms_norm.c, several rows at a time. */
enum { ROWS = M3_NORM_ROWS };

/* scale := 1 / sqrt(mean x^2 + eps) of each of `rows` rows of x [rows,H]. */
static void scales(const struct m3_kernels *kernels, real *scale, const real *x, int64_t rows, int64_t H, real eps)
{
    double sum[ROWS] = { 0 };
    if (rows == ROWS) kernels->row_squares(sum, x, (const double[ROWS]){ 0 }, H);
    for (int64_t r = 0; r < rows && rows < ROWS; r++)
        for (int64_t i = 0; i < H; i++) sum[r] += (double)x[r * H + i] * (double)x[r * H + i];
    for (int64_t r = 0; r < rows; r++) scale[r] = (real)(1 / sqrt(sum[r] / (double)H + (double)eps));
}

static int norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps,
                int is_offset)
{
    const struct m3_kernels *kernels = m3_kernels();
#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t0 = 0; t0 < T; t0 += ROWS) {
        const int64_t rows = m3_min(ROWS, T - t0);
        real scale[ROWS];
        scales(kernels, scale, x + t0 * H, rows, H, eps);
        for (int64_t at = t0 * H, r = 0; r < rows; r++, at += H)
            kernels->scale_row(y + at, x + at, w, scale[r], H, is_offset);
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
