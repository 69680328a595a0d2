#include "cuda/attend.cuh"

enum { MERGE_WARPS = 8 };

/* A warp a token: its G lists as one, for every group: the least id, then the least one above it, and so on.
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

/* How a call is done: the same for all its pieces. */
struct plan {
    int64_t heads, block, B, width, chunks;         /* width: of the lists that are read */
    int merges, few;
};

/* Where things lie in the scratch of a piece of `rows` tokens. */
struct scratch {
    size_t merged, members, sums, o, bytes;         /* bytes 0: it cannot be */
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
    plan.few = d->T <= M3_ATTEND_FEW;
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

/* The most tokens that fit into `bytes` at a time; more take more, so they are searched by halves. */
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
    if (d->D > M3_CUDA_HEAD || d->p0 + d->T > INT32_MAX || d->G > INT32_MAX / d->Q) return 0;
    return d->N <= INT32_MAX / d->G && plan_of(d).chunks <= 65535;
}

size_t m3_cuda_attend_scratch(const struct m3_attend *d, size_t most)
{
    if (!supported(d)) return 0;
    struct plan plan = plan_of(d);
    int64_t rows = rows_of(d, &plan, most);
    return rows ? scratch_of(d, &plan, rows).bytes : 0;
}

/* Tokens t0 .. t0 + rows - 1 of the call. q_t, blocks_t and so on begin at t0. */
static cudaError_t attend_piece(cudaStream_t stream, float *o_t, float *lse_t, const void *q_t, const void *k,
                                const void *v, const int32_t *blocks_t, enum m3_cuda_type type,
                                const struct m3_attend_piece *piece, const struct plan *plan,
                                const struct scratch *scratch, unsigned char *memory, int64_t N)
{
    struct m3_members members;
    cudaError_t error = cudaSuccess;
    if (plan->merges)
        error = m3_launch(stream, merge, dim3((unsigned)m3_pieces(piece->T, MERGE_WARPS)), MERGE_WARPS * M3_WARP, 0,
                          (int32_t *)(memory + scratch->merged), blocks_t, piece->T, piece->G, N, piece->N);
    if (error == cudaSuccess && plan->few) error = m3_attend_few(stream, piece, type, q_t, k, v);
    if (error == cudaSuccess && !plan->few) {
        error = m3_cuda_members(stream, &members, piece->lists, piece->T, piece->G, piece->N, plan->B,
                                m3_pieces(M3_ATTEND_SHARE, plan->heads), memory + scratch->members);
        if (error == cudaSuccess && type == M3_CUDA_F32)
            error = m3_attend_f32(stream, piece, &members, (const float *)q_t, (const float *)k, (const float *)v);
        else if (error == cudaSuccess)
            error = m3_attend_bf16(stream, piece, &members, (const __nv_bfloat16 *)q_t, (const __nv_bfloat16 *)k,
                                   (const __nv_bfloat16 *)v);
    }
    return error == cudaSuccess ? m3_attend_combine(stream, piece, o_t, lse_t) : error;
}

cudaError_t m3_cuda_attend_blocks(cudaStream_t stream, float *o, float *lse, const void *q, const void *k,
                                  const void *v, const int32_t *blocks, enum m3_cuda_type type,
                                  const struct m3_attend *d, void *scratch, size_t bytes)
{
    if (!supported(d)) return cudaErrorNotSupported;
    const struct plan plan = plan_of(d);
    const size_t size = type == M3_CUDA_F32 ? sizeof(float) : sizeof(__nv_bfloat16);
    const int64_t most = rows_of(d, &plan, bytes);
    if (most == 0) return cudaErrorInvalidValue;
    const struct scratch layout = scratch_of(d, &plan, most);
    unsigned char *memory = (unsigned char *)scratch;

    struct m3_attend_piece piece;
    piece.block = plan.block;
    piece.G = (int32_t)d->G;
    piece.heads = (int32_t)plan.heads;
    piece.D = (int32_t)d->D;
    piece.N = (int32_t)plan.width;
    piece.chunks = (int32_t)plan.chunks;
    piece.wide = (size_t)d->D * size % 16 == 0 && ((uintptr_t)q | (uintptr_t)k | (uintptr_t)v) % 16 == 0;
    piece.scale = (float)(1 / sqrt((double)d->D));
    piece.seen = d->seen;
    piece.sums = (float2 *)(memory + layout.sums);
    piece.o = (float *)(memory + layout.o);

    for (int64_t t0 = 0; t0 < d->T; t0 += most) {
        const int32_t *blocks_t = blocks + t0 * d->G * d->N;
        piece.T = d->T - t0 < most ? d->T - t0 : most;
        piece.p0 = d->p0 + t0;
        piece.lists = plan.merges ? (const int32_t *)(memory + layout.merged) : blocks_t;
        cudaError_t error = attend_piece(stream, o + t0 * d->Q * d->D, lse + t0 * d->Q,
                                         (const unsigned char *)q + (size_t)(t0 * d->Q * d->D) * size, k, v, blocks_t,
                                         type, &piece, &plan, &layout, memory, d->N);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
