#include "ops/backward.h"
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

/* g sig(alpha g) and its derivative by g, in double. Both are 0 where the logistic function is 0, also at -infinity,
 * where g times it would be NaN. */
struct gated {
    double value, slope;
};

static struct gated gated_of(double g, double alpha)
{
    double s = 1 / (1 + m3_exp(-alpha * g));
    if (s == 0) return (struct gated){ 0, 0 };
    return (struct gated){ g * s, s * (1 + alpha * g * (1 - s)) };
}

/* Gradient of swiglu_oai. TRAINING 19.7
 *
 *     s = sig(alpha g),  g and u clamped as in the forward pass
 *     dgate = dy (u + 1) s (1 + alpha g (1 - s))  if gate is within its limit, otherwise 0
 *     dup   = dy g s                              if up is within its limits, otherwise 0
 *
 * dgate or dup [T,F] may be dy; gate, up [T,F] before the clamps.  In double, rounded once. A value at its limit is
 * within. Often wrong: the clamps forgotten; alpha missing in the derivative; u for u + 1. */
int m3_swiglu_oai_backward(struct m3_ctx *ctx, real *dgate, real *dup, const real *dy, const real *gate, const real *up,
                           int64_t T, int64_t F, const struct m3_activation *act)
{
    real low = -act->limit;

#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i++) {
        int clamps_below = act->clamp == M3_GATE_CLAMP_BOTH;
        int gate_within = gate[i] <= act->limit && !(clamps_below && gate[i] < low);
        int up_within = up[i] <= act->limit && up[i] >= low;
        real g = at_most(gate[i], act->limit), u = at_least(at_most(up[i], act->limit), low);
        if (clamps_below) g = at_least(g, low);

        struct gated of = gated_of((double)g, (double)act->alpha);
        double dy_i = (double)dy[i];
        if (dgate) dgate[i] = gate_within ? (real)(dy_i * ((double)u + 1) * of.slope) : 0;
        if (dup) dup[i] = up_within ? (real)(dy_i * of.value) : 0;
    }
    return M3_OK;
}

/* Gradient of swiglu. TRAINING 19.7
 *
 *     s = sig(gate),   dgate = dy up s (1 + gate (1 - s)),   dup = dy gate s
 *
 * Operands as above, without clamps. */
int m3_swiglu_backward(struct m3_ctx *ctx, real *dgate, real *dup, const real *dy, const real *gate, const real *up,
                       int64_t T, int64_t F)
{
#pragma omp parallel for num_threads(m3_team(ctx, T * F * 16))
    for (int64_t i = 0; i < T * F; i++) {
        struct gated of = gated_of((double)gate[i], 1);
        double dy_i = (double)dy[i], up_i = (double)up[i];
        if (dgate) dgate[i] = (real)(dy_i * up_i * of.slope);
        if (dup) dup[i] = (real)(dy_i * of.value);
    }
    return M3_OK;
}

/* Gradient of the exact GELU. TRAINING 19.13
 *
 *     dx = dy (P(x) + x exp(-x^2 / 2) / sqrt(2 pi)),   P(x) = (1 + erf(x / sqrt 2)) / 2
 *
 * dx [n] may be dy; dy, x [n].  In double, rounded once; P from the tail of the forward pass. x is clamped to the range
 * of erfc, so that an infinity gives dy or 0.  Often wrong: the derivative of the tanh form. */
int m3_gelu_backward(struct m3_ctx *ctx, real *dx, const real *dy, const real *x, int64_t n)
{
    const double density_at_0 = 0x1.9884533d43651p-2;       /* 1 / sqrt(2 pi) */

#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        double near = (double)at_least(at_most(x[i], (real)m3_tail_end), -(real)m3_tail_end);
        double tail = m3_tail_body(near), below = near < 0 ? tail : 1 - tail;
        dx[i] = (real)((double)dy[i] * (below + near * (density_at_0 * m3_exp(-0.5 * (near * near)))));
    }
    return M3_OK;
}

/* Gradient of the logistic function. TRAINING 19.8
 *
 *     dx = dy sig(x) sig(-x)
 *
 * dx [n] may be dy; dy, x [n].  In double, rounded once.  Often wrong: y (1 - y) of a rounded y near 1. */
int m3_sigmoid_backward(struct m3_ctx *ctx, real *dx, const real *dy, const real *x, int64_t n)
{
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        double e = m3_exp(x[i] < 0 ? (double)x[i] : -(double)x[i]);
        dx[i] = (real)((double)dy[i] * (e / ((1 + e) * (1 + e))));
    }
    return M3_OK;
}
