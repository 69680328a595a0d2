/* Matrices in every stored type for the tests of operators with weights, written from SPEC 3.3: random codes or given
 * integers, and their values by definition, in long double. Data and scales are unaligned if wanted, and guarded. */
#ifndef M3_TESTS_STORED_TWIN_H
#define M3_TESTS_STORED_TWIN_H

#include "base/weight.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "twin.h"

enum stored_kind { STORED_F32, STORED_F64, STORED_F16, STORED_BF16, STORED_F8_BLOCK, STORED_F8_MX, STORED_KINDS };

static const struct {
    const char *name;
    enum m3_dtype dtype;
    int bytes, exponent_bits, fraction_bits;
} stored_types[] = {
    { "F32", M3_F32, 4, 8, 23 },
    { "F64", M3_F64, 8, 11, 52 },
    { "F16", M3_F16, 2, 5, 10 },
    { "BF16", M3_BF16, 2, 8, 7 },
    { "E4M3 by 128x128", M3_F8_E4M3, 1, 4, 3 },
    { "E4M3 by 32", M3_F8_E4M3, 1, 4, 3 },
};

/* Does the operator under test take the type? */
static inline int stored_taken(enum stored_kind kind)
{
    return TWIN_READINGS || (kind != STORED_F64 && kind != STORED_F16);
}

/* Codes as integers, apart from what the operator is given. */
struct stored {
    enum stored_kind kind;
    int64_t rows, cols, scale_cols, scale_count;
    uint64_t *codes, *scales;       /* [rows,cols] and [scale_count]: bits of an F32, or of a ue8m0 byte */
    struct m3_weight weight;
    struct guard data_guard, scale_guard;
};

/* ---- numbers and their bits */

/* s e..e f..f, with the usual bias. E4M3 alone has no infinity, and its NaN only where all bits are set. */
static inline long double stored_number(uint64_t code, int exponent_bits, int fraction_bits)
{
    const uint64_t top = (UINT64_C(1) << exponent_bits) - 1, ones = (UINT64_C(1) << fraction_bits) - 1;
    const uint64_t fraction = code & ones, exponent = code >> fraction_bits & top;
    const int bias = (int)(top >> 1), e4m3 = exponent_bits == 4;
    long double value;
    if (exponent == top && (!e4m3 || fraction == ones)) value = fraction ? NAN : INFINITY;
    else if (exponent == 0) value = ldexpl(fraction, 1 - bias - fraction_bits);
    else value = ldexpl(fraction + ones + 1, (int)exponent - bias - fraction_bits);
    return code >> (exponent_bits + fraction_bits) & 1 ? -value : value;
}

/* The code of a number that the type holds, and that is 0 or normal. */
static inline uint64_t stored_code(double value, int exponent_bits, int fraction_bits)
{
    const uint64_t sign = (uint64_t)(signbit(value) != 0) << (exponent_bits + fraction_bits);
    if (value == 0) return sign;
    int exponent;
    const double half_to_1 = frexp(fabs(value), &exponent);
    const uint64_t fraction = (uint64_t)ldexp(half_to_1 - 0.5, fraction_bits + 1);
    return sign | (uint64_t)(exponent - 1 + (1 << (exponent_bits - 1)) - 1) << fraction_bits | fraction;
}

/* Element [n,k] as SPEC 3.3 defines it: exact, because a code has 53 bits at most and a scaled one 28. */
static inline long double stored_value(const struct stored *s, int64_t n, int64_t k)
{
    const long double code = stored_number(s->codes[n * s->cols + k], stored_types[s->kind].exponent_bits,
                                           stored_types[s->kind].fraction_bits);
    if (s->kind == STORED_F8_BLOCK) return code * stored_number(s->scales[n / 128 * s->scale_cols + k / 128], 8, 23);
    if (s->kind == STORED_F8_MX) {
        const uint64_t scale = s->scales[n * s->scale_cols + k / 32];
        return scale == 255 ? NAN : code * ldexpl(1, (int)scale - 127);
    }
    return code;
}

/* ---- matrices */

/* Zeros, scales 1. stored_give follows when the codes are as wanted. */
static inline void stored_make(struct stored *s, enum stored_kind kind, int64_t rows, int64_t cols)
{
    *s = (struct stored){ .kind = kind, .rows = rows, .cols = cols };
    if (kind == STORED_F8_BLOCK) {
        s->scale_cols = (cols + 127) / 128;
        s->scale_count = (rows + 127) / 128 * s->scale_cols;
    }
    if (kind == STORED_F8_MX) {
        s->scale_cols = (cols + 31) / 32;
        s->scale_count = rows * s->scale_cols;
    }
    s->codes = calloc((size_t)(rows * cols), sizeof *s->codes);
    s->scales = calloc((size_t)s->scale_count + 1, sizeof *s->scales);
    if (!s->codes || !s->scales) abort();
    for (int64_t i = 0; i < s->scale_count; i++) s->scales[i] = kind == STORED_F8_MX ? 127 : stored_code(1, 8, 23);
}

/* Finite codes in about [-2, 2], all significant bits in use; scales from 2^-8 to 2, for blocks no powers of two. */
static inline void stored_random(struct stored *s, uint64_t *state)
{
    for (int64_t i = 0; i < s->rows * s->cols; i++) {
        const double size = ldexp(1, -(int)twin_pick(state, 6)), fine = twin_fine(state);
        const int fraction_bits = stored_types[s->kind].fraction_bits;
        uint64_t code = stored_code(size * (fabs(fine) + 0x1p-40) * (fine < 0 ? -2 : 2), 11, 52);
        /* Now an F64; cut to the type's fraction, and to its least normal number. */
        code = code >> (52 - fraction_bits) << (52 - fraction_bits);
        const double value = (double)stored_number(code, 11, 52);
        s->codes[i] =
            stored_code(fabs(value) < 0x1p-6 ? 0x1p-6 : value, stored_types[s->kind].exponent_bits, fraction_bits);
    }
    for (int64_t i = 0; i < s->scale_count; i++) {
        const int exponent = -(int)twin_pick(state, 8);
        const float scale = (float)ldexp(1.5 + 0.4 * twin_draw(state), exponent);
        s->scales[i] = s->kind == STORED_F8_MX ? (uint64_t)(127 + exponent) : stored_code(scale, 8, 23);
    }
}

/* Integers of at most 4 bits times 1 or 2, of both signs and 0: |w| <= 30, exact in every type. */
static inline void stored_integers(struct stored *s, uint64_t *state)
{
    for (int64_t i = 0; i < s->rows * s->cols; i++)
        s->codes[i] = stored_code((double)(twin_pick(state, 31) - 15), stored_types[s->kind].exponent_bits,
                                  stored_types[s->kind].fraction_bits);
    for (int64_t i = 0; i < s->scale_count; i++) {
        const int64_t twice = twin_pick(state, 2);
        s->scales[i] = s->kind == STORED_F8_MX ? (uint64_t)(127 + twice) : stored_code((double)(1 + twice), 8, 23);
    }
}

/* The bytes for the operator, little-endian, `shift` bytes after an aligned address; unscaled if nothing scales. */
static inline void stored_give(struct stored *s, int shift)
{
    static uint64_t id;
    const size_t wide = (size_t)stored_types[s->kind].bytes, scale_wide = s->kind == STORED_F8_MX ? 1 : 4;
    const size_t size = (size_t)(s->rows * s->cols) * wide, scale_size = (size_t)s->scale_count * scale_wide;
    unsigned char *bytes = malloc(size + scale_size + 2 * (size_t)shift + 1);
    if (!bytes) abort();
    memset(bytes, 0, size + scale_size + 2 * (size_t)shift);
    for (size_t i = 0; i < size; i++) bytes[(size_t)shift + i] = (unsigned char)(s->codes[i / wide] >> (i % wide * 8));
    const unsigned char *data = guard_input(&s->data_guard, bytes, size + (size_t)shift);
    for (size_t i = 0; i < scale_size; i++)
        bytes[(size_t)shift + i] = (unsigned char)(s->scales[i / scale_wide] >> (i % scale_wide * 8));
    const unsigned char *scales = guard_input(&s->scale_guard, bytes, scale_size + (size_t)shift);
    free(bytes);
    const enum m3_scaling scaling = s->kind == STORED_F8_BLOCK ? M3_SCALE_128X128
                                    : s->kind == STORED_F8_MX  ? M3_SCALE_MX32
                                                               : M3_UNSCALED;
    s->weight = (struct m3_weight){ .data = data + shift,
                                    .scales = scaling == M3_UNSCALED ? NULL : scales + shift,
                                    .dtype = stored_types[s->kind].dtype,
                                    .scaling = scaling,
                                    .rows = s->rows,
                                    .cols = s->cols,
                                    .id = ++id };
}

/* Is what the operator was given unchanged? Frees the matrix. */
static inline int stored_intact(struct stored *s)
{
    int intact = guard_intact(&s->data_guard);
    intact &= guard_intact(&s->scale_guard);
    free(s->codes);
    free(s->scales);
    return intact;
}

#endif
