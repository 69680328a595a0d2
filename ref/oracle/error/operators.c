#include "oracle/error/private/operators.h"

#include <stdio.h>
#include <string.h>

#include "base/minmax.h"

const struct m3_error_operator *const m3_error_operators[M3_OPERATORS] = {
    [M3_OP_NONE] = &m3_error_counts,
    [M3_OP_INPUT] = &m3_error_input,
    [M3_OP_COPY] = &m3_error_copy,
    [M3_OP_GATED_MLP] = &m3_error_gated_mlp,
    [M3_OP_EMBED] = &m3_error_embed,
    [M3_OP_SCATTER] = &m3_error_scatter,
    [M3_OP_RMS_NORM] = &m3_error_rms_norm,
    [M3_OP_LAYER_NORM] = &m3_error_layer_norm,
    [M3_OP_LINEAR] = &m3_error_linear,
    [M3_OP_ROPE] = &m3_error_rope,
    [M3_OP_ROPE_3D] = &m3_error_rope_3d,
    [M3_OP_ATTEND] = &m3_error_attend,
    [M3_OP_ATTEND_SEGMENTS] = &m3_error_attend_segments,
    [M3_OP_BLOCK_SCORES] = &m3_error_block_scores,
    [M3_OP_ACTIVATION] = &m3_error_activation,
    [M3_OP_SIGMOID] = &m3_error_sigmoid,
    [M3_OP_ROUTE] = &m3_error_route,
    [M3_OP_EXPERT] = &m3_error_expert,
    [M3_OP_ROUTED] = &m3_error_routed,
    [M3_OP_ADD] = &m3_error_add,
    [M3_OP_GELU] = &m3_error_gelu,
    [M3_OP_SELECT_BLOCKS] = &m3_error_select_blocks,
    [M3_OP_SELECT_EXPERTS] = &m3_error_select_experts,
};

const char *m3_operator_name(enum m3_operator op) { return m3_error_operators[op]->name; }

const char *const *m3_tap_sections(const struct m3_node *node)
{
    static const char *const dense_or_moe[2] = { "5.4 linear", "5.16 add" };
    return node->tap == M3_TAP_MLP ? dense_or_moe : m3_error_operators[node->op]->sections;
}

static int64_t reduction(const struct m3_node *node, const struct m3_config *c, const struct m3_weight *w)
{
    const int64_t cols = w ? w->cols : 0;
    switch (node->op) {
    case M3_OP_LINEAR: return node->adds_input ? cols / 2 : cols;
    case M3_OP_RMS_NORM: return (cols + 1) / 2;                 /* half of it, because of the square root */
    case M3_OP_LAYER_NORM: return cols;
    case M3_OP_BLOCK_SCORES: return c->X;
    case M3_OP_ROUTE:
    case M3_OP_ROUTED: return c->K;
    default: return 0;
    }
}

/* Roundings that depend on weights, config or reading. */
static int64_t more_roundings(const struct m3_node *node, const struct m3_model *model,
                              const struct m3_semantics *semantics, const struct m3_weight *w, double u)
{
    switch (node->op) {
    case M3_OP_EMBED: return m3_bound_weight_roundings(w, u);
    case M3_OP_LINEAR:
        return m3_bound_weight_roundings(w, u) + (node->weight_count > 1) + node->adds_input +
               (node->is_noisy && semantics->jitter != 0 ? 2 : 0);
    case M3_OP_RMS_NORM: return model->config.gemma_norm != 0;  /* 1 + w */
    case M3_OP_ROUTED: return !m3_is_power_of_two(model->config.routed_scaling);
    default: return 0;
    }
}

void m3_steps(int64_t *n, int64_t *f, const struct m3_model *model, const struct m3_semantics *semantics,
              enum m3_tap tap, int64_t layer, const struct m3_arithmetic *how)
{
    const struct m3_node *node = m3_graph_node(model, semantics, tap, layer);
    const struct m3_weight *w = m3_node_weight(model, node, 0);
    const struct m3_error_operator *op = m3_error_operators[node->op];
    *n = reduction(node, &model->config, w);
    *f = op->roundings + more_roundings(node, model, semantics, w, how->u);
    if (op->functions == M3_FUNCTIONS_EXP) *f += how->c - 4;
    if (op->functions == M3_FUNCTIONS_TURN) *f += how->c_turn - 1;
}

void m3_point_name(char *name, size_t size, enum m3_tap tap, int64_t layer, const char *point)
{
    if (m3_tap_name(name, size, tap, layer)) name[0] = '\0';
    size_t length = strlen(name), own = strlen(m3_tap_table[tap].name), folder = length > own ? length - own : 0;
    snprintf(name + folder, size - folder, "%s", point);
}
