#include <math.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/operators.h"

/* The same bits as ops/activation.c, a vector of numbers at a time. */
enum { PIECE = 4096 };

int m3_fast_swiglu_oai(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                       const struct m3_activation *act)
{
    const struct m3_kernels *kernels = m3_kernels();
    real lower = act->clamp == M3_GATE_CLAMP_BOTH ? -act->limit : -(real)INFINITY;

#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i += PIECE)
        kernels->swiglu_oai(y + i, gate + i, up + i, m3_min(PIECE, T * F - i), act->alpha, act->limit, lower);
    return M3_OK;
}

int m3_fast_swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
    const struct m3_kernels *kernels = m3_kernels();

#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i += PIECE) kernels->swiglu(y + i, gate + i, up + i, m3_min(PIECE, T * F - i));
    return M3_OK;
}

int m3_fast_gelu(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    const struct m3_kernels *kernels = m3_kernels();

#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i += PIECE) kernels->gelu(y + i, x + i, m3_min(PIECE, n - i));
    return M3_OK;
}
