#include "cuda/attend.cuh"

enum {
    MERGE_WARPS = 8,
    FEW = 8,                    /* up to this many tokens attend_few.cu is used */
    SHARES = 1024,              /* number of blocks of threads, about, that occupies all multiprocessors */
    LEAST_SHARE = 128,          /* rows, heads counted, of a block of threads: a tile for each of its warps */
    MOST_SHARE = 2048,          /* its keys and values are then 4 % of the bytes it reads and writes */
};

/* One warp per token: merges its G lists, for every group: the smallest id, then the next larger one, and so on.
 *
 *     lists  [T,G,N]      (1 4 7 -1) (0 4 9 -1)
 *     merged [T,G,width]  (0 1 4 7 9 -1 ..) twice */
static __global__ void merge(int32_t *merged, const int32_t *lists, int64_t T, int64_t G, int64_t N, int64_t width)
{
    int64_t t = (int64_t)blockIdx.x * MERGE_WARPS + threadIdx.x / M3_WARP;
    if (t >= T) return;
    int32_t last = -1;
    for (int64_t n = 0; n < width; n++) {
        int32_t next = INT32_MAX;
        for (int64_t i = m3_lane(); i < G * N; i += M3_WARP) {
            int32_t id = lists[t * G * N + i];
            if (id > last && id < next) next = id;
        }
        for (int step = M3_WARP / 2; step > 0; step /= 2) {
            int32_t other = __shfl_xor_sync(0xffffffffu, next, step);
            next = other < next ? other : next;
        }
        last = next;
        for (int64_t g = m3_lane(); g < G; g += M3_WARP) merged[(t * G + g) * width + n] = last < INT32_MAX ? last : -1;
    }
}

/* How a call is computed: the same for all its pieces. */
struct plan {
    int64_t heads, block, B, width, chunks;         /* width: of the lists that are read */
    int merges, few;
};

/* Offsets in the scratch memory of a piece of `rows` tokens. */
struct scratch {
    size_t merged, members, sums, o, bytes;         /* bytes 0: not possible */
};

static struct plan plan_of(const struct m3_attend *d)
{
    int64_t S = d->p0 + d->T;
    struct plan plan;
    plan.heads = d->Q / d->G;
    plan.block = d->block < S ? d->block : S;
    plan.B = m3_pieces(S, plan.block);
    plan.merges = d->selection == M3_SELECT_UNION;
    plan.width = plan.merges ? d->G * d->N : d->N;
    if (plan.merges && plan.width > plan.B) plan.width = plan.B;
    plan.chunks = m3_pieces(plan.block, M3_ATTEND_KEYS);
    plan.few = d->T <= FEW;
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
    struct scratch none = { 0, 0, 0, 0, 0 }, scratch = none;
    int64_t places = rows * d->G * plan->width;
    size_t members = m3_cuda_members_bytes(rows, d->G, plan->width, plan->B);
    if (members == 0 || rows > INT32_MAX / d->Q || places > INT64_MAX / 4096 / plan->chunks / plan->heads) return none;
    scratch.merged = place(&scratch, plan->merges ? places : 0, sizeof(int32_t));
    scratch.members = place(&scratch, plan->few ? 0 : (int64_t)members, 1);
    scratch.sums = place(&scratch, places * plan->chunks * plan->heads, sizeof(float2));
    scratch.o = place(&scratch, places * plan->chunks * plan->heads * d->D, sizeof(float));
    return scratch;
}

/* The largest number of tokens that fit into `bytes`, found by bisection. */
static int64_t rows_of(const struct m3_attend *d, const struct plan *plan, size_t bytes)
{
    int64_t low = 0, high = d->T + 1;
    while (low + 1 < high) {
        int64_t middle = (low + high) / 2;
        size_t needed = scratch_of(d, plan, middle).bytes;
        if (needed > 0 && needed <= bytes) low = middle;
        else high = middle;
    }
    return low;
}

static int supported(const struct m3_attend *d)
{
    if (d->D > M3_CUDA_HEAD || d->p0 + d->T > INT32_MAX || d->Q > INT32_MAX) return 0;
    return d->N <= INT32_MAX / d->G && plan_of(d).chunks <= 65535;
}

size_t m3_cuda_attend_scratch(const struct m3_attend *d, size_t most)
{
    if (!supported(d)) return 0;
    struct plan plan = plan_of(d);
    int64_t rows = rows_of(d, &plan, most);
    return rows ? scratch_of(d, &plan, rows).bytes : 0;
}

/* The arguments of m3_cuda_attend_blocks, and how it is computed. */
struct call {
    const struct m3_attend *d;
    enum m3_cuda_type type;
    const void *q, *k, *v;
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
    const int64_t number = call->type == M3_CUDA_F32 ? sizeof(float) : sizeof(__nv_bfloat16);
    const uintptr_t places = (uintptr_t)call->q | (uintptr_t)call->k | (uintptr_t)call->v;
    struct m3_attend_piece piece;
    piece.T = T;
    piece.p0 = d->p0 + t0;
    piece.block = call->plan.block;
    piece.G = (int32_t)d->G;
    piece.heads = (int32_t)call->plan.heads;
    piece.D = (int32_t)d->D;
    piece.N = (int32_t)call->plan.width;
    piece.chunks = (int32_t)call->plan.chunks;
    piece.wide = d->D * number % 16 == 0 && places % 16 == 0;
    piece.scale = (float)(1 / sqrt((double)d->D));
    piece.seen = d->seen;
    piece.lists = call->plan.merges ? (const int32_t *)(call->scratch + call->layout.merged)
                                    : call->blocks + t0 * d->G * d->N;
    piece.sums = (float2 *)(call->scratch + call->layout.sums);
    piece.o = (float *)(call->scratch + call->layout.o);
    return piece;
}

/* Block-major. A share is the work of a block of threads; it is smaller if there would be few of them. */
static cudaError_t attend_members(cudaStream_t stream, const struct call *call, const struct m3_attend_piece *piece,
                                  const void *q)
{
    struct m3_members members;
    int64_t share = piece->T * piece->G * piece->N * piece->heads / SHARES;
    if (share < LEAST_SHARE) share = LEAST_SHARE;
    if (share > MOST_SHARE) share = MOST_SHARE;
    cudaError_t error = m3_cuda_members(stream, &members, piece->lists, piece->T, piece->G, piece->N, call->plan.B,
                                        m3_pieces(share, piece->heads), call->scratch + call->layout.members);
    if (error != cudaSuccess) return error;
    if (call->type == M3_CUDA_F32)
        return m3_attend_f32(stream, piece, &members, (const float *)q, (const float *)call->k,
                             (const float *)call->v);
    return m3_attend_bf16(stream, piece, &members, (const __nv_bfloat16 *)q, (const __nv_bfloat16 *)call->k,
                          (const __nv_bfloat16 *)call->v);
}

static cudaError_t attend_piece(cudaStream_t stream, const struct call *call, int64_t t0, int64_t T)
{
    const struct m3_attend *d = call->d;
    const struct m3_attend_piece piece = piece_of(call, t0, T);
    const int64_t row = t0 * d->Q, at = row * d->D;
    const void *q = call->type == M3_CUDA_F32 ? (const void *)((const float *)call->q + at)
                                              : (const void *)((const __nv_bfloat16 *)call->q + at);
    cudaError_t error = cudaSuccess;
    if (call->plan.merges)
        error = m3_launch(stream, merge, dim3((unsigned)m3_pieces(T, MERGE_WARPS)), MERGE_WARPS * M3_WARP, 0,
                          (int32_t *)(call->scratch + call->layout.merged), call->blocks + t0 * d->G * d->N, T, d->G,
                          d->N, call->plan.width);
    if (error == cudaSuccess)
        error = call->plan.few ? m3_attend_few(stream, &piece, call->type, q, call->k, call->v)
                               : attend_members(stream, call, &piece, q);
    return error == cudaSuccess ? m3_attend_combine(stream, &piece, call->o + at, call->lse + row) : error;
}

cudaError_t m3_cuda_attend_blocks(cudaStream_t stream, float *o, float *lse, const void *q, const void *k,
                                  const void *v, const int32_t *blocks, enum m3_cuda_type type,
                                  const struct m3_attend *d, void *scratch, size_t bytes)
{
    if (!supported(d)) return cudaErrorNotSupported;
    const struct plan plan = plan_of(d);
    const int64_t most = rows_of(d, &plan, bytes);
    if (most == 0) return cudaErrorInvalidValue;
    const struct call call = { d, type, q, k, v, blocks, o, lse, plan, scratch_of(d, &plan, most),
                               (unsigned char *)scratch };
    for (int64_t t0 = 0; t0 < d->T; t0 += most) {
        cudaError_t error = attend_piece(stream, &call, t0, d->T - t0 < most ? d->T - t0 : most);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
