/* Block scores of few rows, as for a generated token: a block of threads has a block of keys and all rows.
 *
 * Limit: reading k, once. Each warp has 4 KiB (float) or 8 KiB (bfloat16) in flight, in loads of 16 bytes per lane,
 * and the whole grid reads. The arithmetic stays below that limit: float has 4 instructions per byte, half of them
 * multiply-adds, thus 32 bytes per cycle and multiprocessor; bfloat16 one product of the tensor cores for 512 bytes. */
#include "cuda/scores.cuh"

enum {
    THREADS = 128, WARPS = THREADS / M3_WARP,
    ROWS = M3_SCORES_FEW,
    KEYS_F32 = 8, KEYS_BF16 = 32,       /* that a warp has in flight */
};

/* Shared memory: each warp's result for a row. */
struct found {
    float of[ROWS][WARPS];
};

static __device__ __forceinline__ int place_of(const struct m3_scores *a, int row) { return a->p0 + row / a->G; }

static __device__ __forceinline__ int last_place(const struct m3_scores *a) { return place_of(a, (int)a->rows - 1); }

/* Loads 16 bytes of a row: from channel x on, `bytes` each. Zeros from X on, and if not valid. */
static __device__ __forceinline__ uint4 load_16(const void *rows, int64_t row, int x, int X, int bytes, int valid)
{
    if (!valid || x >= X) return uint4{ 0, 0, 0, 0 };
    return *(const uint4 *)((const char *)rows + (row * X + x) * bytes);
}

/* Adds a score to its row's maximum, or in the second pass to its sum. */
static __device__ __forceinline__ void take(float *most, float *sum, float s, const struct m3_scores *a, int key,
                                            int end, int row, int pass)
{
    if (key >= end || key > place_of(a, row) || m3_score_hidden(a, key, end)) return;
    if (pass == 0) *most = max_nan(*most, s);
    else *sum += m3_score_part(s, a->scale, *most);
}

static __device__ __forceinline__ float join(float a, float b, int pass) { return pass == 0 ? max_nan(a, b) : a + b; }

/* After the last key: reduces x of a row over the lanes that have it (n of them, at distances from `nearest` on,
 * doubling) and over all warps, in the same order for each. After pass 0 the scaled maximum is in *most. The last pass
 * writes. */
static __device__ __forceinline__ void finish(float *most, float sum, struct found *found, const struct m3_scores *a,
                                              int row, int nearest, int n, int pass)
{
    float x = pass == 0 ? *most : sum;
    for (int step = nearest; step < nearest * n; step *= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, step), pass);
    int first = (m3_lane() & (n - 1) * nearest) == 0;

    if (first) found->of[row][threadIdx.x / M3_WARP] = x;
    __syncthreads();
    x = found->of[row][0];
    for (int warp = 1; warp < WARPS; warp++) x = join(x, found->of[row][warp], pass);
    __syncthreads();

    if (pass == 0) *most = x * a->scale;
    if (pass == a->lse && first && threadIdx.x < M3_WARP)
        m3_score_write(a, row, blockIdx.x, a->lse ? m3_score_log(*most, x) : *most);
}

/* True if no row sees the block. */
static __device__ __forceinline__ int is_unseen(const struct m3_scores *a)
{
    if ((int64_t)blockIdx.x * a->block <= last_place(a)) return 0;
    if (threadIdx.x < a->rows) m3_score_write(a, threadIdx.x, blockIdx.x, -INFINITY);
    return 1;
}

/* ---- float
 *
 * A warp reads whole keys: lane l has channels 4 l .. 4 l + 3, also of every row. 4 keys by 8 rows are 32 sums over
 * the lanes, part[4 row + key]; lane l must receive the l-th. At each step a lane passes half of its sums to the lane
 * to which they belong, and adds those it receives: 31 shuffles for 32 sums. */
template <int HALF>
static __device__ __forceinline__ void pass_half(float part[2 * HALF])
{
    int upper = m3_lane() & HALF;
    for (int i = 0; i < HALF; i++) {
        float pass = upper ? part[i] : part[i + HALF], keep = upper ? part[i + HALF] : part[i];
        part[i] = keep + __shfl_xor_sync(0xffffffffu, pass, HALF);
    }
}

static __device__ __forceinline__ float own_sum(float part[M3_WARP])
{
    pass_half<16>(part);
    pass_half<8>(part);
    pass_half<4>(part);
    pass_half<2>(part);
    pass_half<1>(part);
    return part[0];
}

static __device__ __forceinline__ float dot(uint4 q, uint4 k)
{
    float s = __uint_as_float(q.x) * __uint_as_float(k.x);
    s = fmaf(__uint_as_float(q.y), __uint_as_float(k.y), s);
    s = fmaf(__uint_as_float(q.z), __uint_as_float(k.z), s);
    return fmaf(__uint_as_float(q.w), __uint_as_float(k.w), s);
}

static __global__ __launch_bounds__(THREADS) void few_f32(struct m3_scores a)
{
    struct found *found = (struct found *)m3_shared;
    if (is_unseen(&a)) return;
    struct m3_score_step block = m3_score_block(&a, (int)blockIdx.x, last_place(&a));
    int warp = (int)threadIdx.x / M3_WARP, row = m3_lane() / 4, key = m3_lane() % 4, x = 4 * m3_lane();
    float most = -INFINITY, sum = 0;
    uint4 q[ROWS];
    for (int i = 0; i < ROWS; i++) q[i] = load_16(a.q, i, x, a.X, sizeof(float), i < a.rows);

    for (int pass = 0; pass <= a.lse; pass++) {
        for (int at = block.key + warp * KEYS_F32; at < block.end; at += WARPS * KEYS_F32) {
            uint4 k[KEYS_F32];
            for (int j = 0; j < KEYS_F32; j++) k[j] = load_16(a.k, at + j, x, a.X, sizeof(float), at + j < block.end);
            for (int j = 0; j < KEYS_F32; j += 4) {
                float part[M3_WARP];
                for (int i = 0; i < M3_WARP; i++) part[i] = dot(q[i / 4], k[j + i % 4]);
                take(&most, &sum, own_sum(part), &a, at + j + key, block.end, row, pass);
            }
        }
        finish(&most, sum, found, &a, row, 1, 4, pass);
    }
}

/* ---- bfloat16
 *
 * Keys are the left factor, 16 rows of it, and queries the right one, its 8 columns. Both need a lane's channels in
 * pairs, 2 c, 2 c + 1 and 2 c + 8, 2 c + 9 of each 16 with c = l%4; but the channels may be numbered in any way that
 * is the same in both. Therefore lane l reads 16 bytes, channels 32 n + 8 c .. + 7, of its keys and of its query:
 *
 *     words of a lane   0, 1 are the pairs of product 2 n,   2, 3 those of product 2 n + 1
 *     keys              at + 16 i + 8 h + l/4,  h the half of the product's rows
 *
 * A sum d[e] then stands for key at + 16 i + 8 (e/2) + l/4 and row 2 c + e%2. */
static __global__ __launch_bounds__(THREADS) void few_bf16(struct m3_scores a)
{
    enum { TILES = KEYS_BF16 / 16, WORDS = M3_CUDA_HEAD / 32 };
    struct found *found = (struct found *)m3_shared;
    if (is_unseen(&a)) return;
    struct m3_score_step block = m3_score_block(&a, (int)blockIdx.x, last_place(&a));
    int warp = (int)threadIdx.x / M3_WARP, own = m3_lane() / 4, c = m3_lane() % 4;
    float most[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    uint4 q[WORDS];
    for (int n = 0; n < WORDS; n++) q[n] = load_16(a.q, own, 32 * n + 8 * c, a.X, sizeof(uint16_t), own < a.rows);

    for (int pass = 0; pass <= a.lse; pass++) {
        for (int at = block.key + warp * KEYS_BF16; at < block.end; at += WARPS * KEYS_BF16) {
            uint4 k[TILES][2][WORDS];
            for (int i = 0; i < TILES * 2 * WORDS; i++) {
                int key = at + i / WORDS * 8 + own;
                k[i / WORDS / 2][i / WORDS % 2][i % WORDS] =
                    load_16(a.k, key, i % WORDS * 32 + 8 * c, a.X, sizeof(uint16_t), key < block.end);
            }
            for (int i = 0; i < TILES; i++) {
                float d[4] = {};
                for (int n = 0; n < WORDS; n++) {
                    uint4 low = k[i][0][n], high = k[i][1][n];
                    uint32_t even[4] = { low.x, high.x, low.y, high.y }, odd[4] = { low.z, high.z, low.w, high.w };
                    mma_bf16(d, even, q[n].x, q[n].y);
                    mma_bf16(d, odd, q[n].z, q[n].w);
                }
                for (int e = 0; e < 4; e++)
                    take(&most[e % 2], &sum[e % 2], d[e], &a, at + 16 * i + e / 2 * 8 + own, block.end, 2 * c + e % 2,
                         pass);
            }
        }
        for (int e = 0; e < 2; e++) finish(&most[e], sum[e], found, &a, 2 * c + e, 4, 8, pass);
    }
}

cudaError_t m3_scores_few(cudaStream_t stream, const struct m3_scores *a, enum m3_cuda_type type)
{
    return m3_launch(stream, type == M3_CUDA_BF16 ? few_bf16 : few_f32, dim3((unsigned)a->B), THREADS,
                     sizeof(struct found), *a);
}
