/* This file is compiled several times, as kernels.c: M3_WIDE names the table. In both engines `real` is double here. */
#include "ops/fast/wide.h"

#include "ops/exp.h"
#include "ops/fast/gemm.h"

static void gemm(double *c, int64_t ldc, const double *a, int64_t a_m, int64_t a_k, const double *b, int64_t ldb,
                 int64_t M, int64_t N, int64_t K, int add)
{
    all_strips(c, ldc, a, a_m, a_k, b, ldb, M, N, K, add, NULL);
}

static void weigh_back(double *p, double *ds, const double *lse, const double *delta, int64_t keys, int64_t lanes,
                       double scale)
{
    for (int64_t j = 0; j < keys; j++, p += lanes, ds += lanes)
#pragma omp simd
        for (int64_t l = 0; l < lanes; l++) {
            p[l] = m3_exp_body(p[l] * scale - lse[l]);
            ds[l] = p[l] * (ds[l] - delta[l]) * scale;
        }
}

extern const struct m3_wide M3_WIDE;
const struct m3_wide M3_WIDE = { .gemm = gemm, .weigh_back = weigh_back };
