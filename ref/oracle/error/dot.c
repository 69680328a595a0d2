#include "oracle/error/private/dot.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/bounds.h"

enum { LANES = M3_DOT_LANES };

/* out [cols, LANES]; row [cols] is scratch. */
static void expand(double *out, double *row, const struct m3_weight *w, int64_t n0, int64_t lanes)
{
    for (int64_t l = 0; l < LANES; l++) {
        if (l < lanes) m3_expand_f64(row, w, n0 + l, 0, w->cols);
        for (int64_t k = 0; k < w->cols; k++) out[k * LANES + l] = l < lanes ? row[k] : 0;
    }
}

int m3_dot_panels(struct m3_ctx *ctx, m3_at_panel visit, const void *self, const struct m3_weight *w,
                  const struct m3_weight *second, int64_t T)
{
    int64_t rows = w->rows, cols = w->cols, panels = (rows + LANES - 1) / LANES, each = cols * (2 * LANES + 1);
    int team = (int)m3_min(m3_team(ctx, T * rows * cols), panels);
    size_t mark = m3_scratch_mark(ctx);
    double *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < panels; i++) {
        double *values = scratch + omp_get_thread_num() * each, *beside = values + cols * LANES;
        struct m3_panel panel = { i * LANES, m3_min(LANES, rows - i * LANES), values, second ? beside : NULL };
        expand(values, beside + cols * LANES, w, panel.n0, panel.lanes);
        if (second) expand(beside, beside + cols * LANES, second, panel.n0, panel.lanes);
        for (int64_t t = 0; t < T; t++) visit(self, t, &panel);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* Lanes are never added to each other, so any vector width gives the same bits. */
static inline __attribute__((always_inline)) void dots(struct m3_dots *out, const double *x, const double *panel,
                                                       int64_t cols)
{
    struct m3_dots d = { { 0 }, { 0 }, { 0 }, { 0 } };
    for (int64_t k = 0; k < cols; k++) {
        const double *w_k = panel + k * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            double p = w_k[l] * x[k], s = d.sum[l] + p;
            d.sum[l] = s;
            d.mass[l] += fabs(p);
            d.squares[l] += p * p;
            d.walked[l] += s * s;
        }
    }
    *out = d;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void dots_avx2(struct m3_dots *out, const double *x, const double *panel,
                                                      int64_t cols)
{
    dots(out, x, panel, cols);
}

__attribute__((target("avx512f"))) static void dots_avx512(struct m3_dots *out, const double *x, const double *panel,
                                                           int64_t cols)
{
    dots(out, x, panel, cols);
}

void m3_dots(struct m3_dots *out, const double *x, const double *panel, int64_t cols)
{
    if (__builtin_cpu_supports("avx512f")) dots_avx512(out, x, panel, cols);
    else if (__builtin_cpu_supports("avx2")) dots_avx2(out, x, panel, cols);
    else dots(out, x, panel, cols);
}
#else
void m3_dots(struct m3_dots *out, const double *x, const double *panel, int64_t cols) { dots(out, x, panel, cols); }
#endif

void m3_dot_spread(double *error, double *variance, const double *e, const double *v, const double *panel, int64_t cols)
{
    double sum[LANES] = { 0 }, squares[LANES] = { 0 };
    for (int64_t k = 0; k < cols; k++) {
        const double *w_k = panel + k * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            sum[l] += fabs(w_k[l]) * e[k];
            squares[l] += w_k[l] * w_k[l] * v[k];
        }
    }
    memcpy(error, sum, sizeof sum);
    memcpy(variance, squares, sizeof squares);
}

double m3_dot_walk2(const struct m3_dots *dots, int64_t l, int64_t cols, int weight_roundings, int has_bias, double y)
{
    double n = (double)cols, squares = dots->squares[l], sum = dots->sum[l];
    double ascending = dots->walked[l] + squares, mean = (n / 6 + 1) * squares + (n / 3 + 1) * sum * sum;
    return fmax(ascending, mean) + weight_roundings * squares + (has_bias ? y * y : 0);
}

/* A double is rounded to a float, and so is a code times a scale of 24 bits, unless the scale is a power of 2. A code of
 * at most 5 bits times a scale of BF16, F16 or E4M3 is exact. */
int m3_bound_weight_roundings(const struct m3_weight *w, double u)
{
    if (u <= 0x1p-53) return 0;
    if (w->dtype == M3_F64) return 1;
    if (w->scaling == M3_SCALE_NVFP4) return !m3_is_power_of_two(w->global);
    if (m3_weight_is_packed(w)) return w->scale_dtype == M3_F32 || w->scale_dtype == M3_F64;
    if (w->scaling != M3_SCALE_128X128) return 0;
    int64_t scales = (w->rows + 127) / 128 * ((w->cols + 127) / 128);
    for (int64_t i = 0; i < scales; i++)
        if (!m3_is_power_of_two(m3_decode(M3_F32, w->scales, i))) return 1;
    return 0;
}
