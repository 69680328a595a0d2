#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/generator.h"

/* The noise is keyed by the norm before the layer's experts, which all experts read. */
void m3_recompute_jitter(struct m3_recomputing *m)
{
    const struct m3_semantics *s = m->setting->semantics;
    const int64_t H = m->config->H, n = m->rows * H;
    int status = M3_OK;
    char name[96];
    if (s->jitter == 0 || m->status || m3_tap_name(name, sizeof name, M3_TAP_MLP_NORM, m->layer)) return;
    const int64_t p0 = m->setting->the_case->p0 - m->setting->the_case->shift;
    const uint64_t key = m3_draw_key((uint64_t)s->jitter_seed, name);
    const double *x = m->in[0].values;
    double *y = m3_recompute_scratch(m, n, sizeof *y);
    for (int64_t r = 0, rows; y && !status && r < m->rows; r += rows) {
        rows = m3_recompute_span(m, r);
        status = m->ops->jitter(m->ctx, y + r * H, x + r * H, rows, H, p0 + m->numbers[r], s->jitter, key);
    }
    m3_recompute_check(m, status);
    m->in[0].values = y;
}

/* The roundings of the noise, if the bound does not include them: B = |x| (1 + eps), steps = 2, walk^2 = 2 B^2. */
void m3_recompute_jitter_spread(struct m3_recomputing *m)
{
    const int64_t n = m->rows * m->config->H;
    const double eps = m->setting->semantics->jitter;
    if (eps == 0 || !m3_recompute_own_spread(m, &m->in[0].off, n)) return;
    for (int64_t i = 0; i < n; i++) {
        const double bound = fabs(m->in[0].values[i]) * (1 + eps), walk = m->how.u * (sqrt(2) * bound);
        m->in[0].off.error[i] += m3_bound_allowed(bound, 2, m->how.u);
        m->in[0].off.variance[i] += walk * walk / 3;
    }
}
