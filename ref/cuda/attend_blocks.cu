#include "cuda/attend.cuh"

enum {
    FEW = 8,                    /* up to this many tokens attend_few.cu is used */
    SHARES = 1024,              /* number of blocks of threads, about, that occupies all multiprocessors */
    LEAST_SHARE = 128,          /* rows, heads counted, of a block of threads: a tile for each of its warps */
    MOST_SHARE = 2048,          /* its keys and values are then 4 % of the bytes it reads and writes */
};

/* How a call is computed: the same for all its pieces. */
struct plan {
    int64_t heads, block, B, chunks;
    int few;
    size_t number;                                  /* bytes of a partial result's number */
};

/* Offsets in the scratch memory of a piece of `rows` tokens. */
struct scratch {
    size_t members, sums, o, bytes;                 /* bytes 0: not possible */
};

static struct plan plan_of(const struct m3_attend *d, enum m3_cuda_type partials)
{
    int64_t S = d->p0 + d->T;
    struct plan plan;
    plan.heads = d->Q / d->G;
    plan.block = d->block < S ? d->block : S;
    plan.B = m3_pieces(S, plan.block);
    plan.chunks = m3_pieces(plan.block, M3_ATTEND_KEYS);
    plan.few = d->T <= FEW;
    plan.number = partials == M3_CUDA_BF16 ? sizeof(__nv_bfloat16) : sizeof(float);
    return plan;
}

static size_t place(struct scratch *scratch, int64_t n, size_t size)
{
    size_t at = scratch->bytes;
    scratch->bytes += ((size_t)n * size + 255) / 256 * 256;
    return at;
}

static struct scratch scratch_of(const struct m3_attend *d, const struct plan *plan, int64_t rows)
{
    struct scratch none = { 0, 0, 0, 0 }, scratch = none;
    int64_t places = rows * d->G * d->N;
    size_t members = m3_cuda_members_bytes(rows, d->G, d->N, plan->B);
    if (members == 0 || rows > INT32_MAX / d->Q || places > INT64_MAX / 4096 / plan->chunks / plan->heads) return none;
    scratch.members = place(&scratch, plan->few ? 0 : (int64_t)members, 1);
    scratch.sums = place(&scratch, places * plan->chunks * plan->heads, sizeof(float2));
    scratch.o = place(&scratch, places * plan->chunks * plan->heads * m3_cuda_pitch(d->D), plan->number);
    return scratch;
}

/* How many tokens at a time fit into `bytes`: T, a half of it, .. */
static int64_t rows_of(const struct m3_attend *d, const struct plan *plan, size_t bytes)
{
    int64_t rows = d->T;
    for (size_t needed = 0; rows > 0; rows = rows > 1 ? (rows + 1) / 2 : 0) {
        needed = scratch_of(d, plan, rows).bytes;
        if (needed > 0 && needed <= bytes) break;
    }
    return rows;
}

const char *m3_cuda_no_attention(const struct m3_attend *d)
{
    if (d->selection == M3_SELECT_UNION) return "selection=union";
    if (d->D > M3_CUDA_HEAD) return "a head of more than 128 channels";
    if (d->p0 + d->T > INT32_MAX || d->Q > INT32_MAX || d->N > INT32_MAX / d->G ||
        plan_of(d, M3_CUDA_F32).chunks > 65535)
        return "so many keys, heads or blocks";
    return NULL;
}

size_t m3_cuda_attend_scratch(const struct m3_attend *d, enum m3_cuda_type partials, size_t most)
{
    if (m3_cuda_no_attention(d)) return 0;
    struct plan plan = plan_of(d, partials);
    int64_t rows = rows_of(d, &plan, most);
    return rows ? scratch_of(d, &plan, rows).bytes : 0;
}

/* The arguments of m3_cuda_attend_blocks, and how it is computed. */
struct call {
    const struct m3_attend *d;
    enum m3_cuda_type partials;
    const __nv_bfloat16 *q, *k, *v;
    const int32_t *blocks;
    float *o, *lse;
    struct plan plan;
    struct scratch layout;
    unsigned char *scratch;
};

/* Tokens t0 .. t0 + T - 1. */
static struct m3_attend_piece piece_of(const struct call *call, int64_t t0, int64_t T)
{
    const struct m3_attend *d = call->d;
    struct m3_attend_piece piece;
    piece.T = T;
    piece.p0 = d->p0 + t0;
    piece.block = call->plan.block;
    piece.G = (int32_t)d->G;
    piece.heads = (int32_t)call->plan.heads;
    piece.D = (int32_t)d->D;
    piece.N = (int32_t)d->N;
    piece.pitch = (int32_t)m3_cuda_pitch(d->D);
    piece.chunks = (int32_t)call->plan.chunks;
    piece.scale = (float)(1 / sqrt((double)d->D));
    piece.seen = d->seen;
    piece.lists = call->blocks + t0 * d->G * d->N;
    piece.sums = (float2 *)(call->scratch + call->layout.sums);
    piece.partials = call->partials;
    piece.o = call->scratch + call->layout.o;
    return piece;
}

/* Block-major. A share is the work of a block of threads; it is smaller if there would be few of them. */
static cudaError_t attend_members(cudaStream_t stream, const struct call *call, const struct m3_attend_piece *piece,
                                  const __nv_bfloat16 *q)
{
    struct m3_members members;
    int64_t share = piece->T * piece->G * piece->N * piece->heads / SHARES;
    if (share < LEAST_SHARE) share = LEAST_SHARE;
    if (share > MOST_SHARE) share = MOST_SHARE;
    cudaError_t error = m3_cuda_members(stream, &members, piece->lists, piece->T, piece->G, piece->N, call->plan.B,
                                        m3_pieces(share, piece->heads), call->scratch + call->layout.members);
    return error == cudaSuccess ? m3_attend_bf16(stream, piece, &members, q, call->k, call->v) : error;
}

static cudaError_t attend_piece(cudaStream_t stream, const struct call *call, int64_t t0, int64_t T)
{
    const struct m3_attend *d = call->d;
    const struct m3_attend_piece piece = piece_of(call, t0, T);
    const int64_t row = t0 * d->Q;
    const __nv_bfloat16 *q = call->q + row * piece.pitch;
    cudaError_t error = call->plan.few ? m3_attend_few(stream, &piece, q, call->k, call->v)
                                       : attend_members(stream, call, &piece, q);
    return error == cudaSuccess ? m3_attend_combine(stream, &piece, call->o + row * d->D, call->lse + row) : error;
}

cudaError_t m3_cuda_attend_blocks(cudaStream_t stream, float *o, float *lse, const void *q, const void *k,
                                  const void *v, const int32_t *blocks, enum m3_cuda_type type,
                                  const struct m3_attend *d, enum m3_cuda_type partials, void *scratch, size_t bytes)
{
    if (m3_cuda_no_attention(d)) return cudaErrorNotSupported;
    if (type == M3_CUDA_F32)
        return m3_attend_plain(stream, d, o, lse, (const float *)q, (const float *)k, (const float *)v, blocks);
    const struct plan plan = plan_of(d, partials);
    const int64_t most = rows_of(d, &plan, bytes);
    if (most == 0) return cudaErrorInvalidValue;
    const struct call call = { d, partials, (const __nv_bfloat16 *)q, (const __nv_bfloat16 *)k,
                               (const __nv_bfloat16 *)v, blocks, o, lse, plan, scratch_of(d, &plan, most),
                               (unsigned char *)scratch };
    for (int64_t t0 = 0; t0 < d->T; t0 += most) {
        cudaError_t error = attend_piece(stream, &call, t0, d->T - t0 < most ? d->T - t0 : most);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
