#include "oracle/error/graph.h"

#include "base/minmax.h"
#include "oracle/error/private/operators.h"

#define HERE(tap) { M3_FROM_HERE, M3_TAP_##tap }
#define BEFORE(tap) { M3_FROM_BEFORE, M3_TAP_##tap }
#define START(tap) { M3_FROM_START, M3_TAP_##tap }
#define LAST(tap) { M3_FROM_LAST, M3_TAP_##tap }

#define AT(type, field) (offsetof(struct type, field) + 1)
#define MODEL(field) AT(m3_model, field)
#define LAYER(field) AT(m3_layer, field)
#define VISION(field) AT(m3_vision, field)
#define VISION_LAYER(field) AT(m3_vision_layer, field)
#define MTP(field) AT(m3_mtp, field)

const struct m3_graph_row m3_graph[M3_TAPS] = {
    [M3_TAP_VISION_PIXELS] = { .op = M3_OP_INPUT },
    [M3_TAP_PATCH_EMBED] = { M3_OP_LINEAR, .operands = { HERE(VISION_PIXELS) }, .of = M3_OF_VISION,
                             .weights = { VISION(patch_embed) }, .n = "C", .more = M3_MORE_WEIGHT },
    [M3_TAP_PRE_NORM] = { M3_OP_LAYER_NORM, .operands = { HERE(PATCH_EMBED) }, .of = M3_OF_VISION,
                          .weights = { VISION(pre_norm), VISION(pre_norm_bias) }, .n = "W", .f = 8 },
    [M3_TAP_NORM1] = { M3_OP_LAYER_NORM, .operands = { BEFORE(VISION_OUT) }, .of = M3_OF_VISION_LAYER,
                       .weights = { VISION_LAYER(norm1), VISION_LAYER(norm1_bias) }, .n = "W", .f = 8 },
    [M3_TAP_VISION_Q_PROJ] = { M3_OP_LINEAR, .operands = { HERE(NORM1) }, .of = M3_OF_VISION_LAYER,
                               .weights = { VISION_LAYER(q_proj), VISION_LAYER(q_bias) }, .n = "W", .f = 1,
                               .more = M3_MORE_WEIGHT },
    [M3_TAP_VISION_K_PROJ] = { M3_OP_LINEAR, .operands = { HERE(NORM1) }, .of = M3_OF_VISION_LAYER,
                               .weights = { VISION_LAYER(k_proj), VISION_LAYER(k_bias) }, .n = "W", .f = 1,
                               .more = M3_MORE_WEIGHT },
    [M3_TAP_VISION_V_PROJ] = { M3_OP_LINEAR, .operands = { HERE(NORM1) }, .of = M3_OF_VISION_LAYER,
                               .weights = { VISION_LAYER(v_proj), VISION_LAYER(v_bias) }, .n = "W", .f = 1,
                               .more = M3_MORE_WEIGHT },
    [M3_TAP_VISION_Q_ROPE] = { M3_OP_ROPE_3D, .operands = { HERE(VISION_Q_PROJ) }, .f = 3 },
    [M3_TAP_VISION_K_ROPE] = { M3_OP_ROPE_3D, .operands = { HERE(VISION_K_PROJ) }, .f = 3 },
    [M3_TAP_VISION_ATTN] = { M3_OP_ATTEND_SEGMENTS,
                             .operands = { HERE(VISION_Q_ROPE), HERE(VISION_K_ROPE), HERE(VISION_V_PROJ) }, .f = 1 },
    [M3_TAP_VISION_ATTN_OUT] = { M3_OP_LINEAR, .operands = { HERE(VISION_ATTN) }, .of = M3_OF_VISION_LAYER,
                                 .weights = { VISION_LAYER(out_proj), VISION_LAYER(out_bias) }, .n = "W", .f = 1,
                                 .more = M3_MORE_WEIGHT },
    [M3_TAP_VISION_MID] = { M3_OP_ADD, .operands = { BEFORE(VISION_OUT), HERE(VISION_ATTN_OUT) }, .f = 2 },
    [M3_TAP_NORM2] = { M3_OP_LAYER_NORM, .operands = { HERE(VISION_MID) }, .of = M3_OF_VISION_LAYER,
                       .weights = { VISION_LAYER(norm2), VISION_LAYER(norm2_bias) }, .n = "W", .f = 8 },
    [M3_TAP_FC1] = { M3_OP_LINEAR, .operands = { HERE(NORM2) }, .of = M3_OF_VISION_LAYER,
                     .weights = { VISION_LAYER(fc1), VISION_LAYER(fc1_bias) }, .n = "W", .f = 1,
                     .more = M3_MORE_WEIGHT },
    [M3_TAP_VISION_ACT] = { M3_OP_GELU, .operands = { HERE(FC1) }, .f = 36 },
    [M3_TAP_VISION_MLP] = { M3_OP_LINEAR, .operands = { HERE(VISION_ACT) }, .of = M3_OF_VISION_LAYER,
                            .weights = { VISION_LAYER(fc2), VISION_LAYER(fc2_bias) }, .n = "L", .f = 1,
                            .more = M3_MORE_WEIGHT },
    [M3_TAP_VISION_OUT] = { M3_OP_ADD, .operands = { HERE(VISION_MID), HERE(VISION_MLP) }, .f = 2 },
    [M3_TAP_LINEAR_1] = { M3_OP_LINEAR, .operands = { LAST(VISION_OUT) }, .of = M3_OF_VISION,
                          .weights = { VISION(linear_1), VISION(linear_1_bias) }, .n = "W", .f = 1,
                          .more = M3_MORE_WEIGHT },
    [M3_TAP_ACT_1] = { M3_OP_GELU, .operands = { HERE(LINEAR_1) }, .f = 36 },
    [M3_TAP_LINEAR_2] = { M3_OP_LINEAR, .operands = { HERE(ACT_1) }, .of = M3_OF_VISION,
                          .weights = { VISION(linear_2), VISION(linear_2_bias) }, .n = "Y", .f = 1,
                          .more = M3_MORE_WEIGHT },
    [M3_TAP_MERGED] = { M3_OP_COPY, .operands = { HERE(LINEAR_2) } },
    [M3_TAP_MERGE_LINEAR_1] = { M3_OP_LINEAR, .operands = { HERE(MERGED) }, .of = M3_OF_VISION,
                                .weights = { VISION(merge_linear_1), VISION(merge_linear_1_bias) }, .n = "Z", .f = 1,
                                .more = M3_MORE_WEIGHT },
    [M3_TAP_ACT_2] = { M3_OP_GELU, .operands = { HERE(MERGE_LINEAR_1) }, .f = 36 },
    [M3_TAP_PROJECTOR_OUT] = { M3_OP_LINEAR, .operands = { HERE(ACT_2) }, .of = M3_OF_VISION,
                               .weights = { VISION(merge_linear_2), VISION(merge_linear_2_bias) }, .n = "Y", .f = 1,
                               .more = M3_MORE_WEIGHT },
    [M3_TAP_EMBED] = { M3_OP_EMBED, .of = M3_OF_MODEL, .weights = { MODEL(embed) }, .more = M3_MORE_WEIGHT },
    [M3_TAP_FUSED] = { M3_OP_SCATTER, .operands = { HERE(EMBED), START(PROJECTOR_OUT) } },
    [M3_TAP_MTP_EMBED_NORM] = { M3_OP_RMS_NORM, .operands = { START(EMBED) }, .of = M3_OF_MTP,
                                .weights = { MTP(embed_norm) }, .n = "H", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_MTP_HIDDEN_NORM] = { M3_OP_RMS_NORM, .operands = { BEFORE(FINAL_NORM) }, .of = M3_OF_MTP,
                                 .weights = { MTP(hidden_norm) }, .n = "H", .halved = 1, .f = 7,
                                 .more = M3_MORE_GEMMA },
    [M3_TAP_MTP_EH_PROJ] = { M3_OP_LINEAR, .operands = { HERE(MTP_EMBED_NORM), HERE(MTP_HIDDEN_NORM) }, .of = M3_OF_MTP,
                             .weights = { MTP(eh_proj) }, .n = "2H", .more = M3_MORE_WEIGHT },
    [M3_TAP_ATTN_NORM] = { M3_OP_RMS_NORM, .operands = { BEFORE(OUT) }, .of = M3_OF_LAYER,
                           .weights = { LAYER(attn_norm) }, .n = "H", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_Q_PROJ] = { M3_OP_LINEAR, .operands = { HERE(ATTN_NORM) }, .of = M3_OF_LAYER, .weights = { LAYER(q_proj) },
                        .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_K_PROJ] = { M3_OP_LINEAR, .operands = { HERE(ATTN_NORM) }, .of = M3_OF_LAYER, .weights = { LAYER(k_proj) },
                        .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_V_PROJ] = { M3_OP_LINEAR, .operands = { HERE(ATTN_NORM) }, .of = M3_OF_LAYER, .weights = { LAYER(v_proj) },
                        .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_Q_NORM] = { M3_OP_RMS_NORM, .operands = { HERE(Q_PROJ) }, .of = M3_OF_LAYER, .weights = { LAYER(q_norm) },
                        .n = "q", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_K_NORM] = { M3_OP_RMS_NORM, .operands = { HERE(K_PROJ) }, .of = M3_OF_LAYER, .weights = { LAYER(k_norm) },
                        .n = "k", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_Q_ROPE] = { M3_OP_ROPE, .operands = { HERE(Q_NORM) }, .f = 3 },
    [M3_TAP_K_ROPE] = { M3_OP_ROPE, .operands = { HERE(K_NORM) }, .f = 3 },
    [M3_TAP_INDEX_Q_PROJ] = { M3_OP_LINEAR, .operands = { HERE(ATTN_NORM) }, .of = M3_OF_LAYER,
                              .weights = { LAYER(index_q_proj) }, .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_INDEX_K_PROJ] = { M3_OP_LINEAR, .operands = { HERE(ATTN_NORM) }, .of = M3_OF_LAYER,
                              .weights = { LAYER(index_k_proj) }, .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_INDEX_Q_NORM] = { M3_OP_RMS_NORM, .operands = { HERE(INDEX_Q_PROJ) }, .of = M3_OF_LAYER,
                              .weights = { LAYER(index_q_norm) }, .n = "X", .halved = 1, .f = 7,
                              .more = M3_MORE_GEMMA },
    [M3_TAP_INDEX_K_NORM] = { M3_OP_RMS_NORM, .operands = { HERE(INDEX_K_PROJ) }, .of = M3_OF_LAYER,
                              .weights = { LAYER(index_k_norm) }, .n = "X", .halved = 1, .f = 7,
                              .more = M3_MORE_GEMMA },
    [M3_TAP_INDEX_Q_ROPE] = { M3_OP_ROPE, .operands = { HERE(INDEX_Q_NORM) }, .f = 3 },
    [M3_TAP_INDEX_K_ROPE] = { M3_OP_ROPE, .operands = { HERE(INDEX_K_NORM) }, .f = 3 },
    [M3_TAP_INDEX_BLOCK_SCORES] = { M3_OP_BLOCK_SCORES, .operands = { HERE(INDEX_Q_ROPE), HERE(INDEX_K_ROPE) },
                                    .n = "X", .f = 2 },
    [M3_TAP_INDEX_BLOCKS] = { M3_OP_SELECT_BLOCKS, .operands = { HERE(INDEX_BLOCK_SCORES) } },
    [M3_TAP_ATTN_LSE] = { M3_OP_ATTEND, .operands = { HERE(Q_ROPE), HERE(K_ROPE), HERE(V_PROJ), HERE(INDEX_BLOCKS) },
                          .f = 1 },
    [M3_TAP_ATTN] = { M3_OP_ATTEND, .operands = { HERE(Q_ROPE), HERE(K_ROPE), HERE(V_PROJ), HERE(INDEX_BLOCKS) },
                      .f = 1 },
    [M3_TAP_ATTN_OUT] = { M3_OP_LINEAR, .operands = { HERE(ATTN) }, .of = M3_OF_LAYER, .weights = { LAYER(o_proj) },
                          .n = "QD", .more = M3_MORE_WEIGHT },
    [M3_TAP_MID] = { M3_OP_ADD, .operands = { BEFORE(OUT), HERE(ATTN_OUT) }, .f = 2 },
    [M3_TAP_MLP_NORM] = { M3_OP_RMS_NORM, .operands = { HERE(MID) }, .of = M3_OF_LAYER, .weights = { LAYER(mlp_norm) },
                          .n = "H", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_MLP_GATE] = { M3_OP_LINEAR, .operands = { HERE(MLP_NORM) }, .of = M3_OF_LAYER, .weights = { LAYER(gate) },
                          .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_MLP_UP] = { M3_OP_LINEAR, .operands = { HERE(MLP_NORM) }, .of = M3_OF_LAYER, .weights = { LAYER(up) },
                        .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_MLP_ACT] = { M3_OP_ACTIVATION, .operands = { HERE(MLP_GATE), HERE(MLP_UP) }, .f = 9 },
    [M3_TAP_ROUTER_LOGITS] = { M3_OP_LINEAR, .operands = { HERE(MLP_NORM) }, .of = M3_OF_LAYER,
                               .weights = { LAYER(router) }, .n = "H", .more = M3_MORE_JITTER },
    [M3_TAP_ROUTER_SCORES] = { M3_OP_SIGMOID, .operands = { HERE(ROUTER_LOGITS) }, .f = 6 },
    [M3_TAP_EXPERTS] = { M3_OP_SELECT_EXPERTS, .operands = { HERE(ROUTER_SCORES) }, .of = M3_OF_LAYER,
                         .weights = { LAYER(router_bias) } },
    [M3_TAP_EXPERT_WEIGHTS] = { M3_OP_ROUTE, .operands = { HERE(ROUTER_SCORES), HERE(EXPERTS) }, .n = "K", .f = 1 },
    [M3_TAP_EXPERT_OUT] = { M3_OP_EXPERT, .operands = { HERE(MLP_NORM), HERE(EXPERTS) }, .of = M3_OF_LAYER,
                            .weights = { LAYER(experts) }, .f = 1 },
    [M3_TAP_ROUTED] = { M3_OP_ROUTED, .operands = { HERE(EXPERT_OUT), HERE(EXPERT_WEIGHTS) }, .n = "K", .f = 1,
                        .more = M3_MORE_FACTOR },
    [M3_TAP_SHARED] = { M3_OP_GATED_MLP, .operands = { HERE(MLP_NORM) }, .of = M3_OF_LAYER,
                        .weights = { LAYER(gate), LAYER(up), LAYER(down) }, .f = 1 },
    [M3_TAP_MLP] = { M3_OP_ADD, .operands = { HERE(ROUTED), HERE(SHARED) }, .f = 2 },
    [M3_TAP_OUT] = { M3_OP_ADD, .operands = { HERE(MID), HERE(MLP) }, .f = 2 },
    [M3_TAP_FINAL_NORM] = { M3_OP_RMS_NORM, .operands = { LAST(OUT) }, .of = M3_OF_MODEL,
                            .weights = { MODEL(final_norm) }, .n = "H", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_LOGITS] = { M3_OP_LINEAR, .operands = { HERE(FINAL_NORM) }, .of = M3_OF_MODEL,
                        .weights = { MODEL(lm_head) }, .n = "H", .more = M3_MORE_WEIGHT },
    [M3_TAP_MTP_FINAL_NORM] = { M3_OP_RMS_NORM, .operands = { HERE(OUT) }, .of = M3_OF_MTP,
                                .weights = { MTP(final_norm) }, .n = "H", .halved = 1, .f = 7, .more = M3_MORE_GEMMA },
    [M3_TAP_MTP_LOGITS] = { M3_OP_LINEAR, .operands = { HERE(MTP_FINAL_NORM) }, .of = M3_OF_MODEL,
                            .weights = { MODEL(lm_head) }, .n = "H", .more = M3_MORE_WEIGHT },
};

/* Rows for taps that a config or a reading computes differently. */
static const struct m3_graph_row dense_mlp = {
    M3_OP_LINEAR, .operands = { HERE(MLP_ACT) }, .of = M3_OF_LAYER, .weights = { LAYER(down) },
    .n = "I",     .more = M3_MORE_WEIGHT,
};
static const struct m3_graph_row routed_alone = {
    M3_OP_COPY,
    .operands = { HERE(ROUTED) },
};
static const struct m3_graph_row additive_join = {
    M3_OP_LINEAR,    .operands = { START(EMBED), BEFORE(FINAL_NORM) },
    .of = M3_OF_MTP, .weights = { MTP(eh_proj) },
    .n = "H",        .more = M3_MORE_JOIN,
};

const struct m3_graph_row *m3_graph_row_of(const struct m3_model *model, const struct m3_semantics *semantics,
                                           enum m3_tap tap, int64_t layer)
{
    if (tap == M3_TAP_MLP) {
        if (!m3_config_moe(&model->config, m3_layer_index(&model->config, layer))) return &dense_mlp;
        if (model->config.shared_intermediate == 0) return &routed_alone;
    }
    if (tap == M3_TAP_MTP_EH_PROJ && semantics->mtp_join == M3_MTP_ADDITIVE) return &additive_join;
    return &m3_graph[tap];
}

/* The hidden state that enters a layer of the tower, a layer, or a module. */
static void before(enum m3_tap *operand, int64_t *operand_layer, const struct m3_semantics *semantics, enum m3_tap tap,
                   int64_t layer)
{
    const int64_t module = m3_mtp_module_of(layer), first = module < 0 ? 0 : M3_MTP_LAYER;
    *operand_layer = layer == first ? -1 : layer - 1;
    if (m3_tap_table[tap].where == M3_WHERE_EVERY_MTP_MODULE) {
        int after_norm = semantics->mtp_handover == M3_HANDOVER_POST_NORM;
        *operand = layer == first ? M3_TAP_FINAL_NORM : after_norm ? M3_TAP_MTP_FINAL_NORM : M3_TAP_OUT;
    } else if (m3_tap_table[tap].where == M3_WHERE_EVERY_VISION_LAYER) {
        *operand = layer == 0 ? M3_TAP_PRE_NORM : M3_TAP_VISION_OUT;
    } else if (module >= 0) {
        *operand = M3_TAP_MTP_EH_PROJ;
        *operand_layer = layer;
    } else {
        *operand = layer == 0 ? M3_TAP_FUSED : M3_TAP_OUT;
    }
}

int m3_graph_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_model *model,
                     const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer, int i)
{
    const struct m3_config *c = &model->config;
    const struct m3_graph_row *row = m3_graph_row_of(model, semantics, tap, layer);
    if (i < 0 || i >= M3_OPERANDS || row->operands[i].from == M3_FROM_NOWHERE) return -1;
    *operand = row->operands[i].tap;
    *operand_layer = layer;
    if (*operand == M3_TAP_INDEX_BLOCKS && !m3_config_sparse(c, m3_layer_index(&model->config, layer))) return -1;
    if (*operand == M3_TAP_PROJECTOR_OUT && !c->vision.present) return -1;

    switch (row->operands[i].from) {
    case M3_FROM_BEFORE: before(operand, operand_layer, semantics, tap, layer); break;
    case M3_FROM_START:
        *operand_layer = -1;
        if (*operand == M3_TAP_EMBED && semantics->mtp_embed == M3_MTP_EMBED_FUSED) *operand = M3_TAP_FUSED;
        break;
    case M3_FROM_LAST: *operand_layer = (*operand == M3_TAP_VISION_OUT ? c->vision.layers : c->layers) - 1; break;
    default: break;
    }
    return 0;
}

const struct m3_weight *m3_graph_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                        enum m3_tap tap, int64_t layer, int i)
{
    const struct m3_graph_row *row = m3_graph_row_of(model, semantics, tap, layer);
    if (i < 0 || i >= M3_GRAPH_WEIGHTS || row->weights[i] == 0) return NULL;
    const char *base = NULL;
    switch (row->of) {
    case M3_OF_MODEL: base = (const char *)model; break;
    case M3_OF_LAYER: base = (const char *)&model->layers[m3_layer_index(&model->config, layer)]; break;
    case M3_OF_VISION: base = (const char *)&model->vision; break;
    case M3_OF_VISION_LAYER: base = (const char *)&model->vision.layers[layer]; break;
    case M3_OF_MTP: base = (const char *)&model->mtp[m3_mtp_module_of(layer)]; break;
    default: return NULL;
    }
    if (row->op == M3_OP_EXPERT) {
        const struct m3_expert *experts = ((const struct m3_layer *)(const void *)base)->experts;
        return experts ? &experts[0].w1 : NULL;
    }
    return (const struct m3_weight *)(const void *)(base + row->weights[i] - 1);
}

/* Roundings that depend on weights, config or reading. */
static int64_t more_steps(const struct m3_graph_row *row, const struct m3_model *model,
                          const struct m3_semantics *semantics, const struct m3_weight *w,
                          const struct m3_arithmetic *how)
{
    switch (row->more) {
    case M3_MORE_WEIGHT: return m3_bound_weight_roundings(w, how->u);
    case M3_MORE_GEMMA: return model->config.gemma_norm != 0;
    case M3_MORE_FACTOR: return !m3_is_power_of_two(model->config.routed_scaling);
    case M3_MORE_JITTER: return m3_bound_weight_roundings(w, how->u) + (semantics->jitter != 0 ? 2 : 0);
    case M3_MORE_JOIN: return m3_bound_weight_roundings(w, how->u) + 1;
    default: return 0;
    }
}

void m3_graph_steps(int64_t *n, int64_t *f, const struct m3_model *model, const struct m3_semantics *semantics,
                    enum m3_tap tap, int64_t layer, const struct m3_arithmetic *how)
{
    const struct m3_graph_row *row = m3_graph_row_of(model, semantics, tap, layer);
    const struct m3_weight *w = m3_graph_weight(model, semantics, tap, layer, 0);
    int64_t size = row->n ? 1 : 0;
    for (const char *letter = row->n; letter && *letter; letter++) size *= m3_config_size(&model->config, *letter);
    *n = row->halved ? (size + 1) / 2 : size;
    *f = row->f + more_steps(row, model, semantics, w, how);
    const enum m3_functions functions = m3_error_operators[row->op]->functions;
    if (functions == M3_FUNCTIONS_EXP) *f += how->c - 4;
    if (functions == M3_FUNCTIONS_TURN) *f += how->c_turn - 1;
}

enum m3_tap m3_graph_computed_with(enum m3_tap tap)
{
    switch (tap) {
    case M3_TAP_ATTN_LSE: return M3_TAP_ATTN;
    case M3_TAP_EXPERT_WEIGHTS: return M3_TAP_EXPERTS;
    case M3_TAP_EXPERT_OUT: return M3_TAP_ROUTED;
    default: return tap;
    }
}

enum m3_tap m3_graph_second(enum m3_tap tap)
{
    switch (tap) {
    case M3_TAP_ATTN: return M3_TAP_ATTN_LSE;
    case M3_TAP_EXPERTS: return M3_TAP_EXPERT_WEIGHTS;
    case M3_TAP_ROUTED: return M3_TAP_EXPERT_OUT;
    default: return M3_TAPS;
    }
}
