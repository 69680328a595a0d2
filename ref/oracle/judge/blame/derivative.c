/* The derivative of the operator of one tap, at the candidate's own values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/engine.h"
#include "oracle/judge/blame/private/gradients.h"

/* ---- the candidate's tensors as numbers */

void *m3_gradients_keep(struct m3_gradients *g, void *memory, size_t bytes)
{
    const int full = g->owned_count == OWNED;
    if (full) free(memory);
    if ((full || !memory) && !g->status) g->status = m3_fail_memory(g->b->error, "a gradient", bytes);
    if (full) return NULL;
    return g->owned[g->owned_count++] = memory;
}

void m3_gradients_forget(struct m3_gradients *g)
{
    while (g->owned_count > 0) free(g->owned[--g->owned_count]);
    g->missing[0] = '\0';
}

double *m3_gradients_room(struct m3_gradients *g, int64_t n)
{
    return m3_gradients_keep(g, calloc((size_t)n + 1, sizeof(double)), (size_t)n * sizeof(double));
}

/* NULL: the candidate does not hold it in this size, or memory is short. */
double *m3_gradients_reals(struct m3_gradients *g, const char *name, int64_t count)
{
    const struct m3_tensor *t = m3_safetensors_find(g->b->side.file, name);
    if (!t || t->count != count || !m3_holds_floats(t)) {
        if (!g->missing[0]) snprintf(g->missing, sizeof g->missing, "%s", name);
        return NULL;
    }
    const struct m3_weight all = { .data = t->data, .dtype = t->dtype, .rows = 1, .cols = count };
    double *x = m3_gradients_room(g, count);
    if (x) m3_expand_f64(x, &all, 0, 0, count);
    return x;
}

const struct m3_blame_item *m3_gradients_item(struct m3_gradients *g, enum m3_tap tap, int64_t layer)
{
    return m3_blame_find(g->b, tap, layer);
}

static double *values(struct m3_gradients *g, const char *prefix, const struct m3_blame_item *item)
{
    char name[80];
    if (!item) return NULL;
    snprintf(name, sizeof name, "%s%s", prefix, item->name);
    return m3_gradients_reals(g, name, item->rows * item->width);
}

static double *forward(struct m3_gradients *g, enum m3_tap tap, int64_t layer)
{
    return values(g, "", m3_gradients_item(g, tap, layer));
}

double *m3_gradients_arriving(struct m3_gradients *g, const struct m3_blame_item *item)
{
    return values(g, "d.", item);
}

static int32_t *choices(struct m3_gradients *g, enum m3_tap tap, int64_t layer)
{
    const struct m3_blame_item *item = m3_gradients_item(g, tap, layer);
    const struct m3_tensor *t = item ? item->dumped : NULL;
    if (!t || t->count != item->rows * item->width) {
        if (!g->missing[0] && item) snprintf(g->missing, sizeof g->missing, "%s", item->name);
        return NULL;
    }
    int32_t *ids = m3_gradients_keep(g, malloc((size_t)t->count * sizeof *ids + 1), (size_t)t->count * sizeof *ids);
    for (int64_t i = 0; ids && i < t->count; i++) ids[i] = (int32_t)m3_id_at(t, i);
    return ids;
}

/* ---- the derivative of the operator of a tap */

int m3_gradients_is_index(enum m3_tap tap) { return tap >= M3_TAP_INDEX_Q_PROJ && tap <= M3_TAP_INDEX_BLOCKS; }

static void set_activation(struct m3_gradients *g, struct m3_derivative_request *r)
{
    const struct m3_config *c = &g->s->model->config;
    r->oai = c->oai, r->alpha = c->swiglu_alpha, r->limit = c->swiglu_limit;
    r->clamp = g->s->semantics->gate_clamp;
}

/* The first `count` inputs of the call that makes a tap. */
static void operands(struct m3_gradients *g, struct m3_derivative_request *r, enum m3_tap tap, int64_t layer, int count)
{
    const struct m3_node *node = m3_graph_node(g->s->model, g->s->semantics, tap, layer), *input;
    for (int i = 0; i < count && (input = m3_call_input(node, i)) != NULL; i++) {
        if (m3_tap_table[input->tap].kind == M3_KIND_REALS) r->in[i] = forward(g, input->tap, input->layer);
        else r->in[i] = choices(g, input->tap, input->layer);
    }
}

static void attention(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y)
{
    const struct m3_config *c = &g->s->model->config;
    const struct m3_case *the_case = g->s->the_case;
    const int sparse = m3_config_sparse(c, m3_layer_index(c, y->layer));
    r->of = sparse ? M3_DERIVATIVE_ATTEND_BLOCKS : M3_DERIVATIVE_ATTEND_FULL;
    operands(g, r, y->tap, y->layer, 4);
    r->attend = (struct m3_attend){ .T = y->rows,
                                    .Q = c->Q,
                                    .G = c->G,
                                    .D = c->D,
                                    .seen = the_case->seen,
                                    .block = c->block,
                                    .N = c->N,
                                    .selection = g->s->semantics->selection };
}

static void rotation(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y)
{
    const struct m3_config *c = &g->s->model->config;
    const int64_t n = y->rows * (c->R / 2);
    double *cos = m3_gradients_room(g, n), *sin = m3_gradients_room(g, n), *error = m3_gradients_room(g, n);
    r->of = M3_DERIVATIVE_ROPE, r->H = c->D, r->heads = y->width / c->D, r->R = c->R;
    r->in[0] = cos, r->in[1] = sin;
    if (!cos || !sin || !error) return;
    g->status =
        m3_bound_angles(g->s->ctx, cos, sin, error, g->s->the_case->positions, y->rows, c->R, c->rope_theta, &g->plain);
    /* An angle that is off turns a gradient as much as it turns a head. */
    for (int64_t i = 0; i < n; i++) g->how.product = fmax(g->how.product, error[i] / 2);
}

void m3_gradients_of_experts(struct m3_gradients *g, struct m3_derivative_request *r, int64_t layer)
{
    const struct m3_config *c = &g->s->model->config;
    r->of = M3_DERIVATIVE_EXPERTS;
    r->dy = m3_gradients_arriving(g, m3_gradients_item(g, M3_TAP_ROUTED, layer));
    operands(g, r, M3_TAP_ROUTED, layer, 3);
    r->experts = g->s->model->layers[m3_layer_index(c, layer)].experts;
    r->E = c->E, r->K = c->K, r->F = c->F, r->H = c->H, r->factor = c->routed_scaling;
    set_activation(g, r);
}

/* w2 act(w1 x, w3 x) of every row: one expert with weight 1. */
static void gated_mlp(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y)
{
    const struct m3_weight *w[3];
    for (int i = 0; i < 3; i++) w[i] = m3_graph_weight(g->s->model, g->s->semantics, y->tap, y->layer, i);
    double *ones = m3_gradients_room(g, y->rows);
    int32_t *zeros = m3_gradients_keep(g, calloc((size_t)y->rows + 1, sizeof *zeros), (size_t)y->rows);
    for (int64_t i = 0; ones && i < y->rows; i++) ones[i] = 1;
    g->shared = (struct m3_expert){ .w1 = *w[0], .w3 = *w[1], .w2 = *w[2] };
    r->of = M3_DERIVATIVE_EXPERTS;
    operands(g, r, y->tap, y->layer, 1);
    r->in[1] = zeros, r->in[2] = ones;
    r->experts = &g->shared;
    r->E = r->K = 1, r->F = w[0]->rows, r->H = w[0]->cols, r->factor = 1;
    set_activation(g, r);
}

/* An rms norm, heads apart. */
static void norm(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y)
{
    const struct m3_config *c = &g->s->model->config;
    const struct m3_weight *w = m3_graph_weight(g->s->model, g->s->semantics, y->tap, y->layer, 0);
    double *vector = m3_gradients_room(g, w->cols);
    if (vector) m3_expand_f64(vector, w, 0, 0, w->cols);
    operands(g, r, y->tap, y->layer, 1);
    r->of = c->gemma_norm ? M3_DERIVATIVE_RMS_NORM : M3_DERIVATIVE_RMS_NORM_PLAIN;
    r->in[1] = vector;
    r->H = w->cols, r->T = y->rows * y->width / w->cols, r->eps = c->eps;
}

/* The request, without outputs. *r.of is NONE if blame cannot recompute it. */
void m3_gradients_request(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y)
{
    const struct m3_config *c = &g->s->model->config;
    const enum m3_operator op = m3_graph_node(g->s->model, g->s->semantics, y->tap, y->layer)->op;
    *r = (struct m3_derivative_request){ .T = y->rows, .H = y->width, .threads = g->s->ctx->threads };
    switch (op) {
    case M3_OP_LINEAR:
        r->of = M3_DERIVATIVE_LINEAR;
        r->w = m3_graph_weight(g->s->model, g->s->semantics, y->tap, y->layer, 0);
        operands(g, r, y->tap, y->layer, 1);
        break;
    case M3_OP_RMS_NORM: norm(g, r, y); break;
    case M3_OP_ROPE: rotation(g, r, y); break;
    case M3_OP_ATTEND: attention(g, r, y); break;
    case M3_OP_ACTIVATION:
        r->of = c->oai ? M3_DERIVATIVE_SWIGLU_OAI : M3_DERIVATIVE_SWIGLU;
        operands(g, r, y->tap, y->layer, 2);
        set_activation(g, r);
        break;
    case M3_OP_SIGMOID:
        r->of = M3_DERIVATIVE_SIGMOID;
        operands(g, r, y->tap, y->layer, 1);
        break;
    case M3_OP_ROUTE:
        r->of = M3_DERIVATIVE_ROUTE, r->E = c->E, r->K = c->K;
        operands(g, r, y->tap, y->layer, 2);
        break;
    case M3_OP_EXPERT:
    case M3_OP_ROUTED: m3_gradients_of_experts(g, r, y->layer); return;
    case M3_OP_GATED_MLP: gated_mlp(g, r, y); break;
    default: return;
    }
    r->dy = m3_gradients_arriving(g, y);
}

/* y [n] += output `at` of the request, and what it may be off. */
void m3_gradients_add(struct m3_gradients *g, struct m3_derivative_request *r, int at, double *y, double *allowed,
                      int64_t n)
{
    double *value = m3_gradients_room(g, n), *bounds[M3_DERIVATIVE_OUTPUTS] = { 0 };
    bounds[at] = m3_gradients_room(g, n);
    if (g->status || g->missing[0]) return;
    r->out[at] = value;
    r->counts[at] = n;
    g->status = m3_engine_f64()->differentiate(r, g->b->error);
    if (!g->status && m3_error_derivative(g->s->ctx, bounds, r, &g->how))
        g->status = m3_fail_memory(g->b->error, "a bound", (size_t)n * sizeof *value);
    for (int64_t i = 0; !g->status && i < n; i++) {
        y[i] += value[i];
        allowed[i] += bounds[at][i] + (4 * g->how.u + 2 * g->how.stored) * fabs(value[i]);
    }
    r->out[at] = NULL;
}
