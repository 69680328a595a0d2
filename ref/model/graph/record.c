#include "model/graph/record.h"

#include <stdlib.h>
#include <string.h>

#include "model/engine.h"
#include "model/graph/graph.h"
#include "model/pictures.h"

/* Steps as they come, those without a tap too. */
struct step {
    struct m3_recorded step;
    int64_t layer;
    int64_t in[M3_STEP_INPUTS]; /* steps */
    int in_count;
    int64_t node; /* -1: it has none yet */
};

struct m3_recorder {
    struct step *steps;
    int64_t count, room;
};

/* The last step that wrote the byte; -1: none did. */
static int64_t writer_of(const struct m3_recorder *r, const void *at)
{
    const char *byte = at;
    for (int64_t i = r->count - 1; i >= 0; i--) {
        const char *y = r->steps[i].step.y;
        if (y && byte >= y && byte < y + r->steps[i].step.bytes) return i;
    }
    return -1;
}

static struct step *next(struct m3_recorder *r, struct m3_error *error)
{
    if (r->count == r->room) {
        const int64_t room = 2 * r->room + 256;
        struct step *steps = realloc(r->steps, (size_t)room * sizeof *steps);
        if (!steps) {
            m3_fail_memory(error, "the graph", (size_t)room * sizeof *steps);
            return NULL;
        }
        r->steps = steps;
        r->room = room;
    }
    return &r->steps[r->count];
}

int m3_record(struct m3_recorder *r, int64_t layer, const struct m3_recorded *step, struct m3_error *error)
{
    struct step *mine = next(r, error);
    if (!mine) return M3_INTERNAL;
    *mine = (struct step){ .step = *step, .layer = layer, .node = -1 };
    for (int i = 0; i < M3_STEP_INPUTS && step->in[i]; i++) {
        const int64_t from = writer_of(r, step->in[i]);
        if (from >= 0) mine->in[mine->in_count++] = from;
    }
    r->count++;
    return M3_OK;
}

int m3_record_shown(struct m3_recorder *r, int64_t layer, enum m3_tap tap, const void *data, struct m3_error *error)
{
    const int64_t from = writer_of(r, data);
    struct step *prepared = from >= 0 ? &r->steps[from] : NULL;
    if (prepared && !prepared->step.is_shown && prepared->step.tap == tap && prepared->layer == layer) {
        prepared->step.is_shown = 1;
        return M3_OK;
    }
    const struct m3_recorded copy = {
        .op = prepared ? M3_OP_COPY : M3_OP_INPUT, .tap = tap, .is_shown = 1, .y = data, .bytes = 1, .in = { data }
    };
    return m3_record(r, layer, &copy, error);
}

/* ---- from steps to taps */

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

static int make_shape(struct shape *s, const struct m3_config *c, int64_t modules, struct m3_error *error)
{
    const size_t layers = (size_t)(c->layers + modules);
    *s = (struct shape){ .model = { .config = *c, .mtp_modules = modules } };
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

const struct m3_weight *m3_node_weight(const struct m3_model *model, const struct m3_node *node, int i)
{
    const int64_t layer = node->layer, module = m3_mtp_module_of(layer);
    const struct m3_weight_place *place = &node->weights[i];
    const struct m3_layer *in = i < node->weight_count && model->layers && layer >= 0
                                    ? &model->layers[m3_layer_index(&model->config, layer)]
                                    : NULL;
    const void *base = NULL;
    if (i < 0 || i >= node->weight_count) return NULL;
    switch (place->of) {
    case M3_OF_MODEL: base = model; break;
    case M3_OF_LAYER: base = in; break;
    case M3_OF_MTP: base = module >= 0 ? &model->mtp[module] : NULL; break;
    case M3_OF_VISION_LAYER: base = &model->vision.layers[layer]; break;
    case M3_OF_EXPERTS: base = in ? in->experts : NULL; break;
    case M3_OF_VISION: base = &model->vision; break;
    case M3_OF_NOTHING: break;
    }
    return base ? (const struct m3_weight *)(const void *)((const char *)base + place->offset) : NULL;
}

struct making {
    const struct m3_recorder *of;
    const struct shape *shape;
    struct m3_graph *graph;
};

static void add_input(struct m3_node *node, int64_t input)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] == input) return;
    if (node->input_count < M3_NODE_INPUTS) node->inputs[node->input_count++] = input;
}

/* The embedding of other rows is that tap too. */
static int64_t embedding(const struct making *m)
{
    for (int64_t i = 0; i < m->graph->count; i++)
        if (m->graph->nodes[i].tap == M3_TAP_EMBED) return i;
    return -1;
}

/* Adds what a step reads to the node; what steps without a tap did becomes part of it. */
static void read_inputs(struct m3_node *node, const struct making *m, const struct step *step)
{
    for (int i = 0; i < step->in_count; i++) {
        const struct step *from = &m->of->steps[step->in[i]];
        if (from->node >= 0) add_input(node, from->node);
        else if (from->step.op == M3_OP_EMBED) add_input(node, embedding(m));
        else {
            if (from->step.op == M3_OP_ACTIVATION) node->op = M3_OP_GATED_MLP;
            else if (from->step.op == M3_OP_LINEAR && node->op == M3_OP_ADD) node->op = M3_OP_LINEAR;
            read_inputs(node, m, from);
        }
    }
    for (int i = 0; i < M3_STEP_WEIGHTS && step->step.w[i]; i++)
        if (node->weight_count < M3_NODE_WEIGHTS)
            node->weights[node->weight_count++] = place_of(m->shape, step->step.w[i]);
}

static int make_nodes(struct m3_graph *graph, struct m3_recorder *r, const struct shape *shape, struct m3_error *error)
{
    struct making m = { r, shape, graph };
    graph->nodes = calloc((size_t)r->count + 1, sizeof *graph->nodes);
    if (!graph->nodes) return m3_fail_memory(error, "the graph", (size_t)r->count * sizeof *graph->nodes);
    for (int64_t i = 0; i < r->count; i++) {
        struct step *step = &r->steps[i];
        if (!step->step.is_shown) continue;
        struct m3_node *node = &graph->nodes[graph->count];
        *node = (struct m3_node){ .op = step->step.op, .tap = step->step.tap, .layer = step->layer };
        read_inputs(node, &m, step);
        step->node = graph->count++;
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

void m3_graph_free(struct m3_graph *graph)
{
    free(graph->nodes);
    *graph = (struct m3_graph){ 0 };
}

const struct m3_node *m3_graph_find(const struct m3_graph *graph, enum m3_tap tap, int64_t layer)
{
    for (int64_t i = 0; i < graph->count; i++)
        if (graph->nodes[i].tap == tap && graph->nodes[i].layer == layer) return &graph->nodes[i];
    return NULL;
}
