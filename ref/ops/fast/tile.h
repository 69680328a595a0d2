/* The register tile of the products. The file that includes this defines accumulate(s, x, w), s + x w: kernels.c with a
 * multiplication and an addition, fused.c with one operation; and UNROLL, how many turns of the loop over k stand side
 * by side. */
#ifndef M3_OPS_FAST_TILE_H
#define M3_OPS_FAST_TILE_H

#include "ops/fast/prefetch.h"
#include "ops/fast/vectors.h"

/* A register tile: `rows` rows and `vecs` vectors of c, for all k. It is inlined with constant sizes. Where `ask` is
 * not NULL this is the tile of that number for which memory is asked meanwhile. */
static inline __attribute__((always_inline)) void tile(real *c, int64_t ldc, const real *a, int64_t a_m, int64_t a_k,
                                                       const real *b, int64_t ldb, int64_t K, int add, const int rows,
                                                       const int vecs, const struct m3_ask *ask, int64_t turn)
{
    vec s[16][2];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) s[m][v] = add ? *(const vec *)(c + m * ldc + v * LANES) : (vec){ 0 };

    struct m3_asking asking = { 0 };
    if (ask) asking = m3_asking_of(ask, turn);
#pragma GCC unroll UNROLL
    for (int64_t k = 0; k < K; k++) {
        const real *b_k = b + k * ldb, *a_k0 = a + k * a_k;
        if (ask) m3_ask_for(&asking, k);
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++) {
            real a_mk = a_k0[m * a_m];
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++)
                s[m][v] = accumulate(s[m][v], a_mk - (vec){ 0 }, *(const vec *)(b_k + v * LANES));
        }
    }

#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) *(vec *)(c + m * ldc + v * LANES) = s[m][v];
}

#endif
