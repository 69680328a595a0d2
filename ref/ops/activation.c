#include <math.h>

#include "base/minmax.h"
#include "ops/hot.h"
#include "ops/math.h"
#include "ops/operators.h"

enum { PIECE = 4096 };

/* SwiGLU as in M3 (and gpt-oss). SPEC 5.11
 *
 *     g = min(gate, limit),  u = min(max(up, -limit), limit)
 *     y = (u + 1) g sig(alpha g)
 *
 * y [T,F] may be gate; gate, up [T,F].  clamp M3_GATE_CLAMP_BOTH bounds g below as well.
 * Often wrong: the + 1, alpha or the clamps lost; gate clamped below; NaN swallowed by fmin. */
int m3_swiglu_oai(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                  const struct m3_activation *act)
{
    const struct m3_hot *hot = m3_hot();
    real lower = act->clamp == M3_GATE_CLAMP_BOTH ? -act->limit : -(real)INFINITY;

#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i += PIECE)
        hot->swiglu_oai(y + i, gate + i, up + i, m3_min(PIECE, T * F - i), act->alpha, act->limit, lower);
    return M3_OK;
}

/* SwiGLU, the plain form. SPEC 5.12
 *
 *     y = up gate sig(gate)
 *
 * y [T,F] may be gate; gate, up [T,F].  For configs whose hidden_act is "silu" in the released form. */
int m3_swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
    const struct m3_hot *hot = m3_hot();

#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i += PIECE) hot->swiglu(y + i, gate + i, up + i, m3_min(PIECE, T * F - i));
    return M3_OK;
}

/* Gaussian error linear unit, the exact form. SPEC 5.20
 *
 *     y = x/2 (1 + erf(x / sqrt 2))
 *
 * y [n] may be x; x [n].  In double, rounded once: x times erfc(|x| / sqrt 2) / 2 for x < 0, else x minus that.
 * Often wrong: the tanh form; x sig(1.702 x); 1 + erf for negative x, which cancels. */
int m3_gelu(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    const struct m3_hot *hot = m3_hot();

#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i += PIECE) hot->gelu(y + i, x + i, m3_min(PIECE, n - i));
    return M3_OK;
}

/* Logistic function, in double, rounded once. SPEC 5.13
 *
 *     y = 1 / (1 + exp(-x))
 *
 * y [n] may be x; x [n]. */
int m3_sigmoid(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) y[i] = (real)(1 / (1 + m3_exp(-(double)x[i])));
    return M3_OK;
}
