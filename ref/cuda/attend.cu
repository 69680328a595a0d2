#include "cuda/attend.cuh"

/* Prefill in float: a block of keys and values in shared memory for all rows that selected it.
 *
 *  grid   x: shares of members (members.h), value g B + b;  y: chunks of 128 keys
 *  warp   8 rows (member, head) at a time, on its own
 *
 *                keys 0 .. 127                         channels 0 .. 127
 *         +---------------------------+         +---------------------------+
 *  8 rows |  z, then p                |  8 rows |  o                        |
 *         +---------------------------+         +---------------------------+
 *          lane l: keys l + 32 e                 lane l: channels 4 l + e        e = 0 .. 3
 *
 * p replaces q in shared memory. A row of k is 4 floats longer than needed: the 16 bytes that 8 lanes read from 8 rows
 * are then in different banks.
 *
 * Limit. 65536 FLOP per row and block, with 520 bytes of partial results to write and to read again and 512 of q: 42
 * FLOP per byte, 141 TFLOP/s with 3.35 TB/s. The multiplications, 67 TFLOP/s, are the limit. For 128 of them a lane
 * reads 8 q and 4 k (8 p and 4 v), 16 bytes each: 24 cycles of shared memory against 32. */
enum {
    WARPS = 8,
    ROWS = 8,
    STRIDE = M3_CUDA_HEAD + 4,
};

struct attend_f32_shared {
    float k[M3_ATTEND_KEYS][STRIDE], v[M3_ATTEND_KEYS][M3_CUDA_HEAD];
    float rows[WARPS][ROWS][M3_CUDA_HEAD];      /* q by channel, then p by key */
    float2 sums[WARPS][ROWS];
    uint32_t hidden[M3_ATTEND_KEYS / 32];
};

/* row: that of this lane, row0 + lane % 8. */
static __device__ __forceinline__ void load_queries(float (*shared)[M3_CUDA_HEAD], const float *q,
                                                    const struct m3_attend_piece &piece, struct m3_attend_row row)
{
    for (int i = 0; i < ROWS; i++) {
        int32_t query = __shfl_sync(0xffffffffu, row.query, i);
        m3_attend_load(shared[i], q + (query < 0 ? 0 : (int64_t)query * piece.D), m3_lane() * 4, query >= 0, piece);
    }
    copies_commit();
    copies_wait<0>();
    __syncwarp();
}

/* z[i][e] := row i of q times key l + 32 e. */
static __device__ __forceinline__ void scores(float z[ROWS][4], const float (*q)[M3_CUDA_HEAD],
                                              const float (*k)[STRIDE])
{
    for (int i = 0; i < ROWS; i++)
        for (int e = 0; e < 4; e++) z[i][e] = 0;
    for (int c = 0; c < M3_CUDA_HEAD; c += 4) {
        float4 key[4];
        for (int e = 0; e < 4; e++) key[e] = *(const float4 *)&k[m3_lane() + 32 * e][c];
        for (int i = 0; i < ROWS; i++) {
            const float4 query = *(const float4 *)&q[i][c];
            for (int e = 0; e < 4; e++) {
                z[i][e] = fmaf(query.x, key[e].x, z[i][e]);
                z[i][e] = fmaf(query.y, key[e].y, z[i][e]);
                z[i][e] = fmaf(query.z, key[e].z, z[i][e]);
                z[i][e] = fmaf(query.w, key[e].w, z[i][e]);
            }
        }
    }
}

/* p[i][j] := exp(z - max) over the keys that row i sees among its first limit[i], otherwise 0; sums[i] := max and sum.
 * All rows advance together: while one waits others continue. */
static __device__ __forceinline__ void weigh(float (*p)[M3_CUDA_HEAD], float2 *sums, float z[ROWS][4],
                                             const int limit[ROWS], float scale, const uint32_t *hidden)
{
    float max[ROWS], sum[ROWS];
    for (int i = 0; i < ROWS; i++) {
        for (int e = 0; e < 4; e++)
            z[i][e] = m3_attend_sees(hidden, e, limit[i]) >> m3_lane() & 1 ? z[i][e] * scale : -INFINITY;
        max[i] = max_nan(max_nan(z[i][0], z[i][1]), max_nan(z[i][2], z[i][3]));
    }
    for (int step = M3_WARP / 2; step > 0; step /= 2)
        for (int i = 0; i < ROWS; i++) max[i] = max_nan(max[i], __shfl_xor_sync(0xffffffffu, max[i], step));
    for (int i = 0; i < ROWS; i++) {
        for (int e = 0; e < 4; e++) {
            z[i][e] = expf(z[i][e] - m3_attend_base(max[i]));
            p[i][m3_lane() + 32 * e] = z[i][e];
        }
        sum[i] = z[i][0] + z[i][1] + z[i][2] + z[i][3];
    }
    for (int step = M3_WARP / 2; step > 0; step /= 2)
        for (int i = 0; i < ROWS; i++) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
    for (int i = 0; i < ROWS; i++)
        if (m3_lane() == 0) sums[i] = make_float2(max[i], sum[i]);
}

static __device__ __forceinline__ void add_value(float4 *o, float p, float4 v)
{
    o->x = fmaf(p, v.x, o->x);
    o->y = fmaf(p, v.y, o->y);
    o->z = fmaf(p, v.z, o->z);
    o->w = fmaf(p, v.w, o->w);
}

/* o[i] := p v over keys 0 .. limit[i] - 1. p is 0 for later keys, but v may be infinite or NaN there, and 0 times that
 * is NaN. */
static __device__ __forceinline__ void add_values(float4 o[ROWS], const float (*p)[M3_CUDA_HEAD],
                                                  const float (*v)[M3_CUDA_HEAD], const int limit[ROWS])
{
    int least = M3_ATTEND_KEYS, most = 0, j = 0;
    for (int i = 0; i < ROWS; i++) {
        o[i] = make_float4(0, 0, 0, 0);
        least = limit[i] < least ? limit[i] : least;
        most = limit[i] > most ? limit[i] : most;
    }
    for (; j + 4 <= least; j += 4) {
        float4 value[4];
        for (int e = 0; e < 4; e++) value[e] = *(const float4 *)&v[j + e][m3_lane() * 4];
        for (int i = 0; i < ROWS; i++) {
            const float4 weight = *(const float4 *)&p[i][j];
            add_value(&o[i], weight.x, value[0]);
            add_value(&o[i], weight.y, value[1]);
            add_value(&o[i], weight.z, value[2]);
            add_value(&o[i], weight.w, value[3]);
        }
    }
    for (; j < most; j++) {
        const float4 value = *(const float4 *)&v[j][m3_lane() * 4], zero = make_float4(0, 0, 0, 0);
        for (int i = 0; i < ROWS; i++) add_value(&o[i], p[i][j], j < limit[i] ? value : zero);
    }
}

static __device__ __forceinline__ void write_row(float *o, float4 own, const struct m3_attend_piece &piece)
{
    int c = m3_lane() * 4;
    if (piece.wide && c < piece.D) *(float4 *)(o + c) = own;
    if (piece.wide) return;
    if (c < piece.D) o[c] = own.x;
    if (c + 1 < piece.D) o[c + 1] = own.y;
    if (c + 2 < piece.D) o[c + 2] = own.z;
    if (c + 3 < piece.D) o[c + 3] = own.w;
}

static __global__ void __launch_bounds__(WARPS * M3_WARP, 1)
    attend_f32(struct m3_attend_piece piece, struct m3_members members, const float *q, const float *k, const float *v)
{
    struct attend_f32_shared *s = (struct attend_f32_shared *)m3_shared;
    const struct m3_members_tile tile = m3_members_find(members, blockIdx.x);
    if (tile.value < 0) return;
    const struct m3_attend_chunk chunk = m3_attend_chunk_of(piece, tile.value / members.values,
                                                            tile.value % members.values, blockIdx.y,
                                                            piece.p0 + piece.T);
    const int warp = (int)threadIdx.x / M3_WARP, all = (tile.end - tile.begin) * piece.heads;
    m3_attend_load_keys(s->k[0], STRIDE, k, piece, chunk);
    m3_attend_load_keys(s->v[0], M3_CUDA_HEAD, v, piece, chunk);
    m3_attend_hide(s->hidden, piece, chunk);
    copies_commit();
    copies_wait<0>();
    __syncthreads();

    for (int row0 = warp * ROWS; row0 < all; row0 += WARPS * ROWS) {
        struct m3_attend_row row = m3_attend_row_of(piece, members, tile, chunk, row0 + m3_lane() % ROWS);
        float z[ROWS][4];
        float4 o[ROWS];
        int limit[ROWS];
        load_queries(s->rows[warp], q, piece, row);
        scores(z, s->rows[warp], s->k);
        __syncwarp();
        for (int i = 0; i < ROWS; i++) limit[i] = __shfl_sync(0xffffffffu, row.query < 0 ? chunk.n : row.limit, i);
        weigh(s->rows[warp], s->sums[warp], z, limit, piece.scale, s->hidden);
        __syncwarp();
        add_values(o, s->rows[warp], s->v, limit);
        for (int i = 0; i < ROWS; i++) {
            int64_t part = __shfl_sync(0xffffffffu, row.query < 0 ? -1 : row.part, i);
            if (part >= 0) write_row(piece.o + part * piece.D, o[i], piece);
        }
        if (m3_lane() < ROWS && row.query >= 0) {
            const float2 sums = s->sums[warp][m3_lane()];
            piece.sums[row.part] = make_float2(sums.x, m3_attend_sum(sums.x, sums.y, s->hidden, row.limit));
        }
        __syncwarp();
    }
}

cudaError_t m3_attend_f32(cudaStream_t stream, const struct m3_attend_piece *piece, const struct m3_members *members,
                          const float *q, const float *k, const float *v)
{
    dim3 grid((unsigned)m3_members_most_tiles(members), (unsigned)piece->chunks);
    return m3_launch(stream, attend_f32, grid, WARPS * M3_WARP, sizeof(struct attend_f32_shared), *piece, *members, q,
                     k, v);
}
