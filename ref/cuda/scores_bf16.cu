/* Block scores of bfloat16 on tensor cores, for many rows. */
#include "cuda/scores.cuh"

enum {
    THREADS = 256, WARPS = THREADS / M3_WARP,
    ROWS = 32 * WARPS, KEYS = 128,      /* of a tile */
    PITCH = M3_CUDA_HEAD + 8,           /* eight consecutive rows are in different banks */
    DEEP = M3_CUDA_HEAD / 16,           /* consecutive products */
    ACROSS = 2,                         /* products side by side: 16 keys */
};

/* Shared memory: keys are multiplied while the next ones are copied. At first both hold the tile's queries. */
struct stage {
    uint16_t rows[KEYS][PITCH];
};

/* A warp's 32 rows, all channels: 64 registers a thread. */
struct queries {
    uint32_t a[2][DEEP][4];
};

/* s := the warp's 32 rows by the 16 keys from `keys` on. A load of keys serves four products, because it loads 16 keys
 * for both halves of the rows: 512 bytes of shared memory for 2^14 FLOP. */
static __device__ __forceinline__ void multiply(float s[2][ACROSS][4], const struct queries *q,
                                                const uint16_t (*keys)[PITCH])
{
    const uint16_t *row = &keys[m3_lane() / 16 * 8 + m3_lane() % 8][m3_lane() / 8 % 2 * 8];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < ACROSS; j++)
            for (int e = 0; e < 4; e++) s[i][j][e] = 0;
    for (int x = 0; x < DEEP; x++)
        for (int j = 0; j < ACROSS; j += 2) {
            uint32_t b[4];      /* keys 0..7: b[0], b[1]; keys 8..15: b[2], b[3] */
            load_matrices(b, row + j * 8 * PITCH + x * 16);
            for (int i = 0; i < 2; i++) {
                mma_bf16(s[i][j], q->a[i][x], b[0], b[1]);
                mma_bf16(s[i][j + 1], q->a[i][x], b[2], b[3]);
            }
        }
}

/* The position of the value s[i][j][e] of a lane: row 16 i + 8 (e/2) + l/4, key 8 j + 2 (l%4) + e%2. */
static __device__ __forceinline__ int row_of(int i, int e) { return 16 * i + e / 2 * 8 + m3_lane() / 4; }
static __device__ __forceinline__ int key_of(int j, int e) { return 8 * j + m3_lane() % 4 * 2 + e % 2; }

/* Scores of invisible keys become -inf. `key` is the place of the first key. */
static __device__ __forceinline__ void mask(float s[2][ACROSS][4], const struct m3_scores *a,
                                            const struct m3_score_tile *tile, int warp_row, int key, int end)
{
    unsigned hidden = 0;        /* bit 2 j + e%2 */
    for (int bit = 0; bit < 2 * ACROSS; bit++)
        hidden |= (unsigned)m3_score_hidden(a, key + key_of(bit / 2, bit % 2), end) << bit;
    for (int n = 0; n < 4; n++) {
        int place = m3_score_place(a, tile, warp_row + row_of(n / 2, n % 2 * 2));
        int keys = (place < end ? place + 1 : end) - key;
        for (int j = 0; j < ACROSS; j++)
            for (int e = n % 2 * 2; e < n % 2 * 2 + 2; e++)
                if (key_of(j, e) >= keys || (hidden >> (2 * j + e % 2) & 1)) s[n / 2][j][e] = -INFINITY;
    }
}

/* The pools of a lane's four rows, n = 2 i + e/2: the maximum, and with pool=lse the sum. */
struct pools {
    float most[4], sum[4];
};

template <bool LSE>
static __device__ __forceinline__ void pool(struct pools *p, const float s[2][ACROSS][4], const struct m3_scores *a,
                                            int pass)
{
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < ACROSS; j++)
            for (int e = 0; e < 4; e++) {
                int n = 2 * i + e / 2;
                if (!LSE || pass == 0) p->most[n] = max_nan(p->most[n], s[i][j][e]);
                else p->sum[n] += m3_score_part(s[i][j][e], a->scale, p->most[n]);
            }
}

/* After the last keys of a block: reduces over the four lanes that share rows; then each writes one of the rows. */
template <bool LSE>
static __device__ __forceinline__ void finish(struct pools *p, const struct m3_scores *a, int64_t warp_row, int b,
                                              int pass)
{
    for (int n = 0; n < 4; n++) {
        int summed = LSE && pass > 0;
        float x = summed ? p->sum[n] : p->most[n];
        for (int step = 1; step < 4; step *= 2) {
            float other = __shfl_xor_sync(0xffffffffu, x, step);
            x = summed ? x + other : max_nan(x, other);
        }
        if (!summed) p->most[n] = x * a->scale;
        if (LSE && !summed) continue;
        float m = LSE ? m3_score_log(p->most[n], x) : p->most[n];
        if (m3_lane() % 4 == n) m3_score_write(a, warp_row + row_of(n / 2, n % 2 * 2), b, m);
        p->most[n] = -INFINITY;
        p->sum[n] = 0;
    }
}

/* Loads up to 128 of the n rows from `row` on. */
static __device__ __forceinline__ void stage_rows(struct stage *stage, const void *from, int64_t row, int n,
                                                  const struct m3_scores *a)
{
    m3_stage_rows(&stage->rows[0][0], PITCH, (const uint16_t *)from + row * a->X, n, 0, a->X, a->by_16, KEYS,
                  M3_CUDA_HEAD, THREADS);
}

/* Loads through shared memory, 128 rows in each stage. */
static __device__ __forceinline__ void load_queries(struct queries *q, struct stage *stages, const struct m3_scores *a,
                                                    const struct m3_score_tile *tile)
{
    stage_rows(&stages[0], a->q, tile->row, tile->rows, a);
    stage_rows(&stages[1], a->q, tile->row + KEYS, tile->rows - KEYS, a);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    int row = (int)threadIdx.x / M3_WARP * 32 + m3_lane() % 16;
    for (int i = 0; i < 2; i++)
        for (int x = 0; x < DEEP; x++)
            load_matrices(q->a[i][x], &stages[row / KEYS].rows[row % KEYS + 16 * i][16 * x + m3_lane() / 16 * 8]);
    __syncthreads();
}

/* Tiles of 256 rows by 128 keys. A warp has 32 rows: their queries stay in registers for the whole walk, as the left
 * factor; the keys are read from shared memory, 16 at a time with all channels, as the right factor.
 *
 *                 keys 0..15   16..31   ..   112..127
 *     warp 0  rows       s        .      .       .        s: the sums that a warp has at a time, 32 rows by 16 keys in
 *     ..                                                  16 registers per thread; only their maxima are kept, a
 *     warp 7  rows       s        .      .       .        register for each of a thread's 4 rows
 *
 * Limit: the tensor cores. A tile is 2^23 FLOP for 32 KiB from the L2, 256 per byte, and for 256 KiB from shared
 * memory, 32 per byte: at its 128 bytes per cycle 4,096 FLOP, twice the rate of the tensor cores of sm_80 and as much
 * as those of sm_90. For 32 products a thread has 8 loads of keys and 16 maxima. Two blocks of threads fit on a
 * multiprocessor, with 128 registers per thread and 68 KiB each: while one waits at its barrier the other multiplies.
 * pool=lse needs more registers, so only one fits. */
template <bool LSE>
static __global__ __launch_bounds__(THREADS, LSE ? 1 : 2) void scores_bf16(struct m3_scores a)
{
    struct stage *stages = (struct stage *)m3_shared;
    struct m3_score_tile tile = m3_score_tile_of(&a, ROWS);
    int warp_row = (int)threadIdx.x / M3_WARP * 32;
    struct pools pools;
    for (int n = 0; n < 4; n++) {
        pools.most[n] = -INFINITY;
        pools.sum[n] = 0;
    }
    if (tile.b < tile.end) {
        struct queries q;
        load_queries(&q, stages, &a, &tile);
        struct m3_score_step step = m3_score_block(&a, tile.b, tile.last);
        stage_rows(&stages[0], a.k, step.key, step.end - step.key, &a);
        copies_commit();
        for (int at = 0; step.b < tile.end; at ^= 1) {
            struct m3_score_step next = m3_score_next(step, &a, &tile, KEYS, M3_CUDA_HEAD, LSE);
            copies_wait<0>();
            __syncthreads();
            if (next.b < tile.end) stage_rows(&stages[at ^ 1], a.k, next.key, next.end - next.key, &a);
            copies_commit();

            int n = step.end - step.key < KEYS ? step.end - step.key : KEYS;
            int masked = m3_score_masked(&a, step, KEYS, tile.first);
            for (int key = 0; key < n && warp_row < tile.rows; key += 8 * ACROSS) {
                float s[2][ACROSS][4];
                multiply(s, &q, &stages[at].rows[key]);
                if (masked) mask(s, &a, &tile, warp_row, step.key + key, step.end);
                pool<LSE>(&pools, s, &a, step.pass);
            }
            if (step.end - step.key <= KEYS) finish<LSE>(&pools, &a, tile.row + warp_row, step.b, step.pass);
            step = next;
        }
    }
    m3_score_unseen(&a, &tile, THREADS);
}

cudaError_t m3_scores_bf16(cudaStream_t stream, const struct m3_scores *a)
{
    struct m3_scores b = *a;
    dim3 grid = m3_scores_grid(&b, ROWS);
    return m3_launch(stream, b.lse ? scores_bf16<true> : scores_bf16<false>, grid, THREADS, 2 * sizeof(struct stage),
                     b);
}
