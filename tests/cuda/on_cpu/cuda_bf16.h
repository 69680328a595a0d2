/* bfloat16 for a CPU: the upper half of a float, rounded to nearest even; every NaN becomes 0x7fff, as on a device. */
#ifndef M3_CUDA_ON_CPU_BF16_H
#define M3_CUDA_ON_CPU_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    const unsigned bits = __float_as_uint(x);
    if (x != x) return { 0x7fff };
    return { (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) };
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return { __float2bfloat16_rn(x), __float2bfloat16_rn(y) };
}

#endif
