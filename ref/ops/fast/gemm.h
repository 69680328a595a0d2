/* The products of kernels.c and wide.c, which are compiled for several instruction sets. */
#ifndef M3_OPS_FAST_GEMM_H
#define M3_OPS_FAST_GEMM_H

#include "base/minmax.h"
#include "base/real.h"
#include "ops/fast/prefetch.h"

/* With one vector per row, AVX-512 multiplies by a number in memory at no cost; two would need it in a register. Rows
 * that are neighbours in memory allow tiles of more rows, because their addresses are constant. */
#if defined(__AVX512F__)
enum { ROWS = 8, NEXT_ROWS = 16, VECS = 1, UNROLL = 4 };
#elif defined(__AVX2__)
enum { ROWS = 6, NEXT_ROWS = 6, VECS = 2, UNROLL = 1 };
#else
enum { ROWS = 4, NEXT_ROWS = 4, VECS = 2, UNROLL = 1 };
#endif
#include "ops/fast/vectors.h"

/* Rounded twice: the order and the rounding of these sums are those of the plain operators. */
static inline __attribute__((always_inline)) vec accumulate(vec s, vec x, vec w) { return s + x * w; }

#include "ops/fast/tile.h"

/* `vecs` vectors of all rows of c. The tiles of most rows ask, but of NEXT_ROWS only the first; *turn counts them. */
static inline __attribute__((always_inline)) void strip(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k,
                                                        const real *b, int64_t ldb, int64_t M, int64_t K, int add,
                                                        const int vecs, const struct m3_ask *ask, int64_t *turn)
{
    int64_t m = 0;
    if (ask && a_m == 1 && NEXT_ROWS <= M) {
        tile(c, ldc, a, 1, a_k, b, ldb, K, add, NEXT_ROWS, vecs, ask, (*turn)++);
        m = NEXT_ROWS;
    }
    for (; m + NEXT_ROWS <= M && a_m == 1; m += NEXT_ROWS)
        tile(c + m * ldc, ldc, a + m, 1, a_k, b, ldb, K, add, NEXT_ROWS, vecs, NULL, 0);
    for (; m + ROWS <= M; m += ROWS)
        tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, ROWS, vecs, ask, ask ? (*turn)++ : 0);
    for (; m + 4 <= M; m += 4) tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, 4, vecs, NULL, 0);
    for (; m + 2 <= M; m += 2) tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, 2, vecs, NULL, 0);
    for (; m < M; m++) tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, 1, vecs, NULL, 0);
}

enum {
    LINE = 64 / (int)sizeof(real),      /* numbers of a cache line */
    AHEAD = 4 * ROWS,                   /* the memory is asked for the row that is so many rows on */
};

/* Four columns, because a single token has no more index heads. A short vector is twice as fast as a mostly empty
 * one. */
typedef real quad __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));

static inline __attribute__((always_inline)) void quad_tile(real *c, int64_t ldc, const real *a, int64_t a_m,
                                                            int64_t a_k, const real *b, int64_t ldb, int64_t K, int add,
                                                            const int rows)
{
    quad s[ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) s[m] = add ? *(const quad *)(c + m * ldc) : (quad){ 0 };
    for (int64_t k = 0, end; k < K; k = end) {
        end = m3_min(k + LINE, K);
        for (int m = 0; m < rows; m++) m3_prefetch(a, (AHEAD + m) * a_m + k * a_k, 1);
        for (int64_t i = k; i < end; i++) {
            quad b_i = *(const quad *)(b + i * ldb);
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) s[m] = s[m] + a[m * a_m + i * a_k] * b_i;
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) *(quad *)(c + m * ldc) = s[m];
}

static void quads(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k, const real *b, int64_t ldb, int64_t M,
                  int64_t K, int add)
{
    int64_t m = 0;
    for (; m + ROWS <= M; m += ROWS) quad_tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, ROWS);
    for (; m + 4 <= M; m += 4) quad_tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, 4);
    for (; m < M; m++) quad_tile(c + m * ldc, ldc, a + m * a_m, a_m, a_k, b, ldb, K, add, 1);
}

/* A column strip narrower than a vector: padded with zeros in b and c, so that the same tiles can be used. */
static void narrow(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k, const real *b, int64_t ldb, int64_t M,
                   int64_t N, int64_t K, int add)
{
    enum { DEPTH = 128, HEIGHT = 4 * ROWS };
    real wide_b[DEPTH * LANES] = { 0 }, wide_c[HEIGHT * LANES] = { 0 };

    for (int64_t k0 = 0; k0 < K; k0 += DEPTH) {
        int64_t depth = m3_min(DEPTH, K - k0);
        for (int64_t k = 0; k < depth; k++)
            for (int64_t n = 0; n < N; n++) wide_b[k * LANES + n] = b[(k0 + k) * ldb + n];
        for (int64_t m0 = 0; m0 < M; m0 += HEIGHT) {
            int64_t height = m3_min(HEIGHT, M - m0);
            for (int64_t m = 0; m < height && (add || k0 > 0); m++)
                for (int64_t n = 0; n < N; n++) wide_c[m * LANES + n] = c[(m0 + m) * ldc + n];
            strip(wide_c, LANES, a + m0 * a_m + k0 * a_k, a_m, a_k, wide_b, LANES, height, depth, add || k0 > 0, 1,
                  NULL, NULL);
            for (int64_t m = 0; m < height; m++)
                for (int64_t n = 0; n < N; n++) c[(m0 + m) * ldc + n] = wide_c[m * LANES + n];
        }
    }
}

static inline __attribute__((always_inline)) void all_strips(real *c, int64_t ldc, const real *a, int64_t a_m,
                                                             int64_t a_k, const real *b, int64_t ldb, int64_t M,
                                                             int64_t N, int64_t K, int add, const struct m3_ask *ask)
{
    int64_t n = 0, turn = 0;
    for (; n + VECS * LANES <= N; n += VECS * LANES)
        strip(c + n, ldc, a, a_m, a_k, b + n, ldb, M, K, add, VECS, ask, &turn);
    for (; n + LANES <= N; n += LANES) strip(c + n, ldc, a, a_m, a_k, b + n, ldb, M, K, add, 1, NULL, NULL);
    for (; n + 4 <= N; n += 4) quads(c + n, ldc, a, a_m, a_k, b + n, ldb, M, K, add);
    if (n < N) narrow(c + n, ldc, a, a_m, a_k, b + n, ldb, M, N - n, K, add);
}

#endif
