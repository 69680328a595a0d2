#include "oracle/error/private/recompute.h"

#include <math.h>

void m3_recompute_jitter(struct m3_recomputing *m)
{
    const int64_t H = m->config->H;
    const double *x = m->in[0].values;
    int status = M3_OK;
    if (m->setting->semantics->jitter == 0 || m->status) return;
    double *y = m3_recompute_scratch(m, m->rows * H, sizeof *y);
    for (int64_t i = 0, rows; y && !status && i < m->rows; i += rows) {
        rows = m3_recompute_span(m, i);
        struct m3_tap_request r = {
            .step = M3_STEP_JITTER, .tap = M3_TAP_ROUTER_LOGITS, .in = { x + i * H }, .rows = rows, .y = y + i * H
        };
        status = m3_recompute_stage(m, &r, m->numbers[i]);
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
