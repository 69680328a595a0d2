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

/* Shared memory: one value per warp, in alternating buffers, so that one barrier between two writes is sufficient. */
struct found {
    unsigned long long best[2][MOST_WARPS];
    unsigned count[MOST_WARPS];
};

/* A row's candidates, in as many segments of `each` as there are threads: segment s is first + s each .. */
struct row {
    const float *m;                 /* of group 0, or of the only group used */
    int64_t B;
    int groups;
    int first, last, each;
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

/* The largest key below `below` in a segment, found by a whole warp; 0: none is left. */
static __device__ __forceinline__ unsigned long long best_of(const struct row *row, int segment,
                                                             unsigned long long below)
{
    int64_t from = row->first + (int64_t)segment * row->each, to = from + row->each;
    if (to > row->last) to = row->last;
    unsigned long long best = 0;
    for (int64_t b = from + m3_lane(); b < to; b += M3_WARP) {
        unsigned long long key = key_of(row, (int)b);
        if (key < below) best = larger(best, key);
    }
    return warp_largest(best);
}

/* Selects the `places` best candidates and counts those in this thread's segment. Returns the key of the last one, all
 * ones if there is none. Each thread keeps the best unselected candidate of its segment; the best of all is the next
 * one, and its warp searches that segment again for the one after it in the order of keys. */
static __device__ __forceinline__ unsigned long long choose(unsigned *count, struct found *found,
                                                            const struct row *row, int64_t places)
{
    int warp = (int)threadIdx.x / M3_WARP, warps = (int)blockDim.x / M3_WARP;
    unsigned long long best = 0, lowest = ~0ull;
    for (int s = 0; s < M3_WARP && (int64_t)(warp * M3_WARP + s) * row->each < row->last - row->first; s++) {
        unsigned long long key = best_of(row, warp * M3_WARP + s, ~0ull);
        if (m3_lane() == s) best = key;
    }
    *count = 0;
    for (int64_t n = 0; n < places; n++) {
        unsigned long long top = warp_largest(best);
        if (m3_lane() == 0) found->best[n % 2][warp] = top;
        __syncthreads();
        for (int w = 0; w < warps; w++) top = larger(top, found->best[n % 2][w]);
        if (top == 0) break;

        lowest = top;
        unsigned owner = __ballot_sync(0xffffffffu, best == top);
        if (owner == 0) continue;
        int s = __ffs(owner) - 1;
        unsigned long long next = best_of(row, warp * M3_WARP + s, top);
        if (m3_lane() == s) {
            best = next;
            ++*count;
        }
    }
    return lowest;
}

/* The sum of `count` over the threads before this one; over all of them in *total. */
static __device__ __forceinline__ unsigned count_before(unsigned *total, struct found *found, unsigned count)
{
    int warp = (int)threadIdx.x / M3_WARP, warps = (int)blockDim.x / M3_WARP;
    unsigned sum = count;
    for (int step = 1; step < M3_WARP; step *= 2) {
        unsigned x = __shfl_up_sync(0xffffffffu, sum, step);
        if (m3_lane() >= step) sum += x;
    }
    if (m3_lane() == M3_WARP - 1) found->count[warp] = sum;
    __syncthreads();
    *total = 0;
    for (int w = 0; w < warps; w++) {
        if (w == warp) sum += *total;
        *total += found->count[w];
    }
    return sum - count;
}

/* Writes the selected candidates, ascending: those of a segment with keys from `lowest` on come after those of the
 * segments before it. */
static __device__ __forceinline__ void write_chosen(int32_t *ids, const struct row *row, unsigned long long lowest,
                                                    unsigned count, unsigned before)
{
    unsigned left = __ballot_sync(0xffffffffu, count > 0), below = (1u << m3_lane()) - 1;
    for (; left; left &= left - 1) {
        int s = __ffs(left) - 1;
        unsigned at = __shfl_sync(0xffffffffu, before, s);
        int64_t from = row->first + (int64_t)((int)threadIdx.x / M3_WARP * M3_WARP + s) * row->each;
        int64_t to = from + row->each < row->last ? from + row->each : row->last;
        for (int64_t b = from + m3_lane(); b - m3_lane() < to; b += M3_WARP) {
            int chosen = b < to && key_of(row, (int)b) >= lowest;
            unsigned lanes = __ballot_sync(0xffffffffu, chosen);
            if (chosen) ids[at + __popc(lanes & below)] = (int32_t)b;
            at += __popc(lanes);
        }
    }
}

/* A block of threads per row and group: one warp, or for few rows several warps, so that many read.
 *
 * Limit: reading m, 4 (own + 1) bytes from memory; from the caches once more for the best of each segment, and then a
 * segment (1/32 of a row, or 1/256) twice for each selected block. */
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
    int64_t each = (last - first + blockDim.x - 1) / blockDim.x;
    struct row row = { a.shared ? m_t : m_g, a.B, a.shared ? (int)a.G : 1, (int)first, (int)last,
                       each > M3_WARP ? (int)each : M3_WARP };

    unsigned count, total;
    unsigned long long lowest = choose(&count, found, &row, a.N - first - local);
    unsigned before = count_before(&total, found, count);
    int32_t *ids = a.ids + (int64_t)blockIdx.x * a.N;
    write_chosen(ids + first, &row, lowest, count, before);
    for (int64_t n = threadIdx.x; n < a.N; n += blockDim.x) {
        int64_t behind = n - first - total;
        if (n < first) ids[n] = (int32_t)n;
        else if (behind >= 0) ids[n] = behind < local ? (int32_t)(last + behind) : -1;
    }
}

cudaError_t m3_cuda_select_blocks(cudaStream_t stream, int32_t *ids, unsigned long long *nan_at, const float *m,
                                  const struct m3_index *d)
{
    const struct m3_semantics *semantics = d->semantics;
    int64_t rows = d->T * d->G, local = semantics->local_blocks;
    if (d->p0 + d->T > INT32_MAX || d->B > INT32_MAX || rows > INT32_MAX) return cudaErrorNotSupported;
    if (semantics->local_rule == M3_LOCAL_OWN && local > 1) local = 1;
    struct selecting a = { ids, nan_at, m, d->p0, d->G, d->B, d->N, d->block, semantics->init_blocks, local,
                           semantics->selection == M3_SELECT_SHARED };

    unsigned threads = MOST_THREADS;
    if (rows >= MANY_ROWS) threads = M3_WARP;

    cudaError_t error = cudaMemsetAsync(nan_at, 0xFF, sizeof *nan_at, stream);
    if (error != cudaSuccess) return error;
    return m3_launch(stream, select_blocks, dim3((unsigned)rows), threads, sizeof(struct found), a);
}
