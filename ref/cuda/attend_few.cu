#include "cuda/attend.cuh"

/* Few tokens, in decoding: a block of threads has one list entry of a token, and no other block reads its keys.
 *  grid   x: place (t G + g) N + n;  y: chunks of 128 keys
 *  then   16 heads of the group at a time:
 *
 *               keys 0 .. 127                      channels 0 .. 127
 *            +----+----+-- .. --+----+          +----+----+-- .. --+----+
 *  16 heads  | w0 | w1 |        | w7 |  p, o :  | w0 | w1 |        | w7 |         warp w: 16 keys, then 16 channels
 *            +----+----+-- .. --+----+          +----+----+-- .. --+----+
 *
 * Warps exchange their maxima and sums, and p, through shared memory. In bfloat16 a warp's 16 x 16 are two products of
 * 16 x 8 for every 16 channels (keys); p is rounded to bfloat16, the sums use it unrounded.
 *
 * Limit: reading the selected keys and values once. With 16 blocks of 128 keys and 4 groups that is 4 MB per token in
 * bfloat16, 1.3 us with 3.35 TB/s, for any length of the sequence; 0.5 MB of partial results are written. All copies
 * of a block of threads are in flight at once, 64 KiB; two blocks fit on a multiprocessor. */
enum {
    WARPS = 8,
    HEADS = 16,
    HALF_STRIDE = M3_CUDA_HEAD + 8,     /* of bfloat16: rows of 16 bytes in different banks */
    FLOAT_STRIDE = M3_CUDA_HEAD + 4,
    STEPS = M3_CUDA_HEAD / 16,
};

struct attend_few_bf16_shared {
    __nv_bfloat16 k[M3_ATTEND_KEYS][HALF_STRIDE], v[M3_ATTEND_KEYS][HALF_STRIDE];
    __nv_bfloat16 q[HEADS][HALF_STRIDE], p[HEADS][HALF_STRIDE];
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    uint32_t hidden[M3_ATTEND_KEYS / 32];
};

struct attend_few_f32_shared {
    float k[M3_ATTEND_KEYS][FLOAT_STRIDE], v[M3_ATTEND_KEYS][M3_CUDA_HEAD];
    float q[HEADS][FLOAT_STRIDE], p[HEADS][FLOAT_STRIDE];
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    uint32_t hidden[M3_ATTEND_KEYS / 32];
};

/* The chunk of this block of threads, up to the token's own place; n < 0: the list has ended. */
static __device__ __forceinline__ struct m3_attend_chunk chunk_of(const struct m3_attend_piece &piece)
{
    int64_t list = blockIdx.x / piece.N;
    struct m3_attend_chunk none = { 0, 0, -1 };
    if (piece.lists[blockIdx.x] < 0) return none;
    return m3_attend_chunk_of(piece, list % piece.G, piece.lists[blockIdx.x], blockIdx.y,
                              piece.p0 + list / piece.G + 1);
}

static __device__ __forceinline__ int64_t part_of(const struct m3_attend_piece &piece, int head)
{
    return ((int64_t)blockIdx.x * piece.chunks + blockIdx.y) * piece.heads + head;
}

/* shared [16,stride] := q of heads from head0 on; 0 for missing heads. Called by all threads. */
template <class Number>
static __device__ __forceinline__ void load_heads(Number *shared, int stride, const Number *q,
                                                  const struct m3_attend_piece &piece, int head0)
{
    const int wide = 16 / (int)sizeof(Number), columns = M3_CUDA_HEAD / wide;
    const Number *q_tg = q + (int64_t)(blockIdx.x / piece.N) * piece.heads * piece.D;
    for (int i = (int)threadIdx.x; i < HEADS * columns; i += WARPS * M3_WARP) {
        int head = head0 + i / columns, valid = head < piece.heads;
        m3_attend_load(shared + i / columns * stride, q_tg + (valid ? (int64_t)head * piece.D : 0), i % columns * wide,
                       valid, piece);
    }
    copies_commit();
    copies_wait<0>();
    __syncthreads();
}

/* The largest max of head h over all warps. */
static __device__ __forceinline__ float max_of(const float (*max)[HEADS], int h)
{
    float all = max[0][h];
    for (int w = 1; w < WARPS; w++) all = max_nan(all, max[w][h]);
    return all;
}

/* One thread per head: writes its max and sum to the part. Called by the first 16 threads. */
static __device__ __forceinline__ void write_sums(const struct m3_attend_piece &piece, const float (*max)[HEADS],
                                                  const float (*sum)[HEADS], const uint32_t *hidden, int head0, int n)
{
    int h = (int)threadIdx.x;
    if (h >= HEADS || head0 + h >= piece.heads) return;
    float most = max_of(max, h), all = 0;
    for (int w = 0; w < WARPS; w++) all += sum[w][h];
    piece.sums[part_of(piece, head0 + h)] = make_float2(most, m3_attend_sum(most, all, hidden, n));
}

/* z, of heads l/4 and l/4 + 8, keys 16 w + l%4 * 2 + {0,1} and 8 on: max over this warp's keys, then p and its sum. */
static __device__ __forceinline__ void weigh_bf16(struct attend_few_bf16_shared *s, float z[2][4], float scale)
{
    const int warp = (int)threadIdx.x / M3_WARP, row = m3_lane() / 4, column = warp * 16 + m3_lane() % 4 * 2;
    for (int r = 0; r < 2; r++) {
        float max = -INFINITY;
        for (int i = 0; i < 4; i++) {
            int j = column + i / 2 * 8 + i % 2;
            float *logit = &z[i / 2][2 * r + i % 2];
            *logit = s->hidden[j / 32] >> j % 32 & 1 ? -INFINITY : *logit * scale;
            max = max_nan(max, *logit);
        }
        max = max_nan(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = max_nan(max, __shfl_xor_sync(0xffffffffu, max, 2));
        if (m3_lane() % 4 == 0) s->max[warp][row + 8 * r] = max;
    }
    __syncthreads();
    for (int r = 0; r < 2; r++) {
        float base = m3_attend_base(max_of(s->max, row + 8 * r)), sum = 0;
        for (int i = 0; i < 4; i++) {
            float weight = expf(z[i / 2][2 * r + i % 2] - base);
            sum += weight;
            s->p[row + 8 * r][column + i / 2 * 8 + i % 2] = __float2bfloat16_rn(weight);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (m3_lane() % 4 == 0) s->sum[warp][row + 8 * r] = sum;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(WARPS * M3_WARP, 2)
    few_bf16(struct m3_attend_piece piece, const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v)
{
    struct attend_few_bf16_shared *s = (struct attend_few_bf16_shared *)m3_shared;
    const struct m3_attend_chunk chunk = chunk_of(piece);
    const int mine = (int)threadIdx.x / M3_WARP * 16, lane = m3_lane();
    if (chunk.n < 0) return;
    m3_attend_load_keys(s->k[0], HALF_STRIDE, k, piece, chunk);
    m3_attend_load_keys(s->v[0], HALF_STRIDE, v, piece, chunk);
    m3_attend_hide(s->hidden, piece, chunk);

    for (int head0 = 0; head0 < piece.heads; head0 += HEADS) {
        float z[2][4] = {}, o[2][4] = {};
        uint32_t a[4], b[4];
        load_heads(s->q[0], HALF_STRIDE, q, piece, head0);
        for (int c = 0; c < M3_CUDA_HEAD; c += 16) {
            load_matrices(a, &s->q[lane % 16][c + lane / 16 * 8]);
            load_matrices(b, &s->k[mine + lane / 16 * 8 + lane % 8][c + lane / 8 % 2 * 8]);
            mma_bf16(z[0], a, b[0], b[1]);
            mma_bf16(z[1], a, b[2], b[3]);
        }
        weigh_bf16(s, z, piece.scale);
        for (int j = 0; j < M3_ATTEND_KEYS; j += 16) {
            load_matrices(a, &s->p[lane % 16][j + lane / 16 * 8]);
            load_matrices_transposed(b, &s->v[j + lane / 8 % 2 * 8 + lane % 8][mine + lane / 16 * 8]);
            mma_bf16(o[0], a, b[0], b[1]);
            mma_bf16(o[1], a, b[2], b[3]);
        }
        for (int i = 0; i < 8; i++) {
            int head = head0 + lane / 4 + i / 2 % 2 * 8, c = mine + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (head < piece.heads && c < piece.D) piece.o[part_of(piece, head) * piece.D + c] = o[i / 4][i % 4];
        }
        write_sums(piece, s->max, s->sum, s->hidden, head0, chunk.n);
        __syncthreads();
    }
}

/* z, of key 16 w + l%16 and heads l/16 * 8 + i: as weigh_bf16. */
static __device__ __forceinline__ void weigh_f32(struct attend_few_f32_shared *s, float z[8], float scale)
{
    const int warp = (int)threadIdx.x / M3_WARP, j = warp * 16 + m3_lane() % 16, h = m3_lane() / 16 * 8;
    const int hidden = s->hidden[j / 32] >> j % 32 & 1;
    for (int i = 0; i < 8; i++) {
        z[i] = hidden ? -INFINITY : z[i] * scale;
        float max = z[i];
        for (int step = 8; step > 0; step /= 2) max = max_nan(max, __shfl_xor_sync(0xffffffffu, max, step));
        if (m3_lane() % 16 == 0) s->max[warp][h + i] = max;
    }
    __syncthreads();
    for (int i = 0; i < 8; i++) {
        float weight = expf(z[i] - m3_attend_base(max_of(s->max, h + i))), sum = weight;
        s->p[h + i][j] = weight;
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (m3_lane() % 16 == 0) s->sum[warp][h + i] = sum;
    }
    __syncthreads();
}

/* z := q k' for this lane's key and 8 heads. */
static __device__ __forceinline__ void scores_f32(float z[8], const struct attend_few_f32_shared *s)
{
    const int j = (int)threadIdx.x / M3_WARP * 16 + m3_lane() % 16, h = m3_lane() / 16 * 8;
    for (int c = 0; c < M3_CUDA_HEAD; c += 4) {
        const float4 key = *(const float4 *)&s->k[j][c];
        for (int i = 0; i < 8; i++) {
            const float4 query = *(const float4 *)&s->q[h + i][c];
            z[i] = fmaf(query.x, key.x, z[i]);
            z[i] = fmaf(query.y, key.y, z[i]);
            z[i] = fmaf(query.z, key.z, z[i]);
            z[i] = fmaf(query.w, key.w, z[i]);
        }
    }
}

static __global__ void __launch_bounds__(WARPS * M3_WARP, 1)
    few_f32(struct m3_attend_piece piece, const float *q, const float *k, const float *v)
{
    struct attend_few_f32_shared *s = (struct attend_few_f32_shared *)m3_shared;
    const struct m3_attend_chunk chunk = chunk_of(piece);
    if (chunk.n < 0) return;
    m3_attend_load_keys(s->k[0], FLOAT_STRIDE, k, piece, chunk);
    m3_attend_load_keys(s->v[0], M3_CUDA_HEAD, v, piece, chunk);
    m3_attend_hide(s->hidden, piece, chunk);

    const int c = (int)threadIdx.x / M3_WARP * 16 + m3_lane() % 4 * 4, h = m3_lane() / 4 * 2;
    for (int head0 = 0; head0 < piece.heads; head0 += HEADS) {
        float z[8] = {}, o[2][4] = {};
        load_heads(s->q[0], FLOAT_STRIDE, q, piece, head0);
        scores_f32(z, s);
        weigh_f32(s, z, piece.scale);
        for (int j = 0; j < M3_ATTEND_KEYS; j++) {
            const float4 value = *(const float4 *)&s->v[j][c];
            for (int i = 0; i < 2; i++) {
                o[i][0] = fmaf(s->p[h + i][j], value.x, o[i][0]);
                o[i][1] = fmaf(s->p[h + i][j], value.y, o[i][1]);
                o[i][2] = fmaf(s->p[h + i][j], value.z, o[i][2]);
                o[i][3] = fmaf(s->p[h + i][j], value.w, o[i][3]);
            }
        }
        for (int i = 0; i < 8; i++) {
            int head = head0 + h + i / 4;
            if (head < piece.heads && c + i % 4 < piece.D)
                piece.o[part_of(piece, head) * piece.D + c + i % 4] = o[i / 4][i % 4];
        }
        write_sums(piece, s->max, s->sum, s->hidden, head0, chunk.n);
        __syncthreads();
    }
}

cudaError_t m3_attend_few(cudaStream_t stream, const struct m3_attend_piece *piece, enum m3_cuda_type type,
                          const void *q, const void *k, const void *v)
{
    dim3 grid((unsigned)(piece->T * piece->G * piece->N), (unsigned)piece->chunks);
    if (type == M3_CUDA_F32)
        return m3_launch(stream, few_f32, grid, WARPS * M3_WARP, sizeof(struct attend_few_f32_shared), *piece,
                         (const float *)q, (const float *)k, (const float *)v);
    return m3_launch(stream, few_bf16, grid, WARPS * M3_WARP, sizeof(struct attend_few_bf16_shared), *piece,
                     (const __nv_bfloat16 *)q, (const __nv_bfloat16 *)k, (const __nv_bfloat16 *)v);
}
