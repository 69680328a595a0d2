/* This file is compiled several times, as kernels.c: M3_FUSED names the table. Its sums have no promised order, as those
 * of BLAS; s + x w is rounded once where the processor can do that. */
#include "ops/fast/codes.h"
#include "ops/fast/kernels.h"

#if defined(__AVX512F__)
enum { PRODUCT_ROWS = 8, DOT_TOKENS = 8, DOT_ROWS = 3, UNROLL = 1 };
#elif defined(__AVX2__)
enum { PRODUCT_ROWS = 6, DOT_TOKENS = 4, DOT_ROWS = 3, UNROLL = 1 };
#else
enum { PRODUCT_ROWS = 4, DOT_TOKENS = 2, DOT_ROWS = 4, UNROLL = 1 };
#endif
#include "ops/fast/vectors.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

static inline __attribute__((always_inline)) vec accumulate(vec s, vec x, vec w)
{
#if defined(__AVX512F__)
    if (sizeof(real) == sizeof(float)) return (vec)_mm512_fmadd_ps((__m512)x, (__m512)w, (__m512)s);
    return (vec)_mm512_fmadd_pd((__m512d)x, (__m512d)w, (__m512d)s);
#elif defined(__AVX2__)
    if (sizeof(real) == sizeof(float)) return (vec)_mm256_fmadd_ps((__m256)x, (__m256)w, (__m256)s);
    return (vec)_mm256_fmadd_pd((__m256d)x, (__m256d)w, (__m256d)s);
#else
    return s + x * w;
#endif
}

#include "ops/fast/tile.h"

enum { PRODUCT_VECS = 2, WIDTH = PRODUCT_VECS * LANES };
enum { NARROW_ROWS = 8 }; /* of a tile of one vector */
enum { NEAR_COLUMNS = 768 }; /* columns of x that stay in the nearest cache */

/* `vecs` vectors of all rows of c. */
static inline __attribute__((always_inline)) void strip(real *c, int64_t ldc, const real *a, const real *b, int64_t M,
                                                        int64_t K, int add, const int rows, const int vecs)
{
    const int64_t width = (int64_t)vecs * LANES;
    int64_t m = 0;
    for (; m + rows <= M; m += rows) tile(c + m * ldc, ldc, a + m * K, K, 1, b, width, K, add, rows, vecs, NULL, 0);
    for (; m < M; m++) tile(c + m * ldc, ldc, a + m * K, K, 1, b, width, K, add, 1, vecs, NULL, 0);
}

static void product(real *c, int64_t ldc, const real *a, const real *b, int64_t M, int64_t N, int64_t K, int add)
{
    int64_t n = 0;
    for (; n + WIDTH <= N; n += WIDTH) strip(c + n, ldc, a, b + n * K, M, K, add, PRODUCT_ROWS, PRODUCT_VECS);
    if (n < N) strip(c + n, ldc, a, b + n * K, M, K, add, NARROW_ROWS, 1);
}

/* How the weights of a dot product are stored. */
enum form { NUMBERS, BF16, E4M3 };

struct rows {
    const void *data; /* of the first row */
    int64_t bytes; /* of a number */
    const struct m3_weight *w; /* E4M3: its scales; */
    int64_t row; /* the first row */
};

/* Asks the memory for number i of w, which may lie past the last one. */
static inline __attribute__((always_inline)) void prefetch(const struct rows *w, int64_t i)
{
    __builtin_prefetch((const void *)((uintptr_t)w->data + (uintptr_t)(i * w->bytes)), 0, 2);
}

/* Columns k .. k+LANES-1 of row r. All of them have the same scale. */
static inline __attribute__((always_inline)) vec load(const struct rows *w, int64_t r, int64_t K, int64_t k, real scale,
                                                      const enum form form)
{
    if (form == NUMBERS) return *(const vec *)((const real *)w->data + r * K + k);
    if (form == E4M3) return m3_from_e4m3((const uint8_t *)w->data + r * K + k) * scale;
    m3_bits_vec bits = m3_widen_16((const m3_bf16 *)w->data + r * K + k) << 16;
    return __builtin_convertvector((m3_float_vec)bits, vec);
}

static inline __attribute__((always_inline)) real load_one(const struct rows *w, int64_t r, int64_t K, int64_t k,
                                                           real scale, const enum form form)
{
    if (form == NUMBERS) return ((const real *)w->data)[r * K + k];
    if (form == E4M3) return m3_one_from_e4m3(((const uint8_t *)w->data)[r * K + k]) * scale;
    uint32_t bits = (uint32_t)((const m3_bf16 *)w->data)[r * K + k] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The partial sums of some rows of x with some rows of w: a vector for each pair. */
enum { MOST_TOKENS = 8, MOST_ROWS = 24 };
struct sums {
    vec of[MOST_TOKENS][MOST_ROWS];
};

/* The partial sums of a tile. */
struct tile_sums {
    vec of[8][4];
};

/* Columns k .. k+n-1 of `ts` rows of x and of rows r0 .. of w, where they are columns from w_k on, in rows of `stride`
 * numbers. What is read next lies `ahead` numbers after each number of w: the memory is asked for it; 0: it is not. */
static inline __attribute__((always_inline)) void add_columns(struct tile_sums *s, const real *x, int64_t K, int64_t k,
                                                              int64_t n, const struct rows *w, int64_t r0, int64_t w_k,
                                                              int64_t stride, const real *scale, int64_t ahead,
                                                              const int ts, const int rows, const enum form form)
{
    for (int64_t i = 0; i < n; i += LANES) {
        vec w_i[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            w_i[r] = load(w, r0 + r, stride, w_k + i, scale[r], form);
            if (ahead) prefetch(w, (r0 + r) * stride + w_k + i + ahead);
        }
#pragma GCC unroll 8
        for (int t = 0; t < ts; t++) {
            vec x_i = *(const vec *)(x + t * K + k + i);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) s->of[t][r] = accumulate(s->of[t][r], x_i, w_i[r]);
        }
    }
}

/* The same for E4M3 codes, which are expanded before, 32 at a time. k is a multiple of 128, n of 32, n <= 128. */
static inline __attribute__((always_inline)) void add_block(struct tile_sums *s, const real *x, int64_t K, int64_t k,
                                                            int64_t n, const struct rows *w, int64_t r0, int64_t ahead,
                                                            const int ts, const int rows)
{
    const int is_mx = w->w->scaling == M3_SCALE_MX32;
    real block[4][128], scale[4] = { 0 };
    const struct rows expanded = { block, sizeof(real), NULL, 0 };
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i += 32) {
            if (is_mx || i == 0) scale[r] = m3_block_scale(w->w, w->row + r0 + r, is_mx ? (k + i) / 32 : k / 128);
            prefetch(w, (r0 + r) * K + k + i + ahead);
            m3_from_e4m3_32(&block[r][i], (const uint8_t *)w->data + (r0 + r) * K + k + i, scale[r]);
        }
    add_columns(s, x, K, k, n, &expanded, 0, 0, 128, scale, 0, ts, rows, NUMBERS);
}

/* The same with one row of x: the expanded codes stay in registers. */
static inline __attribute__((always_inline)) void add_block_once(struct tile_sums *s, const real *x, int64_t k,
                                                                 int64_t n, const struct rows *w, int64_t r0, int64_t K,
                                                                 int64_t ahead, const int rows)
{
    const int is_mx = w->w->scaling == M3_SCALE_MX32;
    real scale[4] = { 0 };
    for (int64_t i = 0; i < n; i += 32)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            real expanded[32];
            if (is_mx || i == 0) scale[r] = m3_block_scale(w->w, w->row + r0 + r, is_mx ? (k + i) / 32 : k / 128);
            prefetch(w, (r0 + r) * K + k + i + ahead);
            m3_from_e4m3_32(expanded, (const uint8_t *)w->data + (r0 + r) * K + k + i, scale[r]);
#pragma GCC unroll 4
            for (int l = 0; l < 32; l += LANES)
                s->of[0][r] = accumulate(s->of[0][r], *(const vec *)(x + k + i + l), *(const vec *)(expanded + l));
        }
}

/* Columns k0 .. k1-1 of `ts` rows of x and `rows` rows of w: multiples of LANES. A pair's sum does not depend on the
 * size of the tile. */
static inline __attribute__((always_inline)) void dot_tile(struct sums *sums, const real *x, const struct rows *w,
                                                           int64_t r0, int64_t K, int64_t k0, int64_t k1, int64_t ahead,
                                                           const int ts, const int rows, const enum form form)
{
    const int64_t width = form != E4M3 ? K : w->w->scaling == M3_SCALE_MX32 ? 32 : 128;
    const int in_blocks = form == E4M3 && M3_HAS_E4M3_32;
    struct tile_sums s;
    real scale[4] = { 0 };
    int64_t k = k0;
    for (int t = 0; t < ts; t++)
        for (int r = 0; r < rows; r++) s.of[t][r] = k0 ? sums->of[t][r0 + r] : (vec){ 0 };
    for (int64_t n; in_blocks && (n = k + 128 < k1 ? 128 : (k1 - k) / 32 * 32) > 0; k += n) {
        if (ts == 1) add_block_once(&s, x, k, n, w, r0, K, ahead, rows);
        else add_block(&s, x, K, k, n, w, r0, ahead, ts, rows);
    }
    for (int64_t end; k < k1; k = end) {
        end = form == E4M3 && k + width < k1 ? k + width : k1;
        for (int r = 0; r < rows && form == E4M3; r++) scale[r] = m3_block_scale(w->w, w->row + r0 + r, k / width);
        add_columns(&s, x, K, k, end - k, w, r0, k, K, scale, ahead, ts, rows, form);
    }
    for (int t = 0; t < ts; t++)
        for (int r = 0; r < rows; r++) sums->of[t][r0 + r] = s.of[t][r];
}

/* The sums of the lanes, and what is left of K. */
static inline __attribute__((always_inline)) void finish(real *y, int64_t ldy, const struct sums *sums, const real *x,
                                                         const struct rows *w, int64_t T, int64_t rows, int64_t K,
                                                         const enum form form)
{
    const int64_t width = form == E4M3 && w->w->scaling == M3_SCALE_MX32 ? 32 : 128;
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < rows; r++) {
            real sum = 0;
            for (int l = 0; l < LANES; l++) sum += sums->of[t][r][l];
            for (int64_t i = K / LANES * LANES; i < K; i++) {
                real scale = form == E4M3 ? m3_block_scale(w->w, w->row + r, i / width) : 0;
                sum += x[t * K + i] * load_one(w, r, K, i, scale, form);
            }
            y[t * ldy + r] = sum;
        }
}

/* `ts` rows of x, a constant, with `rows` rows of w, at most MOST_ROWS. */
static inline __attribute__((always_inline)) void some_dots(real *y, int64_t ldy, const real *x, const struct rows *w,
                                                            int64_t r0, int64_t rows, int64_t K, const int ts,
                                                            const int side_by_side, const enum form form)
{
    const int64_t whole = K / LANES * LANES, depth = ts > 2 ? NEAR_COLUMNS : whole;
    const struct rows from = { (const char *)w->data + r0 * K * w->bytes, w->bytes, w->w, w->row + r0 };
    struct sums sums;
    if (whole == 0)
        for (int t = 0; t < ts; t++) memset(sums.of[t], 0, (size_t)rows * sizeof **sums.of);
    for (int64_t k = 0; k < whole; k += depth) {
        const int64_t end = k + depth < whole ? k + depth : whole;
        const int64_t ahead = depth == whole ? side_by_side * K : end < whole ? depth : rows * K - k;
        int64_t r = 0;
        for (; r + side_by_side <= rows; r += side_by_side)
            dot_tile(&sums, x, &from, r, K, k, end, ahead, ts, side_by_side, form);
        for (; r < rows; r++) dot_tile(&sums, x, &from, r, K, k, end, ahead, ts, 1, form);
    }
    finish(y + r0, ldy, &sums, x, &from, ts, rows, K, form);
}

static inline __attribute__((always_inline)) void all_dots(real *y, int64_t ldy, const real *x, const struct rows *w,
                                                           int64_t T, int64_t rows, int64_t K, const enum form form)
{
    for (int64_t r = 0, n; r < rows; r += n) {
        int64_t t = 0;
        n = rows - r < MOST_ROWS ? rows - r : MOST_ROWS;
        for (; t + DOT_TOKENS <= T && form != E4M3; t += DOT_TOKENS)
            some_dots(y + t * ldy, ldy, x + t * K, w, r, n, K, DOT_TOKENS, DOT_ROWS, form);
        for (; t + 2 <= T; t += 2) some_dots(y + t * ldy, ldy, x + t * K, w, r, n, K, 2, 4, form);
        for (; t < T; t++) some_dots(y + t * ldy, ldy, x + t * K, w, r, n, K, 1, 4, form);
    }
}

static void dots(real *y, int64_t ldy, const real *x, const real *w, int64_t T, int64_t rows, int64_t K)
{
    const struct rows stored = { w, sizeof *w, NULL, 0 };
    all_dots(y, ldy, x, &stored, T, rows, K, NUMBERS);
}

static void dots_bf16(real *y, int64_t ldy, const real *x, const void *w, int64_t T, int64_t rows, int64_t K)
{
    const struct rows stored = { w, sizeof(m3_bf16), NULL, 0 };
    all_dots(y, ldy, x, &stored, T, rows, K, BF16);
}

static void dots_e4m3(real *y, int64_t ldy, const real *x, const struct m3_weight *w, int64_t row, int64_t T,
                      int64_t rows)
{
    const struct rows stored = { (const uint8_t *)w->data + row * w->cols, 1, w, row };
    all_dots(y, ldy, x, &stored, T, rows, w->cols, E4M3);
}

extern const struct m3_fused M3_FUSED;
const struct m3_fused M3_FUSED = {
    .dots = dots,
    .dots_bf16 = dots_bf16,
    .dots_e4m3 = dots_e4m3,
    .product = product,
    .width = WIDTH,
    .lanes = LANES,
};
