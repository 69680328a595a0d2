/* A pass is recorded, and its steps become nodes. */
#include <stdlib.h>

#include "base/minmax.h"
#include "model/engine.h"
#include "model/graph/graph.h"
#include "model/graph/record.h"
#include "model/pictures.h"

/* A model of the config without weights: what counts is where in it they would be. */
struct shape {
    struct m3_model model;
    struct m3_expert expert; /* every layer's first */
};

static void release(struct shape *s)
{
    free(s->model.layers);
    free(s->model.mtp);
    free(s->model.vision.layers);
}

/* Edges do not depend on sizes, but for that of a shared expert, which may be 0. */
static struct m3_config with_small_sizes(const struct m3_config *c)
{
    struct m3_config small = *c;
    struct m3_vision_config *v = &small.vision;
    small.H = small.Q = small.G = small.X = small.V = small.E = small.K = small.F = small.block = small.N = 1;
    small.D = small.R = 2;
    small.dense_intermediate = 1;
    small.shared_intermediate = c->shared_intermediate != 0;
    v->W = v->U = 6;
    v->A = v->intermediate = v->patch = v->channels = v->spatial_merge = v->temporal_patch = v->projector_hidden = 1;
    return small;
}

static int make_shape(struct shape *s, const struct m3_config *c, int64_t modules, struct m3_error *error)
{
    const size_t layers = (size_t)(c->layers + modules);
    *s = (struct shape){ .model = { .config = with_small_sizes(c), .mtp_modules = modules } };
    s->model.layers = calloc(layers + 1, sizeof *s->model.layers);
    s->model.mtp = calloc((size_t)modules + 1, sizeof *s->model.mtp);
    s->model.vision.layers = calloc((size_t)c->vision.layers + 1, sizeof *s->model.vision.layers);
    if (!s->model.layers || !s->model.mtp || !s->model.vision.layers)
        return m3_fail_memory(error, "the graph", layers * sizeof *s->model.layers);
    for (size_t l = 0; l < layers; l++) s->model.layers[l].experts = &s->expert;
    return M3_OK;
}

/* Is it in the array of `count` structs of `size` bytes? Then its offset in one of them. */
static int is_in(size_t *offset, const void *weight, const void *array, int64_t count, size_t size)
{
    const uintptr_t at = (uintptr_t)weight, begin = (uintptr_t)array;
    if (at < begin || at >= begin + (size_t)count * size) return 0;
    *offset = (at - begin) % size;
    return 1;
}

static struct m3_weight_place place_of(const struct shape *s, const struct m3_weight *w)
{
    const struct m3_model *m = &s->model;
    struct m3_weight_place place = { M3_OF_NOTHING, 0 };
    if (is_in(&place.offset, w, m, 1, sizeof *m)) place.of = M3_OF_MODEL;
    else if (is_in(&place.offset, w, m->layers, m->config.layers + m->mtp_modules, sizeof *m->layers))
        place.of = M3_OF_LAYER;
    else if (is_in(&place.offset, w, m->mtp, m->mtp_modules, sizeof *m->mtp)) place.of = M3_OF_MTP;
    else if (is_in(&place.offset, w, m->vision.layers, m->config.vision.layers, sizeof *m->vision.layers))
        place.of = M3_OF_VISION_LAYER;
    else if (is_in(&place.offset, w, &s->expert, 1, sizeof s->expert)) place.of = M3_OF_EXPERTS;
    return place;
}

struct making {
    const struct m3_recorder *of;
    const struct shape *shape;
    struct m3_graph *graph;
};

static void add_input(struct m3_node *node, const struct m3_node *input)
{
    if (node->input_count < M3_OPERANDS) node->inputs[node->input_count++] = input;
}

static int has_input(const struct m3_node *node, const struct m3_node *input)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] == input) return 1;
    return 0;
}

/* The embedding of other rows is that tap too. */
static void add_embedding(struct m3_node *node, const struct m3_graph *graph)
{
    for (int64_t i = 0; i < graph->count; i++)
        if (graph->nodes[i].tap == M3_TAP_EMBED) add_input(node, &graph->nodes[i]);
    node->shift = m3_mtp_module_of(node->layer) + 1;
}

/* Adds what a step reads, from row `shift` on, to the node; what steps without a tap did becomes part of it. The node's
 * own step may read a tap twice, x + x; of what the other steps read, a tap counts once. */
static void read_inputs(struct m3_node *node, const struct making *m, const struct m3_recorded_step *step,
                        int64_t shift)
{
    for (int i = 0; i < step->in_count; i++) {
        const struct m3_recorded_step *from = &m->of->steps[step->in[i]];
        const int64_t before = shift + step->rows_before[i];
        if (from->node >= 0) {
            if (node->input_count == 0) node->shift = before;
            const struct m3_node *input = &m->graph->nodes[from->node];
            if (step->step.is_shown || !has_input(node, input)) add_input(node, input);
        } else if (from->step.op == M3_OP_EMBED) {
            add_embedding(node, m->graph);
        } else {
            node->is_noisy |= from->step.is_noise;
            if (from->step.op == M3_OP_ACTIVATION) node->op = M3_OP_GATED_MLP;
            if (from->step.op == M3_OP_LINEAR && node->op == M3_OP_ADD) {
                node->op = M3_OP_LINEAR;
                node->adds_input = 1;
            }
            read_inputs(node, m, from, before);
        }
    }
    for (int i = 0; i < M3_STEP_WEIGHTS && step->step.w[i]; i++)
        if (node->weight_count < M3_NODE_WEIGHTS)
            node->weights[node->weight_count++] = place_of(m->shape, step->step.w[i]);
}

/* Where the node of a tap and layer is listed; -1: there is no such layer. */
static int64_t place_in(const struct m3_graph *graph, enum m3_tap tap, int64_t layer)
{
    const int64_t module = m3_mtp_module_of(layer), l = module < 0 ? layer : graph->layers + module;
    if ((int)tap < 0 || tap >= M3_TAPS || l < -1 || l >= graph->places - 1) return -1;
    const int is_of_tower = m3_tap_table[tap].where == M3_WHERE_EVERY_VISION_LAYER;
    if (is_of_tower ? module >= 0 : module < 0 && layer >= graph->layers) return -1;
    return (int64_t)tap * graph->places + l + 1;
}

static int make_nodes(struct m3_graph *graph, struct m3_recorder *r, const struct shape *shape, struct m3_error *error)
{
    struct making m = { r, shape, graph };
    const struct m3_config *c = &shape->model.config;
    graph->layers = c->layers;
    graph->places = 1 + m3_max(c->layers + shape->model.mtp_modules, c->vision.layers);
    graph->nodes = calloc((size_t)r->count + 1, sizeof *graph->nodes);
    graph->at = calloc((size_t)(M3_TAPS * graph->places), sizeof *graph->at);
    if (!graph->nodes || !graph->at) return m3_fail_memory(error, "the graph", (size_t)r->count * sizeof *graph->nodes);
    for (int64_t i = 0; i < r->count; i++) {
        struct m3_recorded_step *step = &r->steps[i];
        if (!step->step.is_shown) continue;
        struct m3_node *node = &graph->nodes[graph->count];
        *node = (struct m3_node){ .op = step->step.op, .tap = step->step.tap, .layer = step->layer };
        if (m3_tap_table[node->tap].kind == M3_KIND_COUNTS) node->op = M3_OP_NONE;
        read_inputs(node, &m, step, 0);
        step->node = graph->count++;
        graph->at[place_in(graph, node->tap, node->layer)] = (int32_t)graph->count;
    }
    return M3_OK;
}

/* ---- the pass */

/* One picture of as few patches as can be merged. */
static int smallest_picture(struct m3_pictures *pictures, const struct m3_vision_config *c, struct m3_error *error)
{
    const int64_t grid[1][3] = { { 1, c->spatial_merge, c->spatial_merge } };
    return m3_pictures_add_grids(pictures, 0, grid, 1, c, "the graph", error);
}

/* As many rows as the last module needs. */
static int pass(struct m3_recorder *recorder, const struct shape *shape, const struct m3_semantics *semantics,
                struct m3_error *error)
{
    const struct m3_model *model = &shape->model;
    const int64_t T = model->mtp_modules + 2;
    struct m3_pictures pictures = { 0 };
    int32_t *ids = calloc((size_t)T, sizeof *ids);
    int64_t *positions = calloc((size_t)T, sizeof *positions);
    int status = ids && positions ? M3_OK : m3_fail_memory(error, "the graph", (size_t)T * sizeof *ids);
    if (!status && model->config.vision.present) status = smallest_picture(&pictures, &model->config.vision, error);
    if (!status) {
        const struct m3_request request = { .ids = ids,
                                            .positions = positions,
                                            .T = T,
                                            .threads = 1,
                                            .end_layer = model->config.layers,
                                            .semantics = semantics,
                                            .pictures = pictures.P > 0 ? &pictures : NULL,
                                            .recorder = recorder };
        status = m3_engine_f32()->forward(model, &request, error);
    }
    m3_pictures_free(&pictures);
    free(positions);
    free(ids);
    return status;
}

int m3_graph_record(struct m3_graph *graph, const struct m3_config *config, int64_t modules,
                    const struct m3_semantics *semantics, struct m3_error *error)
{
    struct m3_recorder recorder = { 0 };
    struct shape shape;
    *graph = (struct m3_graph){ 0 };
    int status = make_shape(&shape, config, modules, error);
    if (!status) status = pass(&recorder, &shape, semantics, error);
    if (!status) status = make_nodes(graph, &recorder, &shape, error);
    release(&shape);
    free(recorder.steps);
    return status;
}

int m3_graph_record_every_tap(struct m3_graph *graph, struct m3_error *error)
{
    unsigned char of_layers[2] = { 0, 1 };
    const struct m3_config config = { .layers = 2,
                                      .sparse = of_layers,
                                      .moe = of_layers,
                                      .shared_intermediate = 1,
                                      .vision = { .present = 1, .layers = 2 } };
    return m3_graph_record(graph, &config, 2, &config.semantics, error);
}

void m3_graph_free(struct m3_graph *graph)
{
    free(graph->nodes);
    free(graph->at);
    *graph = (struct m3_graph){ 0 };
}

const struct m3_node *m3_graph_find(const struct m3_graph *graph, enum m3_tap tap, int64_t layer)
{
    const int64_t place = place_in(graph, tap, layer);
    return place >= 0 && graph->at[place] > 0 ? &graph->nodes[graph->at[place] - 1] : NULL;
}
