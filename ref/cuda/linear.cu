/* m3_cuda_linear and m3_cuda_round; which kernel multiplies. */
#include "cuda/linear.cuh"

enum { THREADS = 256 };

const char *m3_cuda_no_weight(const struct m3_weight *w)
{
    if (w->dtype == M3_F4_E2M1 || w->dtype == M3_I4) return "weights in codes of 4 bits";
    if (w->dtype == M3_F8_E4M3 || ((w->dtype == M3_F32 || w->dtype == M3_BF16) && w->scaling == M3_UNSCALED))
        return NULL;
    return w->dtype == M3_F64 ? "weights of F64" : w->dtype == M3_F16 ? "weights of F16" : "weights of this type";
}

cudaError_t m3_products(cudaStream_t stream, const struct m3_products *p)
{
    if (p->type == M3_CUDA_BF16 && p->dtype == M3_F32) return cudaErrorNotSupported;
    return p->type == M3_CUDA_BF16 && !p->few ? m3_products_bf16(stream, p) : m3_products_few(stream, p);
}

cudaError_t m3_cuda_linear(cudaStream_t stream, float *y, const void *x, enum m3_cuda_type type,
                           const struct m3_weight *w, const float *bias, int64_t T)
{
    if (m3_cuda_no_weight(w)) return cudaErrorNotSupported;
    struct m3_products p = {};
    p.what = M3_TENSOR_PLAIN;
    p.type = type;
    p.dtype = w->dtype;
    p.y = y;
    p.x = x;
    p.few = T <= M3_FEW;
    p.T = T;
    p.columns = w->rows;
    p.depth = w->cols;
    p.w = *w;
    p.bias = bias;
    return m3_products(stream, &p);
}

static __global__ void round_each(__nv_bfloat16 *y, const float *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = __float2bfloat16_rn(x[i]);
}

cudaError_t m3_cuda_round(cudaStream_t stream, __nv_bfloat16 *y, const float *x, int64_t n)
{
    int64_t blocks = m3_pieces(n, THREADS);
    if (blocks > INT32_MAX) return cudaErrorNotSupported;
    return m3_launch(stream, round_each, dim3((unsigned)blocks), THREADS, 0, y, x, n);
}
