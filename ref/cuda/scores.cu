/* m3_cuda_block_scores: selects the kernel; contains that of float. */
#include "cuda/scores.cuh"

enum { WARPS = 4 };

/* A warp has one row and one block of keys, and each lane its own keys, 32 apart: SPEC 5.8 as it stands there. Every
 * row reads all its keys, from the L2 cache at best. */
static __global__ void scores_plain(struct m3_scores a)
{
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / M3_WARP, row = at % a.rows, b = at / a.rows;
    if (b >= a.B) return;
    const float *q = (const float *)a.q + row * a.pitch;
    const int64_t first = b * a.block, last = m3_score_place(&a, row);
    float most = -INFINITY;
    for (int64_t key = first + m3_lane(); key < first + a.block && key <= last; key += M3_WARP) {
        if (m3_score_hidden(&a, (int)key, (int)last + 1)) continue;
        const float *k = (const float *)a.k + key * a.pitch;
        float s = 0;
        for (int x = 0; x < a.X; x++) s = fmaf(q[x], k[x], s);
        most = max_nan(most, s);
    }
    most = m3_warp_max_nan(most);
    if (m3_lane() == 0) m3_score_write(&a, row, b, most * a.scale);
}

const char *m3_cuda_no_scores(const struct m3_index *d)
{
    if (d->semantics->pool == M3_POOL_LSE) return "pool=lse";
    if (d->X > M3_CUDA_HEAD) return "an index head of more than 128 channels";
    if (d->p0 + d->T > M3_SCORES_KEYS || d->G > M3_SCORES_KEYS || d->B > INT32_MAX) return "so many keys or groups";
    return NULL;
}

cudaError_t m3_cuda_block_scores(cudaStream_t stream, float *m, unsigned long long *nan_at, const void *q,
                                 const void *k, enum m3_cuda_type type, const struct m3_index *d)
{
    int64_t keys = d->p0 + d->T, grid = m3_pieces(d->T * d->G * d->B, WARPS);
    if (m3_cuda_no_scores(d) || (type == M3_CUDA_F32 && grid > INT32_MAX)) return cudaErrorNotSupported;
    struct m3_scores a = {};
    a.m = m;
    a.nan_at = nan_at;
    a.q = q;
    a.k = k;
    a.seen = d->seen;
    a.rows = d->T * d->G;
    a.B = d->B;
    a.p0 = (int)d->p0;
    a.G = (int)d->G;
    a.X = (int)d->X;
    a.pitch = (int)m3_cuda_pitch(d->X);
    a.block = (int)(d->block < keys ? d->block : keys);     /* there are no further keys */
    a.scale = d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? (float)(1 / sqrt((double)d->X)) : 1;

    cudaError_t error = cudaMemsetAsync(nan_at, 0xFF, sizeof *nan_at, stream);
    if (error != cudaSuccess) return error;
    if (type == M3_CUDA_F32) return m3_launch(stream, scores_plain, dim3((unsigned)grid), WARPS * M3_WARP, 0, a);
    return a.rows <= M3_SCORES_FEW ? m3_scores_few(stream, &a) : m3_scores_bf16(stream, &a);
}
