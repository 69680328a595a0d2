#include "cuda/linear.cuh"

enum { COMBINE_THREADS = 256, MOST_K = 32 << 10 };

/* The scratch memory for n tokens. */
struct layout {
    size_t members, act, each, bytes;   /* offsets of [n K,pitch of F] of type, [n K,H] of float; the end */
};

static size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Returns whether n tokens have a layout: places in lists are int32. */
static int lay_out(struct layout *l, const struct m3_cuda_experts *d, int64_t n)
{
    size_t number = d->type == M3_CUDA_BF16 ? sizeof(__nv_bfloat16) : sizeof(float);
    size_t members = m3_cuda_members_bytes(n, 1, d->K, d->E), slots = (size_t)(n * d->K);
    if (members == 0 || d->K > MOST_K) return 0;
    l->members = 0;
    l->act = padded(members);
    l->each = l->act + padded(slots * (size_t)m3_cuda_pitch(d->F) * number);
    l->bytes = l->each + padded(slots * (size_t)d->H * sizeof(float));
    return 1;
}

/* How many tokens at a time `most` bytes are sufficient for: T, a half of it, .. */
static int64_t most_tokens(const struct m3_cuda_experts *d, size_t most)
{
    struct layout l;
    int64_t n = d->T;
    while (n > 0 && (!lay_out(&l, d, n) || l.bytes > most)) n = n > 1 ? (n + 1) / 2 : 0;
    return n;
}

size_t m3_cuda_experts_scratch(const struct m3_cuda_experts *d, size_t most)
{
    struct layout l;
    int64_t n = most_tokens(d, most);
    return n > 0 && lay_out(&l, d, n) ? l.bytes : 0;
}

/* A block of threads: 256 numbers of a token's sum over its experts, by ascending id from 0. order [K] in shared
 * memory lists its slots:
 *
 *     ids    7 2 5          order  1 2 0          order[rank of ids[k]] = k */
static __global__ void combine(float *routed, const float *each, const int32_t *ids, const float *p, int64_t K,
                               int64_t H, float factor)
{
    int32_t *order = (int32_t *)m3_shared;
    int64_t pieces = (H + COMBINE_THREADS - 1) / COMBINE_THREADS, t = blockIdx.x / pieces;
    int64_t h = blockIdx.x % pieces * COMBINE_THREADS + threadIdx.x;
    const int32_t *ids_t = ids + t * K;
    for (int64_t k = threadIdx.x; k < K; k += COMBINE_THREADS) {
        int rank = 0;
        for (int64_t j = 0; j < K; j++) rank += ids_t[j] < ids_t[k] || (ids_t[j] == ids_t[k] && j < k);
        order[rank] = (int32_t)k;
    }
    __syncthreads();
    if (h >= H) return;
    float sum = 0;
    for (int64_t i = 0; i < K; i++) {
        int64_t slot = t * K + order[i];
        sum = fmaf(p[slot], each[slot * H + h], sum);
    }
    routed[t * H + h] = factor * sum;
}

/* Computes n tokens: the lists of members, act(w1 x, w3 x), w2 of that, the sum. Few tokens need no lists. */
static cudaError_t run_piece(cudaStream_t stream, float *routed, float *each, const void *x, const int32_t *ids,
                             const float *p, const struct m3_expert *experts, const struct m3_cuda_experts *d,
                             int64_t n, unsigned char *scratch)
{
    struct layout l;
    if (!lay_out(&l, d, n)) return cudaErrorNotSupported;
    int64_t blocks = n * m3_pieces(d->H, COMBINE_THREADS);
    if (blocks > INT32_MAX) return cudaErrorNotSupported;
    if (!each) each = (float *)(scratch + l.each);

    struct m3_products up = {};
    up.what = M3_GATE_UP;
    up.type = d->type;
    up.dtype = d->dtype;
    up.y = scratch + l.act;
    up.x = x;
    up.few = d->T <= M3_FEW;
    up.T = n;
    up.columns = 2 * m3_cuda_pitch(d->F);
    up.given = 2 * d->F;
    up.depth = d->H;
    up.experts = experts;
    up.ids = ids;
    up.K = d->K;
    up.act = d->act;
    cudaError_t error = cudaSuccess;
    if (!up.few)
        error = m3_cuda_members(stream, &up.members, ids, n, 1, d->K, d->E, m3_products_tile(d->type),
                                scratch + l.members);
    struct m3_products down = up;
    down.what = M3_DOWN;
    down.y = each;
    down.x = up.y;
    down.columns = d->H;
    down.depth = d->F;
    if (error == cudaSuccess) error = m3_products(stream, &up);
    if (error == cudaSuccess) error = m3_products(stream, &down);
    if (error == cudaSuccess)
        error = m3_launch(stream, combine, dim3((unsigned)blocks), COMBINE_THREADS, (size_t)d->K * sizeof(int32_t),
                          routed, each, ids, p, d->K, d->H, d->factor);
    return error;
}

/* Computes tokens in pieces; T alone decides between the kernels for few and for many: no bit depends on the size of
 * scratch, or on whether `each` is wanted. */
cudaError_t m3_cuda_experts(cudaStream_t stream, float *routed, float *each, const void *x, const int32_t *ids,
                            const float *p, const struct m3_expert *experts, const struct m3_cuda_experts *d,
                            void *scratch, size_t bytes)
{
    size_t number = d->type == M3_CUDA_BF16 ? sizeof(__nv_bfloat16) : sizeof(float);
    int64_t piece = most_tokens(d, bytes);
    if (piece == 0 && d->T > 0) return cudaErrorNotSupported;
    for (int64_t t = 0; t < d->T; t += piece) {
        int64_t n = d->T - t < piece ? d->T - t : piece;
        cudaError_t error = run_piece(stream, routed + t * d->H, each ? each + t * d->K * d->H : NULL,
                                      (const unsigned char *)x + (size_t)(t * m3_cuda_pitch(d->H)) * number,
                                      ids + t * d->K, p + t * d->K, experts, d, n, (unsigned char *)scratch);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
