#include <limits.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/expand.h"
#include "ops/fast/blas.h"
#include "ops/fast/kernels.h"
#include "ops/fast/prefetch.h"
#include "ops/operators.h"

enum {
    LEAST_PANEL = 256,      /* weight rows that one thread expands and multiplies at a time: an eighth of all, */
    BLAS_PANEL = 1024,      /* from the least to this */
    BLAS_DEPTH = 2048,      /* and columns: the expanded panel stays in a near cache */
    TALL = 1024,            /* rows of x from which larger panels pay: the library copies x for each */
    TALL_PANEL = 1280,
    TALL_DEPTH = 6144,
    TALL_ROWS = 512,        /* then x is cut too, into pieces of no fewer rows, */
    TALL_TASKS = 8,         /* where panels alone are fewer pieces of work than this */
    DOT_PANEL = 24,
    FEW_CODES = 2,          /* rows of x for which codes of 8 bits are decoded again and again, in registers */
    MOST_PRODUCT = 255,     /* rows of x up to which our own product is faster than the library, which copies w */
    PRODUCT_PANEL = 96,     /* weight rows of a piece of work, */
    PRODUCT_STEP = 24,      /* expanded so many at a time */
    PRODUCT_DEPTH = 256,    /* and columns: the expanded ones stay in the nearest cache */
    PRODUCT_ROOM = PRODUCT_STEP * PRODUCT_DEPTH,
    ORDERED_PANEL = 64,
    ORDERED_DEPTH = 256,    /* k at a time: the transposed panel stays in the nearest cache, */
    ORDERED_ROWS = 192,     /* as do these columns of so many rows of x in a near one, */
    ORDERED_PIECE = 1536,   /* and the outputs of so many rows until they are whole */
    TRANSPOSE_ROWS = 16,
    PACKED = ORDERED_PANEL * ORDERED_DEPTH, /* numbers of the transposed panel, */
    UNPACKED = TRANSPOSE_ROWS * ORDERED_DEPTH,      /* and of the rows that are transposed at a time */
};

static void add_bias(real *y, const real *bias, int64_t T, int64_t ldy, int64_t n)
{
    for (int64_t t = 0; t < T && bias; t++)
        for (int64_t i = 0; i < n; i++) y[t * ldy + i] = y[t * ldy + i] + bias[i];
}

/* Rows [n0, n0 + n) of w, columns [k0, k0 + k), as `real`: a pointer into `stored`, or the copy expanded into
 * `mine`. */
static const real *panel_of(real *mine, const real *stored, const struct m3_weight *w, int64_t n0, int64_t n,
                            int64_t k0, int64_t k)
{
    if (stored) return stored + n0 * w->cols + k0;
    for (int64_t r = 0; r < n; r++) m3_kernels()->expand(mine + r * k, w, n0 + r, k0, k);
    return mine;
}

/* Up to M3_ALONE_ROWS rows: dot products at the speed of reading the weights, faster for so few rows than OpenBLAS. An
 * output depends only on its own row of x and of w. */
static int few_rows(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    const struct m3_kernels *kernels = m3_kernels();
    const real *stored = m3_as_stored(w);
    int64_t outputs = w->rows, inputs = w->cols, panel = m3_min(DOT_PANEL, outputs);
    int in_codes = w->dtype == M3_F8_E4M3 && w->scaling != M3_UNSCALED && T <= FEW_CODES;
    int expands = !stored && !in_codes && w->dtype != M3_BF16;
    int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), (outputs + panel - 1) / panel);
    size_t mark = m3_scratch_mark(ctx);
    real *expanded = m3_scratch_take(ctx, expands ? team * panel * inputs : 1, sizeof *expanded);
    if (!expanded) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n0 = 0; n0 < outputs; n0 += panel) {
        int64_t n = m3_min(panel, outputs - n0);
        if (in_codes) {
            kernels->fused->dots_e4m3(y + n0, outputs, x, w, n0, T, n);
        } else if (w->dtype == M3_BF16) {
            kernels->fused->dots_bf16(y + n0, outputs, x, (const char *)w->data + 2 * n0 * inputs, T, n, inputs);
        } else {
            real *mine = expands ? expanded + omp_get_thread_num() * panel * inputs : NULL;
            kernels->fused->dots(y + n0, outputs, x, panel_of(mine, stored, w, n0, n, 0, inputs), T, n, inputs);
        }
        add_bias(y + n0, bias ? bias + n0 : NULL, T, outputs, n);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* packed := x [T,K] (row stride inputs), transposed: strips [K,width], of which the last may be narrower, with rows of
 * 0 after row T. */
static void pack_rows(real *packed, const real *x, int64_t T, int64_t K, int64_t inputs, int64_t lanes)
{
    for (int64_t t0 = 0, width = m3_kernels()->fused->width; t0 < lanes; t0 += width) {
        int64_t n = m3_min(width, lanes - t0);
        for (int64_t t = t0; t < t0 + n; t++) {
            real *lane = packed + t0 * K + t - t0;
            for (int64_t k = 0; k < K; k++) lane[k * n] = t < T ? x[t * inputs + k] : 0;
        }
    }
}

/* Asks the memory for columns of the rows that are expanded after the current ones. */
static void ask(const struct m3_weight *w, int64_t row, int64_t k0, int64_t k)
{
    const int64_t bytes = (int64_t)m3_dtype_bytes(w->dtype);
    for (int64_t r = row; r < m3_min(row + PRODUCT_STEP, w->rows); r++)
        m3_prefetch_bytes((const char *)w->data + (r * w->cols + k0) * bytes, k * bytes);
}

/* sums [n,lanes] := rows n0 .. n0+n-1 of w times the packed rows of x. `a` has room for PRODUCT_STEP expanded rows. */
static void panel_product(real *sums, real *a, const real *packed, const struct m3_weight *w, int64_t n0, int64_t n,
                          int64_t lanes)
{
    const struct m3_kernels *kernels = m3_kernels();
    for (int64_t k0 = 0; k0 < w->cols; k0 += PRODUCT_DEPTH) {
        int64_t k = m3_min(PRODUCT_DEPTH, w->cols - k0);
        for (int64_t i = 0; i < n; i += PRODUCT_STEP) {
            int64_t rows = m3_min(PRODUCT_STEP, n - i);
            ask(w, n0 + i + PRODUCT_STEP, k0, k);
            for (int64_t r = 0; r < rows; r++) kernels->expand(a + r * k, w, n0 + i + r, k0, k);
            kernels->fused->product(sums + i * lanes, lanes, a, packed + k0 * lanes, rows, lanes, k, k0 > 0);
        }
    }
}

/* Some rows: lanes are rows of x, so that the weights need no transposition. */
static int some_rows(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    int64_t outputs = w->rows, inputs = w->cols, least = m3_kernels()->fused->lanes;
    int64_t lanes = (T + least - 1) / least * least, each = PRODUCT_ROOM + PRODUCT_PANEL * lanes;
    int team = m3_team(ctx, T * outputs * inputs);
    size_t mark = m3_scratch_mark(ctx);
    real *packed = m3_scratch_take(ctx, lanes * inputs, sizeof *packed);
    real *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!packed || !scratch) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }

#pragma omp parallel num_threads(team)
    {
        real *a = scratch + omp_get_thread_num() * each, *sums = a + PRODUCT_ROOM;
#pragma omp for
        for (int64_t k0 = 0; k0 < inputs; k0 += PRODUCT_DEPTH)
            pack_rows(packed + k0 * lanes, x + k0, T, m3_min(PRODUCT_DEPTH, inputs - k0), inputs, lanes);
#pragma omp for schedule(dynamic)
        for (int64_t n0 = 0; n0 < outputs; n0 += PRODUCT_PANEL) {
            int64_t n = m3_min(PRODUCT_PANEL, outputs - n0);
            panel_product(sums, a, packed, w, n0, n, lanes);
            for (int64_t t0 = 0; t0 < T; t0 += 8)
                for (int64_t i = 0; i < n; i++)
                    for (int64_t t = t0; t < m3_min(t0 + 8, T); t++) y[t * outputs + n0 + i] = sums[i * lanes + t];
            add_bias(y + n0, bias ? bias + n0 : NULL, T, outputs, n);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* Many rows: OpenBLAS on pieces of w and x. The pieces do not depend on the number of threads. */
static int library(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    const real *stored = m3_as_stored(w);
    int64_t outputs = w->rows, inputs = w->cols, tall = T >= TALL;
    int64_t panel = tall ? TALL_PANEL : m3_max(LEAST_PANEL, m3_min(BLAS_PANEL, outputs / 8));
    int64_t depth = m3_min(inputs, tall ? TALL_DEPTH : BLAS_DEPTH), panels = (outputs + panel - 1) / panel;
    int64_t cuts = tall ? m3_min(T / TALL_ROWS, (TALL_TASKS + panels - 1) / panels) : 1;
    int64_t height = (T + cuts - 1) / cuts;
    int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), panels * cuts);
    if (T > INT_MAX || outputs > INT_MAX || inputs > INT_MAX)
        return m3_fail_at(ctx, M3_BAD_INPUT, "a dimension beyond what the BLAS library takes", -1, -1, -1);
    size_t mark = m3_scratch_mark(ctx);
    real *expanded = m3_scratch_take(ctx, stored ? 1 : team * panel * depth, sizeof *expanded);
    if (!expanded) return M3_INTERNAL;
    openblas_set_num_threads(1);        /* threads are ours: one piece of work each */

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < panels * cuts; i++) {
        int64_t n0 = i / cuts * panel, n = m3_min(panel, outputs - n0);
        int64_t t0 = i % cuts * height, rows = m3_min(height, T - t0);
        real *mine = stored ? expanded : expanded + omp_get_thread_num() * panel * depth, *y_i = y + t0 * outputs + n0;
        for (int64_t t = 0; t < rows; t++)
            for (int64_t r = 0; r < n; r++) y_i[t * outputs + r] = bias ? bias[n0 + r] : 0;
        for (int64_t k0 = 0; k0 < inputs; k0 += depth) {
            int64_t k = m3_min(depth, inputs - k0);
            const real *w_i = panel_of(mine, stored, w, n0, n, k0, k);
            m3_blas_product(y_i, outputs, x + t0 * inputs + k0, inputs, M3_BLAS_PLAIN, w_i, stored ? inputs : k,
                            M3_BLAS_TURNED, rows, n, k, 1);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* packed [k, ORDERED_PANEL] := rows [n0, n0 + n) of w, columns [k0, k0 + k), transposed; missing rows are 0. */
static void pack(const struct m3_kernels *kernels, real *packed, real *rows, const struct m3_weight *w, int64_t n0,
                 int64_t n, int64_t k0, int64_t k)
{
    for (int64_t i0 = 0; i0 < ORDERED_PANEL; i0 += TRANSPOSE_ROWS) {
        for (int64_t i = 0; i < TRANSPOSE_ROWS; i++) {
            if (i0 + i < n) kernels->expand(rows + i * k, w, n0 + i0 + i, k0, k);
            else
                for (int64_t j = 0; j < k; j++) rows[i * k + j] = 0;
        }
        for (int64_t j = 0; j < k; j++)
            for (int64_t i = 0; i < TRANSPOSE_ROWS; i++) packed[j * ORDERED_PANEL + i0 + i] = rows[i * k + j];
    }
}

/* Rows [n0, n0 + n) of w with all rows of x. `packed` has room for PACKED numbers, `rows` for UNPACKED. */
static void ordered_panel(real *y, const real *x, real *packed, real *rows, const struct m3_weight *w, int64_t n0,
                          int64_t n, int64_t T)
{
    const struct m3_kernels *kernels = m3_kernels();
    for (int64_t piece = 0; piece < T; piece += ORDERED_PIECE)
        for (int64_t k0 = 0; k0 < w->cols; k0 += ORDERED_DEPTH) {
            const int64_t k = m3_min(ORDERED_DEPTH, w->cols - k0), end = m3_min(T, piece + ORDERED_PIECE);
            pack(kernels, packed, rows, w, n0, n, k0, k);
            for (int64_t t = piece; t < end; t += ORDERED_ROWS)
                kernels->gemm(y + t * w->rows + n0, w->rows, x + t * w->cols + k0, w->cols, 1, packed, ORDERED_PANEL,
                              m3_min(ORDERED_ROWS, end - t), n, k, k0 > 0);
        }
}

/* Ascending k, product and sum each rounded: the same bits on every machine. */
static int ordered(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    int64_t outputs = w->rows, inputs = w->cols, each = PACKED + UNPACKED;
    int team = (int)m3_min(m3_team(ctx, T * outputs * inputs), (outputs + ORDERED_PANEL - 1) / ORDERED_PANEL);
    size_t mark = m3_scratch_mark(ctx);
    real *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n0 = 0; n0 < outputs; n0 += ORDERED_PANEL) {
        real *packed = scratch + omp_get_thread_num() * each, *rows = packed + PACKED;
        int64_t n = m3_min(ORDERED_PANEL, outputs - n0);
        ordered_panel(y, x, packed, rows, w, n0, n, T);
        add_bias(y + n0, bias ? bias + n0 : NULL, T, outputs, n);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* `ordered` gives the bits of ops/linear.c; `blas` adds the same products in another order. */
int m3_fast_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    if (ctx->linear == M3_LINEAR_ORDERED) return ordered(ctx, y, x, w, bias, T);
    if (T <= M3_ALONE_ROWS) return few_rows(ctx, y, x, w, bias, T);
    return T <= MOST_PRODUCT ? some_rows(ctx, y, x, w, bias, T) : library(ctx, y, x, w, bias, T);
}
