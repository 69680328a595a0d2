/* The basis of every kernel: the runtime, shared memory, launches, and a warp's common steps.
 *
 * The same sources compile for a CPU, where tests/cuda/on_cpu replaces the runtime and ptx.cuh. Therefore all shared
 * memory is dynamic and has one name, and a launch is a function call. */
#ifndef M3_CUDA_DEVICE_CUH
#define M3_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda/ptx.cuh"

enum {
    M3_WARP = 32,
    M3_PLAIN_SHARED = 48 << 10,     /* a kernel must request more shared memory than this */
    M3_MOST_SHARED = 99 << 10,      /* per block on sm_86, sm_89 and sm_120; sm_80, sm_90 and sm_100 have more */
};

/* A block's shared memory: its size is set by the launch. */
extern __shared__ __align__(128) unsigned char m3_shared[];

static __device__ __forceinline__ int m3_lane() { return (int)threadIdx.x % M3_WARP; }

static __device__ __forceinline__ float m3_float(float x) { return x; }
static __device__ __forceinline__ float m3_float(__nv_bfloat16 x) { return __bfloat162float(x); }

static __device__ __forceinline__ void m3_put(float *at, float x) { *at = x; }
static __device__ __forceinline__ void m3_put(__nv_bfloat16 *at, float x) { *at = __float2bfloat16_rn(x); }

static __device__ __forceinline__ uint32_t m3_pair(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

static __device__ __forceinline__ float m3_warp_max_nan(float x)
{
    for (int step = M3_WARP / 2; step > 0; step /= 2) x = max_nan(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Always in the same order: the lanes at distance 16, then 8, 4, 2, 1. */
static __device__ __forceinline__ float m3_warp_sum(float x)
{
    for (int step = M3_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static inline int64_t m3_pieces(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* Starts `kernel` with `shared` bytes of shared memory. A grid without blocks does nothing and is no error. */
template <class... Parameters, class... Arguments>
static cudaError_t m3_launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                             size_t shared, Arguments... arguments)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
    if (shared > M3_PLAIN_SHARED) {
        cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 (int)shared);
        if (error != cudaSuccess) return error;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

#endif
