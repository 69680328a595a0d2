#include "oracle/error/private/recompute.h"

/* How many vectors the tap has: heads are normalised one by one, or together. */
static int64_t vectors(const struct m3_recomputing *m, const struct m3_weight *w) { return m->count / w->cols; }

void m3_recompute_rms_norm(struct m3_recomputing *m)
{
    const struct m3_weight *w = m3_recompute_weight(m, 0);
    const double *scale = m3_recompute_vector(m, 0), *x = m->in[0].x, eps = m->config->eps;
    const int offset = m->config->gemma_norm != 0;
    const int64_t n = vectors(m, w);
    struct m3_ctx *ctx = m->setting->ctx;
    struct m3_spread *extra = m3_is_off(&m->in[0]) ? m3_recompute_extra(m) : NULL;
    if (m->status) return;
    m3_recompute_check(m, (offset ? m->ops->rms_norm : m->ops->rms_norm_plain)(ctx, m->out->y, x, scale, n, w->cols, eps));
    m3_recompute_check(m, m3_bound_rms_norm(ctx, &m->bound, x, scale, n, w->cols, eps, offset, &m->how));
    if (extra) m3_recompute_check(m, m3_propagate_rms_norm(ctx, extra, x, &m->in[0].off, scale, n, w->cols, eps, offset));
}

void m3_recompute_layer_norm(struct m3_recomputing *m)
{
    const struct m3_weight *w = m3_recompute_weight(m, 0);
    const double *scale = m3_recompute_vector(m, 0), *bias = m3_recompute_vector(m, 1), *x = m->in[0].x;
    const double eps = m->config->vision.eps;
    const int64_t n = vectors(m, w);
    struct m3_ctx *ctx = m->setting->ctx;
    struct m3_spread *extra = m3_is_off(&m->in[0]) ? m3_recompute_extra(m) : NULL;
    if (m->status) return;
    m3_recompute_check(m, m->ops->layer_norm(ctx, m->out->y, x, scale, bias, n, w->cols, eps));
    m3_recompute_check(m, m3_bound_layer_norm(ctx, &m->bound, x, scale, bias, n, w->cols, eps, &m->how));
    if (extra) m3_recompute_check(m, m3_propagate_layer_norm(ctx, extra, x, &m->in[0].off, scale, n, w->cols, eps));
}
