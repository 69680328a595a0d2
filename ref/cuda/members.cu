#include "cuda/members.h"

enum {
    MARK_THREADS = 256,
    COUNT_THREADS = 256,
};

/* One thread per id: sets bit `row` of its value.
 *
 *     ids    [rows,groups,width]        place i = (row groups + g) width + n
 *     bits   [groups values,words]      |31 .. 0|63 .. 32| ...       rows of a word */
static __global__ void mark(struct m3_members members, const int32_t *ids)
{
    int64_t i = (int64_t)blockIdx.x * MARK_THREADS + threadIdx.x, lists = members.groups * members.width;
    if (i >= members.rows * lists || ids[i] < 0) return;
    int64_t row = i / lists, value = i % lists / members.width * members.values + ids[i];
    atomicOr(&members.bits[value * members.words + row / 32], 1u << row % 32);
}

/* The sum of x over the lanes up to this one, this one too; *all: over all lanes. */
static __device__ __forceinline__ int32_t prefix_of(int32_t x, int32_t *all)
{
    for (int step = 1; step < M3_WARP; step *= 2) {
        const int32_t left = __shfl_up_sync(0xffffffffu, x, step);
        if (m3_lane() >= step) x += left;
    }
    *all = __shfl_sync(0xffffffffu, x, M3_WARP - 1);
    return x;
}

/* One warp per value, one lane per word: counts the members before each word, and in all; the latter go to
 * first[value]. */
static __global__ void count(struct m3_members members)
{
    int64_t value = ((int64_t)blockIdx.x * COUNT_THREADS + threadIdx.x) / M3_WARP;
    if (value >= members.groups * members.values) return;
    const uint32_t *bits = members.bits + value * members.words;
    int32_t *before = members.before + value * members.words, all = 0, more;
    for (int64_t w0 = 0; w0 < members.words; w0 += M3_WARP) {
        const int64_t w = w0 + m3_lane();
        const int32_t here = w < members.words ? __popc(bits[w]) : 0, sum = prefix_of(here, &more);
        if (w < members.words) before[w] = all + sum - here;
        all += more;
    }
    if (m3_lane() == 0) members.first[value] = all;
}

/* One warp: turns first, which holds counts, and tiles into sums over the values before.
 *
 *     first  3 0 5 2 .    ->  0 3 3 8 10
 *     tiles  . . . . .    ->  0 2 2 5 6          tiles of 2 members */
static __global__ void prefix(struct m3_members members)
{
    int32_t members_before = 0, tiles_before = 0, more, more_tiles;
    const int64_t values = members.groups * members.values;
    for (int64_t v0 = 0; v0 <= values; v0 += M3_WARP) {
        const int64_t v = v0 + m3_lane();
        const int32_t count = v < values ? members.first[v] : 0;
        const int32_t tiles = (int32_t)((count + members.tile - 1) / members.tile);
        const int32_t count_up_to = prefix_of(count, &more), tiles_up_to = prefix_of(tiles, &more_tiles);
        if (v <= values) {
            members.first[v] = members_before + count_up_to - count;
            members.tiles[v] = tiles_before + tiles_up_to - tiles;
        }
        members_before += more;
        tiles_before += more_tiles;
    }
}

/* One thread per id: writes its place into the list of its value, after the rows before it. */
static __global__ void enter(struct m3_members members, const int32_t *ids)
{
    int64_t i = (int64_t)blockIdx.x * MARK_THREADS + threadIdx.x, lists = members.groups * members.width;
    if (i >= members.rows * lists || ids[i] < 0) return;
    int64_t row = i / lists, value = i % lists / members.width * members.values + ids[i];
    int64_t word = value * members.words + row / 32;
    int32_t rank = members.before[word] + __popc(members.bits[word] & ((1u << row % 32) - 1));
    members.list[members.first[value] + rank] = (int32_t)i;
}

static size_t padded(int64_t n)
{
    return ((size_t)n * sizeof(int32_t) + 255) / 256 * 256;
}

size_t m3_cuda_members_bytes(int64_t rows, int64_t groups, int64_t width, int64_t values)
{
    if (groups * values >= INT32_MAX || groups * width >= INT32_MAX || rows > INT32_MAX / (groups * width)) return 0;
    int64_t n = groups * values;
    return 2 * padded(n * m3_pieces(rows, 32)) + 2 * padded(n + 1) + padded(rows * groups * width);
}

static struct m3_members arrange(int64_t rows, int64_t groups, int64_t width, int64_t values, int64_t tile,
                                 unsigned char *scratch)
{
    int64_t n = groups * values, words = m3_pieces(rows, 32);
    struct m3_members members = { rows, groups, width, values, words, tile, NULL, NULL, NULL, NULL, NULL };
    members.bits = (uint32_t *)scratch;
    scratch += padded(n * words);
    members.before = (int32_t *)scratch;
    scratch += padded(n * words);
    members.first = (int32_t *)scratch;
    scratch += padded(n + 1);
    members.tiles = (int32_t *)scratch;
    scratch += padded(n + 1);
    members.list = (int32_t *)scratch;
    return members;
}

cudaError_t m3_cuda_members(cudaStream_t stream, struct m3_members *members, const int32_t *ids, int64_t rows,
                            int64_t groups, int64_t width, int64_t values, int64_t tile, void *scratch)
{
    *members = arrange(rows, groups, width, values, tile, (unsigned char *)scratch);
    int64_t n = groups * values;
    dim3 of_ids((unsigned)m3_pieces(rows * groups * width, MARK_THREADS));
    dim3 of_values((unsigned)m3_pieces(n * M3_WARP, COUNT_THREADS));
    cudaError_t error = cudaMemsetAsync(members->bits, 0, (size_t)(n * members->words) * sizeof(uint32_t), stream);
    if (error == cudaSuccess) error = m3_launch(stream, mark, of_ids, MARK_THREADS, 0, *members, ids);
    if (error == cudaSuccess) error = m3_launch(stream, count, of_values, COUNT_THREADS, 0, *members);
    if (error == cudaSuccess) error = m3_launch(stream, prefix, dim3(1), M3_WARP, 0, *members);
    if (error == cudaSuccess) error = m3_launch(stream, enter, of_ids, MARK_THREADS, 0, *members, ids);
    return error;
}
