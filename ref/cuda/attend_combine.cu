#include "cuda/attend.cuh"

enum { WARPS = 8 };

/* One warp per row and head: adds its parts, in the order of the list, thus by ascending keys.
 *
 *     M := max over parts of max,   L := sum over parts of exp(max - M) sum
 *     o := sum over parts of exp(max - M) o / L,   lse := M + ln L
 *
 *     parts of (t, h)   entry 0: chunk 0, 1, ..   entry 1: ..                 `heads` apart
 *     lane l            channels l, l + 32, l + 64, l + 96
 *
 * A row that sees no key has L = 0: its result is 0 and -inf. A part whose logits are all -inf has weight 0 beside
 * others; alone it makes the row NaN.
 *
 * Limit: reading the output of the kernels before, 520 bytes per part, 264 if it is rounded to bfloat16. */
template <class Part>
static __global__ void combine(struct m3_attend_piece piece, float *o, float *lse)
{
    const int64_t Q = (int64_t)piece.G * piece.heads, row = (int64_t)blockIdx.x * WARPS + threadIdx.x / M3_WARP;
    if (row >= piece.T * Q) return;
    const int64_t list = row / Q * piece.G + row % Q / piece.heads;
    const int64_t first = list * piece.N * piece.chunks * piece.heads + row % piece.heads;
    int listed = 0;
    float max = -INFINITY, sum = 0, o_row[4] = { 0, 0, 0, 0 };
    for (int n = 0; n < piece.N; n++) listed += piece.lists[list * piece.N + n] >= 0;
    const int64_t parts = (int64_t)listed * piece.chunks;

    for (int64_t i = m3_lane(); i < parts; i += M3_WARP) max = max_nan(max, piece.sums[first + i * piece.heads].x);
    max = m3_warp_max_nan(max);
    for (int64_t i = 0; i < parts; i++) {
        const int64_t part = first + i * piece.heads;
        const float2 sums = piece.sums[part];
        const float weight = expf(sums.x - m3_attend_base(max));
        sum += sums.x == -INFINITY && max != -INFINITY ? 0 : weight * sums.y;
        for (int e = 0; e < 4; e++) {
            int c = m3_lane() + 32 * e;
            const Part *o_part = (const Part *)piece.o + part * piece.pitch;
            if (c < piece.D) o_row[e] = fmaf(weight, m3_float(o_part[c]), o_row[e]);
        }
    }
    for (int e = 0; e < 4; e++) {
        int c = m3_lane() + 32 * e;
        if (c < piece.D) o[row * piece.D + c] = sum == 0 ? 0 : o_row[e] / sum;
    }
    if (m3_lane() == 0) lse[row] = sum == 0 ? -INFINITY : max + logf(sum);
}

cudaError_t m3_attend_combine(cudaStream_t stream, const struct m3_attend_piece *piece, float *o, float *lse)
{
    dim3 grid((unsigned)m3_pieces(piece->T * piece->G * piece->heads, WARPS));
    return m3_launch(stream, piece->partials == M3_CUDA_BF16 ? combine<__nv_bfloat16> : combine<float>, grid,
                     WARPS * M3_WARP, 0, *piece, o, lse);
}
