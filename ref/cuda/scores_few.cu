/* Block scores of few rows in bfloat16, as for a generated token: a block of threads has a block of keys and all rows.
 *
 * Keys are the left factor, 16 rows of it, and queries the right one, its 8 columns. Both need a lane's channels in
 * pairs, 2 c, 2 c + 1 and 2 c + 8, 2 c + 9 of each 16 with c = l%4; but the channels may be numbered in any way that
 * is the same in both. Therefore lane l reads 16 bytes, channels 32 n + 8 c .. + 7, of its keys and of its query:
 *
 *     words of a lane   0, 1 are the pairs of product 2 n,   2, 3 those of product 2 n + 1
 *     keys              at + 16 i + 8 h + l/4,  h the half of the product's rows
 *
 * A sum d[e] then stands for key at + 16 i + 8 (e/2) + l/4 and row 2 c + e%2.
 *
 * Limit: reading k, once. Each warp has 8 KiB in flight, in loads of 16 bytes per lane, and the whole grid reads; there
 * is one product of the tensor cores for 512 bytes. */
#include "cuda/scores.cuh"

enum {
    THREADS = 128, WARPS = THREADS / M3_WARP,
    KEYS = 32,                  /* that a warp has in flight */
    TILES = KEYS / 16, WORDS = M3_CUDA_HEAD / 32,
};

/* Loads 16 bytes of a row, from channel x on; zeros from its end on, and if not valid. */
static __device__ __forceinline__ uint4 load_16(const struct m3_scores *a, const void *rows, int64_t row, int x,
                                                int valid)
{
    if (!valid || x >= a->pitch) return make_uint4(0, 0, 0, 0);
    return *(const uint4 *)((const uint16_t *)rows + row * a->pitch + x);
}

/* Reduces the maximum of a row over the eight lanes that have it, four apart, and over all warps; then writes it. */
static __device__ __forceinline__ void finish(float most, float (*found)[WARPS], const struct m3_scores *a, int row)
{
    for (int step = 4; step < M3_WARP; step *= 2) most = max_nan(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (m3_lane() < 4) found[row][threadIdx.x / M3_WARP] = most;
    __syncthreads();
    for (int warp = 0; warp < WARPS; warp++) most = max_nan(most, found[row][warp]);
    if (threadIdx.x < 4) m3_score_write(a, row, blockIdx.x, most * a->scale);
}

static __global__ __launch_bounds__(THREADS) void scores_few(struct m3_scores a)
{
    const int warp = (int)threadIdx.x / M3_WARP, own = m3_lane() / 4, c = m3_lane() % 4;
    const int64_t key = (int64_t)blockIdx.x * a.block, last = m3_score_place(&a, a.rows - 1);
    const int end = (int)(key + a.block <= last ? key + a.block : last + 1);
    float most[2] = { -INFINITY, -INFINITY };
    uint4 q[WORDS];
    for (int n = 0; n < WORDS; n++) q[n] = load_16(&a, a.q, own, 32 * n + 8 * c, own < a.rows);

    for (int64_t at = key + warp * KEYS; at < end; at += WARPS * KEYS) {
        uint4 k[TILES][2][WORDS];
        for (int i = 0; i < TILES * 2 * WORDS; i++) {
            const int64_t j = at + i / WORDS * 8 + own;
            k[i / WORDS / 2][i / WORDS % 2][i % WORDS] = load_16(&a, a.k, j, i % WORDS * 32 + 8 * c, j < end);
        }
        for (int i = 0; i < TILES; i++) {
            float d[4] = {};
            for (int n = 0; n < WORDS; n++) {
                uint4 low = k[i][0][n], high = k[i][1][n];
                uint32_t even[4] = { low.x, high.x, low.y, high.y }, odd[4] = { low.z, high.z, low.w, high.w };
                mma_bf16(d, even, q[n].x, q[n].y);
                mma_bf16(d, odd, q[n].z, q[n].w);
            }
            for (int e = 0; e < 4; e++) {
                const int j = (int)at + 16 * i + e / 2 * 8 + own;
                if (j < end && j <= m3_score_place(&a, 2 * c + e % 2) && !m3_score_hidden(&a, j, end))
                    most[e % 2] = max_nan(most[e % 2], d[e]);
            }
        }
    }
    for (int e = 0; e < 2; e++) finish(most[e], (float (*)[WARPS])m3_shared, &a, 2 * c + e);
}

cudaError_t m3_scores_few(cudaStream_t stream, const struct m3_scores *a)
{
    return m3_launch(stream, scores_few, dim3((unsigned)a->B), THREADS, M3_SCORES_FEW * WARPS * sizeof(float), *a);
}
