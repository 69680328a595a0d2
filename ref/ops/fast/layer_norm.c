#include <math.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/operators.h"

/* The same bits as ops/layer_norm.c, several rows at a time. */
enum { ROWS = M3_NORM_ROWS };

/* The mean of each of `rows` rows of x [rows,H] and 1 / sqrt(variance + eps). */
static void moments(const struct m3_kernels *kernels, double *mean, double *scale, const real *x, int64_t rows,
                    int64_t H, double eps)
{
    double sum[ROWS] = { 0 }, squares[ROWS] = { 0 };
    if (rows == ROWS) kernels->row_sums(sum, x, H);
    for (int64_t r = 0; r < rows && rows < ROWS; r++)
        for (int64_t i = 0; i < H; i++) sum[r] += (double)x[r * H + i];
    for (int64_t r = 0; r < rows; r++) mean[r] = sum[r] / (double)H;

    if (rows == ROWS) kernels->row_squares(squares, x, mean, H);
    for (int64_t r = 0; r < rows && rows < ROWS; r++)
        for (int64_t i = 0; i < H; i++) {
            double d = (double)x[r * H + i] - mean[r];
            squares[r] += d * d;
        }
    for (int64_t r = 0; r < rows; r++) scale[r] = 1 / sqrt(squares[r] / (double)H + eps);
}

int m3_fast_layer_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H,
                       real eps)
{
    const struct m3_kernels *kernels = m3_kernels();
#pragma omp parallel for num_threads(m3_team(ctx, T * H * 4))
    for (int64_t t0 = 0; t0 < T; t0 += ROWS) {
        const int64_t rows = m3_min(ROWS, T - t0);
        double mean[ROWS], scale[ROWS];
        moments(kernels, mean, scale, x + t0 * H, rows, H, (double)eps);
        for (int64_t at = t0 * H, r = 0; r < rows; r++, at += H)
            kernels->standardise(y + at, x + at, w, b, mean[r], scale[r], H);
    }
    return M3_OK;
}
