#include "cuda/attend.cuh"

/* Few tokens in bfloat16, as in decoding: a block of threads has one list entry of a token, and reads its keys alone.
 *  grid   x: place (t G + g) N + n;  y: chunks of 128 keys
 *  then   16 heads of the group at a time:
 *
 *               keys 0 .. 127                      channels 0 .. 127
 *            +----+----+-- .. --+----+          +----+----+-- .. --+----+
 *  16 heads  | w0 | w1 |        | w7 |  p, o :  | w0 | w1 |        | w7 |         warp w: 16 keys, then 16 channels
 *            +----+----+-- .. --+----+          +----+----+-- .. --+----+
 *
 * Warps exchange their maxima and sums, and p, through shared memory. A warp's 16 x 16 are two products of 16 x 8 for
 * every 16 channels (keys); p is rounded to bfloat16, the sums use it unrounded.
 *
 * Limit: reading the selected keys and values once. With 16 blocks of 128 keys and 4 groups that is 4 MB per token in
 * bfloat16, 1.3 us with 3.35 TB/s, for any length of the sequence; 0.5 MB of partial results are written. All copies
 * of a block of threads are in flight at once, 64 KiB; two blocks fit on a multiprocessor. */
enum {
    WARPS = 8,
    HEADS = 16,
    STRIDE = M3_CUDA_HEAD + 8,          /* rows of 16 bytes in different banks */
};

struct attend_few_shared {
    __nv_bfloat16 k[M3_ATTEND_KEYS][STRIDE], v[M3_ATTEND_KEYS][STRIDE];
    __nv_bfloat16 q[HEADS][STRIDE], p[HEADS][STRIDE];
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

/* s->q := q of heads from head0 on; 0 for missing heads and beyond the row. Called by all threads. */
static __device__ __forceinline__ void load_heads(struct attend_few_shared *s, const __nv_bfloat16 *q,
                                                  const struct m3_attend_piece &piece, int head0)
{
    const int columns = M3_CUDA_HEAD / 8;
    const __nv_bfloat16 *q_tg = q + (int64_t)(blockIdx.x / piece.N) * piece.heads * piece.pitch;
    for (int i = (int)threadIdx.x; i < HEADS * columns; i += WARPS * M3_WARP) {
        const int head = head0 + i / columns, c = i % columns * 8, valid = head < piece.heads && c < piece.pitch;
        copy_16(&s->q[i / columns][c], q_tg + (valid ? (int64_t)head * piece.pitch + c : 0), valid);
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
static __device__ __forceinline__ void write_sums(const struct m3_attend_piece &piece,
                                                  const struct attend_few_shared *s, int head0, int n)
{
    int h = (int)threadIdx.x;
    if (h >= HEADS || head0 + h >= piece.heads) return;
    float most = max_of(s->max, h), all = 0;
    for (int w = 0; w < WARPS; w++) all += s->sum[w][h];
    piece.sums[part_of(piece, head0 + h)] = make_float2(most, m3_attend_sum(most, all, s->hidden, n));
}

/* z, of heads l/4 and l/4 + 8, keys 16 w + l%4 * 2 + {0,1} and 8 on: max over this warp's keys, then p and its sum. */
static __device__ __forceinline__ void weigh(struct attend_few_shared *s, float z[2][4], float scale)
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

template <class Part>
static __global__ void __launch_bounds__(WARPS * M3_WARP, 2)
    attend_few(struct m3_attend_piece piece, const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v)
{
    struct attend_few_shared *s = (struct attend_few_shared *)m3_shared;
    const struct m3_attend_chunk chunk = chunk_of(piece);
    const int mine = (int)threadIdx.x / M3_WARP * 16, lane = m3_lane();
    if (chunk.n < 0) return;
    m3_attend_load_keys(s->k[0], STRIDE, k, piece, chunk);
    m3_attend_load_keys(s->v[0], STRIDE, v, piece, chunk);
    m3_attend_hide(s->hidden, piece, chunk);

    for (int head0 = 0; head0 < piece.heads; head0 += HEADS) {
        float z[2][4] = {}, o[2][4] = {};
        uint32_t a[4], b[4];
        load_heads(s, q, piece, head0);
        for (int c = 0; c < M3_CUDA_HEAD; c += 16) {
            load_matrices(a, &s->q[lane % 16][c + lane / 16 * 8]);
            load_matrices(b, &s->k[mine + lane / 16 * 8 + lane % 8][c + lane / 8 % 2 * 8]);
            mma_bf16(z[0], a, b[0], b[1]);
            mma_bf16(z[1], a, b[2], b[3]);
        }
        weigh(s, z, piece.scale);
        for (int j = 0; j < M3_ATTEND_KEYS; j += 16) {
            load_matrices(a, &s->p[lane % 16][j + lane / 16 * 8]);
            load_matrices_transposed(b, &s->v[j + lane / 8 % 2 * 8 + lane % 8][mine + lane / 16 * 8]);
            mma_bf16(o[0], a, b[0], b[1]);
            mma_bf16(o[1], a, b[2], b[3]);
        }
        for (int i = 0; i < 8; i++) {
            int head = head0 + lane / 4 + i / 2 % 2 * 8, c = mine + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (head < piece.heads && c < piece.pitch)
                m3_put((Part *)piece.o + part_of(piece, head) * piece.pitch + c, o[i / 4][i % 4]);
        }
        write_sums(piece, s, head0, chunk.n);
        __syncthreads();
    }
}

cudaError_t m3_attend_few(cudaStream_t stream, const struct m3_attend_piece *piece, const __nv_bfloat16 *q,
                          const __nv_bfloat16 *k, const __nv_bfloat16 *v)
{
    dim3 grid((unsigned)(piece->T * piece->G * piece->N), (unsigned)piece->chunks);
    return m3_launch(stream, piece->partials == M3_CUDA_BF16 ? attend_few<__nv_bfloat16> : attend_few<float>, grid,
                     WARPS * M3_WARP, sizeof(struct attend_few_shared), *piece, q, k, v);
}
