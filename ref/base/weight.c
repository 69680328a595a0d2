#include "base/weight.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[M3_DTYPES] = {
    [M3_F64] = { "F64", 8 },   [M3_F32] = { "F32", 4 },         [M3_F16] = { "F16", 2 },
    [M3_BF16] = { "BF16", 2 }, [M3_F8_E4M3] = { "F8_E4M3", 1 }, [M3_F8_E8M0] = { "F8_E8M0", 1 },
    [M3_I64] = { "I64", 8 },   [M3_I32] = { "I32", 4 },         [M3_U8] = { "U8", 1 },
    [M3_BOOL] = { "BOOL", 1 }, [M3_F4_E2M1] = { "F4", 0 },      [M3_I4] = { "I4", 0 },
};

size_t m3_dtype_bytes(enum m3_dtype dtype) { return dtypes[dtype].bytes; }

const char *m3_dtype_name(enum m3_dtype dtype) { return dtypes[dtype].name; }

enum m3_dtype m3_dtype_named(const char *name)
{
    int dtype = 0;
    while (dtype < M3_DTYPES && (dtypes[dtype].bytes == 0 || strcmp(dtypes[dtype].name, name) != 0)) dtype++;
    return dtype;
}

int m3_weight_is_packed(const struct m3_weight *w) { return w->dtype == M3_F4_E2M1 || w->dtype == M3_I4; }

/* The bytes of one row of codes of 4 bits; of two rows where pairs of rows share bytes. */
static int64_t packed_row(const struct m3_weight *w)
{
    if (w->scaling == M3_SCALE_INT4) return (w->cols + 7) / 8 * 4;
    return w->scaling == M3_SCALE_INT4_PAIRS ? w->cols : (w->cols + 1) / 2;
}

size_t m3_weight_bytes(const struct m3_weight *w)
{
    if (!m3_weight_is_packed(w)) return (size_t)(w->rows * w->cols) * dtypes[w->dtype].bytes;
    int64_t rows = w->scaling == M3_SCALE_INT4_PAIRS ? (w->rows + 1) / 2 : w->rows;
    return (size_t)(rows * packed_row(w));
}

/* Stored numbers may be unaligned. */
static inline uint16_t load_u16(const unsigned char *bytes)
{
    uint16_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static inline double load_f32(const unsigned char *bytes)
{
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* 2^e for a normal double. */
static inline double power_of_two(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Half precision: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static inline double half_value(uint16_t code)
{
    int exponent = code >> 10 & 31, fraction = code & 1023;
    double value;
    if (exponent == 31) value = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == 0) value = fraction * power_of_two(-24);
    else value = (1024 + fraction) * power_of_two(exponent - 25);
    return code >> 15 ? -value : value;
}

/* bfloat16 is the upper half of a float. */
static inline double bfloat16_value(uint16_t code)
{
    uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 1 sign, 4 exponent (bias 7), 3 fraction bits. No infinity: exponent 15 is an ordinary exponent, except with fraction
 * 7 (NaN). */
static inline double e4m3_value(uint8_t code)
{
    int exponent = code >> 3 & 15, fraction = code & 7, normal = exponent > 0;
    double value = (8 * normal + fraction) * power_of_two(exponent - normal - 9);
    double sign = 1 - 2 * (code >> 7);
    return (code & 127) == 127 ? (double)NAN : sign * value;
}

/* Eight exponent bits only: no sign, no zero. */
static inline double e8m0_value(uint8_t code) { return code == 255 ? (double)NAN : power_of_two(code - 127); }

double m3_decode(enum m3_dtype dtype, const void *data, int64_t index)
{
    const unsigned char *bytes = (const unsigned char *)data + (size_t)index * dtypes[dtype].bytes;
    double f64;
    int64_t i64;
    int32_t i32;
    switch (dtype) {
    case M3_F64: memcpy(&f64, bytes, sizeof f64); return f64;
    case M3_I64: memcpy(&i64, bytes, sizeof i64); return (double)i64;
    case M3_I32: memcpy(&i32, bytes, sizeof i32); return i32;
    case M3_F32: return load_f32(bytes);
    case M3_F16: return half_value(load_u16(bytes));
    case M3_BF16: return bfloat16_value(load_u16(bytes));
    case M3_F8_E4M3: return e4m3_value(*bytes);
    case M3_F8_E8M0: return e8m0_value(*bytes);
    case M3_U8: return *bytes;
    case M3_BOOL: return *bytes != 0;
    case M3_F4_E2M1:
    case M3_I4:
    case M3_DTYPES: break;
    }
    return NAN;
}

/* The scale of one element, and the number of elements of its row, from it on, that share the scale. */
static double scale_at(const struct m3_weight *w, int64_t row, int64_t col, int64_t *shared)
{
    switch (w->scaling) {
    case M3_SCALE_128X128:
        *shared = 128 - col % 128;
        return m3_decode(M3_F32, w->scales, row / 128 * ((w->cols + 127) / 128) + col / 128);
    case M3_SCALE_MX32:
        *shared = 32 - col % 32;
        return m3_decode(M3_F8_E8M0, w->scales, row * ((w->cols + 31) / 32) + col / 32);
    default: break;
    }
    *shared = w->cols;
    return 1;
}

/* out [n] := scale * stored numbers from `index` on. The types of large weights have their own loops, for speed. */
static void decode_run(double *out, enum m3_dtype dtype, const void *data, int64_t index, int64_t n, double scale)
{
    const unsigned char *bytes = (const unsigned char *)data + (size_t)index * dtypes[dtype].bytes;
    switch (dtype) {
    case M3_F32:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = scale * load_f32(bytes + 4 * i);
        break;
    case M3_BF16:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = scale * bfloat16_value(load_u16(bytes + 2 * i));
        break;
    case M3_F16:
        for (int64_t i = 0; i < n; i++) out[i] = scale * half_value(load_u16(bytes + 2 * i));
        break;
    case M3_F8_E4M3:
        for (int64_t i = 0; i < n; i++) out[i] = scale * e4m3_value(bytes[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++) out[i] = scale * m3_decode(dtype, bytes, i);
    }
}

double m3_weight_group(const struct m3_weight *w, int64_t row, int64_t group, double *zero)
{
    const int64_t groups = w->cols / w->group;
    double scale = m3_decode(w->scale_dtype, w->scales, row * groups + group);
    *zero = w->scaling == M3_SCALE_INT4 ? 8 : 0;
    if (w->zeros) {
        const unsigned char *word = (const unsigned char *)w->zeros + 4 * (row / 8 * groups + group);
        *zero = word[row % 8 / 2] >> 4 * (row % 2) & 15;
    }
    if (w->scaling != M3_SCALE_NVFP4) return scale;
    return w->divides ? scale / w->global : scale * w->global;
}

/* The numbers of the 16 codes. A file with pairs of rows holds them in two's complement. */
static const double *values_of_codes(const struct m3_weight *w)
{
    static const double e2m1[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };
    static const double whole[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    static const double complement[16] = { 0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1 };
    if (w->dtype == M3_F4_E2M1) return e2m1;
    return w->scaling == M3_SCALE_INT4_PAIRS ? complement : whole;
}

/* The first byte of a row of codes, or of its pair of rows. */
static const unsigned char *packed_bytes(const struct m3_weight *w, int64_t row)
{
    return (const unsigned char *)w->data + (w->scaling == M3_SCALE_INT4_PAIRS ? row / 2 : row) * packed_row(w);
}

/* The earlier column, or row, is in the lower half of a byte. */
static int packed_code(const struct m3_weight *w, const unsigned char *bytes, int64_t row, int64_t col)
{
    const int by_rows = w->scaling == M3_SCALE_INT4_PAIRS;
    return (by_rows ? bytes[col] >> 4 * (row % 2) : bytes[col / 2] >> 4 * (col % 2)) & 15;
}

static void expand_packed(double *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n)
{
    const double *value = values_of_codes(w);
    const unsigned char *bytes = packed_bytes(w, row);
    for (int64_t i = 0; i < n;) {
        const int64_t group = (col + i) / w->group;
        int64_t end = (group + 1) * w->group - col;
        double zero, scale = m3_weight_group(w, row, group, &zero);
        for (end = end < n ? end : n; i < end; i++)
            out[i] = (value[packed_code(w, bytes, row, col + i)] - zero) * scale;
    }
}

struct m3_stored m3_weight_stored(const struct m3_weight *w, int64_t row, int64_t col)
{
    struct m3_stored stored = { .scale = 1 };
    int64_t shared;
    if (m3_weight_is_packed(w)) {
        stored.code = (uint64_t)packed_code(w, packed_bytes(w, row), row, col);
        stored.number = values_of_codes(w)[stored.code];
        stored.scale = m3_weight_group(w, row, col / w->group, &stored.zero);
        return stored;
    }
    const int64_t at = row * w->cols + col;
    const size_t bytes = dtypes[w->dtype].bytes;
    memcpy(&stored.code, (const unsigned char *)w->data + (size_t)at * bytes, bytes);
    stored.number = m3_decode(w->dtype, w->data, at);
    stored.scale = scale_at(w, row, col, &shared);
    return stored;
}

void m3_expand_f64(double *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n)
{
    if (m3_weight_is_packed(w)) {
        expand_packed(out, w, row, col, n);
        return;
    }
    for (int64_t i = 0, shared; i < n; i += shared) {
        double scale = scale_at(w, row, col + i, &shared);
        if (shared > n - i) shared = n - i;
        decode_run(out + i, w->dtype, w->data, row * w->cols + col + i, shared, scale);
    }
}

void m3_expand_f32(float *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n)
{
    double piece[128];
    for (int64_t i = 0; i < n; i += 128) {
        int64_t count = n - i < 128 ? n - i : 128;
        m3_expand_f64(piece, w, row, col + i, count);
        for (int64_t j = 0; j < count; j++) out[i + j] = (float)piece[j];
    }
}

uint16_t m3_bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
