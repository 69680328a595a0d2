#include <limits.h>
#include <omp.h>

#include "base/minmax.h"
#include "ops/backward.h"
#include "ops/expand.h"
#include "ops/fast/blas.h"
#include "ops/fast/kernels.h"

enum {
    DX_PANEL = 768,         /* columns of w that one thread expands and multiplies at a time, */
    DX_DEPTH = 1024,        /* and rows */
    DW_PANEL = 512,         /* rows of dw of a piece of work */
    WIDE_PANEL = 128,       /* columns of a piece of work in double, */
    WIDE_DEPTH = 128,       /* terms of its sums at a time, */
    WIDE_ROWS = 48,         /* and rows: the operands stay in a near cache */
    WIDE_SUM = WIDE_ROWS * WIDE_PANEL,      /* numbers of the sums, and of the operands */
    WIDE_A = WIDE_ROWS * WIDE_DEPTH,
    WIDE_B = WIDE_DEPTH * WIDE_PANEL,
    BIAS_PANEL = 512,
};

/* ---- blas */

/* dx: panels of columns, which do not depend on the number of threads. */
static int blas_input(struct m3_ctx *ctx, real *dx, const real *dy, const struct m3_weight *w, int64_t T)
{
    const real *stored = m3_as_stored(w);
    const int64_t outputs = w->rows, inputs = w->cols, panels = (inputs + DX_PANEL - 1) / DX_PANEL;
    const int64_t panel = m3_min(inputs, DX_PANEL), depth = m3_min(outputs, DX_DEPTH);
    const int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), panels);
    size_t mark = m3_scratch_mark(ctx);
    real *expanded = m3_scratch_take(ctx, stored ? 1 : team * panel * depth, sizeof *expanded);
    if (!expanded) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < panels; i++) {
        const int64_t k0 = i * DX_PANEL, k = m3_min(DX_PANEL, inputs - k0);
        real *mine = stored ? expanded : expanded + omp_get_thread_num() * panel * depth;
        for (int64_t n0 = 0; n0 < outputs; n0 += DX_DEPTH) {
            const int64_t n = m3_min(DX_DEPTH, outputs - n0);
            const real *w_i = stored ? stored + n0 * inputs + k0 : mine;
            for (int64_t r = 0; !stored && r < n; r++) m3_kernels()->expand(mine + r * k, w, n0 + r, k0, k);
            m3_blas_product(dx + k0, inputs, dy + n0, outputs, M3_BLAS_PLAIN, w_i, stored ? inputs : k, M3_BLAS_PLAIN,
                            T, k, n, n0 > 0);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

static void blas_weight(struct m3_ctx *ctx, real *dw, const real *dy, const real *x, int64_t T, int64_t outputs,
                        int64_t inputs)
{
    const int64_t panels = (outputs + DW_PANEL - 1) / DW_PANEL;

#pragma omp parallel for num_threads((int)m3_min(m3_team(ctx, T * outputs * inputs), panels)) schedule(dynamic)
    for (int64_t i = 0; i < panels; i++) {
        const int64_t n0 = i * DW_PANEL, n = m3_min(DW_PANEL, outputs - n0);
        m3_blas_product(dw + n0 * inputs, inputs, dy + n0, outputs, M3_BLAS_TURNED, x, inputs, M3_BLAS_PLAIN, n, inputs,
                        T, 1);
    }
}

/* ---- ordered: the bits of ops/linear.c */

/* wide [rows,cols] := x [rows,cols] (row stride ldx). */
static void widen(double *wide, const real *x, int64_t ldx, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) wide[r * cols + i] = (double)x[r * ldx + i];
}

/* Columns [k0, k0 + k) of dx. Scratch: sum [T,k], a [WIDE_ROWS,WIDE_DEPTH], b [WIDE_DEPTH,k], row [k]. */
struct wide {
    double *sum, *a, *b;
    real *row;
};

static void ordered_columns(const struct wide *m, real *dx, const real *dy, const struct m3_weight *w, int64_t T,
                            int64_t k0, int64_t k)
{
    const struct m3_kernels *kernels = m3_kernels();
    const int64_t outputs = w->rows, inputs = w->cols;
    for (int64_t n0 = 0; n0 < outputs; n0 += WIDE_DEPTH) {
        const int64_t n = m3_min(WIDE_DEPTH, outputs - n0);
        for (int64_t r = 0; r < n; r++) {
            kernels->expand(m->row, w, n0 + r, k0, k);
            widen(m->b + r * k, m->row, k, 1, k);
        }
        for (int64_t t0 = 0; t0 < T; t0 += WIDE_ROWS) {
            const int64_t rows = m3_min(WIDE_ROWS, T - t0);
            widen(m->a, dy + t0 * outputs + n0, outputs, rows, n);
            kernels->wide->gemm(m->sum + t0 * k, k, m->a, n, 1, m->b, k, rows, k, n, n0 > 0);
        }
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < k; i++) dx[t * inputs + k0 + i] = (real)m->sum[t * k + i];
}

static int ordered_input(struct m3_ctx *ctx, real *dx, const real *dy, const struct m3_weight *w, int64_t T)
{
    const int64_t inputs = w->cols, panels = (inputs + WIDE_PANEL - 1) / WIDE_PANEL;
    const int64_t each = T * WIDE_PANEL + WIDE_A + WIDE_B;
    const int team = (int)m3_min(m3_team(ctx, T * w->rows * inputs), panels);
    size_t mark = m3_scratch_mark(ctx);
    double *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    real *rows = m3_scratch_take(ctx, (int64_t)team * WIDE_PANEL, sizeof *rows);
    if (!scratch || !rows) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < panels; i++) {
        const int64_t me = omp_get_thread_num(), k0 = i * WIDE_PANEL;
        double *mine = scratch + me * each;
        const struct wide m = { mine, mine + T * WIDE_PANEL, mine + T * WIDE_PANEL + WIDE_A, rows + me * WIDE_PANEL };
        ordered_columns(&m, dx, dy, w, T, k0, m3_min(WIDE_PANEL, inputs - k0));
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* Rows [n0, n0 + n) and columns [k0, k0 + k) of dw, whose row stride is `inputs`. */
static void ordered_piece(const struct wide *m, real *dw, const real *dy, const real *x, int64_t T, int64_t outputs,
                          int64_t inputs, int64_t n, int64_t k)
{
    for (int64_t t0 = 0; t0 < T; t0 += WIDE_DEPTH) {
        const int64_t rows = m3_min(WIDE_DEPTH, T - t0);
        widen(m->a, dy + t0 * outputs, outputs, rows, n);
        widen(m->b, x + t0 * inputs, inputs, rows, k);
        m3_kernels()->wide->gemm(m->sum, k, m->a, 1, n, m->b, k, n, k, rows, t0 > 0);
    }
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < k; i++) dw[r * inputs + i] = (real)((double)dw[r * inputs + i] + m->sum[r * k + i]);
}

static int ordered_weight(struct m3_ctx *ctx, real *dw, const real *dy, const real *x, int64_t T, int64_t outputs,
                          int64_t inputs)
{
    const int64_t down = (outputs + WIDE_ROWS - 1) / WIDE_ROWS, across = (inputs + WIDE_PANEL - 1) / WIDE_PANEL;
    const int64_t each = WIDE_SUM + WIDE_A + WIDE_B;
    const int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), down * across);
    size_t mark = m3_scratch_mark(ctx);
    double *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < down * across; i++) {
        const int64_t n0 = i / across * WIDE_ROWS, k0 = i % across * WIDE_PANEL;
        double *mine = scratch + omp_get_thread_num() * each, *a = mine + WIDE_SUM;
        const struct wide m = { mine, a, a + WIDE_A, NULL };
        ordered_piece(&m, dw + n0 * inputs + k0, dy + n0, x + k0, T, outputs, inputs, m3_min(WIDE_ROWS, outputs - n0),
                      m3_min(WIDE_PANEL, inputs - k0));
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* ---- both */

static void bias_gradient(struct m3_ctx *ctx, real *dbias, const real *dy, int64_t T, int64_t outputs)
{
#pragma omp parallel for num_threads(m3_team(ctx, T *outputs))
    for (int64_t n0 = 0; n0 < outputs; n0 += BIAS_PANEL) {
        const int64_t n = m3_min(BIAS_PANEL, outputs - n0);
        double sum[BIAS_PANEL] = { 0 };
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + (double)dy[t * outputs + n0 + i];
        for (int64_t i = 0; i < n; i++) dbias[n0 + i] = (real)((double)dbias[n0 + i] + sum[i]);
    }
}

/* `ordered` gives the bits of ops/linear.c; `blas` adds the same products in `real`, in another order. */
int m3_fast_linear_backward(struct m3_ctx *ctx, real *dx, real *dw, real *dbias, const real *dy, const real *x,
                            const struct m3_weight *w, int64_t T)
{
    const int is_ordered = ctx->linear == M3_LINEAR_ORDERED;
    int status = M3_OK;
    if (!is_ordered && (T > INT_MAX || w->rows > INT_MAX || w->cols > INT_MAX))
        return m3_fail_at(ctx, M3_BAD_INPUT, "a dimension beyond what the BLAS library takes", -1, -1, -1);
    openblas_set_num_threads(1);        /* threads are ours: one piece of work each */
    if (dx) status = is_ordered ? ordered_input(ctx, dx, dy, w, T) : blas_input(ctx, dx, dy, w, T);
    if (!status && dw && is_ordered) status = ordered_weight(ctx, dw, dy, x, T, w->rows, w->cols);
    else if (!status && dw) blas_weight(ctx, dw, dy, x, T, w->rows, w->cols);
    if (!status && dbias) bias_gradient(ctx, dbias, dy, T, w->rows);
    return status;
}
