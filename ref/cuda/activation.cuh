/* The activation between the matrices of a gated MLP, for one pair of numbers. SPEC 5.11, 5.12 */
#ifndef M3_CUDA_ACTIVATION_CUH
#define M3_CUDA_ACTIVATION_CUH

#include "cuda/device.cuh"
#include "cuda/kernels.h"

/* For x < 0 computed from exp(x): exp(-x) overflows from 88.8 on, where the logistic is still above 0. NaN is not
 * below 0. */
static __device__ __forceinline__ float m3_logistic(float x)
{
    float e = expf(x < 0 ? x : -x);
    return (x < 0 ? e : 1) / (1 + e);
}

/* Comparisons instead of fminf and fmaxf: a NaN fails them and stays. */
static __device__ __forceinline__ float m3_gated(float gate, float up, const struct m3_activation &act)
{
    if (!act.oai) return up * gate * m3_logistic(gate);
    float g = gate > act.limit ? act.limit : gate, u = up > act.limit ? act.limit : up;
    if (act.clamp == M3_GATE_CLAMP_BOTH && g < -act.limit) g = -act.limit;
    if (u < -act.limit) u = -act.limit;
    return (u + 1) * g * m3_logistic(act.alpha * g);
}

#endif
