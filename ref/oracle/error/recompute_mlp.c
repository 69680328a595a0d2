#include "oracle/error/private/recompute.h"

#include <string.h>

static struct m3_activation activation_of(const struct m3_recomputing *m)
{
    const struct m3_gate g = m3_setting_gate(m->setting);
    return (struct m3_activation){ g.oai, g.alpha, g.limit, g.clamp };
}

void m3_recompute_activation(struct m3_recomputing *m)
{
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_activation act = activation_of(m);
    const struct m3_given *g = &m->in[0], *up = &m->in[1];
    const double chain = m3_recompute_store(m, "mlp.act.chain");
    struct m3_ctx *ctx = m->setting->ctx;
    m3_recompute_check(m, act.oai ? m->ops->swiglu_oai(ctx, m->out->y, g->x, up->x, 1, m->count, &act)
                             : m->ops->swiglu(ctx, m->out->y, g->x, up->x, 1, m->count));
    m3_recompute_check(m, m3_bound_activation(ctx, &m->bound, g->x, up->x, m->count, &gate, &m->how));
    struct m3_spread *extra = m3_is_off(g) || m3_is_off(up) || chain > 0 ? m3_recompute_extra(m) : NULL;
    if (extra)
        m3_recompute_check(m, m3_propagate_activation(ctx, extra, g->x, up->x, &g->off, &up->off, m->count, &gate, chain));
}

/* One number of one number. */
struct pointwise {
    int (*operator)(struct m3_ctx *, double *y, const double *x, int64_t n);
    int (*bound)(struct m3_ctx *, struct m3_bound *, const double *x, int64_t n, const struct m3_arithmetic *);
    int (*push)(struct m3_ctx *, struct m3_spread *, const double *x, const struct m3_spread *of_x, int64_t n);
};

static void make_pointwise(struct m3_recomputing *m, const struct pointwise *f)
{
    const struct m3_given *x = &m->in[0];
    struct m3_ctx *ctx = m->setting->ctx;
    m3_recompute_check(m, f->operator(ctx, m->out->y, x->x, m->count));
    m3_recompute_check(m, f->bound(ctx, &m->bound, x->x, m->count, &m->how));
    struct m3_spread *extra = m3_is_off(x) ? m3_recompute_extra(m) : NULL;
    if (extra) m3_recompute_check(m, f->push(ctx, extra, x->x, &x->off, m->count));
}

void m3_recompute_sigmoid(struct m3_recomputing *m)
{
    make_pointwise(m, &(struct pointwise){ m->ops->sigmoid, m3_bound_sigmoid, m3_propagate_sigmoid });
}

void m3_recompute_gelu(struct m3_recomputing *m)
{
    make_pointwise(m, &(struct pointwise){ m->ops->gelu, m3_bound_gelu, m3_propagate_gelu });
}

void m3_recompute_add(struct m3_recomputing *m)
{
    const struct m3_given *a = &m->in[0], *b = &m->in[1];
    m3_recompute_check(m, m->ops->add(m->setting->ctx, m->out->y, a->x, b->x, m->count));
    m3_recompute_check(m, m3_bound_add(m->setting->ctx, &m->bound, a->x, b->x, m->count));
    struct m3_spread *extra = m3_is_off(a) || m3_is_off(b) ? m3_recompute_extra(m) : NULL;
    if (extra) m3_propagate_add(extra, &a->off, &b->off, m->count);
}

/* `act` is stored, and rounded again as an input of the last product. */
static struct m3_mlp_storage storage_of(const struct m3_recomputing *m, const char *const points[4])
{
    const struct m3_input_rounding rule = m3_recompute_input_rounding(m, m3_tap_table[m->tap].name);
    return (struct m3_mlp_storage){ m3_recompute_store(m, points[0]), m3_recompute_store(m, points[1]),
                                    m3_recompute_store(m, points[2]),
                                    m3_recompute_store(m, points[3]) + m3_input_roundoff(&rule) };
}

static int is_stored(const struct m3_mlp_storage *s)
{
    return s->gate > 0 || s->up > 0 || s->chain > 0 || s->act > 0;
}

void m3_recompute_gated_mlp(struct m3_recomputing *m)
{
    static const char *const points[4] = { "moe.shared.gate", "moe.shared.up", "moe.shared.chain", "moe.shared.act" };
    const struct m3_weight *w1 = m3_recompute_weight(m, 0), *w3 = m3_recompute_weight(m, 1), *w2 = m3_recompute_weight(m, 2);
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_mlp_storage storage = storage_of(m, points);
    struct m3_ctx *ctx = m->setting->ctx;
    m3_recompute_jitter(m);
    m3_recompute_jitter_spread(m);
    if (m->status) return;
    const double *x = m->in[0].x;
    struct m3_spread off = m->in[0].off;
    m3_recompute_round_input(m, &off, points[0], x, m->rows, w1->cols);
    m3_recompute_check(m, m3_bound_gated_mlp(ctx, &m->bound, m->out->y, x, w1, w3, w2, &gate, m->rows, &m->how));
    struct m3_spread *extra = off.error || is_stored(&storage) ? m3_recompute_extra(m) : NULL;
    if (extra) m3_recompute_check(m, m3_propagate_gated_mlp(ctx, extra, x, &off, w1, w3, w2, &gate, m->rows, &storage));
}

void m3_recompute_expert(struct m3_recomputing *m)
{
    static const char *const points[4] = { "moe.expert.gate", "moe.expert.up", "moe.expert.chain", "moe.expert.act" };
    const struct m3_config *c = m->config;
    const struct m3_expert *experts = (const struct m3_expert *)(const void *)m3_recompute_weight(m, 0);
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_mlp_storage storage = storage_of(m, points);
    const int32_t *ids = m->in[1].ids;
    struct m3_ctx *ctx = m->setting->ctx;
    m3_recompute_jitter(m);
    m3_recompute_jitter_spread(m);
    if (m->status) return;
    const double *x = m->in[0].x;
    struct m3_spread off = m->in[0].off;
    m3_recompute_round_input(m, &off, points[0], x, m->rows, c->H);
    m3_recompute_check(m, m3_bound_experts(ctx, &m->bound, NULL, m->out->y, x, ids, NULL, experts, &gate, m->rows, c->E,
                                      c->K, c->routed_scaling, &m->how));
    struct m3_spread *extra = off.error || is_stored(&storage) ? m3_recompute_extra(m) : NULL;
    if (extra)
        m3_recompute_check(m, m3_propagate_experts(ctx, extra, x, &off, ids, experts, &gate, m->rows, c->E, c->K, &storage));
}

/* SPEC 5.14, of given choices. */
void m3_recompute_route(struct m3_recomputing *m)
{
    const int64_t K = m->config->K, E = m->config->E;
    const struct m3_given *s = &m->in[0];
    const int32_t *ids = m->in[1].ids;
    struct m3_ctx *ctx = m->setting->ctx;
    if (m3_recompute_check(m, m3_bound_route(ctx, &m->bound, s->x, ids, m->rows, E, K))) return;
    for (int64_t r = 0; r < m->rows; r++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += s->x[r * E + ids[r * K + k]];
        for (int64_t k = 0; k < K; k++) m->out->y[r * K + k] = s->x[r * E + ids[r * K + k]] / sum;
    }
    struct m3_spread *extra = m3_is_off(s) ? m3_recompute_extra(m) : NULL;
    if (extra) m3_recompute_check(m, m3_propagate_route(ctx, extra, s->x, &s->off, ids, m->rows, E, K));
}

/* SPEC 5.15, of given outputs. */
void m3_recompute_routed(struct m3_recomputing *m)
{
    const int64_t K = m->config->K, H = m->config->H;
    const double factor = m->config->routed_scaling, u_sum = m3_recompute_store(m, "moe.routed.sum");
    const struct m3_given *each = &m->in[0], *p = &m->in[1];
    struct m3_ctx *ctx = m->setting->ctx;
    for (int64_t r = 0; r < m->rows; r++) {
        double *y = m->out->y + r * H;
        memset(y, 0, (size_t)H * sizeof *y);
        for (int64_t k = r * K; k < (r + 1) * K; k++)
            for (int64_t i = 0; i < H; i++) y[i] += p->x[k] * each->x[k * H + i];
        for (int64_t i = 0; i < H; i++) y[i] *= factor;
    }
    m3_recompute_check(m, m3_bound_routed(ctx, &m->bound, each->x, p->x, m->rows, K, H, factor));
    struct m3_spread *extra = m3_is_off(each) || m3_is_off(p) || u_sum > 0 ? m3_recompute_extra(m) : NULL;
    if (extra)
        m3_recompute_check(m, m3_propagate_routed(ctx, extra, each->x, p->x, &each->off, &p->off, m->rows, K, H, factor, u_sum));
}

void m3_recompute_select_experts(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const double *bias = m3_recompute_vector(m, 0);
    double *p = m3_recompute_scratch(m, m->count, sizeof *p);
    if (m->status) return;
    m3_recompute_check(m, m->ops->route(m->setting->ctx, m->out->ids, p, m->in[0].x, bias, m->rows, c->E, c->K));
}
