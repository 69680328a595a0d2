/* Attention to selected blocks in float: SPEC 5.10 as it stands there. The kernel to read first.
 *
 * A warp has one row t and one query head h, and goes through the blocks on the row's list, 32 keys at a time:
 *
 *     lane l       z    := scale q . k[key l]                 -inf if the row does not see key l
 *     the warp     most := the largest z so far               what was summed before shrinks by exp(old most - most)
 *     lane l       p[l] := exp(z - most)                      in shared memory
 *     lane l       o[c] += sum over keys j of p[j] v[j][c]    c = l, l + 32, l + 64, l + 96
 *
 * At the end o / sum p is the row's result, and most + ln sum p its lse. Nothing is shared between rows, so that every
 * block is read once for each row and head, from the L2 cache at best: 64 times the reads of attend_bf16.cu. */
#include <math.h>

#include "cuda/attend.cuh"

enum { WARPS = 4, CHANNELS = M3_CUDA_HEAD / M3_WARP };

static __device__ __forceinline__ float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

static __global__ void attend_plain(struct m3_attend d, float scale, float *o, float *lse, const float *q,
                                    const float *k, const float *v, const int32_t *blocks)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / M3_WARP, pitch = m3_cuda_pitch(d.D);
    if (row >= d.T * d.Q) return;
    const int64_t t = row / d.Q, g = row % d.Q / (d.Q / d.G), end_of_row = d.p0 + t + 1;
    float *p = (float *)m3_shared + threadIdx.x / M3_WARP * M3_WARP;
    float most = -INFINITY, sum = 0, o_row[CHANNELS] = {};
    unsigned any = 0;
    for (int64_t n = 0; n < d.N && blocks[(t * d.G + g) * d.N + n] >= 0; n++) {
        const int64_t b = blocks[(t * d.G + g) * d.N + n];
        const int64_t end = (b + 1) * d.block < end_of_row ? (b + 1) * d.block : end_of_row;
        for (int64_t first = b * d.block; first < end; first += M3_WARP) {
            const int64_t key = first + m3_lane();
            const int sees = key < end && (!d.seen || d.seen[key]);
            const float z = sees ? scale * dot(q + row * pitch, k + (key * d.G + g) * pitch, d.D) : -INFINITY;
            const float before = most;
            most = m3_warp_max_nan(max_nan(most, z));
            const float shrink = expf(before - m3_attend_base(most));
            const float weight = sees ? expf(z - m3_attend_base(most)) : 0;
            p[m3_lane()] = weight;
            sum = sum * shrink + m3_warp_sum(weight);
            __syncwarp();
            const unsigned seen = __ballot_sync(0xffffffffu, sees);
            for (int e = 0; e < CHANNELS; e++) {
                const int64_t c = m3_lane() + e * M3_WARP;
                o_row[e] *= shrink;
                for (int j = 0; j < M3_WARP && c < d.D; j++)
                    if (seen >> j & 1) o_row[e] = fmaf(p[j], v[((first + j) * d.G + g) * pitch + c], o_row[e]);
            }
            any |= seen;
            __syncwarp();
        }
    }
    if (any && most == -INFINITY) sum = NAN;    /* keys, but all logits -inf: 0 / 0 by the definition */
    for (int e = 0; e < CHANNELS; e++) {
        const int64_t c = m3_lane() + e * M3_WARP;
        if (c < d.D) o[row * d.D + c] = any ? o_row[e] / sum : 0;
    }
    if (m3_lane() == 0) lse[row] = any ? most + logf(sum) : -INFINITY;
}

cudaError_t m3_attend_plain(cudaStream_t stream, const struct m3_attend *d, float *o, float *lse, const float *q,
                            const float *k, const float *v, const int32_t *blocks)
{
    const int64_t grid = m3_pieces(d->T * d->Q, WARPS), S = d->p0 + d->T;
    struct m3_attend whole = *d;
    if (grid > INT32_MAX) return cudaErrorNotSupported;
    if (whole.block > S) whole.block = S;       /* there are no further keys */
    return m3_launch(stream, attend_plain, dim3((unsigned)grid), WARPS * M3_WARP, WARPS * M3_WARP * sizeof(float),
                     whole, (float)(1 / sqrt((double)d->D)), o, lse, q, k, v, blocks);
}
