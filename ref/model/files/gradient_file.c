#include "model/files/gradient_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/dump.h"
#include "model/readings.h"
#include "model/weights/tensors.h"

enum { ZEROS = 4096 };

/* A declared tensor: of a tap, or of a parameter. */
struct declared {
    enum m3_tap tap;
    int64_t layer;
    uint64_t id;                /* of the weight; 0: a tap */
};

struct m3_gradient_file {
    struct m3_writer *writer;
    const struct m3_gradient_run *run;
    const struct m3_config *config;
    const struct m3_pictures *pictures;         /* NULL: none */
    struct declared *declared;                  /* [count] by their number in the file */
    int64_t count, room, modules, T;
    struct m3_error *error;
};

/* ---- which gradients there are */

static int is_main(const struct m3_loss_weights *w) { return w->lm != 0 || w->mtp != 0 || w->aux != 0; }

static int is_index(enum m3_tap tap) { return tap >= M3_TAP_INDEX_Q_PROJ && tap <= M3_TAP_INDEX_K_ROPE; }

/* Taps that no gradient reaches: inputs, choices, what only a choice reads; and outputs of experts, which never exist
 * all at once. */
static int has_gradient(const struct m3_gradient_file *g, enum m3_tap tap, int64_t layer)
{
    const struct m3_loss_weights *w = &g->run->request->weights;
    switch (tap) {
    case M3_TAP_VISION_PIXELS:
    case M3_TAP_INDEX_BLOCK_SCORES:
    case M3_TAP_ATTN_LSE:
    case M3_TAP_EXPERT_OUT: return 0;
    case M3_TAP_LOGITS: return w->lm != 0;
    default: break;
    }
    if (m3_tap_table[tap].kind != M3_KIND_REALS) return 0;
    if (is_index(tap)) return w->kl != 0 && m3_mtp_module_of(layer) < 0;
    return is_main(w);
}

static int64_t size_of(const struct m3_gradient_file *g, char letter, int64_t layer)
{
    const struct m3_vision_config *v = &g->config->vision;
    switch (letter) {
    case 'T': return m3_layer_rows(layer, g->T);
    case 'P': return g->pictures->P;
    case 'M': return m3_merged(g->pictures->P, v);
    default: return m3_config_size(g->config, letter);
    }
}

/* ---- declaring */

static int add(struct m3_gradient_file *g, struct declared what, const char *name, int rank, const int64_t *shape)
{
    char whole[256];
    const enum m3_dtype dtype = g->run->engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;
    if (!m3_tap_matches(g->run->patterns, name)) return M3_OK;
    if (g->count == g->room) {
        const int64_t room = g->room ? 2 * g->room : 256;
        struct declared *more = realloc(g->declared, (size_t)room * sizeof *more);
        if (!more) return m3_fail_memory(g->error, "the names of gradients", (size_t)room * sizeof *more);
        g->declared = more;
        g->room = room;
    }
    g->declared[g->count++] = what;
    snprintf(whole, sizeof whole, "d.%s", name);
    return m3_writer_tensor(g->writer, whole, dtype, rank, shape, g->error);
}

static int declare_tap(struct m3_gradient_file *g, enum m3_tap tap, int64_t layer)
{
    int64_t shape[M3_MAX_RANK];
    char name[96];
    int rank = 0;
    if (!has_gradient(g, tap, layer)) return M3_OK;
    for (const char *s = m3_tap_table[tap].shape; *s; s++) shape[rank++] = size_of(g, *s, layer);
    m3_tap_name(name, sizeof name, tap, layer);
    return add(g, (struct declared){ tap, layer, 0 }, name, rank, shape);
}

static int declare_part(struct m3_gradient_file *g, enum m3_tap_where where, int64_t layer)
{
    int status = M3_OK;
    for (int tap = 0; !status && tap < M3_TAPS; tap++)
        if (m3_tap_table[tap].where == where) status = declare_tap(g, tap, layer);
    return status;
}

static int declare_layer(struct m3_gradient_file *g, int64_t layer)
{
    int status = M3_OK;
    for (int tap = 0; !status && tap < M3_TAPS; tap++) {
        const enum m3_tap_where where = m3_tap_table[tap].where;
        const int in_layers = where >= M3_WHERE_EVERY_LAYER && where < M3_WHERE_AFTER_LAYERS;
        if (in_layers && m3_layer_has_tap(g->config, tap, layer)) status = declare_tap(g, tap, layer);
    }
    return status;
}

/* In execution order, as dump.c declares them. */
static int declare_taps(struct m3_gradient_file *g)
{
    int status = M3_OK;
    if (g->pictures) status = declare_part(g, M3_WHERE_BEFORE_VISION_LAYERS, -1);
    for (int64_t v = 0; !status && g->pictures && v < g->config->vision.layers; v++)
        status = declare_part(g, M3_WHERE_EVERY_VISION_LAYER, v);
    if (!status && g->pictures) status = declare_part(g, M3_WHERE_AFTER_VISION_LAYERS, -1);
    if (!status) status = declare_part(g, M3_WHERE_BEFORE_LAYERS, -1);
    for (int64_t l = 0; !status && l < g->config->layers; l++) status = declare_layer(g, l);
    if (!status) status = declare_part(g, M3_WHERE_AFTER_LAYERS, -1);
    for (int64_t m = 0; !status && m < g->modules; m++) {
        const int64_t layer = M3_MTP_LAYER + m;
        for (int tap = M3_TAP_MTP_EMBED_NORM; !status && tap <= M3_TAP_MTP_EH_PROJ; tap++)
            status = declare_tap(g, tap, layer);
        if (!status) status = declare_layer(g, layer);
        if (!status) status = declare_tap(g, M3_TAP_MTP_FINAL_NORM, layer);
        if (!status) status = declare_tap(g, M3_TAP_MTP_LOGITS, layer);
    }
    return status;
}

/* The bias that chooses experts has no gradient. */
static int is_reached(const struct m3_gradient_file *g, const struct m3_tensor_spec *spec)
{
    const struct m3_loss_weights *w = &g->run->request->weights;
    const int64_t module = spec->row->where == M3_IN_MTP ? spec->layer : spec->layer - g->config->layers;
    if (spec->row->field == offsetof(struct m3_layer, router_bias) && spec->row->where == M3_IN_MOE) return 0;
    switch (spec->row->where) {
    case M3_IN_VISION:
    case M3_IN_VISION_LAYER: return is_main(w) && g->pictures;
    case M3_IN_MTP: return module < g->modules;
    case M3_IN_MODEL:
    case M3_IN_LM_HEAD: return is_main(w);
    case M3_IN_SPARSE: return w->kl != 0 && module < 0;
    default: return module >= 0 ? module < g->modules : is_main(w);
    }
}

static int declare_parameter(void *self, const struct m3_tensor_spec *spec)
{
    struct m3_gradient_file *g = self;
    char name[224];
    if (!is_reached(g, spec)) return M3_OK;
    snprintf(name, sizeof name, "param.%s", spec->name);
    const struct declared what = { .id = m3_tensor_field(g->run->model, spec)->id };
    return add(g, what, name, spec->rank, spec->shape);
}

/* Only if some differ from the defaults. */
static int describe_readings(struct m3_gradient_file *g)
{
    char *readings = m3_readings_json(&g->run->request->readings);
    int status = readings ? M3_OK : m3_fail_memory(g->error, "readings", 0);
    if (!status && strcmp(readings, "{}") != 0) status = m3_writer_metadata(g->writer, "readings", readings, g->error);
    free(readings);
    return status;
}

static int describe(struct m3_gradient_file *g)
{
    const struct m3_gradient_run *run = g->run;
    const struct m3_loss_weights *w = &run->request->weights;
    struct m3_case c = run->batch->cases[0];
    char weights[200];
    memcpy(c.sha256, run->batch->sha256, sizeof c.sha256);
    snprintf(weights, sizeof weights, "{\"lm\": %.17g, \"mtp\": %.17g, \"aux\": %.17g, \"kl\": %.17g}", w->lm, w->mtp,
             w->aux, w->kl);
    int status =
        m3_dump_describe(g->writer, run->model, run->engine, &c, run->request->sequences, run->command, g->error);
    if (!status) status = m3_writer_metadata(g->writer, "labels_sha256", run->labels->sha256, g->error);
    if (!status) status = m3_writer_metadata(g->writer, "loss_weights", weights, g->error);
    return status ? status : describe_readings(g);
}

/* ---- receiving */

static int64_t find(const struct m3_gradient_file *g, enum m3_tap tap, int64_t layer)
{
    for (int64_t i = 0; i < g->count; i++)
        if (!g->declared[i].id && g->declared[i].tap == tap && g->declared[i].layer == layer) return i;
    return -1;
}

static int wants(void *self, enum m3_tap tap, int64_t layer) { return find(self, tap, layer) >= 0; }

static int write_tap(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                     struct m3_error *error)
{
    struct m3_gradient_file *g = self;
    int64_t width = 1;
    (void)row;
    for (const char *s = m3_tap_table[tap].shape + 1; *s; s++) width *= size_of(g, *s, layer);
    return m3_writer_append(g->writer, find(g, tap, layer), data, (uint64_t)(rows * width) * g->run->engine->real_bytes,
                            error);
}

static int write_parameter(void *self, const struct m3_weight *w, const void *gradient, struct m3_error *error)
{
    struct m3_gradient_file *g = self;
    for (int64_t i = 0; i < g->count; i++)
        if (g->declared[i].id == w->id && w->id)
            return m3_writer_append(g->writer, i, gradient, (uint64_t)(w->rows * w->cols) * g->run->engine->real_bytes,
                                    error);
    return M3_OK;
}

/* What no operator has added to is 0: experts of a layer that nobody chose, modules without a row. */
static int write_zeros(struct m3_gradient_file *g, struct m3_error *error)
{
    static const char zeros[ZEROS];
    int status = M3_OK;
    for (int64_t i = 0; !status && i < g->count; i++)
        for (uint64_t left; !status && (left = m3_writer_left(g->writer, i)) > 0;)
            status = m3_writer_append(g->writer, i, zeros, left < ZEROS ? left : ZEROS, error);
    return status;
}

/* ---- the file */

static int begin(struct m3_gradient_file *g, const char *path)
{
    const struct m3_gradient_run *run = g->run;
    int status = m3_writer_new(&g->writer, path, g->error);
    if (!status && run->request->count == 1) status = declare_taps(g);
    if (!status)
        status =
            m3_tensors_each(g->config, run->model->mtp_modules, m3_tensors_prefix(g->config), declare_parameter, g);
    if (!status && g->count == 0)
        status = m3_fail(g->error, M3_USAGE, "--taps: got %s, expected a pattern that matches a tap or a parameter",
                         run->patterns ? run->patterns : "*");
    if (!status) status = describe(g);
    return status ? status : m3_writer_begin(g->writer, g->error);
}

int m3_gradient_file_open(struct m3_gradient_file **file, struct m3_gradient_sink *sink, const char *path,
                          const struct m3_gradient_run *run, struct m3_error *error)
{
    struct m3_gradient_file *g = *file = calloc(1, sizeof *g);
    if (!g) return m3_fail_memory(error, "a file of gradients", sizeof *g);
    g->run = run;
    g->config = &run->model->config;
    g->pictures = run->request->sequences[0].pictures;
    g->T = run->request->sequences[0].T;
    g->modules = run->request->weights.mtp != 0 ? run->model->mtp_modules : 0;
    for (int64_t most = g->T - 1; run->request->count == 1 && g->modules > most;) g->modules = most;
    g->error = error;
    int status = begin(g, path);
    if (status) {
        m3_gradient_file_abandon(g);
        *file = NULL;
        return status;
    }
    *sink = (struct m3_gradient_sink){ .self = g, .wants = wants, .tap = write_tap, .parameter = write_parameter };
    return M3_OK;
}

int64_t m3_gradient_file_tensors(const struct m3_gradient_file *file) { return file->count; }

int m3_gradient_file_commit(struct m3_gradient_file *g, struct m3_error *error)
{
    int status = write_zeros(g, error);
    if (status) {
        m3_gradient_file_abandon(g);
        return status;
    }
    status = m3_writer_commit(g->writer, error);
    free(g->declared);
    free(g);
    return status;
}

void m3_gradient_file_abandon(struct m3_gradient_file *g)
{
    if (!g) return;
    m3_writer_abandon(g->writer);
    free(g->declared);
    free(g);
}
