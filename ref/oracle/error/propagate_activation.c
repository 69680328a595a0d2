#include "oracle/error/private/propagate_activation.h"

#include <math.h>

#include "ops/erf.h"
#include "ops/math.h"
#include "oracle/error/private/bounds_activation.h"

int m3_propagate_activation(struct m3_ctx *ctx, struct m3_spread *out, const double *gate, const double *up,
                       const struct m3_spread *of_gate, const struct m3_spread *of_up, int64_t n,
                       const struct m3_gate *g, double u_chain)
{
    if (m3_is_exact(of_gate) && m3_is_exact(of_up) && u_chain == 0) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++)
        m3_propagate_gate(out, i, gate[i], up[i], of_gate, of_up, i, g, u_chain);
    return M3_OK;
}

/* dy/dgate and dy/dup at their steepest within reach; a chain in a coarser type has the 5 + 4 steps of 7.1. */
void m3_propagate_gate(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_spread *of_gate,
                  const struct m3_spread *of_up, int64_t from, const struct m3_gate *g, double u_chain)
{
    double e_gate = m3_is_exact(of_gate) ? 0 : of_gate->error[from], e_up = m3_is_exact(of_up) ? 0 : of_up->error[from];
    double v_gate = m3_is_exact(of_gate) ? 0 : of_gate->variance[from];
    double v_up = m3_is_exact(of_up) ? 0 : of_up->variance[from];
    struct m3_gate_slopes s = m3_gate_slopes(gate, up, e_gate, e_up, g);
    out->error[at] += s.by_gate * e_gate + s.by_up * e_up;
    out->variance[at] += s.by_gate * s.by_gate * v_gate + s.by_up * s.by_up * v_up;
    if (u_chain == 0) return;
    struct m3_arithmetic how = { .u = u_chain, .c = 4 };
    double steps = m3_gate_steps(&how), own = u_chain * m3_gate_bound(gate, up, g, &how);
    out->error[at] += steps * own;
    out->variance[at] += steps * own * own / 3;
}

/* Error: the steepest slope within reach. Variance: the slope here. */
static void smooth(struct m3_spread *out, const struct m3_spread *of_x, int64_t i, double steepest, double here)
{
    out->error[i] += steepest * of_x->error[i];
    out->variance[i] += here * here * of_x->variance[i];
}

static double sigmoid_slope(double x)
{
    double s = m3_logistic(-fabs(x));           /* the side where 1 - s does not cancel */
    return s * (1 - s);
}

/* The slope s (1 - s) falls with |x|. */
int m3_propagate_sigmoid(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x, int64_t n)
{
    if (m3_is_exact(of_x)) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        double nearest = fabs(x[i]) - of_x->error[i];
        smooth(out, of_x, i, sigmoid_slope(nearest < 0 ? 0 : nearest), sigmoid_slope(x[i]));
    }
    return M3_OK;
}

/* |Phi(x) + x phi(x)|, also of infinities. */
static double gelu_slope(double x)
{
    const double density_at_0 = 0.39894228040143267794;
    double tail = m3_tail_body(x), below = x < 0 ? tail : 1 - tail;
    if (tail == 0) return below;
    return fabs(below + x * density_at_0 * m3_exp(-x * x / 2));
}

/* Between the ends of its reach the slope can only be steeper at the inflections, +-sqrt 2. */
int m3_propagate_gelu(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x, int64_t n)
{
    if (m3_is_exact(of_x)) return M3_OK;
    const double inflection = sqrt(2);
#pragma omp parallel for num_threads(m3_team(ctx, n * 64))
    for (int64_t i = 0; i < n; i++) {
        double low = x[i] - of_x->error[i], high = x[i] + of_x->error[i], here = gelu_slope(x[i]);
        double most = fmax(here, fmax(gelu_slope(low), gelu_slope(high)));
        if (low < inflection && inflection < high) most = fmax(most, gelu_slope(inflection));
        if (low < -inflection && -inflection < high) most = fmax(most, gelu_slope(-inflection));
        smooth(out, of_x, i, most, here);
    }
    return M3_OK;
}
