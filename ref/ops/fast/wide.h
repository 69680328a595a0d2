/* Kernels in double, whatever `real` is: the sums of derivatives. They are chosen with the other kernels, and every
 * build gives the same bits. */
#ifndef M3_OPS_FAST_WIDE_H
#define M3_OPS_FAST_WIDE_H

#include <stdint.h>

struct m3_wide {
    /* c[m,n] := (add ? c[m,n] : 0) + sum over k ascending of a[m,k] b[k,n]: gemm of kernels.h in double. */
    void (*gemm)(double *c, int64_t ldc, const double *a, int64_t a_m, int64_t a_k, const double *b, int64_t ldb,
                 int64_t M, int64_t N, int64_t K, int add);

    /* The pairs of a softmax on their way back: p := exp(p scale - lse), ds := p (ds - delta) scale. p and ds
     * [keys,lanes] hold the products q . k and do . v before; lse and delta [lanes]. */
    void (*weigh_back)(double *p, double *ds, const double *lse, const double *delta, int64_t keys, int64_t lanes,
                       double scale);
};

#endif
