/* What a kernel calls, for a CPU: launcher.cc runs one thread at a time, until it waits for others.
 *
 * Nothing is here that the kernels have no use for. Masks are full: all lanes of a warp meet at the same line. */
#ifndef M3_CUDA_ON_CPU_THREADS_H
#define M3_CUDA_ON_CPU_THREADS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* A line of a kernel. As a default argument, here() is the line of the call. */
struct m3_line {
    const char *file;
    int number;
    static constexpr m3_line here(const char *file = __builtin_FILE(), int number = __builtin_LINE())
    {
        return { file, number };
    }
};

enum { M3_LANES = 32, M3_LANE_BYTES = 64 };

/* Returns when every thread of the block that has not returned is here. */
void m3_meet_block(const char *operation, m3_line at);

/* Returns when all lanes of the warp are here: what they brought, [32] of `bytes` each; good until this lane's next
 * meeting. The last to come calls `together`, if there is one, on what all have brought. */
void *m3_meet_warp(const char *operation, m3_line at, unsigned mask, const void *brought, size_t bytes,
                   void (*together)(void *all));

/* Aborts, unless the bytes are shared memory of this block, aligned to as many. */
void m3_check_shared(const char *operation, m3_line at, const void *p, size_t bytes);

static inline int m3_own_lane() { return (int)(threadIdx.x % M3_LANES); }

static inline void __syncthreads(m3_line at = m3_line::here()) { m3_meet_block("__syncthreads", at); }

static inline void __syncwarp(unsigned mask = 0xffffffffu, m3_line at = m3_line::here())
{
    m3_meet_warp("__syncwarp", at, mask, NULL, 0, NULL);
}

template <class T> static inline const T *m3_brought(const char *operation, m3_line at, unsigned mask, T x)
{
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "what a shuffle can carry");
    return (const T *)m3_meet_warp(operation, at, mask, &x, sizeof x, NULL);
}

template <class T> static inline T __shfl_sync(unsigned mask, T x, int lane, m3_line at = m3_line::here())
{
    return m3_brought("__shfl_sync", at, mask, x)[lane & (M3_LANES - 1)];
}

/* Lanes that do not exist: one's own value. */
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, m3_line at = m3_line::here())
{
    const int from = m3_own_lane() ^ bits;
    const T *all = m3_brought("__shfl_xor_sync", at, mask, x);
    return from >= 0 && from < M3_LANES ? all[from] : x;
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned distance, m3_line at = m3_line::here())
{
    const unsigned lane = threadIdx.x % M3_LANES;
    const T *all = m3_brought("__shfl_up_sync", at, mask, x);
    return distance <= lane ? all[lane - distance] : x;
}

static inline unsigned m3_ballot(const char *operation, m3_line at, unsigned mask, int predicate)
{
    const int *all = m3_brought(operation, at, mask, predicate);
    unsigned bits = 0;
    for (int lane = 0; lane < M3_LANES; lane++) bits |= (unsigned)(all[lane] != 0) << lane;
    return bits;
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, m3_line at = m3_line::here())
{
    return m3_ballot("__ballot_sync", at, mask, predicate);
}

static inline int __any_sync(unsigned mask, int predicate, m3_line at = m3_line::here())
{
    return m3_ballot("__any_sync", at, mask, predicate) != 0;
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

template <class T> static inline T m3_exchanged(T *p, T x)
{
    const T old = *p;
    *p = x;
    return old;
}

static inline unsigned atomicAdd(unsigned *p, unsigned x) { return m3_exchanged(p, *p + x); }
static inline unsigned atomicOr(unsigned *p, unsigned x) { return m3_exchanged(p, *p | x); }
static inline unsigned long long atomicMin(unsigned long long *p, unsigned long long x)
{
    return m3_exchanged(p, x < *p ? x : *p);
}

static inline float __uint_as_float(unsigned x)
{
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline unsigned __float_as_uint(float x)
{
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}

#endif
