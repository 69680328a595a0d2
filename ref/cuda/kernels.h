/* The operators on device memory. table.cu uses them as entries of the operator table; programs with tensors on a
 * device may call them directly. ref/ops/ops.h and SPEC 5 define each operator; the file named with it describes its
 * layout.
 *
 * Every pointer is to device memory unless stated otherwise. A function launches on `stream` and does not wait.
 * cudaErrorNotSupported, before anything is launched: what no kernel computes, see m3_cuda_no_weight and the others;
 * a count beyond 2^31 - 1 for an id or a list place. Too little scratch is an error too; scratch must be aligned to 256
 * bytes, like the device's allocations. Letters: SPEC 1.
 *
 * Rows of x, q, k, v, index q and k, and of stored matrices begin at multiples of 16 numbers, so that every load has
 * 16 bytes: a row of n numbers has m3_cuda_pitch(n) places, and those after the last hold 0. Outputs have no gaps. */
#ifndef M3_CUDA_KERNELS_H
#define M3_CUDA_KERNELS_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/ops.h"

/* The type of q, k, v and x, and the instructions that multiply them. Sums and outputs are float in both. */
enum m3_cuda_type {
    M3_CUDA_F32, /* float; fused multiply-add */
    M3_CUDA_BF16, /* __nv_bfloat16; tensor cores */
};

enum { M3_CUDA_HEAD = 128 }; /* the largest number of channels of a head */

static inline __host__ __device__ int64_t m3_cuda_pitch(int64_t n) { return (n + 15) / 16 * 16; }

/* The name of what no kernel computes, or NULL: a stored type; a pool or a size of index scores; a selection or a size
 * of attention. d and w are in host memory. linear.cu, scores.cu, attend_blocks.cu */
const char *m3_cuda_no_weight(const struct m3_weight *w);
const char *m3_cuda_no_scores(const struct m3_index *d);
const char *m3_cuda_no_attention(const struct m3_attend *d);

/* m [T,G,B]; q [T,G,X]; k [p0+T,X]. d is in host memory, d->seen on the device. *nan_at := the lowest flat index of a
 * NaN in a visible score, or all ones. scores.cu, with the kernel of F32, over scores_bf16.cu, scores_few.cu */
cudaError_t m3_cuda_block_scores(cudaStream_t stream, float *m, unsigned long long *nan_at, const void *q,
                                 const void *k, enum m3_cuda_type type, const struct m3_index *d);

/* ids [T,G,N]; m [T,G,B]; *nan_at as above. select.cu */
cudaError_t m3_cuda_select_blocks(cudaStream_t stream, int32_t *ids, unsigned long long *nan_at, const float *m,
                                  const struct m3_index *d);

/* o [T,Q,D]; lse [T,Q]; q [T,Q,D]; k, v [p0+T,G,D]; blocks [T,G,N], each list ascending visible ids, then -1 (not
 * checked). F32: attend_plain.cu, the kernel to read first; the arguments after d are not used. BF16: `partials` is the
 * type in which partial results wait for their combination, and `scratch` limits the number of rows that have some at a
 * time. attend_blocks.cu over attend_bf16.cu, attend_few.cu, attend_combine.cu */
cudaError_t m3_cuda_attend_blocks(cudaStream_t stream, float *o, float *lse, const void *q, const void *k,
                                  const void *v, const int32_t *blocks, enum m3_cuda_type type,
                                  const struct m3_attend *d, enum m3_cuda_type partials, void *scratch, size_t bytes);
/* The number of bytes of scratch that it can use, up to `most`; 0 if `most` is not sufficient for one row. */
size_t m3_cuda_attend_scratch(const struct m3_attend *d, enum m3_cuda_type partials, size_t most);

/* ids, p [T,K]; s [T,E]; bias [E]. *nan_at := the lowest t E + e where s + bias is NaN, *zero_at the lowest t whose
 * selected scores have a sum that is not above 0; otherwise all ones. route.cu */
cudaError_t m3_cuda_route(cudaStream_t stream, int32_t *ids, float *p, unsigned long long *nan_at,
                          unsigned long long *zero_at, const float *s, const float *bias, int64_t T, int64_t E,
                          int64_t K);

/* y [T,rows]; x [T,cols]; bias [rows] or NULL. *w is in host memory, its data and scales on the device; BF16 rounds
 * stored numbers to bfloat16, and takes BF16 and E4M3. linear.cu over linear_bf16.cu, linear_few.cu */
cudaError_t m3_cuda_linear(cudaStream_t stream, float *y, const void *x, enum m3_cuda_type type,
                           const struct m3_weight *w, const float *bias, int64_t T);

struct m3_cuda_experts {
    int64_t T, E, K, H, F;
    float factor;
    enum m3_cuda_type type;
    enum m3_dtype dtype;        /* of all weights */
    struct m3_activation act;
};

/* routed [T,H]; each [T,K,H] or NULL; x [T,H]; ids, p [T,K], ids of a row distinct and below E (not checked); experts
 * [E]. d is in host memory. experts.cu, members.cu */
cudaError_t m3_cuda_experts(cudaStream_t stream, float *routed, float *each, const void *x, const int32_t *ids,
                            const float *p, const struct m3_expert *experts, const struct m3_cuda_experts *d,
                            void *scratch, size_t bytes);
size_t m3_cuda_experts_scratch(const struct m3_cuda_experts *d, size_t most); /* as m3_cuda_attend_scratch */

/* y [n] := x [n], rounded to nearest even. linear.cu */
cudaError_t m3_cuda_round(cudaStream_t stream, __nv_bfloat16 *y, const float *x, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
