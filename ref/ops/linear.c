#include <cblas.h>
#include <limits.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/hot.h"
#include "ops/operators.h"

enum {
    BLAS_PANEL = 256,       /* weight rows that one thread expands and multiplies at a time */
    TALL = 1024,            /* rows of x from which a wider panel pays: the library copies x for each */
    TALL_PANEL = 1280,
    TALL_BYTES = 32 << 20,  /* of a panel: longer rows, fewer of them */
    TALL_ROWS = 512,        /* then x is cut too, into pieces of no fewer rows, */
    TALL_TASKS = 8,         /* where panels alone are fewer pieces of work than this */
    DOT_PANEL = 4,
    DOT_MAX_T = 32,         /* below it, sgemm is slower than dot products */
    ORDERED_PANEL = 64,
    ORDERED_DEPTH = 256,    /* k at a time: the transposed panel stays in the nearest cache */
    TRANSPOSE_ROWS = 16,
};

static void add_bias(real *y, const real *bias, int64_t T, int64_t ldy, int64_t n)
{
    for (int64_t t = 0; t < T && bias; t++)
        for (int64_t i = 0; i < n; i++) y[t * ldy + i] = y[t * ldy + i] + bias[i];
}

/* y [T,n] (row stride ldy) := x [T,inputs] w' [n,inputs] + bias, by the library, on this thread alone. The library adds
 * to what it finds: a pass over y less. */
static void library_product(real *y, int64_t ldy, const real *x, const real *w, const real *bias, int64_t T, int64_t n,
                            int64_t inputs)
{
    for (int64_t t = 0; t < T && bias; t++) memcpy(y + t * ldy, bias, (size_t)n * sizeof *y);
    if (sizeof(real) == sizeof(double))
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)n, (int)inputs, 1,
                    (const double *)(const void *)x, (int)inputs, (const double *)(const void *)w, (int)inputs,
                    bias ? 1 : 0, (double *)(void *)y, (int)ldy);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)n, (int)inputs, 1,
                    (const float *)(const void *)x, (int)inputs, (const float *)(const void *)w, (int)inputs,
                    bias ? 1 : 0, (float *)(void *)y, (int)ldy);
}

/* The stored matrix itself, where it is of real and aligned; else NULL. */
static const real *as_stored(const struct m3_weight *w)
{
    enum m3_dtype same = sizeof(real) == sizeof(double) ? M3_F64 : M3_F32;
    return w->dtype == same && (uintptr_t)w->data % sizeof(real) == 0 ? w->data : NULL;
}

static int64_t panel_of(int64_t T, int64_t inputs)
{
    if (T < DOT_MAX_T) return DOT_PANEL;
    if (T < TALL) return BLAS_PANEL;
    return m3_max(BLAS_PANEL, m3_min(TALL_PANEL, TALL_BYTES / (inputs * (int64_t)sizeof(real))));
}

/* The sum in an order that the library, or the vector width, chooses. No cut depends on the threads. */
static int blas(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    const struct m3_hot *hot = m3_hot();
    const real *stored = as_stored(w);
    int64_t outputs = w->rows, inputs = w->cols, panel = panel_of(T, inputs), panels = (outputs + panel - 1) / panel;
    int64_t cuts = T < TALL ? 1 : m3_min(T / TALL_ROWS, (TALL_TASKS + panels - 1) / panels);
    int64_t height = (T + cuts - 1) / cuts;
    int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), panels * cuts);
    if (T > INT_MAX || outputs > INT_MAX || inputs > INT_MAX)
        return m3_fail_at(ctx, M3_BAD_INPUT, "a dimension beyond what the BLAS library takes", -1, -1, -1);
    size_t mark = m3_scratch_mark(ctx);
    real *rows = m3_scratch_take(ctx, stored ? 1 : team * panel * inputs, sizeof *rows);
    if (!rows) return M3_INTERNAL;
    openblas_set_num_threads(1);        /* threads are ours: one piece of work each */

#pragma omp parallel num_threads(team)
    {
        real *mine = stored ? rows : rows + omp_get_thread_num() * panel * inputs;
        int64_t expanded = -1;              /* the panel that `mine` holds */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < panels * cuts; i++) {
            int64_t n0 = i / cuts * panel, n = m3_min(panel, outputs - n0);
            int64_t t0 = i % cuts * height, t = m3_min(height, T - t0);
            const real *panel_rows = stored ? stored + n0 * inputs : mine, *x_t = x + t0 * inputs;
            real *y_t = y + t0 * outputs + n0;
            if (!stored && expanded != n0)
                for (int64_t r = 0; r < n; r++) hot->expand(mine + r * inputs, w, n0 + r, 0, inputs);
            expanded = n0;
            const real *panel_bias = bias ? bias + n0 : NULL;
            if (T < DOT_MAX_T) {
                hot->dots(y_t, outputs, x_t, panel_rows, t, n, inputs);
                add_bias(y_t, panel_bias, t, outputs, n);
            } else {
                library_product(y_t, outputs, x_t, panel_rows, panel_bias, t, n, inputs);
            }
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* packed [k, ORDERED_PANEL] := rows [n0, n0 + n) of w, columns [k0, k0 + k), transposed; missing rows are 0. */
static void pack(const struct m3_hot *hot, real *packed, real *rows, const struct m3_weight *w, int64_t n0, int64_t n,
                 int64_t k0, int64_t k)
{
    for (int64_t i0 = 0; i0 < ORDERED_PANEL; i0 += TRANSPOSE_ROWS) {
        for (int64_t i = 0; i < TRANSPOSE_ROWS; i++) {
            if (i0 + i < n) hot->expand(rows + i * k, w, n0 + i0 + i, k0, k);
            else for (int64_t j = 0; j < k; j++) rows[i * k + j] = 0;
        }
        for (int64_t j = 0; j < k; j++)
            for (int64_t i = 0; i < TRANSPOSE_ROWS; i++) packed[j * ORDERED_PANEL + i0 + i] = rows[i * k + j];
    }
}

/* Ascending k, product and sum each rounded: the same bits on every machine. */
static int ordered(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    const struct m3_hot *hot = m3_hot();
    int64_t outputs = w->rows, inputs = w->cols, each = (ORDERED_PANEL + TRANSPOSE_ROWS) * ORDERED_DEPTH;
    int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), (outputs + ORDERED_PANEL - 1) / ORDERED_PANEL);
    size_t mark = m3_scratch_mark(ctx);
    real *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel num_threads(team)
    {
        real *packed = scratch + omp_get_thread_num() * each, *rows = packed + ORDERED_PANEL * ORDERED_DEPTH;
#pragma omp for schedule(dynamic)
        for (int64_t n0 = 0; n0 < outputs; n0 += ORDERED_PANEL) {
            int64_t n = m3_min(ORDERED_PANEL, outputs - n0);
            for (int64_t k0 = 0; k0 < inputs; k0 += ORDERED_DEPTH) {
                int64_t k = m3_min(ORDERED_DEPTH, inputs - k0);
                pack(hot, packed, rows, w, n0, n, k0, k);
                hot->gemm(y + n0, outputs, x + k0, inputs, 1, packed, ORDERED_PANEL, T, n, k, k0 > 0);
            }
            add_bias(y + n0, bias ? bias + n0 : NULL, T, outputs, n);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* A weight matrix on every row. SPEC 5.4
 *
 *     y[t,n] = sum over k of x[t,k] w[n,k] + bias[n]
 *
 * y [T,rows]; x [T,cols]; w [rows,cols] as stored; bias [rows] or NULL.  Two bodies behind one meaning; in
 * ordered the bias is added last. */
int m3_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    return ctx->linear == M3_LINEAR_ORDERED ? ordered(ctx, y, x, w, bias, T) : blas(ctx, y, x, w, bias, T);
}
