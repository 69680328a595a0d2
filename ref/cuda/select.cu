/* m3_cuda_select_blocks: the N best of the blocks that a row sees.
 *
 * The forced blocks follow from the row's place: initial ones 0 .. first, and local ones after `last`, the nearest
 * first if N does not have room for all. The blocks between them are the candidates:
 *
 *     0 ........ first ....................... last ........ own        own = (p0 + t) div block
 *     initial    candidates: the best by score        local
 *
 * A list consists of the initial blocks, the selected candidates and the local blocks, in this order: ascending. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

enum {
    MOST_THREADS = 256, MOST_WARPS = MOST_THREADS / M3_WARP,
    MANY_ROWS = 2048,       /* enough rows to fill a device with one warp each */
};

struct selecting {
    int32_t *ids;                   /* [T,G,N] */
    unsigned long long *nan_at;
    const float *m;                 /* [T,G,B] */
    int64_t p0, G, B, N, block, init, local;
    int shared;                     /* selection=shared: the largest score of all groups is used */
};

/* Shared memory: one value per warp, in alternating buffers, so that one barrier between two writes is sufficient;
 * then the selected candidates, as they come. */
struct found {
    unsigned long long best[2][MOST_WARPS];
    int32_t chosen[];
};

/* A row's candidates first .. last - 1, dealt to the threads: thread i has first + i, first + i + threads, .. */
struct row {
    const float *m;                 /* of group 0, or of the only group used */
    int64_t B;
    int groups;
    int first, last;
};

/* A candidate's key: larger keys are selected first. It consists of the score, mapped to ascending integers, then the
 * lower id. 0 for -inf, which is never selected. No other key is 0, because the upper half for another score is not
 * 0. */
static __device__ __forceinline__ unsigned long long key_of(const struct row *row, int b)
{
    float score = row->m[b];
    for (int g = 1; g < row->groups; g++) score = fmaxf(score, row->m[g * row->B + b]);
    if (!(score > -INFINITY)) return 0;
    unsigned bits = __float_as_uint(score + 0.0f);      /* -0 equals +0 */
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | (0xffffffffu - (unsigned)b);
}

static __device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b)
{
    return a > b ? a : b;
}

static __device__ __forceinline__ unsigned long long warp_largest(unsigned long long x)
{
    for (int step = M3_WARP / 2; step > 0; step /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Selects the `places` best candidates into found->chosen and returns how many there are. Each lane first finds the
 * best of its own candidates; the best of all lanes is the next one, and its warp looks together for the next best of
 * that lane's. */
static __device__ __forceinline__ int64_t choose(struct found *found, const struct row *row, int64_t places)
{
    const int warp = (int)threadIdx.x / M3_WARP, warps = (int)blockDim.x / M3_WARP, threads = (int)blockDim.x;
    unsigned long long best = 0;
    for (int b = row->first + (int)threadIdx.x; b < row->last; b += threads) best = larger(best, key_of(row, b));
    for (int64_t n = 0; n < places; n++) {
        unsigned long long top = warp_largest(best);
        if (m3_lane() == 0) found->best[n % 2][warp] = top;
        __syncthreads();
        for (int w = 0; w < warps; w++) top = larger(top, found->best[n % 2][w]);
        if (top == 0) return n;
        if (threadIdx.x == 0) found->chosen[n] = (int32_t)(0xffffffffu - (unsigned)top);

        const unsigned owner = __ballot_sync(0xffffffffu, best == top);
        if (owner == 0) continue;
        const int lane = __ffs((int)owner) - 1;
        unsigned long long next = 0;
        for (int64_t b = row->first + warp * M3_WARP + lane + (int64_t)m3_lane() * threads; b < row->last;
             b += (int64_t)M3_WARP * threads) {
            const unsigned long long key = key_of(row, (int)b);
            if (key < top) next = larger(next, key);
        }
        next = warp_largest(next);
        if (m3_lane() == lane) best = next;
    }
    return places;
}

/* A block of threads per row and group: one warp, or for few rows several warps, so that many read.
 *
 * Limit: reading m, 4 (own + 1) bytes from memory; then, for each selected block, 1/32 of a row (or 1/256) from the
 * caches, and a barrier. */
static __global__ __launch_bounds__(MOST_THREADS) void select_blocks(struct selecting a)
{
    struct found *found = (struct found *)m3_shared;
    int64_t t = blockIdx.x / a.G, g = blockIdx.x % a.G, own = (a.p0 + t) / a.block;
    const float *m_t = a.m + t * a.G * a.B, *m_g = m_t + g * a.B;
    for (int64_t b = threadIdx.x; b <= own; b += blockDim.x)
        if (isnan(m_g[b])) atomicMin(a.nan_at, (unsigned long long)(m_g + b - a.m));

    int64_t local = a.local < own + 1 ? a.local : own + 1;
    if (local > a.N) local = a.N;
    int64_t last = own + 1 - local, first = a.init < last ? a.init : last;
    if (first > a.N - local) first = a.N - local;
    struct row row = { a.shared ? m_t : m_g, a.B, a.shared ? (int)a.G : 1, (int)first, (int)last };

    const int64_t n_chosen = choose(found, &row, a.N - first - local);
    int32_t *ids = a.ids + (int64_t)blockIdx.x * a.N;
    __syncthreads();
    for (int64_t n = threadIdx.x; n < a.N; n += blockDim.x) {
        const int64_t behind = n - first - n_chosen;
        int64_t at = n;
        int32_t id = (int32_t)n;
        if (behind >= 0) id = behind < local ? (int32_t)(last + behind) : -1;
        else if (n >= first) {
            id = found->chosen[n - first];
            at = first;
            for (int64_t i = 0; i < n_chosen; i++) at += found->chosen[i] < id;
        }
        ids[at] = id;
    }
}

cudaError_t m3_cuda_select_blocks(cudaStream_t stream, int32_t *ids, unsigned long long *nan_at, const float *m,
                                  const struct m3_index *d)
{
    const struct m3_semantics *semantics = d->semantics;
    int64_t rows = d->T * d->G, local = semantics->local_blocks;
    size_t shared = sizeof(struct found) + (size_t)(d->N < d->B ? d->N : d->B) * sizeof(int32_t);
    if (d->p0 + d->T > INT32_MAX || d->B > INT32_MAX || rows > INT32_MAX || shared > M3_MOST_SHARED)
        return cudaErrorNotSupported;
    if (semantics->local_rule == M3_LOCAL_OWN && local > 1) local = 1;
    struct selecting a = { ids, nan_at, m, d->p0, d->G, d->B, d->N, d->block, semantics->init_blocks, local,
                           semantics->selection == M3_SELECT_SHARED };

    unsigned threads = MOST_THREADS;
    if (rows >= MANY_ROWS) threads = M3_WARP;

    cudaError_t error = cudaMemsetAsync(nan_at, 0xFF, sizeof *nan_at, stream);
    if (error != cudaSuccess) return error;
    return m3_launch(stream, select_blocks, dim3((unsigned)rows), threads, shared, a);
}
