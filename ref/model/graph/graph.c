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

struct reading {
    struct m3_semantics semantics;
    struct m3_graph graph;
};

/* One reading for every choice of values of the fields that change edges. */
struct m3_graphs {
    struct reading *readings;
    int count;
    uint64_t fields; /* bit i: row i of model/semantics.c is one of them */
};

static int is_same_node(const struct m3_node *a, const struct m3_graph *of_a, const struct m3_node *b,
                        const struct m3_graph *of_b)
{
    int same = a->op == b->op && a->tap == b->tap && a->layer == b->layer && a->input_count == b->input_count &&
               a->weight_count == b->weight_count && a->shift == b->shift && a->is_noisy == b->is_noisy &&
               a->adds_input == b->adds_input;
    for (int i = 0; same && i < a->input_count; i++) same = a->inputs[i] - of_a->nodes == b->inputs[i] - of_b->nodes;
    for (int i = 0; same && i < a->weight_count; i++)
        same = a->weights[i].of == b->weights[i].of && a->weights[i].offset == b->weights[i].offset;
    return same;
}

static int is_same_graph(const struct m3_graph *a, const struct m3_graph *b)
{
    int same = a->count == b->count;
    for (int64_t i = 0; same && i < a->count; i++) same = is_same_node(&a->nodes[i], a, &b->nodes[i], b);
    return same;
}

static int add_reading(struct m3_graphs *all, const struct m3_model *model, const struct m3_semantics *semantics,
                       struct m3_error *error)
{
    const size_t bytes = (size_t)(all->count + 1) * sizeof *all->readings;
    struct reading *readings = realloc(all->readings, bytes);
    if (!readings) return m3_fail_memory(error, "the graph", bytes);
    all->readings = readings;
    readings[all->count].semantics = *semantics;
    return m3_graph_record(&readings[all->count++].graph, &model->config, model->mtp_modules, semantics, error);
}

/* The readings so far with every other value of a field; they stay if one of them has other edges. */
static int add_field(struct m3_graphs *all, const struct m3_model *model, int i, struct m3_error *error)
{
    const struct m3_field *field = m3_semantics_at(i);
    const int before = all->count;
    int differs = 0, status = M3_OK;
    for (int k = 0; k < before; k++) {
        struct m3_semantics other = all->readings[k].semantics;
        for (int value = 0; !status && m3_field_set_tried(&other, field, value); value++) {
            if (m3_field_is_same(&other, &all->readings[k].semantics, field)) continue;
            status = add_reading(all, model, &other, error);
            differs |= !status && !is_same_graph(&all->readings[k].graph, &all->readings[all->count - 1].graph);
        }
    }
    if (differs) all->fields |= UINT64_C(1) << i;
    while (!differs && all->count > before) m3_graph_free(&all->readings[--all->count].graph);
    return status;
}

int m3_graphs_record(struct m3_model *model, struct m3_error *error)
{
    const struct m3_field *field;
    model->graphs = calloc(1, sizeof *model->graphs);
    if (!model->graphs) return m3_fail_memory(error, "the graph", sizeof *model->graphs);
    int status = add_reading(model->graphs, model, &model->config.semantics, error);
    for (int i = 0; !status && (field = m3_semantics_at(i)) != NULL; i++)
        if (m3_field_is_named(field)) status = add_field(model->graphs, model, i, error);
    return status;
}

void m3_graphs_free(struct m3_model *model)
{
    for (int i = 0; model->graphs && i < model->graphs->count; i++) m3_graph_free(&model->graphs->readings[i].graph);
    if (model->graphs) free(model->graphs->readings);
    free(model->graphs);
    model->graphs = NULL;
}

static int has_edges_of(const struct m3_graphs *all, int k, const struct m3_semantics *semantics)
{
    for (int i = 0; all->fields >> i; i++)
        if (all->fields >> i & 1 && !m3_field_is_same(&all->readings[k].semantics, semantics, m3_semantics_at(i)))
            return 0;
    return 1;
}

const struct m3_graph *m3_graph_of(const struct m3_model *model, const struct m3_semantics *semantics)
{
    const struct m3_graphs *all = model->graphs;
    int k = 0;
    while (k < all->count - 1 && !has_edges_of(all, k, semantics)) k++;
    return &all->readings[k].graph;
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
