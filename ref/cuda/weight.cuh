/* Stored numbers on the device: the values of base/weight.c, rounded once to float. SPEC 3.3
 *
 * A thread reads 16 bytes of a row at a time: 4 numbers of F32, 8 of BF16, 16 of E4M3. They share one scale.
 *
 * A product of a code and a scale in float is the exact product rounded once, as in base/weight.c. */
#ifndef M3_CUDA_WEIGHT_CUH
#define M3_CUDA_WEIGHT_CUH

#include "base/weight.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"

/* One row of a stored matrix; rows beyond the matrix have no data, and are read as zeros. */
struct m3_stored_row {
    const unsigned char *data, *scales;     /* of its column 0 */
    enum m3_scaling scaling;
};

/* How many numbers 16 bytes are. */
static __device__ __forceinline__ constexpr int m3_stored_run(enum m3_dtype dtype)
{
    return dtype == M3_F32 ? 4 : dtype == M3_BF16 ? 8 : 16;
}

static __device__ __forceinline__ struct m3_stored_row m3_stored_row_of(struct m3_weight w, int64_t row)
{
    struct m3_stored_row r = { NULL, (const unsigned char *)w.scales, w.scaling };
    if (row >= w.rows) return r;
    r.data = (const unsigned char *)w.data + row * m3_cuda_pitch(w.cols) * (16 / m3_stored_run(w.dtype));
    if (w.scaling == M3_SCALE_128X128) r.scales += row / 128 * ((w.cols + 127) / 128) * 4;
    if (w.scaling == M3_SCALE_MX32) r.scales += row * ((w.cols + 31) / 32);
    return r;
}

/* E4M3. Read as a float, its exponent and fraction give a value 2^120 too small, also for subnormals. The only NaN is
 * all ones. */
static __device__ __forceinline__ float m3_e4m3_value(uint32_t code)
{
    float value = __uint_as_float((code & 127) << 20) * 0x1p120f;
    if ((code & 127) == 127) value = __uint_as_float(0x7fc00000);
    return __uint_as_float(__float_as_uint(value) | (code & 128) << 24);
}

/* The bits of the scale of the numbers from `col` on, which is inside the row; 2^(code - 127), where 2^-127 is a
 * subnormal, for MX. */
static __device__ __forceinline__ uint32_t m3_scale_bits(const struct m3_stored_row &row, int64_t col)
{
    return row.scaling == M3_SCALE_MX32 ? row.scales[col / 32] : ((const uint32_t *)row.scales)[col / 128];
}

static __device__ __forceinline__ float m3_scale_value(enum m3_scaling scaling, uint32_t bits)
{
    if (scaling != M3_SCALE_MX32) return __uint_as_float(bits);
    return __uint_as_float(bits == 255 ? 0x7fc00000 : bits == 0 ? 0x00400000 : bits << 23);
}

/* 16 bytes of a row and their scale, as they are loaded. */
struct m3_loaded {
    uint4 codes;
    uint32_t scale;
};

/* From column `col` on, inside the pitch of `cols` columns; zeros from there on, and if the row is not there. */
static __device__ __forceinline__ struct m3_loaded m3_load_run(const struct m3_stored_row &row, int64_t col,
                                                               int64_t cols, int run)
{
    struct m3_loaded loaded = { make_uint4(0, 0, 0, 0), 0 };
    if (!row.data || col >= m3_cuda_pitch(cols)) return loaded;
    loaded.codes = *(const uint4 *)(row.data + col * (16 / run));
    if (row.scaling != M3_UNSCALED && col < cols) loaded.scale = m3_scale_bits(row, col);
    return loaded;
}

/* v := n of the numbers, by their scale, from a constant index on, because registers cannot be indexed. */
template <enum m3_dtype dtype, int n>
static __device__ __forceinline__ void m3_decode(float v[n], const struct m3_loaded &loaded, int from,
                                                 enum m3_scaling scaling)
{
    const uint32_t words[4] = { loaded.codes.x, loaded.codes.y, loaded.codes.z, loaded.codes.w };
    const float scale = scaling == M3_UNSCALED ? 1 : m3_scale_value(scaling, loaded.scale);
    for (int i = 0; i < n; i++) {
        const int at = from + i;
        const uint32_t pair = words[at / 2 % 4];
        if (dtype == M3_F32) v[i] = __uint_as_float(words[at % 4]);
        else if (dtype == M3_BF16) v[i] = __uint_as_float(at % 2 ? pair & 0xffff0000 : pair << 16);
        else v[i] = m3_e4m3_value(words[at / 4] >> at % 4 * 8 & 255) * scale;
    }
}

#endif
