#include "cuda/attend.cuh"

/* Prefill in bfloat16: a block of keys and values in shared memory for all rows that selected it.
 *
 *  grid   x: shares of members (members.h), value g B + b;  y: chunks of 128 keys
 *  warp   16 rows (member, head) at a time, on its own: with 16 heads a group, one token
 *
 *           keys 0 .. 63, then 64 .. 127           channels 0 .. 127
 *          +----+----+-- .. --+----+              +----+----+-- .. --+----+
 *  16 rows | 8 tiles of S, then P  |      16 rows | 16 tiles of o         |      of a tile lane l has rows l/4
 *          +----+----+-- .. --+----+              +----+----+-- .. --+----+      and + 8, columns l%4 * 2 and + 1
 *
 * S = q k' by m16n8k16 with q in registers, loaded as soon as those before are used; two tiles of P have the layout of
 * a matrix a of o += P v, rounded to bfloat16. The sums of weights use them unrounded, so that lse is not affected.
 *
 * Limit. A row and block of 128 keys and channels are 65536 FLOP, and 520 bytes of partial results to write and to read
 * again: 63 FLOP per byte, 124 with partial results in bfloat16. That is 212 (415) TFLOP/s of 990 with 3.35 TB/s. Rows
 * of q are 256 bytes more unless they stay in the L2 cache (values are ordered by group, so that 4096 tokens of one,
 * 17 MB, can). Shared memory allows half of the tensor cores' rate, because 16 rows read 64 KiB. */
enum {
    WARPS = 8,
    ROWS = 16,
    KEYS = 64,                  /* columns of S at a time */
    STRIDE = M3_CUDA_HEAD + 8,  /* rows of 16 bytes in eight different banks */
    SCORE_TILES = KEYS / 8,
    STEPS = M3_CUDA_HEAD / 16,
    TILES = M3_CUDA_HEAD / 8,
};

struct attend_bf16_shared {
    __nv_bfloat16 k[M3_ATTEND_KEYS][STRIDE], v[M3_ATTEND_KEYS][STRIDE];
    uint32_t hidden[M3_ATTEND_KEYS / 32];
    unsigned odd;               /* a value is infinite or NaN; v is 0 there */
};

/* A lane's state of rows l/4 and l/4 + 8. */
struct attend_bf16_rows {
    struct m3_attend_row row[2];
    float max[2], sum[2];       /* sum: over this lane's columns */
    float o[TILES][4];
};

/* q := channels of rows row0 + l/4 and 8 on, as a matrix a of each product; 0 beyond the share and the row. */
static __device__ __forceinline__ void load_queries(uint32_t q[STEPS][4], const __nv_bfloat16 *from,
                                                    const struct m3_attend_piece &piece,
                                                    const struct m3_members &members,
                                                    const struct m3_members_tile &tile,
                                                    const struct m3_attend_chunk &chunk, int row0)
{
    for (int r = 0; r < 2; r++) {
        const int32_t query = m3_attend_row_of(piece, members, tile, chunk, row0 + m3_lane() / 4 + 8 * r).query;
        const __nv_bfloat16 *row = from + (query < 0 ? 0 : (int64_t)query * piece.pitch);
        for (int i = 0; i < 2 * STEPS; i++) {
            const int c = i * 8 + m3_lane() % 4 * 2;
            q[i / 2][i % 2 * 2 + r] = query >= 0 && c < piece.pitch ? *(const uint32_t *)(row + c) : 0;
        }
    }
}

/* Replaces infinite values and NaN by 0: if a row does not see the key, its weight is 0, and 0 times them is NaN.
 * add_odd adds them to the rows that see them. Called by all threads. */
static __device__ void set_odd_apart(struct attend_bf16_shared *s)
{
    unsigned odd = 0;
    for (int i = (int)threadIdx.x; i < M3_ATTEND_KEYS * M3_CUDA_HEAD; i += WARPS * M3_WARP) {
        __nv_bfloat16 *value = &s->v[i / M3_CUDA_HEAD][i % M3_CUDA_HEAD];
        if (isnan(m3_float(*value)) || isinf(m3_float(*value))) {
            m3_put(value, 0);
            odd = 1;
        }
    }
    if (odd) atomicOr(&s->odd, 1u);
}

/* s := q k' for 64 keys. */
static __device__ __forceinline__ void scores(float s[SCORE_TILES][4], const uint32_t q[STEPS][4],
                                              const __nv_bfloat16 (*k)[STRIDE])
{
    int key = m3_lane() / 16 * 8 + m3_lane() % 8, column = m3_lane() / 8 % 2 * 8;
    for (int n = 0; n < SCORE_TILES; n++)
        for (int e = 0; e < 4; e++) s[n][e] = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int n = 0; n < SCORE_TILES; n += 2) {
            uint32_t b[4];
            load_matrices(b, &k[n * 8 + key][step * 16 + column]);
            mma_bf16(s[n], q[step], b[0], b[1]);
            mma_bf16(s[n + 1], q[step], b[2], b[3]);
        }
    }
}

/* s := logits of keys j0 .. j0 + 63, -inf where the row does not see the key. */
static __device__ __forceinline__ void mask(float s[SCORE_TILES][4], const struct attend_bf16_rows *rows,
                                            const uint32_t *hidden, float scale, int j0)
{
    uint32_t sees[2][KEYS / 32];        /* bit i: key i + l%4 * 2 of a word */
    for (int r = 0; r < 2; r++)
        for (int word = 0; word < KEYS / 32; word++)
            sees[r][word] = m3_attend_sees(hidden, j0 / 32 + word, rows->row[r].limit) >> m3_lane() % 4 * 2;
    for (int n = 0; n < SCORE_TILES; n++)
        for (int e = 0; e < 4; e++)
            s[n][e] = sees[e / 2][n / 4] >> (n % 4 * 8 + e % 2) & 1 ? s[n][e] * scale : -INFINITY;
}

/* s, logits, := exp(s - max), with a max that includes them; earlier sums are scaled to it. */
static __device__ __forceinline__ void weigh(float s[SCORE_TILES][4], struct attend_bf16_rows *rows)
{
    for (int r = 0; r < 2; r++) {
        float max = rows->max[r];
        for (int n = 0; n < SCORE_TILES; n++) max = max_nan(max, max_nan(s[n][2 * r], s[n][2 * r + 1]));
        max = max_nan(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = max_nan(max, __shfl_xor_sync(0xffffffffu, max, 2));
        float base = m3_attend_base(max), shrink = expf(rows->max[r] - base), sum = 0;
        for (int n = 0; n < SCORE_TILES; n++) {
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                s[n][e] = expf(s[n][e] - base);
                sum += s[n][e];
            }
        }
        rows->max[r] = max;
        rows->sum[r] = rows->sum[r] * shrink + sum;
        for (int n = 0; n < TILES; n++) {
            rows->o[n][2 * r] *= shrink;
            rows->o[n][2 * r + 1] *= shrink;
        }
    }
}

/* o += p v for 64 keys. */
static __device__ __forceinline__ void add_values(float o[TILES][4], const float p[SCORE_TILES][4],
                                                  const __nv_bfloat16 (*v)[STRIDE])
{
    int key = m3_lane() / 8 % 2 * 8 + m3_lane() % 8, column = m3_lane() / 16 * 8;
    for (int step = 0; step < KEYS / 16; step++) {
        const float *left = p[2 * step], *right = p[2 * step + 1];
        uint32_t a[4] = { m3_pair(left[0], left[1]), m3_pair(left[2], left[3]),
                          m3_pair(right[0], right[1]), m3_pair(right[2], right[3]) };
        for (int n = 0; n < TILES; n += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, &v[step * 16 + key][n * 8 + column]);
            mma_bf16(o[n], a, b[0], b[1]);
            mma_bf16(o[n + 1], a, b[2], b[3]);
        }
    }
}

static __device__ __forceinline__ void put_pair(float *at, float low, float high)
{
    *(float2 *)at = make_float2(low, high);
}
static __device__ __forceinline__ void put_pair(__nv_bfloat16 *at, float low, float high)
{
    *(uint32_t *)at = m3_pair(low, high);
}

/* Writes the part of row l/4 + 8 r. r must be a constant, because registers cannot be indexed. */
template <class Part>
static __device__ __forceinline__ void write_row(const struct m3_attend_piece &piece,
                                                 const struct attend_bf16_rows *rows, int r, const uint32_t *hidden)
{
    const struct m3_attend_row row = rows->row[r];
    float sum = rows->sum[r];
    Part *o = (Part *)piece.o + row.part * piece.pitch;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (row.query < 0) return;
    for (int n = 0; n < TILES; n++) {
        int i = n * 8 + m3_lane() % 4 * 2;
        if (i < piece.pitch) put_pair(o + i, rows->o[n][2 * r], rows->o[n][2 * r + 1]);
    }
    if (m3_lane() % 4 == 0)
        piece.sums[row.part] = make_float2(rows->max[r], m3_attend_sum(rows->max[r], sum, hidden, row.limit));
}

/* Adds the values that set_odd_apart removed from v to the channels of a row that this lane wrote. Their weights do
 * not matter, except one that exp rounds to 0: its infinity stays as it would be with any other weight. */
template <class Part>
static __device__ void add_odd(const struct m3_attend_piece &piece, const struct m3_attend_chunk &chunk,
                               struct m3_attend_row row, const uint32_t *hidden, const __nv_bfloat16 *v)
{
    for (int j = 0; j < row.limit; j++) {
        if (hidden[j / 32] >> j % 32 & 1) continue;
        const __nv_bfloat16 *v_j = v + ((chunk.first + j) * piece.G + chunk.g) * piece.pitch;
        Part *o = (Part *)piece.o + row.part * piece.pitch;
        for (int i = m3_lane() % 4 * 2; i < piece.D; i += i % 2 ? 7 : 1)
            if (isnan(m3_float(v_j[i])) || isinf(m3_float(v_j[i]))) m3_put(o + i, m3_float(o[i]) + m3_float(v_j[i]));
    }
}

template <class Part>
static __global__ void __launch_bounds__(WARPS * M3_WARP, 1)
    attend_bf16(struct m3_attend_piece piece, struct m3_members members, const __nv_bfloat16 *q,
                const __nv_bfloat16 *k, const __nv_bfloat16 *v)
{
    struct attend_bf16_shared *s = (struct attend_bf16_shared *)m3_shared;
    const struct m3_members_tile tile = m3_members_find(members, blockIdx.x);
    if (tile.value < 0) return;
    const struct m3_attend_chunk chunk = m3_attend_chunk_of(piece, tile.value / members.values,
                                                            tile.value % members.values, blockIdx.y,
                                                            piece.p0 + piece.T);
    const int warp = (int)threadIdx.x / M3_WARP, all = (tile.end - tile.begin) * piece.heads;
    m3_attend_load_keys(s->k[0], STRIDE, k, piece, chunk);
    m3_attend_load_keys(s->v[0], STRIDE, v, piece, chunk);
    copies_commit();
    m3_attend_hide(s->hidden, piece, chunk);
    if (threadIdx.x == 0) s->odd = 0;
    uint32_t a[STEPS][4];
    load_queries(a, q, piece, members, tile, chunk, warp * ROWS);
    copies_wait<0>();
    __syncthreads();
    set_odd_apart(s);
    __syncthreads();

    for (int row0 = warp * ROWS; row0 < all; row0 += WARPS * ROWS) {
        struct attend_bf16_rows rows = {};
        int next = 0;           /* are the next rows of q on their way? */
        for (int r = 0; r < 2; r++) {
            rows.row[r] = m3_attend_row_of(piece, members, tile, chunk, row0 + m3_lane() / 4 + 8 * r);
            rows.max[r] = -INFINITY;
        }
        for (int j0 = 0; j0 < M3_ATTEND_KEYS; j0 += KEYS) {
            float p[SCORE_TILES][4];
            if (!__any_sync(0xffffffffu, rows.row[0].limit > j0 || rows.row[1].limit > j0)) break;
            scores(p, a, s->k + j0);
            if (j0 + KEYS == M3_ATTEND_KEYS) {
                load_queries(a, q, piece, members, tile, chunk, row0 + WARPS * ROWS);
                next = 1;
            }
            mask(p, &rows, s->hidden, piece.scale, j0);
            weigh(p, &rows);
            add_values(rows.o, p, s->v + j0);
        }
        write_row<Part>(piece, &rows, 0, s->hidden);
        write_row<Part>(piece, &rows, 1, s->hidden);
        if (s->odd) {
            add_odd<Part>(piece, chunk, rows.row[0], s->hidden, v);
            add_odd<Part>(piece, chunk, rows.row[1], s->hidden, v);
        }
        if (!next) load_queries(a, q, piece, members, tile, chunk, row0 + WARPS * ROWS);
    }
}

cudaError_t m3_attend_bf16(cudaStream_t stream, const struct m3_attend_piece *piece, const struct m3_members *members,
                           const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v)
{
    dim3 grid((unsigned)m3_members_most_tiles(members), (unsigned)piece->chunks);
    return m3_launch(stream, piece->partials == M3_CUDA_BF16 ? attend_bf16<__nv_bfloat16> : attend_bf16<float>, grid,
                     WARPS * M3_WARP, sizeof(struct attend_bf16_shared), *piece, *members, q, k, v);
}
