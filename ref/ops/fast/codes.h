/* Numbers from codes of 16 and 8 bits, and their scales. */
#ifndef M3_OPS_FAST_CODES_H
#define M3_OPS_FAST_CODES_H

#include <stdint.h>
#include <string.h>

#include "base/real.h"
#include "base/weight.h"
#include "ops/fast/vectors.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* A stored BF16 number, at any address. */
typedef uint16_t m3_bf16 __attribute__((aligned(1), may_alias));

/* The value of a code of few bits below its sign: `moved` is the code with its mantissa where that of a float is,
 * `bias` the difference of the exponents. A subnormal code gets the exponent of the smallest normal one, and loses the
 * leading 1 that it thereby gets: subnormal floats, into which a shift alone would turn it, are slow on some machines. */
static inline float m3_small_float(uint32_t moved, uint32_t bias)
{
    uint32_t subnormal = moved < 1u << 23, bits = moved + ((bias + subnormal) << 23), leading = (bias + 1) << 23;
    leading = subnormal ? leading : 0;
    float value, one;
    memcpy(&value, &bits, sizeof value);
    memcpy(&one, &leading, sizeof one);
    return value - one;
}

/* The value of an E4M3 code, without its scale. */
static inline real m3_one_from_e4m3(unsigned char code)
{
    float value = m3_small_float((uint32_t)(code & 0x7f) << 20, 120);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = ((code & 0x7f) == 0x7f ? 0x7fc00000 : bits) | (uint32_t)(code & 0x80) << 24;
    memcpy(&value, &bits, sizeof value);
    return value;
}

typedef uint16_t m3_bf16_vec __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef uint8_t m3_byte_vec __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint32_t m3_bits_vec __attribute__((vector_size(LANES * 4)));
typedef float m3_float_vec __attribute__((vector_size(LANES * 4)));

/* LANES codes of 16 bits, each in 32. gcc takes six instructions for a conversion that is one. */
static inline __attribute__((always_inline)) m3_bits_vec m3_widen_16(const void *codes)
{
    m3_bits_vec wide = __builtin_convertvector(*(const m3_bf16_vec *)codes, m3_bits_vec);
#ifdef __AVX512F__
    if (LANES == 16) {
        const __m512i sixteen = _mm512_cvtepu16_epi32(_mm256_loadu_si256(codes));
        memcpy(&wide, &sixteen, sizeof wide);
    }
#endif
#ifdef __AVX2__
    if (LANES == 8) {
        const __m256i eight = _mm256_cvtepu16_epi32(_mm_loadu_si128(codes));
        memcpy(&wide, &eight, sizeof wide);
    }
#endif
    return wide;
}

/* The same for codes of 8 bits. */
static inline __attribute__((always_inline)) m3_bits_vec m3_widen_8(const void *codes)
{
    /* In two steps: gcc takes a single one number by number. */
    m3_bf16_vec half = __builtin_convertvector(*(const m3_byte_vec *)codes, m3_bf16_vec);
    m3_bits_vec wide = __builtin_convertvector(half, m3_bits_vec);
#ifdef __AVX512F__
    if (LANES == 16) {
        const __m512i sixteen = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes));
        memcpy(&wide, &sixteen, sizeof wide);
    }
#endif
#ifdef __AVX2__
    if (LANES == 8) {
        const __m256i eight = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes));
        memcpy(&wide, &eight, sizeof wide);
    }
#endif
    return wide;
}

/* m3_one_from_e4m3 for a vector of codes. */
static inline __attribute__((always_inline)) vec m3_from_e4m3(const uint8_t *codes)
{
    m3_bits_vec code = m3_widen_8(codes), moved = (code & 0x7f) << 20;
    m3_bits_vec subnormal = (m3_bits_vec)(moved < 1u << 23), nan = (m3_bits_vec)(moved == 0x7fu << 20);
    m3_bits_vec bits = moved + (120u << 23) - (subnormal << 23), leading = subnormal & 121u << 23;
    bits = (m3_bits_vec)((m3_float_vec)bits - (m3_float_vec)leading) | (nan & 0x7fc00000u) | (code & 0x80) << 24;
    return __builtin_convertvector((m3_float_vec)bits, vec);
}

/* Whether m3_from_e4m3_32 is there: with AVX2 or AVX-512, for floats. */
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(M3_REAL_IS_DOUBLE)
enum { M3_HAS_E4M3_32 = 1 };

/* out := 32 codes times their scale, in a third of the instructions. A value needs only the upper two bytes of a float:
 * each is computed for all codes at a time. Codes below 8 are subnormal; from tables comes what they lack: pshufb gives
 * 0 where the index is 128 or more, which it is from code 16 on. */
static inline __attribute__((always_inline)) void m3_from_e4m3_32(float *out, const uint8_t *codes, float scale)
{
    const __m256i upper_of =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(-0x3c, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i lower_of = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -0x10, 0x60, -0x70, -0x40, -0x30, -0x20, -0x10, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); /* so that unpacking leaves them in order */
    const __m256i code = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const void *)codes), order);
    const __m256i size = _mm256_and_si256(code, _mm256_set1_epi8(0x7f));
    const __m256i index = _mm256_adds_epu8(size, _mm256_set1_epi8(0x70));
    const __m256i nan = _mm256_cmpeq_epi8(size, _mm256_set1_epi8(0x7f));

    /* The bias of the exponent is 120 larger: 60 in the upper byte. */
    __m256i upper = _mm256_and_si256(_mm256_srli_epi16(size, 4), _mm256_set1_epi8(7));
    upper = _mm256_add_epi8(_mm256_add_epi8(upper, _mm256_set1_epi8(60)), _mm256_shuffle_epi8(upper_of, index));
    upper = _mm256_or_si256(upper, _mm256_and_si256(nan, _mm256_set1_epi8(0x7f)));
    upper = _mm256_or_si256(upper, _mm256_andnot_si256(_mm256_set1_epi8(0x7f), code));
    __m256i lower = _mm256_and_si256(_mm256_slli_epi16(size, 4), _mm256_set1_epi8(-0x10));
    lower = _mm256_add_epi8(lower, _mm256_shuffle_epi8(lower_of, index));
    lower = _mm256_andnot_si256(_mm256_and_si256(nan, _mm256_set1_epi8(0x30)), lower);

    const __m256i zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        const __m256i two = half ? _mm256_unpackhi_epi8(lower, upper) : _mm256_unpacklo_epi8(lower, upper);
        *(vec *)(out + 16 * half) = (vec)_mm256_unpacklo_epi16(zero, two) * scale;
        *(vec *)(out + 16 * half + 8) = (vec)_mm256_unpackhi_epi16(zero, two) * scale;
    }
}
#elif defined(__AVX512BW__) && !defined(M3_REAL_IS_DOUBLE)
enum { M3_HAS_E4M3_32 = 1 };

/* out := 32 codes times their scale, in half of the instructions. A value needs only the upper 16 bits of a float, which
 * are computed for all codes at a time. Codes below 8 are subnormal: 2^-9 times the code. */
static inline __attribute__((always_inline)) void m3_from_e4m3_32(float *out, const uint8_t *codes, float scale)
{
    const __m512i subnormal =
        _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* so that unpacking leaves them in order */
    const __m512i code =
        _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(_mm256_loadu_si256((const void *)codes), order));
    const __m512i size = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
    /* The bias of the exponent is 120 larger. */
    __m512i upper = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
    upper = _mm512_mask_permutexvar_epi16(upper, _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8)), size, subnormal);
    upper =
        _mm512_mask_mov_epi16(upper, _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x7fc0));
    /* upper | (code << 8 & 0x8000) */
    upper = _mm512_ternarylogic_epi32(upper, _mm512_slli_epi16(code, 8), _mm512_set1_epi16(-0x8000), 0xf8);
    const __m512i zero = _mm512_setzero_si512();
    *(vec *)out = (vec)_mm512_unpacklo_epi16(zero, upper) * scale;
    *(vec *)(out + 16) = (vec)_mm512_unpackhi_epi16(zero, upper) * scale;
}
#else
enum { M3_HAS_E4M3_32 = 0 };
static inline void m3_from_e4m3_32(real *out, const uint8_t *codes, real scale) { (void)out, (void)codes, (void)scale; }
#endif

/* 2^(code - 127); 255 is NaN. The smallest value is subnormal in float. */
static inline real m3_e8m0(unsigned char code)
{
    uint32_t bits = code == 0 ? 0x00400000 : code == 255 ? 0x7fc00000 : (uint32_t)code << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The factor of a block of columns of a row: 32 columns of MXFP8, 128 of FP8. */
static inline real m3_block_scale(const struct m3_weight *w, int64_t row, int64_t block)
{
    if (w->scaling == M3_SCALE_MX32)
        return m3_e8m0(((const unsigned char *)w->scales)[row * ((w->cols + 31) / 32) + block]);
    float value;
    memcpy(&value, (const char *)w->scales + 4 * (row / 128 * ((w->cols + 127) / 128) + block), sizeof value);
    return value;
}

#endif
