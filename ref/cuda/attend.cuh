/* Attention over selected blocks: declarations shared by its kernels. Only for attend*.cu. All but attend_plain.cu are
 * for bfloat16:
 *
 * Every selected block yields a partial result for each head that reads it, over at most M3_ATTEND_KEYS keys at a
 * time; attend_combine.cu adds those of a row, in the order of its list.
 *
 *     place   (t G + g) N + n, in `lists`: entry n of the list of row t, group g
 *     part    (place chunks + c) heads + r: keys c * 128 .. of that block, query head g heads + r
 *
 *     sums [parts]       .x  max of the visible logits z, -inf if there are none
 *                        .y  sum of exp(z - max); 0 if there are none, NaN if all z are -inf
 *     o    [parts,pitch] sum of exp(z - max) v, not divided: float, or rounded to bfloat16 (`Part`) */
#ifndef M3_CUDA_ATTEND_CUH
#define M3_CUDA_ATTEND_CUH

#include <math.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/members.h"
#include "cuda/ptx.cuh"

enum { M3_ATTEND_KEYS = 128 };      /* keys and values that a block of threads holds */

/* Some tokens of a call, passed to kernels by value. S = p0 + T: no row reads later keys. */
struct m3_attend_piece {
    int64_t T, p0, block;       /* p0: the place of the first token of the piece */
    int32_t G, heads, D, N;     /* heads: of a group, Q/G */
    int32_t pitch;              /* of rows of q, k, v and o */
    int32_t chunks;             /* ceil(block / M3_ATTEND_KEYS) */
    float scale;
    const unsigned char *seen;  /* [S] or NULL */
    const int32_t *lists;       /* [T,G,N] */
    float2 *sums;               /* [parts] */
    enum m3_cuda_type partials; /* of o */
    void *o;                    /* [parts,pitch] */
};

cudaError_t m3_attend_plain(cudaStream_t stream, const struct m3_attend *d, float *o, float *lse, const float *q,
                            const float *k, const float *v, const int32_t *blocks);
/* q [T,Q,D] begins at the piece's first token; k, v [S,G,D]. */
cudaError_t m3_attend_bf16(cudaStream_t stream, const struct m3_attend_piece *piece, const struct m3_members *members,
                           const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v);
cudaError_t m3_attend_few(cudaStream_t stream, const struct m3_attend_piece *piece, const __nv_bfloat16 *q,
                          const __nv_bfloat16 *k, const __nv_bfloat16 *v);
cudaError_t m3_attend_combine(cudaStream_t stream, const struct m3_attend_piece *piece, float *o, float *lse);

/* ---- the keys of a block of threads */

/* Keys first .. first + n - 1 of the sequence, of group g; n may be 0. */
struct m3_attend_chunk {
    int64_t first;
    int32_t g, n;
};

/* Chunk c of block b, up to `end`. */
static __device__ __forceinline__ struct m3_attend_chunk m3_attend_chunk_of(const struct m3_attend_piece &piece,
                                                                            int64_t g, int64_t b, int64_t c,
                                                                            int64_t end)
{
    int64_t first = b * piece.block + c * M3_ATTEND_KEYS, n = piece.block - c * M3_ATTEND_KEYS;
    if (n > M3_ATTEND_KEYS) n = M3_ATTEND_KEYS;
    if (n > end - first) n = end - first;
    struct m3_attend_chunk chunk = { first, (int32_t)g, (int32_t)(n > 0 ? n : 0) };
    return chunk;
}

static __device__ __forceinline__ int m3_attend_seen(const struct m3_attend_piece &piece,
                                                     const struct m3_attend_chunk &chunk, int j)
{
    return j < chunk.n && (!piece.seen || piece.seen[chunk.first + j]);
}

/* hidden [4]: bit j of all of them: no row sees key j of the chunk. Called by the first 128 threads, before a
 * barrier. */
static __device__ __forceinline__ void m3_attend_hide(uint32_t *hidden, const struct m3_attend_piece &piece,
                                                      const struct m3_attend_chunk &chunk)
{
    int j = (int)threadIdx.x;
    if (j >= M3_ATTEND_KEYS) return;
    uint32_t bits = __ballot_sync(0xffffffffu, !m3_attend_seen(piece, chunk, j));
    if (m3_lane() == 0) hidden[j / 32] = bits;
}

/* Bit i: a row limited to the chunk's first `limit` keys sees key 32 word + i. */
static __device__ __forceinline__ uint32_t m3_attend_sees(const uint32_t *hidden, int word, int limit)
{
    int n = limit - 32 * word;
    return ~hidden[word] & (n <= 0 ? 0 : n >= 32 ? 0xffffffffu : (1u << n) - 1);
}

/* shared [128,stride] := the chunk's rows of x, which is k or v; 0 for hidden keys, where x may have any value, and
 * beyond the row. Called by all threads of a block. */
static __device__ __forceinline__ void m3_attend_load_keys(__nv_bfloat16 *shared, int stride, const __nv_bfloat16 *x,
                                                           const struct m3_attend_piece &piece,
                                                           const struct m3_attend_chunk &chunk)
{
    const int columns = M3_CUDA_HEAD / 8;
    const __nv_bfloat16 *x_g = x + (chunk.first * piece.G + chunk.g) * piece.pitch;
    for (int i = (int)threadIdx.x; i < M3_ATTEND_KEYS * columns; i += (int)blockDim.x) {
        const int j = i / columns, c = i % columns * 8, valid = m3_attend_seen(piece, chunk, j) && c < piece.pitch;
        copy_16(shared + j * stride + c, x_g + (valid ? (int64_t)j * piece.G * piece.pitch + c : 0), valid);
    }
}

/* ---- rows */

/* A row processed by a block of threads: one head of one token. */
struct m3_attend_row {
    int32_t query;              /* its row of q [T Q,D]; -1: none */
    int32_t limit;              /* number of the chunk's keys that are not after the token's place */
    int64_t part;
};

/* Row i of a tile of members: member i / heads, head i % heads. */
static __device__ __forceinline__ struct m3_attend_row m3_attend_row_of(const struct m3_attend_piece &piece,
                                                                        const struct m3_members &members,
                                                                        const struct m3_members_tile &tile,
                                                                        const struct m3_attend_chunk &chunk, int i)
{
    int32_t member = i / piece.heads, head = i - member * piece.heads;
    struct m3_attend_row row = { -1, 0, 0 };
    if (tile.begin + member >= tile.end) return row;
    int32_t place = members.list[tile.begin + member], t = place / (piece.G * piece.N);
    int64_t limit = piece.p0 + t + 1 - chunk.first;
    row.query = (t * piece.G + chunk.g) * piece.heads + head;
    row.limit = (int32_t)(limit < 0 ? 0 : limit < chunk.n ? limit : chunk.n);
    row.part = ((int64_t)place * piece.chunks + blockIdx.y) * piece.heads + head;
    return row;
}

/* The value to subtract before exp: a row without a finite logit so far gets weights of 0, not NaN. */
static __device__ __forceinline__ float m3_attend_base(float max) { return max == -INFINITY ? 0 : max; }

/* The .y of sums for a sum over the first `limit` keys. */
static __device__ __forceinline__ float m3_attend_sum(float max, float sum, const uint32_t *hidden, int limit)
{
    uint32_t seen = 0;
    if (max != -INFINITY) return sum;
    for (int word = 0; word < M3_ATTEND_KEYS / 32; word++) seen |= m3_attend_sees(hidden, word, limit);
    return seen ? NAN : 0;
}

#endif
