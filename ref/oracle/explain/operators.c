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

const char *m3_tap_words(enum m3_tap tap)
{
    static const char *const words[M3_TAPS] = {
        [M3_TAP_VISION_PIXELS] = "pixel values of a patch",
        [M3_TAP_VISION_GRID] = "the grid of a picture",
        [M3_TAP_PATCH_EMBED] = "embedding of a patch",
        [M3_TAP_PRE_NORM] = "norm before the tower",
        [M3_TAP_NORM1] = "norm before attention",
        [M3_TAP_VISION_Q_PROJ] = "query of a patch",
        [M3_TAP_VISION_K_PROJ] = "key of a patch",
        [M3_TAP_VISION_V_PROJ] = "value of a patch",
        [M3_TAP_VISION_Q_ROPE] = "query after RoPE",
        [M3_TAP_VISION_K_ROPE] = "key after RoPE",
        [M3_TAP_VISION_ATTN] = "attention within a segment of patches",
        [M3_TAP_VISION_ATTN_OUT] = "output projection of attention",
        [M3_TAP_VISION_MID] = "residual after attention",
        [M3_TAP_NORM2] = "norm before the MLP",
        [M3_TAP_FC1] = "first projection of the MLP",
        [M3_TAP_VISION_ACT] = "activation of the MLP",
        [M3_TAP_VISION_MLP] = "output of the MLP",
        [M3_TAP_VISION_OUT] = "residual after the MLP",
        [M3_TAP_LINEAR_1] = "first projection of a patch to the text width",
        [M3_TAP_ACT_1] = "activation of the projector",
        [M3_TAP_LINEAR_2] = "second projection of a patch to the text width",
        [M3_TAP_MERGED] = "neighbouring patches side by side",
        [M3_TAP_MERGE_LINEAR_1] = "first projection of merged patches",
        [M3_TAP_ACT_2] = "activation of the merger",
        [M3_TAP_PROJECTOR_OUT] = "feature that takes the place of a token",
        [M3_TAP_EMBED] = "embedding of a token",
        [M3_TAP_FUSED] = "embedding of a token, or feature of a picture",
        [M3_TAP_MTP_EMBED_NORM] = "norm of the embedding that a module joins",
        [M3_TAP_MTP_HIDDEN_NORM] = "norm of the hidden state that a module joins",
        [M3_TAP_MTP_EH_PROJ] = "embedding and hidden state joined",
        [M3_TAP_ATTN_NORM] = "norm before attention",
        [M3_TAP_Q_PROJ] = "query, as projected",
        [M3_TAP_K_PROJ] = "key, as projected",
        [M3_TAP_V_PROJ] = "value",
        [M3_TAP_Q_NORM] = "query after its norm",
        [M3_TAP_K_NORM] = "key after its norm",
        [M3_TAP_Q_ROPE] = "query after RoPE",
        [M3_TAP_K_ROPE] = "key after RoPE",
        [M3_TAP_INDEX_Q_PROJ] = "index query, as projected",
        [M3_TAP_INDEX_K_PROJ] = "index key, as projected",
        [M3_TAP_INDEX_Q_NORM] = "index query after its norm",
        [M3_TAP_INDEX_K_NORM] = "index key after its norm",
        [M3_TAP_INDEX_Q_ROPE] = "index query after RoPE",
        [M3_TAP_INDEX_K_ROPE] = "index key after RoPE",
        [M3_TAP_INDEX_BLOCK_SCORES] = "score of a block of keys",
        [M3_TAP_INDEX_BLOCKS] = "blocks of keys that a group attends to",
        [M3_TAP_ATTN_LSE] = "log-sum-exp of the logits of a query head",
        [M3_TAP_ATTN] = "attention: values weighted by a softmax",
        [M3_TAP_ATTN_OUT] = "output projection of attention",
        [M3_TAP_MID] = "residual after attention",
        [M3_TAP_MLP_NORM] = "norm before the MLP",
        [M3_TAP_MLP_GATE] = "gate of the MLP, before any clamp",
        [M3_TAP_MLP_UP] = "up projection of the MLP, before any clamp",
        [M3_TAP_MLP_ACT] = "activation of the MLP",
        [M3_TAP_ROUTER_LOGITS] = "logit of an expert",
        [M3_TAP_ROUTER_SCORES] = "score of an expert, without the bias",
        [M3_TAP_EXPERTS] = "experts of a token",
        [M3_TAP_EXPERT_WEIGHTS] = "weight of a chosen expert",
        [M3_TAP_EXPERT_OUT] = "output of a chosen expert, before its weight",
        [M3_TAP_ROUTED] = "weighted sum of the chosen experts, times the factor",
        [M3_TAP_SHARED] = "output of the shared expert",
        [M3_TAP_MLP] = "output of the MLP, or of the experts",
        [M3_TAP_OUT] = "output of the layer, the residual after the MLP",
        [M3_TAP_FINAL_NORM] = "norm before the head",
        [M3_TAP_LOGITS] = "logit of a next token",
        [M3_TAP_MTP_FINAL_NORM] = "norm before the head of a module",
        [M3_TAP_MTP_LOGITS] = "logit of the token that a module drafts",
    };
    return words[tap];
}
