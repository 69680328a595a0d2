#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/generator.h"

/* The noise is that of the norm before the layer's experts, which all of them read. */
void m3_recompute_jitter(struct m3_recomputing *m)
{
    const struct m3_semantics *s = m->setting->semantics;
    const int64_t H = m->config->H, n = m->rows * H;
    int status = M3_OK;
    char name[96];
    if (s->jitter == 0 || m->status || m3_tap_name(name, sizeof name, M3_TAP_MLP_NORM, m->layer)) return;
    const uint64_t key = m3_draw_key((uint64_t)s->jitter_seed, name);
    const double *x = m->in[0].x;
    double *y = m3_recompute_scratch(m, n, sizeof *y);
    for (int64_t r = 0, rows; y && !status && r < m->rows; r += rows) {
        rows = m3_recompute_span(m, r);
        status = m->ops->jitter(m->ctx, y + r * H, x + r * H, rows, H, m->setting->the_case->p0 + m->numbers[r],
                                s->jitter, key);
    }
    m3_recompute_check(m, status);
    m->in[0].x = y;
}

/* B = |x| (1 + eps), steps = 2, walk^2 = 2 B^2 */
int m3_bound_jitter(struct m3_ctx *ctx, struct m3_bound *out, const double *x, int64_t n, double eps)
{
    out->n = 0;
    out->f = 2;
#pragma omp parallel for num_threads(m3_team(ctx, n))
    for (int64_t i = 0; i < n; i++) {
        out->bound[i] = fabs(x[i]) * (1 + eps);
        if (out->walk) out->walk[i] = sqrt(2) * out->bound[i];
    }
    return M3_OK;
}

/* The roundings of the noise, where the bound does not count them. */
void m3_recompute_jitter_spread(struct m3_recomputing *m)
{
    const int64_t n = m->rows * m->config->H;
    if (m->setting->semantics->jitter == 0 || m->status) return;
    double *memory = m3_recompute_scratch(m, 4 * n, sizeof *memory);
    if (!memory) return;
    struct m3_spread off = { memory, memory + n };
    struct m3_bound noise = { .bound = memory + 2 * n, .walk = memory + 3 * n };
    m3_bound_jitter(m->ctx, &noise, m->in[0].x, n, m->setting->semantics->jitter);
    m3_allowance(off.error, off.variance, &noise, n, m->how.u);
    m3_propagate_add(&off, &m->in[0].off, NULL, n);
    m->in[0].off = off;
}
