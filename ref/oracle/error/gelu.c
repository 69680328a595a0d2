#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/minmax.h"
#include "ops/erf.h"
#include "ops/math.h"
#include "oracle/error/private/kernels.h"

enum { PIECE = 4096 };          /* elements at a time */

/* MLX computes erf by formula 7.1.26 of Abramowitz and Stegun in float: 2.5 u for the formula, 26.5 u for the polynomial,
 * and c for exp. */
enum { ERF = 29 };

/* erf form: B = |x|/2 (1 + |erf(x / sqrt 2)|), steps = 3 + ERF + c, walk^2 = steps B^2. It allows 1 + erf, and is useless
 * below -5. */
int m3_bound_gelu(struct m3_ctx *ctx, struct m3_bound *out, const double *x, int64_t n, const struct m3_arithmetic *how)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    out->n = 0;
    out->f = 3 + ERF + how->c;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t count = m3_min(PIECE, n - i);
        kernels->gelu(out->bound + i, x + i, count);
        if (out->walk) kernels->scale(out->walk + i, out->bound + i, count, sqrt((double)out->f));
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    return m3_bound_gelu(m->ctx, &m->bound, m->in[0].values, m->count, &m->how);
}

/* |Phi(x) + x phi(x)|, also of infinities. */
static double slope(double x)
{
    const double density_at_0 = 0.39894228040143267794;
    double tail = m3_tail_body(x), below = x < 0 ? tail : 1 - tail;
    if (tail == 0) return below;
    return fabs(below + x * density_at_0 * m3_exp(-x * x / 2));
}

/* Error: the steepest slope within reach; between the ends it can only be at the inflections, +-sqrt 2. Variance: the
 * slope at x. */
int m3_propagate_gelu(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                      int64_t n)
{
    if (m3_is_exact(of_x)) return M3_OK;
    const double inflection = sqrt(2);
#pragma omp parallel for num_threads(m3_team(ctx, n * 64))
    for (int64_t i = 0; i < n; i++) {
        double low = x[i] - of_x->error[i], high = x[i] + of_x->error[i], here = slope(x[i]);
        double most = fmax(here, fmax(slope(low), slope(high)));
        if (low < inflection && inflection < high) most = fmax(most, slope(inflection));
        if (low < -inflection && -inflection < high) most = fmax(most, slope(-inflection));
        out->error[i] += most * of_x->error[i];
        out->variance[i] += here * here * of_x->variance[i];
    }
    return M3_OK;
}

static int propagate(struct m3_recomputing *m)
{
    return m3_propagate_gelu(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, m->count);
}

const struct m3_error_operator m3_error_gelu = {
    .name = "gelu",
    .sections = { "5.20 gelu" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 36,
    .functions = M3_FUNCTIONS_EXP,
};
