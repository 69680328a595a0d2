/* The operators of ops/ops.h as kinds of nodes of a graph, and a few more. */
#ifndef M3_MODEL_GRAPH_OPERATORS_H
#define M3_MODEL_GRAPH_OPERATORS_H

/* clang-format off */
enum m3_operator {
    M3_OP_NONE,                 /* no tap, or one of counts */
    M3_OP_INPUT,                /* given from outside */
    M3_OP_COPY,                 /* the same numbers in another shape, or under another name */
    M3_OP_GATED_MLP,            /* w2 act(w1 x, w3 x), with no tap in between */
    M3_OP_EMBED, M3_OP_SCATTER, M3_OP_RMS_NORM, M3_OP_LAYER_NORM, M3_OP_LINEAR, M3_OP_ROPE, M3_OP_ROPE_3D,
    M3_OP_ATTEND, M3_OP_ATTEND_SEGMENTS, M3_OP_BLOCK_SCORES, M3_OP_ACTIVATION, M3_OP_SIGMOID, M3_OP_ROUTE,
    M3_OP_EXPERT, M3_OP_ROUTED, M3_OP_ADD, M3_OP_GELU,
    M3_OP_SELECT_BLOCKS, M3_OP_SELECT_EXPERTS,      /* the tap holds ids: not judged by bounds */
    M3_OPERATORS,
};
/* clang-format on */

#endif
