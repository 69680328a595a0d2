#include "cuda/kernels.h"

#include <math.h>

#include "cuda/device.cuh"

enum { THREADS = 256 };

/* A choice: s + bias of an expert. Choices are ordered: the larger first, the lower expert on a tie. */
struct choice {
    float value;
    int32_t expert;
};

static __device__ __forceinline__ int comes_first(struct choice a, struct choice b)
{
    return a.value > b.value || (a.value == b.value && a.expert < b.expert);
}

/* The first choice after `last` among this lane's experts; expert INT32_MAX: none. */
static __device__ struct choice first_after(struct choice last, const float *s, const float *bias, int64_t E)
{
    struct choice best = { -INFINITY, INT32_MAX };
    for (int64_t e = m3_lane(); e < E; e += M3_WARP) {
        struct choice here = { s[e] + bias[e], (int32_t)e };
        if (comes_first(last, here) && comes_first(here, best)) best = here;
    }
    return best;
}

static __device__ struct choice first_of_warp(struct choice mine)
{
    for (int step = M3_WARP / 2; step > 0; step /= 2) {
        struct choice other = { __shfl_xor_sync(0xffffffffu, mine.value, step),
                                __shfl_xor_sync(0xffffffffu, mine.expert, step) };
        if (comes_first(other, mine)) mine = other;
    }
    return mine;
}

/* The lowest expert whose choice is NaN, or E. */
static __device__ int32_t nan_expert(const float *s, const float *bias, int64_t E)
{
    for (int64_t e0 = 0; e0 < E; e0 += M3_WARP) {
        int64_t e = e0 + m3_lane();
        unsigned lanes = __ballot_sync(0xffffffffu, e < E && isnan(s[e] + bias[e]));
        if (lanes) return (int32_t)(e0 + __ffs((int)lanes) - 1);
    }
    return (int32_t)E;
}

/* One warp per token. Lane l has experts l, l + 32, ..; the next selected expert is the first, among all lanes, that
 * comes after the last one, so nothing needs to be marked, and only the lane that it came from searches again.
 *
 *     choices   .9 .2 .9 .5      lane 0: .9 (e 0)    lane 1: .2    lane 2: .9 (e 2)    lane 3: .5
 *     taken     0, 2, 3, ..
 *
 * A token with a NaN gets experts 0, 1, .. and NaN for p: the ids are valid, so that the experts can run. */
static __global__ void route(int32_t *ids, float *p, unsigned long long *nan_at, unsigned long long *zero_at,
                             const float *s, const float *bias, int64_t T, int64_t E, int64_t K)
{
    int64_t t = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / M3_WARP;
    if (t >= T) return;
    int lane = m3_lane();
    int32_t *ids_t = ids + t * K;
    float *p_t = p + t * K, sum = 0;
    const float *s_t = s + t * E;

    int32_t bad = nan_expert(s_t, bias, E);
    if (bad < E) {
        for (int64_t k = lane; k < K; k += M3_WARP) ids_t[k] = (int32_t)k, p_t[k] = __uint_as_float(0x7fc00000);
        if (lane == 0) atomicMin(nan_at, (unsigned long long)(t * E + bad));
        return;
    }

    struct choice last = { INFINITY, -1 }, mine = first_after(last, s_t, bias, E);
    for (int64_t k = 0; k < K; k++) {
        last = first_of_warp(mine);
        sum += s_t[last.expert];
        if (lane == 0) ids_t[k] = last.expert;
        if (mine.expert == last.expert) mine = first_after(last, s_t, bias, E);
    }
    __syncwarp();
    for (int64_t k = lane; k < K; k += M3_WARP) p_t[k] = s_t[ids_t[k]] / sum;
    if (lane == 0 && !(sum > 0)) atomicMin(zero_at, (unsigned long long)t);
}

cudaError_t m3_cuda_route(cudaStream_t stream, int32_t *ids, float *p, unsigned long long *nan_at,
                          unsigned long long *zero_at, const float *s, const float *bias, int64_t T, int64_t E,
                          int64_t K)
{
    int64_t blocks = m3_pieces(T * M3_WARP, THREADS);
    if (blocks > INT32_MAX || E >= INT32_MAX || K > E) return cudaErrorNotSupported;
    cudaError_t error = cudaMemsetAsync(nan_at, 0xff, sizeof *nan_at, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(zero_at, 0xff, sizeof *zero_at, stream);
    if (error != cudaSuccess) return error;
    return m3_launch(stream, route, dim3((unsigned)blocks), THREADS, 0, ids, p, nan_at, zero_at, s, bias, T, E, K);
}
