/* A matrix product by OpenBLAS, on the thread that calls. */
#ifndef M3_OPS_FAST_BLAS_H
#define M3_OPS_FAST_BLAS_H

#include <cblas.h>
#include <stdint.h>

#include "base/real.h"

enum m3_blas_form { M3_BLAS_PLAIN, M3_BLAS_TURNED };

/* c [M,N] := (add ? c : 0) + a b, with a' for a or b' for b if it is turned; rows of each, as stored, are lda, ldb, ldc
 * apart. */
static inline void m3_blas_product(real *c, int64_t ldc, const real *a, int64_t lda, enum m3_blas_form of_a,
                                   const real *b, int64_t ldb, enum m3_blas_form of_b, int64_t M, int64_t N, int64_t K,
                                   int add)
{
    const CBLAS_TRANSPOSE turn_a = of_a == M3_BLAS_TURNED ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE turn_b = of_b == M3_BLAS_TURNED ? CblasTrans : CblasNoTrans;
    if (sizeof(real) == sizeof(double))
        cblas_dgemm(CblasRowMajor, turn_a, turn_b, (int)M, (int)N, (int)K, 1, (const double *)(const void *)a, (int)lda,
                    (const double *)(const void *)b, (int)ldb, add, (double *)(void *)c, (int)ldc);
    else
        cblas_sgemm(CblasRowMajor, turn_a, turn_b, (int)M, (int)N, (int)K, 1, (const float *)(const void *)a, (int)lda,
                    (const float *)(const void *)b, (int)ldb, (float)add, (float *)(void *)c, (int)ldc);
}

#endif
