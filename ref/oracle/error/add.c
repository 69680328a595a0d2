#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/minmax.h"
#include "oracle/error/private/kernels.h"

enum { PIECE = 4096 };          /* elements at a time */

/* B = |a| + |b|, steps = 2: one, and one more in case a fused kernel rounded less.  walk^2 = a^2 + b^2 + y^2 */
int m3_bound_add(struct m3_ctx *ctx, struct m3_bound *out, const double *a, const double *b, int64_t n)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    out->n = 0;
    out->f = 2;
#pragma omp parallel for num_threads(m3_team(ctx, n))
    for (int64_t i = 0; i < n; i += PIECE)
        kernels->add(out->bound + i, out->walk ? out->walk + i : NULL, a + i, b + i, m3_min(PIECE, n - i));
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    return m3_bound_add(m->ctx, &m->bound, m->in[0].values, m->in[1].values, m->count);
}

/* Errors add up, and so do variances. */
void m3_propagate_add(struct m3_spread *out, const struct m3_spread *of_a, const struct m3_spread *of_b, int64_t n)
{
    const struct m3_spread *both[] = { of_a, of_b };
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n && !m3_is_exact(both[k]); i++) {
            out->error[i] += both[k]->error[i];
            out->variance[i] += both[k]->variance[i];
        }
}

static int propagate(struct m3_recomputing *m)
{
    m3_propagate_add(&m->spread, &m->in[0].off, &m->in[1].off, m->count);
    return M3_OK;
}

const struct m3_error_operator m3_error_add = {
    .name = "add",
    .sections = { "5.16 add" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 2,
};
