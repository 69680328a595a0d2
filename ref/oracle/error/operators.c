#include "oracle/error/private/operators.h"

#include <stdio.h>
#include <string.h>

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

const char *const *m3_tap_sections(enum m3_tap tap)
{
    static const char *const dense_or_moe[2] = { "5.4 linear", "5.16 add" };
    return tap == M3_TAP_MLP ? dense_or_moe : m3_error_operators[m3_graph[tap].op]->sections;
}

void m3_point_name(char *name, size_t size, enum m3_tap tap, int64_t layer, const char *point)
{
    if (m3_tap_name(name, size, tap, layer)) name[0] = '\0';
    size_t length = strlen(name), own = strlen(m3_tap_table[tap].name), folder = length > own ? length - own : 0;
    snprintf(name + folder, size - folder, "%s", point);
}
