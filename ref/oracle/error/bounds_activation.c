#include "oracle/error/private/bounds_activation.h"

#include <math.h>

#include "ops/erf.h"
#include "ops/math.h"
#include "oracle/error/bounds.h"

double m3_logistic(double x) { return 1 / (1 + m3_exp(-x)); }

/* The least normal number: below it a logistic function may be anything, for 1 / (1 + exp(-x)) is 0 where exp(-x) is
 * infinite, and relative errors grow. */
static double least_normal(double u) { return u > 0x1p-53 ? 0x1p-126 : 0x1p-1022; }

/* B of the factor sig(a): itself, and what steps u B must cover below the normal range. */
static double logistic_bound(double s, double steps, double u)
{
    return s < least_normal(u) ? s + least_normal(u) / (u * steps) : s;
}

double m3_gate_clamped(double gate, const struct m3_gate *g)
{
    if (!g->oai) return gate;
    if (gate > g->limit) gate = g->limit;
    return g->clamp == M3_GATE_CLAMP_BOTH && gate < -g->limit ? -g->limit : gate;
}

double m3_up_clamped(double up, const struct m3_gate *g)
{
    if (!g->oai) return up;
    return up > g->limit ? g->limit : up < -g->limit ? -g->limit : up;
}

double m3_gate_value(double gate, double up, const struct m3_gate *g)
{
    double z = m3_gate_clamped(gate, g), factor = m3_up_clamped(up, g) + (g->oai ? 1 : 0);
    return factor * z * m3_logistic((g->oai ? g->alpha : 1) * z);
}

int m3_gate_steps(const struct m3_arithmetic *how) { return 5 + how->c; }

double m3_gate_bound(double gate, double up, const struct m3_gate *g, const struct m3_arithmetic *how)
{
    double z = m3_gate_clamped(gate, g), a = (g->oai ? g->alpha : 1) * z, s = m3_logistic(a);
    double product = fabs((m3_up_clamped(up, g) + (g->oai ? 1 : 0)) * z);
    return product * logistic_bound(s, m3_gate_steps(how), how->u) + product * s * fabs(a) * (1 - s);
}

/* d/dz of z sig(alpha z) */
static double slope(double z, double alpha)
{
    double s = m3_logistic(alpha * z);
    return fabs(s + alpha * z * s * (1 - s));
}

/* The steepest of z sig(alpha z) at z, which moves by at most h and stops at the clamps. Between the ends it can only
 * be steeper at the inflections, alpha z = +-2.3993572805154. */
static double steepest(double gate, double h, const struct m3_gate *g)
{
    const double inflection = 2.3993572805154;
    double alpha = g->oai ? g->alpha : 1, at = inflection / alpha;
    double low = m3_gate_clamped(gate - h, g), high = m3_gate_clamped(gate + h, g);
    if (!(low < high)) return h > 0 ? 0 : slope(m3_gate_clamped(gate, g), alpha);
    double most = fmax(slope(m3_gate_clamped(gate, g), alpha), fmax(slope(low, alpha), slope(high, alpha)));
    if (low < at && at < high) most = fmax(most, slope(at, alpha));
    return low < -at && -at < high ? fmax(most, slope(-at, alpha)) : most;
}

struct m3_gate_slopes m3_gate_slopes(double gate, double up, double h_gate, double h_up, const struct m3_gate *g)
{
    double one = g->oai ? 1 : 0, low = m3_up_clamped(up - h_up, g), high = m3_up_clamped(up + h_up, g);
    double largest = fmax(fabs(low + one), fabs(high + one));
    double unit = m3_gate_value(gate, 1 - one, g);                  /* g' sig(alpha g') */
    return (struct m3_gate_slopes){ .by_gate = largest * steepest(gate, h_gate, g),
                                    .by_up = low < high ? fabs(unit) : 0 };
}

/* Gated linear units: y = (u' + 1) g' sig(alpha g') of clamped u' and g', or u g sig(g).
 *
 *     B = |y| (1 + |alpha g'| (1 - sig)),  steps = 5 + c,  walk^2 = steps B^2
 *
 * The rounding of alpha g' is the exponent's absolute error. Inputs are equal, so clamps make no kink. */
int m3_bound_activation(struct m3_ctx *ctx, struct m3_bound *out, const double *gate, const double *up, int64_t n,
                        const struct m3_gate *g, const struct m3_arithmetic *how)
{
    out->n = 0;
    out->f = m3_gate_steps(how);
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        out->bound[i] = m3_gate_bound(gate[i], up[i], g, how);
        if (out->walk) out->walk[i] = sqrt((double)out->f) * out->bound[i];
    }
    return M3_OK;
}

/* Logistic function: B = s, steps = 2 + c, walk^2 = 9 s^2. */
int m3_bound_sigmoid(struct m3_ctx *ctx, struct m3_bound *out, const double *x, int64_t n,
                     const struct m3_arithmetic *how)
{
    out->n = 0;
    out->f = 2 + how->c;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        double s = m3_logistic(x[i]);
        out->bound[i] = how->tanh_scores && s == s ? 1 : logistic_bound(s, (double)out->f, how->u);
        if (out->walk) out->walk[i] = 3 * out->bound[i];
    }
    return M3_OK;
}

/* GELU, erf form: B = |x|/2 (1 + |erf(x / sqrt 2)|), steps = 4 + c. It admits 1 + erf, and is blind below -5. */
int m3_bound_gelu(struct m3_ctx *ctx, struct m3_bound *out, const double *x, int64_t n, const struct m3_arithmetic *how)
{
    out->n = 0;
    out->f = 4 + how->c;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        out->bound[i] = fabs(x[i]) * (1 - m3_tail_body(x[i]));      /* |erf(x / sqrt 2)| = 1 - 2 tail */
        if (out->walk) out->walk[i] = sqrt((double)out->f) * out->bound[i];
    }
    return M3_OK;
}
