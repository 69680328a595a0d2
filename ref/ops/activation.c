#include "ops/brief.h"
#include "ops/math.h"
#include "ops/operators.h"

/* The logistic function, in double, rounded once. */
static real sig(real x) { return (real)(1 / (1 + m3_exp(-(double)x))); }

/* Written so that a NaN fails the comparison and stays. */
static real at_most(real x, real limit) { return x > limit ? limit : x; }
static real at_least(real x, real limit) { return x < limit ? limit : x; }

/* SwiGLU as in M3 (and gpt-oss). SPEC 5.11
 *
 *     g = min(gate, limit),  u = min(max(up, -limit), limit)
 *     y = (u + 1) g sig(alpha g)
 *
 * y [T,F] may be gate; gate, up [T,F].  clamp M3_GATE_CLAMP_BOTH bounds g below as well.
 * Often wrong: the + 1, alpha or a clamp missing; gate clamped below; a NaN removed by fmin. */
int m3_swiglu_oai(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                  const struct m3_activation *act)
{
#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i++) {
        real g = at_most(gate[i], act->limit), u = at_least(at_most(up[i], act->limit), -act->limit);
        if (act->clamp == M3_GATE_CLAMP_BOTH) g = at_least(g, -act->limit);
        y[i] = (u + 1) * g * sig(act->alpha * g);
    }
    return M3_OK;
}

/* SwiGLU without clamps. SPEC 5.12
 *
 *     y = up gate sig(gate)
 *
 * y [T,F] may be gate; gate, up [T,F].  For configs whose hidden_act is "silu" in the released form. */
int m3_swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i++) y[i] = up[i] * gate[i] * sig(gate[i]);
    return M3_OK;
}

/* Gaussian error linear unit, the exact form. SPEC 5.20
 *
 *     y = x/2 (1 + erf(x / sqrt 2))
 *
 * y [n] may be x; x [n].  In double, rounded once: x times erfc(|x| / sqrt 2) / 2 for x < 0, otherwise x minus that
 * product.
 * The product uses x clamped to the range of erfc, so that it is 0 at the infinities and not inf * 0.
 * Often wrong: the tanh form; x sig(1.702 x); 1 + erf for negative x, which cancels. */
int m3_gelu(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        real near = at_least(at_most(x[i], m3_tail_most), -m3_tail_most);
        double part = (double)near * m3_tail(near);
        y[i] = (real)(x[i] < 0 ? part : (double)x[i] - part);
    }
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
    for (int64_t i = 0; i < n; i++) y[i] = sig(x[i]);
    return M3_OK;
}
