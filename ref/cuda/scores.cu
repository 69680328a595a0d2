/* m3_cuda_block_scores: selects the kernel; contains the float kernel. */
#include "cuda/scores.cuh"

#include <math.h>

enum {
    THREADS = 256,
    ROWS = 128, KEYS = 64, WIDE = 32,   /* sizes of a step */
    PITCH = WIDE + 4,                   /* eight consecutive rows are in different banks */
    ROWS_EACH = 4, KEYS_EACH = 8,       /* sums of a thread */
    LANES_ROW = 4, LANES_KEY = 8,       /* a warp's lanes */
};

/* Shared memory: a step is multiplied while the next one is copied. */
struct stage {
    float q[ROWS][PITCH], k[KEYS][PITCH];
};

/* s[i][j] += q[row] . k[key] over the channels of a stage: 128 multiply-adds for 12 loads of 16 bytes. */
static __device__ __forceinline__ void multiply(float s[ROWS_EACH][KEYS_EACH], const struct stage *stage, int row,
                                                int key)
{
    for (int x = 0; x < WIDE; x += 4) {
        float4 q[ROWS_EACH];
        for (int i = 0; i < ROWS_EACH; i++) q[i] = *(const float4 *)&stage->q[row + i * LANES_ROW][x];
        for (int j = 0; j < KEYS_EACH; j++) {
            float4 k = *(const float4 *)&stage->k[key + j * LANES_KEY][x];
            for (int i = 0; i < ROWS_EACH; i++) {
                s[i][j] = fmaf(q[i].x, k.x, s[i][j]);
                s[i][j] = fmaf(q[i].y, k.y, s[i][j]);
                s[i][j] = fmaf(q[i].z, k.z, s[i][j]);
                s[i][j] = fmaf(q[i].w, k.w, s[i][j]);
            }
        }
    }
}

/* Scores of invisible keys become -inf. */
static __device__ __forceinline__ void mask(float s[ROWS_EACH][KEYS_EACH], const struct m3_scores *a,
                                            const struct m3_score_tile *tile, struct m3_score_step step, int row,
                                            int key)
{
    unsigned hidden = 0;        /* bit j */
    for (int j = 0; j < KEYS_EACH; j++)
        hidden |= (unsigned)m3_score_hidden(a, step.key + key + j * LANES_KEY, step.end) << j;
    for (int i = 0; i < ROWS_EACH; i++) {
        int place = m3_score_place(a, tile, row + i * LANES_ROW);
        int keys = (place < step.end ? place + 1 : step.end) - step.key;
        for (int j = 0; j < KEYS_EACH; j++)
            if (key + j * LANES_KEY >= keys || (hidden >> j & 1)) s[i][j] = -INFINITY;
    }
}

/* The maximum over the eight lanes that share rows. */
static __device__ __forceinline__ float lanes_max(float x)
{
    for (int step = LANES_KEY / 2; step > 0; step /= 2) x = max_nan(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __device__ __forceinline__ float lanes_sum(float x)
{
    for (int step = LANES_KEY / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Adds the scores of some keys of a block to most and sum; after the block's last keys it writes m. */
static __device__ __forceinline__ void pool(float most[ROWS_EACH], float sum[ROWS_EACH],
                                            const float s[ROWS_EACH][KEYS_EACH], const struct m3_scores *a,
                                            struct m3_score_step step, int64_t row)
{
    int last = step.end - step.key <= KEYS;
    for (int i = 0; i < ROWS_EACH; i++) {
        for (int j = 0; j < KEYS_EACH; j++) {
            if (step.pass == 0) most[i] = max_nan(most[i], s[i][j]);
            else sum[i] += m3_score_part(s[i][j], a->scale, most[i]);
        }
        if (!last) continue;
        if (step.pass == 0) most[i] = lanes_max(most[i]) * a->scale;
        else sum[i] = lanes_sum(sum[i]);
        if (step.pass < a->lse) continue;
        float m = a->lse ? m3_score_log(most[i], sum[i]) : most[i];
        if (threadIdx.x % LANES_KEY == (unsigned)i) m3_score_write(a, row + i * LANES_ROW, step.b, m);
        most[i] = -INFINITY;
        sum[i] = 0;
    }
}

static __device__ __forceinline__ void stage_step(struct stage *stage, const struct m3_scores *a,
                                                  const struct m3_score_tile *tile, struct m3_score_step step)
{
    if (step.b < tile->end) {
        m3_stage_rows(&stage->q[0][0], PITCH, (const float *)a->q + tile->row * a->X, tile->rows, step.x, a->X,
                      a->by_16, ROWS, WIDE, THREADS);
        m3_stage_rows(&stage->k[0][0], PITCH, (const float *)a->k + (int64_t)step.key * a->X, step.end - step.key,
                      step.x, a->X, a->by_16, KEYS, WIDE, THREADS);
    }
    copies_commit();
}

/* Tiles of 128 rows by 64 keys. A warp has 16 rows by all the keys; its lanes are arranged 4 by 8, each with 4 rows by
 * 8 keys, so that a load of q reads 4 and a load of k 8 different rows of shared memory:
 *
 *     rows 16 w + l/8 + 4 i,  keys l%8 + 8 j        w the warp, l the lane, i 0..3, j 0..7
 *
 * Limit: the multiply-adds. A step has 1,024 of them per thread and 55 KiB of shared memory in two stages: two blocks
 * of threads per multiprocessor. Per tile and 128 channels 2^20 multiply-adds for 96 KiB from the L2: 10.7 per byte. */
static __global__ __launch_bounds__(THREADS, 2) void scores_f32(struct m3_scores a)
{
    struct stage *stages = (struct stage *)m3_shared;
    struct m3_score_tile tile = m3_score_tile_of(&a, ROWS);
    int row = (int)threadIdx.x / M3_WARP * (ROWS_EACH * LANES_ROW) + m3_lane() / LANES_KEY;
    int key = m3_lane() % LANES_KEY;
    float s[ROWS_EACH][KEYS_EACH] = {}, most[ROWS_EACH], sum[ROWS_EACH] = {};
    for (int i = 0; i < ROWS_EACH; i++) most[i] = -INFINITY;

    struct m3_score_step step = m3_score_block(&a, tile.b, tile.last);
    stage_step(&stages[0], &a, &tile, step);
    for (int at = 0; step.b < tile.end; at ^= 1) {
        struct m3_score_step next = m3_score_next(step, &a, &tile, KEYS, WIDE, a.lse);
        copies_wait<0>();
        __syncthreads();
        stage_step(&stages[at ^ 1], &a, &tile, next);

        multiply(s, &stages[at], row, key);
        if (step.x + WIDE >= a.X) {
            if (m3_score_masked(&a, step, KEYS, tile.first)) mask(s, &a, &tile, step, row, key);
            pool(most, sum, s, &a, step, tile.row + row);
            for (int i = 0; i < ROWS_EACH; i++)
                for (int j = 0; j < KEYS_EACH; j++) s[i][j] = 0;
        }
        step = next;
    }
    m3_score_unseen(&a, &tile, THREADS);
}

static int is_by_16(const void *p, size_t row) { return (uintptr_t)p % 16 == 0 && row % 16 == 0; }

cudaError_t m3_cuda_block_scores(cudaStream_t stream, float *m, unsigned long long *nan_at, const void *q,
                                 const void *k, enum m3_cuda_type type, const struct m3_index *d)
{
    int64_t keys = d->p0 + d->T, rows = d->T * d->G;
    if (d->X > M3_CUDA_HEAD || keys > M3_SCORES_KEYS || d->G > M3_SCORES_KEYS) return cudaErrorNotSupported;
    if (d->B > INT32_MAX || m3_pieces(rows, ROWS) > INT32_MAX) return cudaErrorNotSupported;

    size_t row = (size_t)d->X * (type == M3_CUDA_BF16 ? sizeof(__nv_bfloat16) : sizeof(float));
    struct m3_scores a = {};
    a.m = m;
    a.nan_at = nan_at;
    a.q = q;
    a.k = k;
    a.seen = d->seen;
    a.rows = rows;
    a.B = d->B;
    a.p0 = (int)d->p0;
    a.G = (int)d->G;
    a.X = (int)d->X;
    a.block = (int)(d->block < keys ? d->block : keys);     /* there are no further keys */
    a.scale = d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? (float)(1 / sqrt((double)d->X)) : 1;
    a.lse = d->semantics->pool == M3_POOL_LSE;
    a.by_16 = is_by_16(q, row) && is_by_16(k, row);

    cudaError_t error = cudaMemsetAsync(nan_at, 0xFF, sizeof *nan_at, stream);
    if (error != cudaSuccess) return error;
    if (rows <= M3_SCORES_FEW && a.by_16) return m3_scores_few(stream, &a, type);
    if (type == M3_CUDA_BF16) return m3_scores_bf16(stream, &a);
    dim3 grid = m3_scores_grid(&a, ROWS);
    return m3_launch(stream, scores_f32, grid, THREADS, 2 * sizeof(struct stage), a);
}
