#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/minmax.h"
#include "ops/math.h"
#include "oracle/error/private/activation.h"
#include "oracle/error/private/kernels.h"

enum { PIECE = 4096 };          /* elements at a time */

struct m3_gate m3_setting_gate(const struct m3_setting *setting)
{
    const struct m3_config *c = &setting->model->config;
    const double alpha = setting->profile ? m3_profile_alpha(setting->profile, c->swiglu_alpha) : c->swiglu_alpha;
    return (struct m3_gate){ c->oai, alpha, c->swiglu_limit, setting->semantics->gate_clamp };
}

double m3_gate_value(double gate, double up, const struct m3_gate *g)
{
    const struct m3_gate_form form = m3_gate_form(g);
    const double z = m3_gate_clamped(gate, &form);
    return (m3_up_clamped(up, &form) + form.one) * z * m3_logistic(form.alpha * z);
}

int m3_gate_steps(const struct m3_arithmetic *how) { return 5 + how->c; }

double m3_gate_bound(double gate, double up, const struct m3_gate *g, const struct m3_arithmetic *how)
{
    const struct m3_gate_form form = m3_gate_form(g);
    return m3_gate_bound_of(gate, up, &form, m3_gate_steps(how), how->u);
}

/* y = (u' + 1) g' sig(alpha g') of clamped u' and g', or u g sig(g).
 *
 *     B = |y| (1 + |alpha g'| (1 - sig)),  steps = 5 + c,  walk^2 = steps B^2
 *
 * The rounding of alpha g' is an absolute error of the exponent. Inputs are equal, so a clamp adds no error. */
int m3_bound_activation(struct m3_ctx *ctx, struct m3_bound *out, const double *gate, const double *up, int64_t n,
                        const struct m3_gate *g, const struct m3_arithmetic *how)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    const struct m3_gate_form form = m3_gate_form(g);
    out->n = 0;
    out->f = m3_gate_steps(how);
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t count = m3_min(PIECE, n - i);
        kernels->gate(out->bound + i, gate + i, up + i, count, &form, (double)out->f, how->u);
        if (out->walk) kernels->scale(out->walk + i, out->bound + i, count, sqrt((double)out->f));
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    const struct m3_gate gate = m3_setting_gate(m->setting);
    return m3_bound_activation(m->ctx, &m->bound, m->in[0].values, m->in[1].values, m->count, &gate, &m->how);
}

/* d/dz of z sig(alpha z) */
static double slope(double z, double alpha)
{
    double s = m3_logistic(alpha * z);
    return fabs(s + alpha * z * s * (1 - s));
}

/* The steepest slope of z sig(alpha z) around z, which moves by at most h and stops at the clamps. Between the ends of
 * that range it can be steeper only at the inflections, alpha z = +-2.3993572805154. */
static double steepest(double gate, double h, const struct m3_gate_form *g)
{
    const double inflection = 2.3993572805154;
    double alpha = g->alpha, at = inflection / alpha;
    double low = m3_gate_clamped(gate - h, g), high = m3_gate_clamped(gate + h, g);
    if (!(low < high)) return h > 0 ? 0 : slope(m3_gate_clamped(gate, g), alpha);
    double most = fmax(slope(m3_gate_clamped(gate, g), alpha), fmax(slope(low, alpha), slope(high, alpha)));
    if (low < at && at < high) most = fmax(most, slope(at, alpha));
    return low < -at && -at < high ? fmax(most, slope(-at, alpha)) : most;
}

struct m3_gate_slopes m3_gate_slopes(double gate, double up, double h_gate, double h_up, const struct m3_gate *g)
{
    const struct m3_gate_form form = m3_gate_form(g);
    double one = form.one, low = m3_up_clamped(up - h_up, &form), high = m3_up_clamped(up + h_up, &form);
    double largest = fmax(fabs(low + one), fabs(high + one));
    double unit = m3_gate_value(gate, 1 - one, g);                  /* g' sig(alpha g') */
    return (struct m3_gate_slopes){ .by_gate = largest * steepest(gate, h_gate, &form),
                                    .by_up = low < high ? fabs(unit) : 0 };
}

/* Adds a chain in a coarser type: the error of the 5 + 4 steps of 7.1, and the variance of the steps that a program may
 * round: alpha g, exp, 1 + exp, the quotient, g sig and u + 1. */
static void add_chain(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_gate *g,
                      double u_chain)
{
    const struct m3_arithmetic how = { .u = u_chain, .c = 4 };
    const struct m3_gate_form form = m3_gate_form(g);
    const double a = form.alpha * m3_gate_clamped(gate, &form), rest = 1 - m3_logistic(a);
    const double own = u_chain * m3_gate_value(gate, up, g);
    out->error[at] += m3_gate_steps(&how) * u_chain * m3_gate_bound(gate, up, g, &how);
    out->variance[at] += ((a * a + 1) * rest * rest + 4) * own * own / 3;
}

/* Adds dy/dgate and dy/dup at their steepest within reach, and a chain in a coarser type. */
void m3_propagate_gate(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_spread *of_gate,
                       const struct m3_spread *of_up, int64_t from, const struct m3_gate *g, double u_chain)
{
    double e_gate = m3_is_exact(of_gate) ? 0 : of_gate->error[from], e_up = m3_is_exact(of_up) ? 0 : of_up->error[from];
    double v_gate = m3_is_exact(of_gate) ? 0 : of_gate->variance[from];
    double v_up = m3_is_exact(of_up) ? 0 : of_up->variance[from];
    if (!m3_is_exact(of_gate) || !m3_is_exact(of_up)) {
        struct m3_gate_slopes s = m3_gate_slopes(gate, up, e_gate, e_up, g);
        out->error[at] += s.by_gate * e_gate + s.by_up * e_up;
        out->variance[at] += s.by_gate * s.by_gate * v_gate + s.by_up * s.by_up * v_up;
    }
    if (u_chain > 0) add_chain(out, at, gate, up, g, u_chain);
}

void m3_propagate_gate_floor(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_gate *g,
                             double floor)
{
    const struct m3_gate_form form = m3_gate_form(g);
    const double z = m3_gate_clamped(gate, &form);
    const double factor = fabs(m3_up_clamped(up, &form) + form.one), unit = fabs(z) * m3_logistic(form.alpha * z);
    /* of alpha g, where sig is steepest; of sig; of g sig; of u + 1 */
    const double parts[] = { fabs(z) * factor / 4, fabs(z) * factor, factor, unit };
    for (int i = 0; i < 4 && floor > 0; i++) {
        out->error[at] += parts[i] * floor;
        out->variance[at] += parts[i] * floor * parts[i] * floor / 3;
    }
}

int m3_propagate_activation(struct m3_ctx *ctx, struct m3_spread *out, const double *gate, const double *up,
                            const struct m3_spread *of_gate, const struct m3_spread *of_up, int64_t n,
                            const struct m3_gate *g, double u_chain)
{
    if (m3_is_exact(of_gate) && m3_is_exact(of_up) && u_chain == 0) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) m3_propagate_gate(out, i, gate[i], up[i], of_gate, of_up, i, g, u_chain);
    return M3_OK;
}

/* Not by the engine's stage, which has the model's alpha: the profile may store it in BF16. */
static int value(struct m3_recomputing *m)
{
    const struct m3_ops *ops = m3_engine_f64()->ops;
    const struct m3_gate g = m3_setting_gate(m->setting);
    const struct m3_activation act = { g.oai, g.alpha, g.limit, g.clamp };
    const double *gate = m->in[0].values, *up = m->in[1].values;
    return g.oai ? ops->swiglu_oai(m->ctx, m->y, gate, up, 1, m->count, &act)
                 : ops->swiglu(m->ctx, m->y, gate, up, 1, m->count);
}

static int propagate(struct m3_recomputing *m)
{
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_tap_values *g = &m->in[0], *up = &m->in[1];
#pragma omp parallel for num_threads(m3_team(m->ctx, m->count * 16))
    for (int64_t i = 0; i < m->count; i++)
        m3_propagate_gate_floor(&m->spread, i, g->values[i], up->values[i], &gate, m->floor[0]);
    return m3_propagate_activation(m->ctx, &m->spread, g->values, up->values, &g->off, &up->off, m->count, &gate,
                                   m->stored[0]);
}

const struct m3_error_operator m3_error_activation = {
    .name = "activation",
    .sections = { "5.11 swiglu_oai" },
    .value = value,
    .bound = bound,
    .propagate = propagate,
    .roundings = 9,
    .points = { "mlp.act.chain" },
    .functions = M3_FUNCTIONS_EXP,
};
