#include "oracle/operators/own_graph.h"

int m3_operator_graph(struct m3_graph *graph, const struct m3_operator_row *op, int mtp_join, struct m3_error *error)
{
    const struct m3_semantics semantics = { .mtp_join = mtp_join };
    unsigned char sparse = (op->kind & M3_LAYER_SPARSE) != 0, moe = (op->kind & M3_LAYER_MOE) != 0;
    const struct m3_config config = {
        .layers = 1,
        .sparse = &sparse,
        .moe = &moe,
        .shared_intermediate = 1,
        .vision = { .layers = 1, .present = (op->kind & M3_LAYER_VISION) != 0 },
    };
    return m3_graph_record(graph, &config, (op->kind & M3_LAYER_MODULE) != 0, &semantics, error);
}

int64_t m3_operator_layer(const struct m3_operator_row *op, enum m3_tap tap)
{
    switch (m3_tap_table[tap].where) {
    case M3_WHERE_BEFORE_VISION_LAYERS:
    case M3_WHERE_AFTER_VISION_LAYERS:
    case M3_WHERE_BEFORE_LAYERS:
    case M3_WHERE_AFTER_LAYERS: return -1;
    case M3_WHERE_EVERY_VISION_LAYER: return 0;
    default: return op->kind & M3_LAYER_MODULE ? M3_MTP_LAYER : 0;
    }
}

int m3_operator_reads(const struct m3_operator_row *op, enum m3_tap tap)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        if (op->operands[i].role == M3_ROLE_TAP && op->operands[i].tap == tap) return 1;
    return 0;
}
