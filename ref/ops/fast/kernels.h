/* Kernels: the inner loops of the fast bodies, compiled once for each instruction set and chosen at run time. Each
 * computes in a stated order, so every build gives the same bits; tests/ops/fast/test_kernels.c compares them with the
 * loops they stand for. The exception is struct m3_fused, the parts of the `blas` body of linear: their order is fixed
 * only on one machine, and they fuse multiplications with additions where the processor can. */
#ifndef M3_OPS_FAST_KERNELS_H
#define M3_OPS_FAST_KERNELS_H

#include <stdint.h>

#include "base/real.h"
#include "base/weight.h"
#include "ops/fast/wide.h"

struct m3_ask;

enum { M3_NORM_ROWS = 8 }; /* rows of a norm that are summed side by side: the additions of one wait for each other */

struct m3_fused {
    /* y[t * ldy + r] := x_t . w_r for t < T, r < rows; x [T,K], w [rows,K], or BF16 codes at any address. The bits of
     * an output do not depend on T and rows; dots and dots_bf16 give the same bits. */
    void (*dots)(real *y, int64_t ldy, const real *x, const real *w, int64_t T, int64_t rows, int64_t K);
    void (*dots_bf16)(real *y, int64_t ldy, const real *x, const void *w, int64_t T, int64_t rows, int64_t K);

    /* The same for the rows of w from `row` on, of E4M3 codes with scales. */
    void (*dots_e4m3)(real *y, int64_t ldy, const real *x, const struct m3_weight *w, int64_t row, int64_t T,
                      int64_t rows);

    /* c[m,n] := (add ? c[m,n] : 0) + sum over k of a[m,k] b[k,n]; a [M,K], rows of c are ldc apart. The columns of b
     * lie in strips [K,width], one after the other in memory; N is a multiple of lanes, half of width, and what is left
     * after the last strip is one more, [K,lanes]. */
    void (*product)(real *c, int64_t ldc, const real *a, const real *b, int64_t M, int64_t N, int64_t K, int add);
    int64_t width, lanes;
};

struct m3_kernels {
    const char *name; /* "avx512", "avx2", "portable" */
    const struct m3_fused *fused;
    const struct m3_wide *wide;

    /* c[m,n] := (add ? c[m,n] : 0) + sum over k ascending of a[m,k] b[k,n], product and sum each rounded.
     * Element (m,k) of a is a[m * a_m + k * a_k]; rows of b and c are ldb and ldc apart. */
    void (*gemm)(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k, const real *b, int64_t ldb, int64_t M,
                 int64_t N, int64_t K, int add);
    /* The same; meanwhile asks the memory for what comes next (ops/fast/prefetch.h). */
    void (*gemm_asking)(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k, const real *b, int64_t ldb,
                        int64_t M, int64_t N, int64_t K, int add, const struct m3_ask *ask);

    /* out[n] := columns [col, col + n) of a row of w, with the values of m3_expand_f32 or _f64. */
    void (*expand)(real *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n);

    /* For each lane l of z [keys, lanes]: max[l] := the larger of max[l] and every z that is a number. */
    void (*largest)(real *max, const real *z, int64_t keys, int64_t lanes);

    /* For each lane: max[l] := the largest z, or NaN if any is. keys >= 1. */
    void (*largest_or_nan)(real *max, const real *z, int64_t keys, int64_t lanes);

    /* For each lane: w := exp(scale z - max), rounded once; sum[l] += the w in double, keys ascending. w and z [keys,
     * lanes]. NaN reaches the sum. */
    void (*weigh)(real *w, double *sum, const real *z, const real *max, int64_t keys, int64_t lanes, real scale);

    /* That of wide.h in real, with the exp of weigh. */
    void (*weigh_back)(real *p, real *ds, const real *lse, const real *delta, int64_t keys, int64_t lanes, real scale);

    /* For each of M3_NORM_ROWS rows of x [rows,n]: sum[r] := the sum of x, or of (x - mean[r])^2, in double, columns
     * ascending. */
    void (*row_sums)(double *sum, const real *x, int64_t n);
    void (*row_squares)(double *sum, const real *x, const double *mean, int64_t n);

    /* y := x scale (1 + w), or x scale w: a row of ops/rms_norm.c. */
    void (*scale_row)(real *y, const real *x, const real *w, real scale, int64_t n, int is_offset);

    /* y := (x - mean) scale in double, rounded, times w plus b: a row of ops/layer_norm.c. */
    void (*standardise)(real *y, const real *x, const real *w, const real *b, double mean, double scale, int64_t n);

    /* y := (up + 1) gate sig(alpha gate) after the clamps, or up gate sig(gate): ops/activation.c. */
    void (*swiglu_oai)(real *y, const real *gate, const real *up, int64_t n, real alpha, real limit, real lower);
    void (*swiglu)(real *y, const real *gate, const real *up, int64_t n);

    /* y := x/2 (1 + erf(x / sqrt 2)), in double, rounded once; y may be x. */
    void (*gelu)(real *y, const real *x, int64_t n);
};

/* The widest build that this processor can run. */
const struct m3_kernels *m3_kernels(void);

#endif
