#define M3_REAL_IS_DOUBLE       /* operators are called in double */
#include "model/engine.h"
#include "ops/ops.h"

#include "oracle/error/gain.h"

#include <math.h>
#include <string.h>

#include "base/generator.h"

enum { PROBES = 16 };

enum m3_gain_kind m3_gain_kind_of(const struct m3_setting *setting, enum m3_tap tap, int64_t layer, int knows_each)
{
    switch (m3_graph_node(setting->model, setting->semantics, tap, layer)->op) {
    case M3_OP_LINEAR: return M3_GAIN_ROWS;
    case M3_OP_EXPERT:
    case M3_OP_GATED_MLP: return M3_GAIN_PROBED;
    case M3_OP_ROUTED: return knows_each ? M3_GAIN_NONE : M3_GAIN_PROBED;
    default: return M3_GAIN_NONE;
    }
}

int m3_gain_rows(double *gain, const struct m3_setting *setting, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    const struct m3_node *node = m3_graph_node(setting->model, setting->semantics, tap, layer);
    const struct m3_weight *w = m3_graph_weight(setting->model, setting->semantics, tap, layer, 0);
    const int64_t first = node->adds_input ? w->cols / 2 : 0, n = w->cols - first;
    const size_t mark = m3_scratch_mark(setting->ctx);
    double *values = m3_scratch_take(setting->ctx, n, sizeof *values);
    if (!values) return m3_fail_memory(error, m3_tap_table[tap].name, (size_t)n * sizeof *values);
    for (int64_t i = 0; i < w->rows; i++) {
        double squares = 0;
        m3_expand_f64(values, w, i, first, n);
        for (int64_t k = 0; k < n; k++) squares += values[k] * values[k];
        gain[i] = sqrt(squares);
    }
    m3_scratch_release(setting->ctx, mark);
    return M3_OK;
}

/* The probed function and its memory. */
struct probed {
    const struct m3_setting *setting;
    const struct m3_config *config;
    const struct m3_ops *ops;
    enum m3_tap tap;
    int64_t layer, T;
    const struct m3_weight *w1, *w3, *w2;       /* w1 of the first expert, or of the shared one */
    const int32_t *ids;
    const double *p;
    double *gate, *up;                          /* [T,J], shared */
    double *beside;                             /* `routed` of the experts, or `each` */
};

static int evaluate(const struct probed *f, double *y, const double *x)
{
    const struct m3_config *c = f->config;
    const struct m3_activation act = { c->oai, c->swiglu_alpha, c->swiglu_limit, f->setting->semantics->gate_clamp };
    struct m3_ctx *ctx = f->setting->ctx;
    if (f->tap != M3_TAP_SHARED) {
        const struct m3_expert *experts = (const struct m3_expert *)(const void *)f->w1;
        const int routed = f->tap == M3_TAP_ROUTED;
        return f->ops->experts(ctx, routed ? y : f->beside, routed ? NULL : y, x, f->ids, f->p, experts, &act, f->T,
                               c->E, c->K, c->routed_scaling);
    }
    const int64_t J = f->w1->rows;
    int status = f->ops->linear(ctx, f->gate, x, f->w1, NULL, f->T);
    if (!status) status = f->ops->linear(ctx, f->up, x, f->w3, NULL, f->T);
    if (!status)
        status = act.oai ? f->ops->swiglu_oai(ctx, f->gate, f->gate, f->up, f->T, J, &act)
                         : f->ops->swiglu(ctx, f->gate, f->gate, f->up, f->T, J);
    return status ? status : f->ops->linear(ctx, y, f->gate, f->w2, NULL, f->T);
}

/* gain [n] of y [n]; near [T,H], y, moved [n] are scratch. */
static int probe(const struct probed *f, double *gain, const double *x, double *near, double *y, double *moved,
                 int64_t n)
{
    const double s = 1e-6;
    const int64_t m = f->T * f->config->H;
    char name[96] = "";
    m3_tap_name(name, sizeof name, f->tap, f->layer);
    const uint64_t key = m3_draw_key(0, name);
    int status = evaluate(f, y, x);
    memset(gain, 0, (size_t)n * sizeof *gain);
    for (int64_t i = 0; !status && i < PROBES; i++) {
        for (int64_t k = 0; k < m; k++) near[k] = x[k] + (m3_draw(key, (uint64_t)(i * m + k), 2) ? s : -s);
        status = evaluate(f, moved, near);
        for (int64_t k = 0; k < n; k++) {
            const double slope = (moved[k] - y[k]) / s;
            gain[k] += slope * slope / PROBES;
        }
    }
    for (int64_t k = 0; k < n; k++) gain[k] = sqrt(gain[k]);
    return status;
}

int m3_gain_probed(double *gain, const struct m3_setting *setting, enum m3_tap tap, int64_t layer, const double *x,
                   const int32_t *ids, const double *p, int64_t T, struct m3_error *error)
{
    const enum m3_tap weights_of = tap == M3_TAP_ROUTED ? M3_TAP_EXPERT_OUT : tap;
    const struct m3_config *c = &setting->model->config;
    const int64_t n = T * m3_tap_width(setting, tap, layer), H = c->H, J = c->shared_intermediate;
    const struct m3_weight *w[3];
    for (int i = 0; i < 3; i++) w[i] = m3_graph_weight(setting->model, setting->semantics, weights_of, layer, i);
    struct probed f = { .setting = setting,
                        .config = c,
                        .ops = m3_engine_f64()->ops,
                        .tap = tap,
                        .layer = layer,
                        .T = T,
                        .w1 = w[0],
                        .w3 = w[1],
                        .w2 = w[2],
                        .ids = ids,
                        .p = p };
    struct m3_ctx *ctx = setting->ctx;
    const size_t mark = m3_scratch_mark(ctx);
    double *near = m3_scratch_take(ctx, T * H, sizeof *near), *y = m3_scratch_take(ctx, 2 * n, sizeof *y);
    f.gate = m3_scratch_take(ctx, 2 * T * J, sizeof *f.gate);
    f.beside = m3_scratch_take(ctx, T * H, sizeof *f.beside);
    int status = near && y && f.gate && f.beside ? M3_OK : M3_INTERNAL;
    if (!status) {
        f.up = f.gate + T * J;
        status = probe(&f, gain, x, near, y, y + n, n);
    }
    m3_scratch_release(ctx, mark);
    return status ? m3_fail(error, status, "%s: the gain: %s", m3_tap_table[tap].name, ctx->failure.what) : M3_OK;
}
