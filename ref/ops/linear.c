#include <omp.h>

#include "base/minmax.h"
#include "ops/backward.h"
#include "ops/expand.h"
#include "ops/operators.h"

/* A weight matrix applied to every row. SPEC 5.4
 *
 *     y[t,n] = sum over k of x[t,k] w[n,k] + bias[n]
 *
 * y [T,rows]; x [T,cols]; w [rows,cols] as stored; bias [rows] or NULL.
 * Order: `ordered`, whatever order the context asks for: k ascending, product and sum each rounded, the bias last.
 * Often wrong: x w instead of x w': files store [out,in]. */
int m3_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    int team = m3_team(ctx, T * w->rows * w->cols);
    size_t mark = m3_scratch_mark(ctx);
    real *rows = m3_scratch_take(ctx, team * w->cols, sizeof *rows);
    if (!rows) return M3_INTERNAL;

#pragma omp parallel for num_threads(team)
    for (int64_t n = 0; n < w->rows; n++) {
        real *w_n = rows + omp_get_thread_num() * w->cols;
        m3_expand_row(w_n, w, n);

        for (int64_t t = 0; t < T; t++) {
            const real *x_t = x + t * w->cols;
            real sum = 0;
            for (int64_t k = 0; k < w->cols; k++) sum = sum + w_n[k] * x_t[k];
            y[t * w->rows + n] = bias ? sum + bias[n] : sum;
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

enum { ROWS = 16 };     /* rows of dx for which a weight row is expanded once */

/* dx [T,cols] := dy [T,rows] w. */
static int backward_input(struct m3_ctx *ctx, real *dx, const real *dy, const struct m3_weight *w, int64_t T)
{
    int64_t outputs = w->rows, inputs = w->cols;
    int team = m3_team(ctx, T * outputs * inputs);
    size_t mark = m3_scratch_mark(ctx);
    real *expanded = m3_scratch_take(ctx, team * inputs, sizeof *expanded);
    double *sums = m3_scratch_take(ctx, team * inputs * ROWS, sizeof *sums);
    if (!expanded || !sums) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }

#pragma omp parallel for num_threads(team)
    for (int64_t t0 = 0; t0 < T; t0 += ROWS) {
        int64_t rows = m3_min(ROWS, T - t0);
        real *w_n = expanded + omp_get_thread_num() * inputs;
        double *sum = sums + omp_get_thread_num() * inputs * ROWS;
        for (int64_t i = 0; i < rows * inputs; i++) sum[i] = 0;

        for (int64_t n = 0; n < outputs; n++) {
            m3_expand_row(w_n, w, n);
            for (int64_t t = 0; t < rows; t++) {
                double dy_tn = (double)dy[(t0 + t) * outputs + n];
                for (int64_t k = 0; k < inputs; k++) sum[t * inputs + k] = sum[t * inputs + k] + dy_tn * (double)w_n[k];
            }
        }
        for (int64_t i = 0; i < rows * inputs; i++) dx[t0 * inputs + i] = (real)sum[i];
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* dw [rows,cols] += dy' x. */
static int backward_weight(struct m3_ctx *ctx, real *dw, const real *dy, const real *x, int64_t T, int64_t outputs,
                           int64_t inputs)
{
    int team = m3_team(ctx, T * outputs * inputs);
    size_t mark = m3_scratch_mark(ctx);
    double *sums = m3_scratch_take(ctx, team * inputs, sizeof *sums);
    if (!sums) return M3_INTERNAL;

#pragma omp parallel for num_threads(team)
    for (int64_t n = 0; n < outputs; n++) {
        double *sum = sums + omp_get_thread_num() * inputs;
        real *dw_n = dw + n * inputs;
        for (int64_t k = 0; k < inputs; k++) sum[k] = 0;
        for (int64_t t = 0; t < T; t++) {
            double dy_tn = (double)dy[t * outputs + n];
            for (int64_t k = 0; k < inputs; k++) sum[k] = sum[k] + dy_tn * (double)x[t * inputs + k];
        }
        for (int64_t k = 0; k < inputs; k++) dw_n[k] = (real)((double)dw_n[k] + sum[k]);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* Gradients of a matrix product. TRAINING 19.4
 *
 *     dx[t,k] = sum over n of dy[t,n] w[n,k],   dw[n,k] += sum over t of dy[t,n] x[t,k],   dbias[n] += sum of dy[t,n]
 *
 * dx [T,cols]; dw [rows,cols]; dbias [rows]; dy [T,rows]; x [T,cols]; w [rows,cols] as stored.
 * Order: n and t ascending, in double, rounded once.  Often wrong: dw stored instead of added; w' for w. */
int m3_linear_backward(struct m3_ctx *ctx, real *dx, real *dw, real *dbias, const real *dy, const real *x,
                       const struct m3_weight *w, int64_t T)
{
    int64_t outputs = w->rows;
    int status = dx ? backward_input(ctx, dx, dy, w, T) : M3_OK;
    if (!status && dw) status = backward_weight(ctx, dw, dy, x, T, outputs, w->cols);

    for (int64_t n = 0; !status && dbias && n < outputs; n++) {
        double sum = 0;
        for (int64_t t = 0; t < T; t++) sum = sum + (double)dy[t * outputs + n];
        dbias[n] = (real)((double)dbias[n] + sum);
    }
    return status;
}
