#include "oracle/explain/private/explaining.h"
#include "ops/operators.def"

const struct m3_explainer m3_explainers[M3_OPERATORS] = {
    [M3_OP_NONE] = { m3_explain_counts, { 0 } },
    [M3_OP_INPUT] = { m3_explain_input, { 0 } },
    [M3_OP_COPY] = { m3_explain_copy, { 0 } },
    [M3_OP_GATED_MLP] = { m3_explain_gated_mlp, { 0 } },
    [M3_OP_EMBED] = { m3_explain_embed, { 0 } },
    [M3_OP_SCATTER] = { m3_explain_scatter, { 0 } },
    [M3_OP_RMS_NORM] = { m3_explain_rms_norm, { 0 } },
    [M3_OP_LAYER_NORM] = { m3_explain_layer_norm, { 0 } },
    [M3_OP_LINEAR] = { m3_explain_linear, { 0 } },
    [M3_OP_ROPE] = { m3_explain_rope, { 0 } },
    [M3_OP_ROPE_3D] = { m3_explain_rope_3d, { 0 } },
    [M3_OP_ATTEND] = { m3_explain_attend, { 0 } },
    [M3_OP_ATTEND_SEGMENTS] = { m3_explain_segments, { 0 } },
    [M3_OP_BLOCK_SCORES] = { m3_explain_block_scores, { 0 } },
    [M3_OP_ACTIVATION] = { m3_explain_activation, { 0 } },
    [M3_OP_SIGMOID] = { m3_explain_sigmoid, { 0 } },
    [M3_OP_ROUTE] = { m3_explain_route, { 0 } },
    [M3_OP_EXPERT] = { m3_explain_expert, { M3_TAP_EXPERT_WEIGHTS } },
    [M3_OP_ROUTED] = { m3_explain_routed, { M3_TAP_MLP_NORM, M3_TAP_EXPERTS } },
    [M3_OP_ADD] = { m3_explain_add, { 0 } },
    [M3_OP_GELU] = { m3_explain_gelu, { 0 } },
    [M3_OP_SELECT_BLOCKS] = { m3_explain_select_blocks, { 0 } },
    [M3_OP_SELECT_EXPERTS] = { m3_explain_select_experts, { M3_TAP_ROUTER_LOGITS, M3_TAP_EXPERT_WEIGHTS } },
};

/* The lines are those of the comments above the functions: tests/oracle/explain compares them. */
static const struct m3_equation equations[] = {
#define EQUATION(op, file, bodies, number, layer, means, fields, ...)                                                  \
    { #op, "m3_" #op, "ref/ops/" #file ".c", number " " #op, { __VA_ARGS__ } },
#define NONE(...)
    M3_OPERATORS(EQUATION, NONE){ "copy", NULL, NULL, "6. The forward pass", { "the same numbers" } },
    { "input", NULL, NULL, "3.4 Case file", { "a part of the case" } },
};

const struct m3_equation *m3_equation_at(int i)
{
    return i < (int)(sizeof equations / sizeof *equations) ? &equations[i] : NULL;
}
