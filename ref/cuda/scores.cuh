/* Block scores: declarations shared by the kernels. The scores themselves stay in registers; only their maxima are
 * written.
 *
 *     m[i,b] = max over visible keys j of block b of q[i] . k[j],   i = t G + g: all groups read the one key head
 *
 * A row, in these files, is a pair i. The scale is applied after the maximum: rounding is monotone, so the result is
 * the maximum of the scaled scores. */
#ifndef M3_CUDA_SCORES_CUH
#define M3_CUDA_SCORES_CUH

#include <math.h>

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/ptx.cuh"

enum {
    M3_SCORES_FEW = 8,                      /* rows that scores_few.cu takes */
    M3_SCORES_KEYS = INT32_MAX - 1024,      /* keys: step counters may go past the last one */
};

/* Places, keys and visible blocks fit in an int; m and k do not. */
struct m3_scores {
    float *m;                       /* [rows,B] */
    unsigned long long *nan_at;
    const void *q, *k;              /* [rows,pitch] [p0+T,pitch]; float, or the bits of bfloat16 */
    const unsigned char *seen;      /* [p0+T] or NULL */
    int64_t rows, B;
    int p0, G, X, pitch, block;
    float scale;
    int range;                      /* blocks of keys per block of threads, in scores_bf16.cu */
};

cudaError_t m3_scores_bf16(cudaStream_t stream, const struct m3_scores *a);
cudaError_t m3_scores_few(cudaStream_t stream, const struct m3_scores *a);

static __device__ __forceinline__ int m3_score_place(const struct m3_scores *a, int64_t row)
{
    return a->p0 + (int)(row / a->G);
}

static __device__ __forceinline__ int m3_score_hidden(const struct m3_scores *a, int key, int end)
{
    return a->seen && key < end && !a->seen[key];
}

static __device__ __forceinline__ void m3_score_write(const struct m3_scores *a, int64_t row, int64_t b, float m)
{
    if (row >= a->rows) return;
    int64_t at = row * a->B + b;
    a->m[at] = m;
    if (isnan(m)) atomicMin(a->nan_at, (unsigned long long)at);
}

#endif
