#include "oracle/operators/from_dump/pairs.h"

#include "oracle/error/graph.h"

/* `own` is the operator's model of one layer: only its config is read. */
struct walk {
    const struct m3_operator_row *op;
    struct m3_model own;
    struct m3_semantics own_semantics;
    unsigned char sparse, moe;
    const struct m3_model *model;
    const struct m3_semantics *semantics;
    struct m3_pair pairs[M3_TAPS];      /* by the operator's own tap */
};

static void begin(struct walk *w, const struct m3_operator_row *op, const struct m3_model *model,
                  const struct m3_semantics *semantics)
{
    *w = (struct walk){ .op = op, .model = model, .semantics = semantics };
    struct m3_config *c = &w->own.config;
    w->sparse = (op->kind & M3_LAYER_SPARSE) != 0, w->moe = (op->kind & M3_LAYER_MOE) != 0;
    c->layers = 1, c->sparse = &w->sparse, c->moe = &w->moe, c->shared_intermediate = 1;
    c->mtp_modules = w->own.mtp_modules = (op->kind & M3_LAYER_MODULE) != 0;
    c->vision.layers = 1, c->vision.present = (op->kind & M3_LAYER_VISION) != 0;
    w->own_semantics.mtp_join = semantics->mtp_join;
}

static int64_t own_layer(const struct walk *w, enum m3_tap tap)
{
    switch (m3_tap_table[tap].where) {
    case M3_WHERE_BEFORE_VISION_LAYERS:
    case M3_WHERE_AFTER_VISION_LAYERS:
    case M3_WHERE_BEFORE_LAYERS:
    case M3_WHERE_AFTER_LAYERS: return -1;
    case M3_WHERE_EVERY_VISION_LAYER: return 0;
    default: return w->op->kind & M3_LAYER_MODULE ? M3_MTP_LAYER : 0;
    }
}

static int is_operand(const struct m3_operator_row *op, enum m3_tap tap)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        if (op->operands[i].role == M3_ROLE_TAP && op->operands[i].tap == tap) return 1;
    return 0;
}

/* Norms and activations of both kinds have the same rows in the graph. With noise, the router and the experts read
 * numbers that are no tap. */
static int same_kind(const struct walk *w, enum m3_tap own, enum m3_tap tap, enum m3_operator op)
{
    const struct m3_config *c = &w->model->config;
    const int is_head_norm = own == M3_TAP_Q_NORM && (tap == M3_TAP_Q_NORM || tap == M3_TAP_K_NORM);
    if (op == M3_OP_RMS_NORM && ((w->op->kind & M3_LAYER_GEMMA) != 0) != (c->gemma_norm != 0)) return 0;
    if (op == M3_OP_RMS_NORM && is_head_norm && c->qk_norm_whole) return 0;
    if (op == M3_OP_ACTIVATION && ((w->op->kind & M3_LAYER_OAI) != 0) != (c->oai != 0)) return 0;
    if (w->semantics->jitter != 0 && (tap == M3_TAP_ROUTER_LOGITS || tap == M3_TAP_EXPERT_OUT || tap == M3_TAP_SHARED))
        return 0;
    return 1;
}

static int same_weights(const struct walk *w, const struct m3_graph_row *own, enum m3_tap tap, int64_t layer)
{
    for (int i = 0; i < M3_GRAPH_WEIGHTS; i++) {
        const struct m3_weight *x = m3_graph_weight(w->model, w->semantics, tap, layer, i);
        if ((own->weights[i] != 0) != (x && x->data)) return 0;
    }
    return 1;
}

/* Is the operator's own tap made as this tap of the model is, back to the operands? Pairs them all. */
static int same(struct walk *w, enum m3_tap own, int64_t own_at, enum m3_tap tap, int64_t layer)
{
    struct m3_pair *pair = &w->pairs[own];
    if (pair->found) return pair->tap == tap && pair->layer == layer;
    *pair = (struct m3_pair){ 1, tap, layer };
    if (is_operand(w->op, own)) return m3_tap_table[own].kind == m3_tap_table[tap].kind;
    const struct m3_graph_row *a = m3_graph_row_of(&w->own, &w->own_semantics, own, own_at);
    const struct m3_graph_row *b = m3_graph_row_of(w->model, w->semantics, tap, layer);
    if (a->op != b->op || !same_kind(w, own, tap, a->op) || !same_weights(w, a, tap, layer)) return 0;
    for (int i = 0; i < M3_OPERANDS; i++) {
        enum m3_tap x, y;
        int64_t x_at, y_at;
        const int none = m3_graph_operand(&x, &x_at, &w->own, &w->own_semantics, own, own_at, i) != 0;
        if (none != (m3_graph_operand(&y, &y_at, w->model, w->semantics, tap, layer, i) != 0)) return 0;
        if (!none && !same(w, x, x_at, y, y_at)) return 0;
    }
    return 1;
}

int m3_model_has_tap(const struct m3_model *model, enum m3_tap tap, int64_t layer)
{
    const struct m3_config *c = &model->config;
    const enum m3_tap_where where = m3_tap_table[tap].where;
    const int64_t module = m3_mtp_module_of(layer);
    if (where <= M3_WHERE_AFTER_VISION_LAYERS && !c->vision.present) return 0;
    if (where == M3_WHERE_EVERY_VISION_LAYER) return layer >= 0 && layer < c->vision.layers;
    if (where < M3_WHERE_EVERY_LAYER || where == M3_WHERE_AFTER_LAYERS) return layer == -1;
    if (where == M3_WHERE_EVERY_MTP_MODULE && module < 0) return 0;
    if (module >= model->mtp_modules || (module < 0 && (layer < 0 || layer >= c->layers))) return 0;
    return m3_layer_has_tap(c, tap, layer);
}

/* The tap is an output itself: then so are the other outputs of its layer. Otherwise the operator's last output is
 * made in the same way somewhere else in the model: as ATTN_NORM is, so is MLP_NORM. */
static int pair_outputs(struct walk *w, enum m3_tap tap, int64_t layer)
{
    const struct m3_operand_row *rows = w->op->outputs;
    int direct = 0, last = -1;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && rows[i].role != M3_ROLE_NONE; i++) {
        if (rows[i].role != M3_ROLE_TAP) return 0;
        direct |= rows[i].tap == tap;
        last = i;
    }
    if (!direct) return same(w, rows[last].tap, own_layer(w, rows[last].tap), tap, layer);
    for (int i = 0; i <= last; i++) {
        const int64_t at = own_layer(w, rows[i].tap) < 0 ? -1 : layer;
        if (!m3_model_has_tap(w->model, rows[i].tap, at)) return 0;
        if (!same(w, rows[i].tap, own_layer(w, rows[i].tap), rows[i].tap, at)) return 0;
    }
    return 1;
}

/* Codes have the scales that the operator takes. */
static int fits_scales(const struct walk *w, const struct m3_operand_row *row, const struct m3_pair *pair)
{
    const struct m3_weight *x = m3_graph_weight(w->model, w->semantics, pair->tap, pair->layer, row->weight);
    return x && x->scaling == (row->letters[0] == '_' ? M3_SCALE_128X128 : M3_SCALE_MX32);
}

int m3_pairs_find(struct m3_pairs *pairs, const struct m3_operator_row *op, const struct m3_model *model,
                  const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer)
{
    struct walk w;
    *pairs = (struct m3_pairs){ .tap = tap, .layer = layer };
    begin(&w, op, model, semantics);
    if (!m3_model_has_tap(model, tap, layer) || !pair_outputs(&w, tap, layer)) return 0;
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *row = &op->operands[i];
        if (row->tap == M3_TAPS) continue;
        pairs->operands[i] = w.pairs[row->tap];
        if (!pairs->operands[i].found) return 0;
        if (row->role == M3_ROLE_SCALES && !fits_scales(&w, row, &pairs->operands[i])) return 0;
    }
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && op->outputs[i].role != M3_ROLE_NONE; i++)
        pairs->outputs[i] = pairs->last = w.pairs[op->outputs[i].tap];
    return 1;
}
