/* This file is compiled several times, as kernels.c: M3_FUSED names the table. It is the only one that is compiled with
 * -ffp-contract=fast: s + x * w is rounded once where the processor can do that. Its sums have no promised order. */
#include "ops/fast/codes.h"
#include "ops/fast/kernels.h"

#if defined(__AVX512F__)
enum { PRODUCT_ROWS = 12, DOT_TOKENS = 8, DOT_ROWS = 3, UNROLL = 2 };
#elif defined(__AVX2__)
enum { PRODUCT_ROWS = 6, DOT_TOKENS = 4, DOT_ROWS = 2, UNROLL = 2 };
#else
enum { PRODUCT_ROWS = 4, DOT_TOKENS = 2, DOT_ROWS = 4, UNROLL = 1 };
#endif
#include "ops/fast/tile.h"

enum { PRODUCT_VECS = 2 };

static void product(real *c, int64_t ldc, const real *a, const real *b, int64_t M, int64_t N, int64_t K, int add)
{
    enum { WIDTH = PRODUCT_VECS * LANES };
    for (int64_t n = 0; n < N; n += WIDTH, b += WIDTH * K) {
        int64_t m = 0;
        for (; m + PRODUCT_ROWS <= M; m += PRODUCT_ROWS)
            tile(c + m * ldc + n, ldc, a + m * K, K, 1, b, WIDTH, K, add, PRODUCT_ROWS, PRODUCT_VECS);
        for (; m < M; m++) tile(c + m * ldc + n, ldc, a + m * K, K, 1, b, WIDTH, K, add, 1, PRODUCT_VECS);
    }
}

typedef uint16_t bf16_vec __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef uint8_t byte_vec __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint32_t bits_vec __attribute__((vector_size(LANES * 4)));
typedef float float_vec __attribute__((vector_size(LANES * 4)));

/* How the weights of a dot product are stored. */
enum form { NUMBERS, BF16, E4M3 };

struct rows {
    const void *data;               /* of the first row */
    const struct m3_weight *w;      /* E4M3: its scales; */
    int64_t row;                    /* the first row */
};

/* The values of codes, without their scales: m3_small_float for a vector. */
static inline __attribute__((always_inline)) vec from_e4m3(const uint8_t *codes)
{
    bits_vec code = __builtin_convertvector(*(const byte_vec *)codes, bits_vec), moved = (code & 0x7f) << 20;
    bits_vec subnormal = (bits_vec)(moved < 1u << 23), nan = (bits_vec)(moved == 0x7fu << 20);
    bits_vec bits = moved + (120u << 23) - (subnormal << 23), leading = subnormal & 121u << 23;
    bits = (bits_vec)((float_vec)bits - (float_vec)leading) | (nan & 0x7fc00000u) | (code & 0x80) << 24;
    return __builtin_convertvector((float_vec)bits, vec);
}

/* Columns k .. k+LANES-1 of row r. All of them have the same scale. */
static inline __attribute__((always_inline)) vec load(const struct rows *w, int64_t r, int64_t K, int64_t k, real scale,
                                                      const enum form form)
{
    if (form == NUMBERS) return *(const vec *)((const real *)w->data + r * K + k);
    if (form == E4M3) return from_e4m3((const uint8_t *)w->data + r * K + k) * scale;
    bits_vec bits = __builtin_convertvector(*(const bf16_vec *)((const m3_bf16 *)w->data + r * K + k), bits_vec) << 16;
    return __builtin_convertvector((float_vec)bits, vec);
}

static inline __attribute__((always_inline)) real load_one(const struct rows *w, int64_t r, int64_t K, int64_t k,
                                                           real scale, const enum form form)
{
    if (form == NUMBERS) return ((const real *)w->data)[r * K + k];
    uint32_t bits;
    float value;
    if (form == E4M3) {
        uint32_t code = ((const uint8_t *)w->data)[r * K + k];
        value = m3_small_float((code & 0x7f) << 20, 120);
        memcpy(&bits, &value, sizeof bits);
        bits = ((code & 0x7f) == 0x7f ? 0x7fc00000 : bits) | (code & 0x80) << 24;
    } else {
        bits = (uint32_t)((const m3_bf16 *)w->data)[r * K + k] << 16;
    }
    memcpy(&value, &bits, sizeof value);
    return form == E4M3 ? (real)value * scale : (real)value;
}

/* `ts` rows of x against `rows` rows of w, one vector of partial sums for each pair. A pair's sum does not depend on
 * the size of the tile. */
static inline __attribute__((always_inline)) void dot_tile(real *y, int64_t ldy, const real *x, const struct rows *w,
                                                           int64_t r0, int64_t K, const int ts, const int rows,
                                                           const enum form form)
{
    vec s[8][4] = { 0 };
    const int64_t whole = K / LANES * LANES;
    const int64_t width = form != E4M3 ? K : w->w->scaling == M3_SCALE_MX32 ? 32 : 128;
    real scale[4] = { 0 };
    for (int64_t k0 = 0; k0 < whole; k0 += width) {
        const int64_t end = k0 + width < whole ? k0 + width : whole;
        for (int r = 0; r < rows && form == E4M3; r++) scale[r] = m3_block_scale(w->w, w->row + r0 + r, k0 / width);
        for (int64_t k = k0; k < end; k += LANES) {
            vec w_k[4];
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) w_k[r] = load(w, r0 + r, K, k, scale[r], form);
#pragma GCC unroll 8
            for (int t = 0; t < ts; t++) {
                vec x_k = *(const vec *)(x + t * K + k);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) s[t][r] += x_k * w_k[r];
            }
        }
    }
    for (int t = 0; t < ts; t++) {
        for (int r = 0; r < rows; r++) {
            real sum = 0;
            for (int l = 0; l < LANES; l++) sum += s[t][r][l];
            for (int64_t i = whole; i < K; i++) {
                real last = form == E4M3 ? m3_block_scale(w->w, w->row + r0 + r, i / width) : 0;
                sum += x[t * K + i] * load_one(w, r0 + r, K, i, last, form);
            }
            y[t * ldy + r0 + r] = sum;
        }
    }
}

static inline __attribute__((always_inline)) void all_dots(real *y, int64_t ldy, const real *x, const struct rows *w,
                                                           int64_t T, int64_t rows, int64_t K, const enum form form)
{
    int64_t t = 0, r;
    for (; t + DOT_TOKENS <= T && form != E4M3; t += DOT_TOKENS) {
        for (r = 0; r + DOT_ROWS <= rows; r += DOT_ROWS)
            dot_tile(y + t * ldy, ldy, x + t * K, w, r, K, DOT_TOKENS, DOT_ROWS, form);
        for (; r < rows; r++) dot_tile(y + t * ldy, ldy, x + t * K, w, r, K, DOT_TOKENS, 1, form);
    }
    for (; t + 2 <= T; t += 2) {
        for (r = 0; r + 4 <= rows; r += 4) dot_tile(y + t * ldy, ldy, x + t * K, w, r, K, 2, 4, form);
        for (; r < rows; r++) dot_tile(y + t * ldy, ldy, x + t * K, w, r, K, 2, 1, form);
    }
    for (; t < T; t++) {
        for (r = 0; r + 4 <= rows; r += 4) dot_tile(y + t * ldy, ldy, x + t * K, w, r, K, 1, 4, form);
        for (; r < rows; r++) dot_tile(y + t * ldy, ldy, x + t * K, w, r, K, 1, 1, form);
    }
}

static void dots(real *y, int64_t ldy, const real *x, const real *w, int64_t T, int64_t rows, int64_t K)
{
    const struct rows stored = { w, NULL, 0 };
    all_dots(y, ldy, x, &stored, T, rows, K, NUMBERS);
}

static void dots_bf16(real *y, int64_t ldy, const real *x, const void *w, int64_t T, int64_t rows, int64_t K)
{
    const struct rows stored = { w, NULL, 0 };
    all_dots(y, ldy, x, &stored, T, rows, K, BF16);
}

static void dots_e4m3(real *y, int64_t ldy, const real *x, const struct m3_weight *w, int64_t row, int64_t T,
                      int64_t rows)
{
    const struct rows stored = { (const uint8_t *)w->data + row * w->cols, w, row };
    all_dots(y, ldy, x, &stored, T, rows, w->cols, E4M3);
}

extern const struct m3_fused M3_FUSED;
const struct m3_fused M3_FUSED = {
    .dots = dots,
    .dots_bf16 = dots_bf16,
    .dots_e4m3 = dots_e4m3,
    .product = product,
    .width = PRODUCT_VECS * LANES,
};
