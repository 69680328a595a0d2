#include "cuda/kernels.h"

#include "cuda/device.cuh"

enum { THREADS = 256 };

/* One thread per number. */
static __global__ void round_each(__nv_bfloat16 *y, const float *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = __float2bfloat16_rn(x[i]);
}

cudaError_t m3_cuda_round(cudaStream_t stream, __nv_bfloat16 *y, const float *x, int64_t n)
{
    int64_t blocks = m3_pieces(n, THREADS);
    if (blocks > INT32_MAX) return cudaErrorNotSupported;
    return m3_launch(stream, round_each, dim3((unsigned)blocks), THREADS, 0, y, x, n);
}
