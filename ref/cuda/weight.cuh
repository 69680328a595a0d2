/* Stored numbers on the device: the values of base/weight.c, rounded once to float. SPEC 3.3
 *
 * A thread reads 8 columns of a row at a time, from a column that is a multiple of 8, so that they share one scale: by
 * loads of 16 bytes if the numbers are aligned to 16, otherwise byte by byte.
 *
 *     bytes of 8 columns    F64 64   F32 32   F16, BF16 16   E4M3 8
 *
 * A product of a code and a scale in float is the exact product rounded once, as in base/weight.c. */
#ifndef M3_CUDA_WEIGHT_CUH
#define M3_CUDA_WEIGHT_CUH

#include <string.h>

#include "base/weight.h"
#include "cuda/device.cuh"

enum { M3_RUN = 8 };        /* columns that are decoded together */

/* One row of a stored matrix. */
struct m3_stored_row {
    const unsigned char *data, *scales;     /* of its column 0 */
    enum m3_dtype dtype;
    enum m3_scaling scaling;
    int64_t cols;                           /* 0: a row beyond the matrix; it is read as zeros */
};

static __device__ __forceinline__ constexpr int m3_stored_bytes(enum m3_dtype dtype)
{
    return dtype == M3_F64 ? 8 : dtype == M3_F32 ? 4 : dtype == M3_F8_E4M3 ? 1 : 2;
}

static __device__ __forceinline__ struct m3_stored_row m3_stored_row_of(struct m3_weight w, int64_t row)
{
    struct m3_stored_row r = { (const unsigned char *)w.data, (const unsigned char *)w.scales, w.dtype, w.scaling, 0 };
    if (row >= w.rows) return r;
    r.data += row * w.cols * m3_stored_bytes(w.dtype);
    if (w.scaling == M3_SCALE_128X128) r.scales += row / 128 * ((w.cols + 127) / 128) * 4;
    if (w.scaling == M3_SCALE_MX32) r.scales += row * ((w.cols + 31) / 32);
    r.cols = w.cols;
    return r;
}

/* words [n], n 1, 2 or a multiple of 4, := 4 n bytes from any address on. Bytes from `valid` on are not read and are
 * 0. */
template <int n>
static __device__ __forceinline__ void m3_words(uint32_t words[n], const unsigned char *from, int64_t valid)
{
    constexpr int load = n >= 4 ? 16 : 4 * n;
    if (valid >= 4 * n && (uintptr_t)from % load == 0) {
        for (int i = 0; i < n; i += load / 4) {
            if constexpr (n >= 4) {
                uint4 four = *(const uint4 *)(from + 4 * i);
                words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
            } else if constexpr (n == 2) {
                uint2 two = *(const uint2 *)from;
                words[0] = two.x, words[1] = two.y;
            } else {
                words[0] = *(const uint32_t *)from;
            }
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        words[i] = 0;
        for (int b = 0; b < 4; b++)
            if (4 * i + b < valid) words[i] |= (uint32_t)from[4 * i + b] << 8 * b;
    }
}

/* Half precision. Read as a float, its exponent and fraction give a value 2^112 too small, also for subnormals. */
static __device__ __forceinline__ float m3_half_value(uint32_t code)
{
    uint32_t bits = (code & 0x7fff) << 13;
    float value = __uint_as_float(bits) * 0x1p112f;
    if ((code & 0x7c00) == 0x7c00) value = __uint_as_float(bits | 0x7f800000);
    return __uint_as_float(__float_as_uint(value) | (code & 0x8000) << 16);
}

/* E4M3: likewise 2^120 too small. The only NaN is all ones. */
static __device__ __forceinline__ float m3_e4m3_value(uint32_t code)
{
    float value = __uint_as_float((code & 127) << 20) * 0x1p120f;
    if ((code & 127) == 127) value = __uint_as_float(0x7fc00000);
    return __uint_as_float(__float_as_uint(value) | (code & 128) << 24);
}

/* 2^(code - 127); 2^-127 is a subnormal. */
static __device__ __forceinline__ float m3_e8m0_value(uint32_t code)
{
    return __uint_as_float(code == 255 ? 0x7fc00000 : code == 0 ? 0x00400000 : code << 23);
}

/* Number i of those in `words`. */
template <enum m3_dtype dtype>
static __device__ __forceinline__ float m3_number(const uint32_t *words, int i)
{
    if (dtype == M3_F64) {
        uint64_t bits = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
        double value;
        memcpy(&value, &bits, sizeof value);
        return (float)value;
    }
    if (dtype == M3_F32) return __uint_as_float(words[i]);
    if (dtype == M3_F8_E4M3) return m3_e4m3_value(words[i / 4] >> i % 4 * 8 & 255);
    uint32_t half = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
    return dtype == M3_F16 ? m3_half_value(half) : __uint_as_float(half << 16);
}

/* v [8] := columns [col, col + 8), without scale; 0 from `cols` on. */
template <enum m3_dtype dtype>
static __device__ __forceinline__ void m3_unscaled_8(float v[M3_RUN], const unsigned char *row, int64_t col,
                                                     int64_t cols)
{
    constexpr int bytes = m3_stored_bytes(dtype);
    uint32_t words[M3_RUN * bytes / 4];
    m3_words<M3_RUN * bytes / 4>(words, row + col * bytes, (cols - col) * bytes);
    for (int i = 0; i < M3_RUN; i++) v[i] = m3_number<dtype>(words, i);
}

/* The scale of the 8 columns from `col` on. */
static __device__ __forceinline__ float m3_scale_8(const struct m3_stored_row &row, int64_t col)
{
    if (row.scaling == M3_SCALE_MX32) return m3_e8m0_value(row.scales[col / 32]);
    uint32_t word[1];
    m3_words<1>(word, row.scales + col / 128 * 4, 4);
    return __uint_as_float(word[0]);
}

/* v [8] := columns [col, col + 8); 0 beyond the last. `dtype` is the row's, or M3_DTYPES: read it from the row. A
 * dtype that no weight has gives NaN. */
template <enum m3_dtype dtype>
static __device__ __forceinline__ void m3_stored_8(float v[M3_RUN], const struct m3_stored_row &row, int64_t col)
{
    switch (dtype == M3_DTYPES ? row.dtype : dtype) {
    case M3_F64: m3_unscaled_8<M3_F64>(v, row.data, col, row.cols); break;
    case M3_F32: m3_unscaled_8<M3_F32>(v, row.data, col, row.cols); break;
    case M3_F16: m3_unscaled_8<M3_F16>(v, row.data, col, row.cols); break;
    case M3_BF16: m3_unscaled_8<M3_BF16>(v, row.data, col, row.cols); break;
    case M3_F8_E4M3: m3_unscaled_8<M3_F8_E4M3>(v, row.data, col, row.cols); break;
    default:
        for (int i = 0; i < M3_RUN; i++) v[i] = __uint_as_float(0x7fc00000);
    }
    if (row.scaling == M3_UNSCALED || col >= row.cols) return;
    float scale = m3_scale_8(row, col);
    for (int i = 0; i < M3_RUN; i++)
        if (col + i < row.cols) v[i] *= scale;
}

#endif
