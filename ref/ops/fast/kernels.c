/* This file is compiled several times: M3_KERNELS names the table, M3_KERNELS_NAME the instruction set, and the
 * compiler's target sets the vector width. Vectors run across outputs, so the width does not change bits. */
#include "ops/fast/kernels.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/brief.h"
#include "ops/fast/certain.h"
#include "ops/fast/codes.h"
#include "ops/fast/gemm.h"

static void gemm(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k, const real *b, int64_t ldb, int64_t M,
                 int64_t N, int64_t K, int add)
{
    all_strips(c, ldc, a, a_m, a_k, b, ldb, M, N, K, add, NULL);
}

static void gemm_asking(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k, const real *b, int64_t ldb,
                        int64_t M, int64_t N, int64_t K, int add, const struct m3_ask *ask)
{
    const struct m3_ask mine = *ask;
    all_strips(c, ldc, a, a_m, a_k, b, ldb, M, N, K, add, &mine);
}

static void expand_bf16(real *out, const m3_bf16 *codes, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)codes[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        out[i] = value;
    }
}

static void expand_e4m3(real *out, const unsigned char *codes, real scale, int64_t n)
{
    int64_t i = 0;
    for (; i + 32 <= n && M3_HAS_E4M3_32; i += 32) m3_from_e4m3_32(out + i, codes + i, scale);
    for (; i + LANES <= n; i += LANES) *(vec *)(out + i) = m3_from_e4m3(codes + i) * scale;
    for (; i < n; i++) out[i] = m3_one_from_e4m3(codes[i]) * scale;
}

/* Codes of 4 bits: `unpacked` has one in each byte. */
static void expand_codes(real *out, const unsigned char *unpacked, enum m3_dtype dtype, double zero, double scale,
                         int64_t n)
{
    if (dtype == M3_F4_E2M1) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            uint32_t code = unpacked[i], bits;
            float value = m3_small_float((code & 7) << 22, 126);
            memcpy(&bits, &value, sizeof bits);
            bits |= (code & 8) << 28;
            memcpy(&value, &bits, sizeof value);
            out[i] = (real)((double)value * scale);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = (real)(((double)unpacked[i] - zero) * scale);
    }
}

/* Columns [col, col + n) of a row whose codes lie side by side, the earlier in the lower half of a byte. */
static void expand_packed(real *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n)
{
    enum { PIECE = 128 };
    unsigned char unpacked[PIECE];
    const int64_t stride = w->scaling == M3_SCALE_INT4 ? (w->cols + 7) / 8 * 4 : w->cols / 2;
    const unsigned char *bytes = (const unsigned char *)w->data + row * stride;
    for (int64_t i = 0; i < n;) {
        int64_t at = col + i, group = at / w->group, end = (group + 1) * w->group - at;
        int64_t count = m3_min(m3_min(end, n - i), PIECE);
        for (int64_t j = 0; j < count; j++) unpacked[j] = bytes[(at + j) / 2] >> 4 * ((at + j) & 1) & 15;
        double zero, scale = m3_weight_group(w, row, group, &zero);
        expand_codes(out + i, unpacked, w->dtype, zero, scale, count);
        i += count;
    }
}

static void expand(real *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n)
{
    if (m3_weight_is_packed(w) && w->scaling != M3_SCALE_INT4_PAIRS) {
        expand_packed(out, w, row, col, n);
        return;
    }
    const char *data = (const char *)w->data + (size_t)(row * w->cols + col) * m3_dtype_bytes(w->dtype);

    if (w->dtype == M3_BF16) {
        expand_bf16(out, (const m3_bf16 *)data, n);
    } else if (w->dtype == M3_F32 && sizeof(real) == sizeof(float)) {
        memcpy(out, data, (size_t)n * sizeof(float));
    } else if (w->dtype == M3_F8_E4M3 && w->scaling != M3_UNSCALED) {
        int64_t width = w->scaling == M3_SCALE_MX32 ? 32 : 128;
        for (int64_t i = 0; i < n;) {
            int64_t block = (col + i) / width, end = (block + 1) * width - col;
            if (end > n) end = n;
            expand_e4m3(out + i, (const unsigned char *)data + i, m3_block_scale(w, row, block), end - i);
            i = end;
        }
    } else if (sizeof(real) == sizeof(double)) {
        m3_expand_f64((double *)(void *)out, w, row, col, n);
    } else {
        m3_expand_f32((float *)(void *)out, w, row, col, n);
    }
}

/* Lanes and keys of a softmax at a time: constant, so that loops over them vectorise without a rest. */
enum { SOFTMAX_LANES = 16, SOFTMAX_KEYS = 16 };

/* The largest of every fourth key first: a comparison waits for the one before it. */
static inline __attribute__((always_inline)) void largest_lanes(real *max, const real *z, int64_t keys, int64_t lanes,
                                                                const int n)
{
    enum { APART = 4 };
    real most[APART][SOFTMAX_LANES];
    int64_t j = 0;
    for (int i = 0; i < APART; i++) memcpy(most[i], max, (size_t)n * sizeof *max);
    for (; j + APART <= keys; j += APART)
        for (int i = 0; i < APART; i++)
#pragma omp simd
            for (int l = 0; l < n; l++)
                most[i][l] = z[(j + i) * lanes + l] > most[i][l] ? z[(j + i) * lanes + l] : most[i][l];
    for (int i = 0; i < APART; i++)
        for (int l = 0; l < n; l++) max[l] = most[i][l] > max[l] ? most[i][l] : max[l];
    for (; j < keys; j++)
        for (int l = 0; l < n; l++) max[l] = z[j * lanes + l] > max[l] ? z[j * lanes + l] : max[l];
}

static void largest(real *max, const real *z, int64_t keys, int64_t lanes)
{
    int64_t l = 0;
    for (; l + SOFTMAX_LANES <= lanes; l += SOFTMAX_LANES) largest_lanes(max + l, z + l, keys, lanes, SOFTMAX_LANES);
    for (; l < lanes; l++) largest_lanes(max + l, z + l, keys, lanes, 1);
}

static inline __attribute__((always_inline)) void largest_or_nan_lanes(real *max, const real *z, int64_t keys,
                                                                       int64_t lanes, const int n)
{
    real most[SOFTMAX_LANES];
    memcpy(most, z, (size_t)n * sizeof *most);
    for (int64_t j = 1; j < keys; j++)
#pragma omp simd
        for (int l = 0; l < n; l++) {
            const real z_l = z[j * lanes + l];
            most[l] = ((z_l > most[l]) | (z_l != z_l)) ? z_l : most[l];
        }
    memcpy(max, most, (size_t)n * sizeof *max);
}

static void largest_or_nan(real *max, const real *z, int64_t keys, int64_t lanes)
{
    int64_t l = 0;
    for (; l + SOFTMAX_LANES <= lanes; l += SOFTMAX_LANES)
        largest_or_nan_lanes(max + l, z + l, keys, lanes, SOFTMAX_LANES);
    for (; l + 4 <= lanes; l += 4) largest_or_nan_lanes(max + l, z + l, keys, lanes, 4);
    for (; l < lanes; l++) largest_or_nan_lanes(max + l, z + l, keys, lanes, 1);
}

/* `rows` keys of `n` lanes each. */
static inline __attribute__((always_inline)) void weigh_keys(real *w, double *sum, const real *z, const real *max,
                                                             int64_t lanes, real scale, const int rows, const int n)
{
    double r[SOFTMAX_KEYS * SOFTMAX_LANES], r_err[SOFTMAX_KEYS * SOFTMAX_LANES], shifted[SOFTMAX_KEYS * SOFTMAX_LANES];
    for (int j = 0; j < rows; j++)
#pragma omp simd
        for (int l = 0; l < n; l++) {
            struct m3_exp_argument x = m3_weight_reduce(z[j * lanes + l] * scale - max[l]);
            r[j * n + l] = x.r;
            if (sizeof(real) == sizeof(double)) r_err[j * n + l] = x.r_err;
            shifted[j * n + l] = x.shifted;
        }
    for (int j = 0; j < rows; j++)
#pragma omp simd
        for (int l = 0; l < n; l++) {
            double err = sizeof(real) == sizeof(double) ? r_err[j * n + l] : 0;
            w[j * lanes + l] = m3_weight_from((struct m3_exp_argument){ r[j * n + l], err, shifted[j * n + l] });
        }
    for (int j = 0; j < rows; j++)
#pragma omp simd
        for (int l = 0; l < n; l++) sum[l] = sum[l] + (double)w[j * lanes + l];
}

static inline __attribute__((always_inline)) void weigh_lanes(real *w, double *sum, const real *z, const real *max,
                                                              int64_t keys, int64_t lanes, real scale, const int n)
{
    int64_t j = 0;
    for (; j + SOFTMAX_KEYS <= keys; j += SOFTMAX_KEYS)
        weigh_keys(w + j * lanes, sum, z + j * lanes, max, lanes, scale, SOFTMAX_KEYS, n);
    for (; j < keys; j++) weigh_keys(w + j * lanes, sum, z + j * lanes, max, lanes, scale, 1, n);
}

static void weigh(real *w, double *sum, const real *z, const real *max, int64_t keys, int64_t lanes, real scale)
{
    int64_t l = 0;
    for (; l + SOFTMAX_LANES <= lanes; l += SOFTMAX_LANES)
        weigh_lanes(w + l, sum + l, z + l, max + l, keys, lanes, scale, SOFTMAX_LANES);
    for (; l < lanes; l++) weigh_lanes(w + l, sum + l, z + l, max + l, keys, lanes, scale, 1);
}

static void weigh_back(real *p, real *ds, const real *lse, const real *delta, int64_t keys, int64_t lanes, real scale)
{
    for (int64_t j = 0; j < keys; j++, p += lanes, ds += lanes)
#pragma omp simd
        for (int64_t l = 0; l < lanes; l++) {
            p[l] = m3_weight_of(p[l] * scale - lse[l]);
            ds[l] = p[l] * (ds[l] - delta[l]) * scale;
        }
}

typedef double wide_quad __attribute__((vector_size(4 * sizeof(double))));

/* Column 0 of four rows, n apart. gcc takes six instructions for a conversion that is one. */
static inline __attribute__((always_inline)) void column(wide_quad *out, const real *x, int64_t n)
{
    const quad column = { x[0], x[n], x[2 * n], x[3 * n] };
#ifdef __AVX2__
    __m128 narrow;
    memcpy(&narrow, &column, sizeof narrow);
    *out =
        sizeof(real) == sizeof(float) ? (wide_quad)_mm256_cvtps_pd(narrow) : __builtin_convertvector(column, wide_quad);
#else
    *out = __builtin_convertvector(column, wide_quad);
#endif
}

static inline __attribute__((always_inline)) void add_column(wide_quad *sum, const real *x, int64_t n)
{
    wide_quad x_i;
    column(&x_i, x, n);
    *sum = *sum + x_i;
}

static inline __attribute__((always_inline)) void add_square(wide_quad *sum, const real *x, const wide_quad *mean,
                                                             int64_t n)
{
    wide_quad d;
    column(&d, x, n);
    d = d - *mean;
    *sum = *sum + d * d;
}

static void row_sums(double *sum, const real *x, int64_t n)
{
    wide_quad first = { 0 }, second = { 0 };
    for (int64_t i = 0; i < n; i++) {
        add_column(&first, x + i, n);
        add_column(&second, x + i + 4 * n, n);
    }
    memcpy(sum, &first, sizeof first);
    memcpy(sum + 4, &second, sizeof second);
}

/* Of short rows, which the processor does not expect to be followed by others, the next ones are asked for meanwhile. */
static void row_squares(double *sum, const real *x, const double *mean, int64_t n)
{
    wide_quad first = { 0 }, second = { 0 }, mean_1, mean_2;
    memcpy(&mean_1, mean, sizeof mean_1);
    memcpy(&mean_2, mean + 4, sizeof mean_2);
    const int64_t ahead = n <= 512 ? M3_NORM_ROWS : 0;
    for (int64_t i = 0; i < n; i++) {
        __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)(ahead * (n + i)) * sizeof *x), 0, 2);
        add_square(&first, x + i, &mean_1, n);
        add_square(&second, x + i + 4 * n, &mean_2, n);
    }
    memcpy(sum, &first, sizeof first);
    memcpy(sum + 4, &second, sizeof second);
}

static void scale_row(real *y, const real *x, const real *w, real scale, int64_t n, int is_offset)
{
    if (is_offset) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * (1 + w[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
    }
}

static void standardise(real *y, const real *x, const real *w, const real *b, double mean, double scale, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = (real)(((double)x[i] - mean) * scale) * w[i] + b[i];
}

/* Numbers of an activation at a time. */
enum { SIGMOIDS = 128 };

/* sig := 1 / (1 + exp(-x)) with a shorter exp; sig is not x. Returns 1 if each is certain to be the float that the full
 * exp gives; 0 if one may not be: about one number in 2^14, and where |x| >= 80, which includes all subnormal results,
 * or x is NaN. */
static int brief_sigmoids(float *sig, const float *x, int64_t n)
{
    double e[SIGMOIDS];
    int64_t near_middle = 0;
    int far = 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) e[i] = m3_exp_near(-(double)x[i]);
#pragma omp simd reduction(| : near_middle)
    for (int64_t i = 0; i < n; i++) {
        const double s = 1 / (1 + e[i]);
        near_middle |= m3_is_near_middle(s);
        sig[i] = (float)s;
    }
#pragma omp simd reduction(| : far)
    for (int64_t i = 0; i < n; i++) far |= !(fabsf(x[i]) < 80);
    return !near_middle && !far;
}

/* The same with the full exp: in double, rounded once. In two halves: brief.h says why. */
static void full_sigmoids(real *sig, const real *x, int64_t n)
{
    double r[SIGMOIDS], r_err[SIGMOIDS], shifted[SIGMOIDS];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        struct m3_exp_argument e = m3_exp_body_reduce(-(double)x[i]);
        r[i] = e.r;
        r_err[i] = e.r_err;
        shifted[i] = e.shifted;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sig[i] = (real)(1 / (1 + m3_exp_of((struct m3_exp_argument){ r[i], r_err[i], shifted[i] })));
}

static void sigmoids(real *sig, const real *x, int64_t n)
{
    const int is_float = sizeof(real) == sizeof(float);
    if (!is_float || !brief_sigmoids((float *)(void *)sig, (const float *)(const void *)x, n)) full_sigmoids(sig, x, n);
}

static void swiglu_oai(real *y, const real *gate, const real *up, int64_t n, real alpha, real limit, real lower)
{
    real g[SIGMOIDS], x[SIGMOIDS], sig[SIGMOIDS];
    for (int64_t i0 = 0; i0 < n; i0 += SIGMOIDS) {
        const int64_t count = m3_min(SIGMOIDS, n - i0);
        /* Written so that a NaN fails the comparison and stays. */
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            real low = gate[i0 + i] > limit ? limit : gate[i0 + i];
            g[i] = low < lower ? lower : low;
            x[i] = alpha * g[i];
        }
        sigmoids(sig, x, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            real u = up[i0 + i] > limit ? limit : up[i0 + i];
            u = u < -limit ? -limit : u;
            y[i0 + i] = (u + 1) * g[i] * sig[i];
        }
    }
}

static void swiglu(real *y, const real *gate, const real *up, int64_t n)
{
    real sig[SIGMOIDS];
    for (int64_t i0 = 0; i0 < n; i0 += SIGMOIDS) {
        const int64_t count = m3_min(SIGMOIDS, n - i0);
        sigmoids(sig, gate + i0, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) y[i0 + i] = up[i0 + i] * gate[i0 + i] * sig[i];
    }
}

/* gelu is max(x, 0) minus x times the tail at abs(x). The clamps make that product 0 at the infinities, not inf * 0. */
static void gelu_float(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float near = m3_select_float(x[i] > 15, 15, x[i]);
        near = m3_select_float(near < -15, -15, near);
        double part = (double)near * m3_tail_brief(near);
        y[i] = (float)m3_select(x[i] < 0, part, (double)x[i] - part);
    }
}

static void gelu_double(double *y, const double *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        double near = m3_select(x[i] > m3_tail_end, m3_tail_end, x[i]);
        near = m3_select(near < -m3_tail_end, -m3_tail_end, near);
        double part = near * m3_tail_body(near);
        y[i] = m3_select(x[i] < 0, part, x[i] - part);
    }
}

static void gelu(real *y, const real *x, int64_t n)
{
    if (sizeof(real) == sizeof(float)) gelu_float((float *)(void *)y, (const float *)(const void *)x, n);
    else gelu_double((double *)(void *)y, (const double *)(const void *)x, n);
}

extern const struct m3_fused M3_FUSED;
extern const struct m3_wide M3_WIDE;
extern const struct m3_kernels M3_KERNELS;
const struct m3_kernels M3_KERNELS = {
    .name = M3_KERNELS_NAME,
    .gemm = gemm,
    .gemm_asking = gemm_asking,
    .fused = &M3_FUSED,
    .wide = &M3_WIDE,
    .expand = expand,
    .largest = largest,
    .largest_or_nan = largest_or_nan,
    .weigh = weigh,
    .weigh_back = weigh_back,
    .row_sums = row_sums,
    .row_squares = row_squares,
    .scale_row = scale_row,
    .standardise = standardise,
    .swiglu_oai = swiglu_oai,
    .swiglu = swiglu,
    .gelu = gelu,
};
