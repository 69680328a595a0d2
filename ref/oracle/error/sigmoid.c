#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/minmax.h"
#include "oracle/error/private/functions.h"
#include "oracle/error/private/kernels.h"

enum { PIECE = 4096 };          /* elements at a time */

/* B = s, steps = 2 + c, walk^2 = 9 s^2; 1 instead of s if the scores may come from a tanh. */
int m3_bound_sigmoid(struct m3_ctx *ctx, struct m3_bound *out, const double *x, int64_t n,
                     const struct m3_arithmetic *how)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    out->n = 0;
    out->f = 2 + how->c;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t count = m3_min(PIECE, n - i);
        kernels->sigmoid(out->bound + i, x + i, count, (double)out->f, how->u, how->tanh_scores);
        if (out->walk) kernels->scale(out->walk + i, out->bound + i, count, 3);
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    return m3_bound_sigmoid(m->ctx, &m->bound, m->in[0].values, m->count, &m->how);
}

static double slope(double x)
{
    double s = m3_logistic(-fabs(x));           /* the side where 1 - s does not cancel */
    return s * (1 - s);
}

/* Error: the steepest slope within reach: s (1 - s) falls with |x|. Variance: the slope here. */
int m3_propagate_sigmoid(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                         int64_t n)
{
    if (m3_is_exact(of_x)) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        double nearest = fabs(x[i]) - of_x->error[i], here = slope(x[i]);
        out->error[i] += slope(nearest < 0 ? 0 : nearest) * of_x->error[i];
        out->variance[i] += here * here * of_x->variance[i];
    }
    return M3_OK;
}

static int propagate(struct m3_recomputing *m)
{
    return m3_propagate_sigmoid(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, m->count);
}

const struct m3_error_operator m3_error_sigmoid = {
    .name = "sigmoid",
    .sections = { "5.13 sigmoid" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 6,
    .functions = M3_FUNCTIONS_EXP,
};
