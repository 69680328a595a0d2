#include "oracle/operators/from_dump/pairs.h"

#include "oracle/operators/own_graph.h"

struct walk {
    const struct m3_operator_row *op;
    const struct m3_graph *own;         /* the operator's */
    const struct m3_model *model;
    const struct m3_semantics *semantics;
    struct m3_pair pairs[M3_TAPS];      /* by the operator's own tap */
};

/* Norms and activations of both kinds are the same operators in the graph. With noise, the router and the experts read
 * numbers that are no tap. */
static int same_kind(const struct walk *w, const struct m3_node *own, const struct m3_node *node)
{
    const struct m3_config *c = &w->model->config;
    const int is_head_norm = own->tap == M3_TAP_Q_NORM && (node->tap == M3_TAP_Q_NORM || node->tap == M3_TAP_K_NORM);
    if (own->op == M3_OP_RMS_NORM && ((w->op->kind & M3_LAYER_GEMMA) != 0) != (c->gemma_norm != 0)) return 0;
    if (own->op == M3_OP_RMS_NORM && is_head_norm && c->qk_norm_whole) return 0;
    if (own->op == M3_OP_ACTIVATION && ((w->op->kind & M3_LAYER_OAI) != 0) != (c->oai != 0)) return 0;
    return w->semantics->jitter == 0 || !node->is_noisy;
}

static int same_weights(const struct walk *w, const struct m3_node *own, const struct m3_node *node)
{
    for (int i = 0; i < M3_NODE_WEIGHTS; i++) {
        const struct m3_weight *x = m3_node_weight(w->model, node, i);
        if ((i < own->weight_count) != (x && x->data)) return 0;
    }
    return 1;
}

/* Is the operator's own node made as this node of the model is, back to the operands? Pairs them all. */
static int same(struct walk *w, const struct m3_node *own, const struct m3_node *node)
{
    struct m3_pair *pair = &w->pairs[own->tap];
    if (pair->found) return pair->tap == node->tap && pair->layer == node->layer;
    *pair = (struct m3_pair){ 1, node->tap, node->layer };
    if (m3_operator_reads(w->op, own->tap)) return m3_tap_table[own->tap].kind == m3_tap_table[node->tap].kind;
    if (own->op != node->op || !same_kind(w, own, node) || !same_weights(w, own, node)) return 0;
    if (own->input_count != node->input_count) return 0;
    for (int i = 0; i < own->input_count; i++)
        if (!same(w, own->inputs[i], node->inputs[i])) return 0;
    return 1;
}

static const struct m3_node *own_node(const struct walk *w, enum m3_tap tap)
{
    return m3_graph_find(w->own, tap, m3_operator_layer(w->op, tap));
}

/* The node is an output itself: then so are the other outputs of its layer. Otherwise the operator's last output is
 * made in the same way somewhere else in the model: as ATTN_NORM is, so is MLP_NORM. */
static int pair_outputs(struct walk *w, const struct m3_node *node)
{
    const struct m3_operand_row *rows = w->op->outputs;
    int direct = 0, last = -1;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && rows[i].role != M3_ROLE_NONE; i++) {
        if (rows[i].role != M3_ROLE_TAP) return 0;
        direct |= rows[i].tap == node->tap;
        last = i;
    }
    if (!direct) return same(w, own_node(w, rows[last].tap), node);
    for (int i = 0; i <= last; i++) {
        const struct m3_node *own = own_node(w, rows[i].tap);
        const int64_t at = m3_operator_layer(w->op, rows[i].tap) < 0 ? -1 : node->layer;
        const struct m3_node *other = m3_graph_find(m3_graph_of(w->model, w->semantics), rows[i].tap, at);
        if (!own && !other) w->pairs[rows[i].tap] = (struct m3_pair){ 1, rows[i].tap, at }; /* not in this reading */
        else if (!own || !other || !same(w, own, other)) return 0;
    }
    return 1;
}

/* Codes have the scales that the operator takes. */
static int fits_scales(const struct walk *w, const struct m3_operand_row *row, const struct m3_pair *pair)
{
    const struct m3_weight *x = m3_graph_made_weight(w->model, w->semantics, pair->tap, pair->layer, row->weight);
    return x && x->scaling == (row->letters[0] == '_' ? M3_SCALE_128X128 : M3_SCALE_MX32);
}

int m3_pairs_find(struct m3_pairs *pairs, const struct m3_operator_row *op, const struct m3_graph *own,
                  const struct m3_model *model, const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer)
{
    struct walk w = { .op = op, .own = own, .model = model, .semantics = semantics };
    const struct m3_node *node = m3_graph_find(m3_graph_of(model, semantics), tap, layer);
    *pairs = (struct m3_pairs){ .tap = tap, .layer = layer };
    if (!node || !pair_outputs(&w, node)) return 0;
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
