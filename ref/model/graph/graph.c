#include "model/graph/graph.h"

#include <stdlib.h>

#include "model/semantics.h"

const struct m3_node *m3_graph_last(const struct m3_graph *graph, enum m3_tap tap)
{
    for (int64_t i = graph->count - 1; i >= 0; i--)
        if (graph->nodes[i].tap == tap) return &graph->nodes[i];
    return NULL;
}

const struct m3_weight *m3_node_weight(const struct m3_model *model, const struct m3_node *node, int i)
{
    const int64_t layer = node->layer;
    const struct m3_layer *in;
    const void *base = NULL;
    if (i < 0 || i >= node->weight_count) return NULL;
    const struct m3_weight_place *place = &node->weights[i];
    switch (place->of) {
    case M3_OF_MODEL: base = model; break;
    case M3_OF_LAYER:
    case M3_OF_EXPERTS:
        in = model->layers ? &model->layers[m3_layer_index(&model->config, layer)] : NULL;
        base = in && place->of == M3_OF_EXPERTS ? (const void *)in->experts : in;
        break;
    case M3_OF_MTP: base = &model->mtp[m3_mtp_module_of(layer)]; break;
    case M3_OF_VISION_LAYER: base = &model->vision.layers[layer]; break;
    case M3_OF_NOTHING: break;
    }
    return base ? (const struct m3_weight *)(const void *)((const char *)base + place->offset) : NULL;
}

const struct m3_node *m3_graph_reader(const struct m3_graph *graph, const struct m3_node *node, enum m3_operator op)
{
    for (const struct m3_node *at = node + 1; at < graph->nodes + graph->count; at++)
        if (at->op == op && at->inputs[0] == node) return at;
    return NULL;
}

/* ---- calls */

enum m3_tap m3_computed_with(enum m3_tap tap)
{
    switch (tap) {
    case M3_TAP_ATTN_LSE: return M3_TAP_ATTN;
    case M3_TAP_EXPERT_WEIGHTS: return M3_TAP_EXPERTS;
    case M3_TAP_EXPERT_OUT: return M3_TAP_ROUTED;
    default: return tap;
    }
}

enum m3_tap m3_computed_beside(enum m3_tap tap)
{
    switch (tap) {
    case M3_TAP_ATTN: return M3_TAP_ATTN_LSE;
    case M3_TAP_EXPERTS: return M3_TAP_EXPERT_WEIGHTS;
    case M3_TAP_ROUTED: return M3_TAP_EXPERT_OUT;
    default: return M3_TAPS;
    }
}

const struct m3_node *m3_call_input(const struct m3_node *node, int i)
{
    for (int k = 0; k < node->input_count; k++) {
        const struct m3_node *input = node->inputs[k];
        const int is_of_call = input->tap != node->tap && m3_computed_with(input->tap) == node->tap;
        const int count = is_of_call ? input->input_count : 1;
        if (i < count) return is_of_call ? input->inputs[i] : input;
        i -= count;
    }
    return NULL;
}

/* ---- of a model */

/* The readings that change edges, all of modules: two values each. */
enum { JOINS = 1, EMBEDS = 2, HANDS_OVER = 4, READINGS = 8 };

static int reading_of(const struct m3_semantics *s)
{
    return (s->mtp_join == M3_MTP_ADDITIVE ? JOINS : 0) + (s->mtp_embed == M3_MTP_EMBED_FUSED ? EMBEDS : 0) +
           (s->mtp_handover == M3_HANDOVER_POST_NORM ? HANDS_OVER : 0);
}

int m3_graphs_record(struct m3_model *model, struct m3_error *error)
{
    const int readings = model->mtp_modules > 0 ? READINGS : 1;
    struct m3_semantics s = model->config.semantics;
    int status = M3_OK;
    model->graphs = calloc(READINGS, sizeof *model->graphs);
    if (!model->graphs) return m3_fail_memory(error, "the graph", READINGS * sizeof *model->graphs);
    for (int i = 0; i < readings && !status; i++) {
        s.mtp_join = i & JOINS ? M3_MTP_ADDITIVE : M3_MTP_CONCAT;
        s.mtp_embed = i & EMBEDS ? M3_MTP_EMBED_FUSED : M3_MTP_EMBED_ID;
        s.mtp_handover = i & HANDS_OVER ? M3_HANDOVER_POST_NORM : M3_HANDOVER_PRE_NORM;
        status = m3_graph_record(&model->graphs[i], &model->config, model->mtp_modules, &s, error);
    }
    return status;
}

void m3_graphs_free(struct m3_model *model)
{
    for (int i = 0; model->graphs && i < READINGS; i++) m3_graph_free(&model->graphs[i]);
    free(model->graphs);
    model->graphs = NULL;
}

const struct m3_graph *m3_graph_of(const struct m3_model *model, const struct m3_semantics *semantics)
{
    return &model->graphs[model->mtp_modules > 0 ? reading_of(semantics) : 0];
}

const struct m3_node *m3_graph_node(const struct m3_model *model, const struct m3_semantics *semantics, enum m3_tap tap,
                                    int64_t layer)
{
    static const struct m3_node none = { .op = M3_OP_NONE };
    const struct m3_node *node = m3_graph_find(m3_graph_of(model, semantics), tap, layer);
    return node ? node : &none;
}

const struct m3_node *m3_graph_made(const struct m3_model *model, const struct m3_semantics *semantics, enum m3_tap tap,
                                    int64_t layer)
{
    static const struct m3_semantics released;
    const struct m3_node *node = m3_graph_node(model, semantics, tap, layer);
    return node->op != M3_OP_NONE ? node : m3_graph_node(model, &released, tap, layer);
}

int m3_graph_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_model *model,
                     const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer, int i)
{
    const struct m3_node *node = m3_graph_node(model, semantics, tap, layer);
    if (i < 0 || i >= node->input_count) return -1;
    *operand = node->inputs[i]->tap;
    *operand_layer = node->inputs[i]->layer;
    return 0;
}

const struct m3_weight *m3_graph_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                        enum m3_tap tap, int64_t layer, int i)
{
    return m3_node_weight(model, m3_graph_node(model, semantics, tap, layer), i);
}

const struct m3_weight *m3_graph_made_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                             enum m3_tap tap, int64_t layer, int i)
{
    return m3_node_weight(model, m3_graph_made(model, semantics, tap, layer), i);
}
