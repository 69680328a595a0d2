#include "oracle/judge/companions/companions.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/origin.h"
#include "model/semantics.h"
#include "oracle/error/operators.h"
#include "oracle/judge/companions/private/companions.h"
#include "oracle/judge/rows/rows.h"

struct m3_companions {
    const struct m3_safetensors *dump, *file;       /* may be the same */
    struct m3_model *model;
    struct m3_semantics semantics;
    struct m3_case the_case;
};

enum { NAME = 128 };

const char *const m3_companion_names[M3_COMPANION_FIELDS] = { "bound",       "walk",   "gain",   "inside",
                                                              "inside_walk", "margin", "weight", "bias" };

int m3_is_companion(const char *name)
{
    const char *end = strrchr(name, '.');
    for (int i = 0; end && i < M3_COMPANION_FIELDS; i++)
        if (end > name && strcmp(end + 1, m3_companion_names[i]) == 0) return 1;
    return m3_is_row_statistic(name) || strcmp(name, "rows") == 0 || strcmp(name, "vision.rows") == 0;
}

int m3_companions_in(const struct m3_safetensors *file) { return m3_safetensors_metadata(file, "config") != NULL; }

const struct m3_model *m3_companions_model(const struct m3_companions *companions) { return companions->model; }
const struct m3_semantics *m3_companions_semantics(const struct m3_companions *companions)
{
    return &companions->semantics;
}
const struct m3_case *m3_companions_case(const struct m3_companions *companions) { return &companions->the_case; }

/* "got [3,4] F32, expected [3,5] F64" */
static int misshapen(const struct m3_companions *c, const struct m3_tensor *got, int rank, const int64_t *shape,
                     const char *dtype, struct m3_error *error)
{
    char text[2][160];
    const int ranks[] = { got->rank, rank };
    const int64_t *const shapes[] = { got->shape, shape };
    for (int k = 0; k < 2; k++) {
        size_t n = 0;
        for (int i = 0; i < ranks[k] && n < sizeof text[k]; i++)
            n += (size_t)snprintf(text[k] + n, sizeof text[k] - n, "%s%" PRId64, i ? "," : "", shapes[k][i]);
        if (ranks[k] == 0) text[k][0] = '\0';
    }
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got [%s] %s, expected [%s] %s", m3_safetensors_path(c->file),
                   got->name, text[0], m3_dtype_name(got->dtype), text[1], dtype);
}

static int is_float(enum m3_dtype dtype)
{
    return dtype == M3_F64 || dtype == M3_F32 || dtype == M3_F16 || dtype == M3_BF16;
}

/* ---- the model */

/* The number of MTP modules, from the taps that the file names. */
static int64_t modules_in(const struct m3_safetensors *file)
{
    int64_t modules = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const char *name = m3_safetensors_at(file, i)->name;
        int64_t m = -1;
        if (sscanf(name, "mtp.%" SCNd64 ".", &m) == 1 && m >= modules && m < 1024) modules = m + 1;
    }
    return modules;
}

static int is_layer_of(const struct m3_companions *c, enum m3_tap tap, int64_t layer)
{
    const struct m3_config *config = &c->model->config;
    const enum m3_tap_where where = m3_tap_table[tap].where;
    if (where <= M3_WHERE_AFTER_VISION_LAYERS && !config->vision.present) return 0;
    if (where == M3_WHERE_EVERY_VISION_LAYER) return layer < config->vision.layers;
    if (m3_mtp_module_of(layer) >= 0) return m3_mtp_module_of(layer) < c->model->mtp_modules;
    return layer < config->layers;
}

/* The vector named by "<tap>.weight" or "<tap>.bias"; NULL if the tap has none. */
static struct m3_weight *vector_of(const struct m3_companions *c, enum m3_tap tap, int64_t layer, int is_bias)
{
    const struct m3_config *config = &c->model->config;
    if (!is_layer_of(c, tap, layer)) return NULL;
    if (tap == M3_TAP_EXPERTS) {
        int64_t l = m3_layer_index(config, layer);
        return is_bias && m3_config_moe(config, l) ? &c->model->layers[l].router_bias : NULL;
    }
    const enum m3_operator op = m3_graph_node(c->model, &c->semantics, tap, layer)->op;
    const int is_norm = op == M3_OP_RMS_NORM || op == M3_OP_LAYER_NORM;
    if (!is_norm && !(op == M3_OP_LINEAR && is_bias)) return NULL;
    const struct m3_weight *w = m3_graph_weight(c->model, &c->semantics, tap, layer, is_bias);
    return w && w->cols > 0 ? (struct m3_weight *)(uintptr_t)w : NULL;          /* of the model made here */
}

/* Binds a tensor to the vector that it is named after; tensors of other kinds are ignored. */
static int bind(struct m3_companions *c, const struct m3_tensor *tensor, struct m3_error *error)
{
    const char *end = strrchr(tensor->name, '.');
    const int is_bias = end && strcmp(end, ".bias") == 0;
    char tap_name[NAME];
    enum m3_tap tap;
    int64_t layer;
    if (!end || (!is_bias && strcmp(end, ".weight") != 0) || end - tensor->name >= NAME) return M3_OK;
    memcpy(tap_name, tensor->name, (size_t)(end - tensor->name));
    tap_name[end - tensor->name] = '\0';
    struct m3_weight *w = m3_tap_parse(tap_name, &tap, &layer) ? NULL : vector_of(c, tap, layer, is_bias);
    if (!w)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got a vector that belongs to no tap of the config, expected none",
                       m3_safetensors_path(c->file), tensor->name);
    if (!is_float(tensor->dtype) || tensor->rank != 1 || tensor->shape[0] != w->cols)
        return misshapen(c, tensor, 1, &w->cols, "floats", error);
    w->data = tensor->data;
    w->dtype = tensor->dtype;
    return M3_OK;
}

static int load_model(struct m3_companions *c, struct m3_error *error)
{
    const char *text = m3_safetensors_metadata(c->file, "config"), *path = m3_safetensors_path(c->file);
    struct m3_config config;
    struct m3_error notes = { 0 };
    int64_t modules = modules_in(c->dump), others = modules_in(c->file);
    if (!text)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: got no companions, expected a dump of run --bounds or a file of run "
                       "--companions",
                       path);
    int status = m3_config_parse(&config, text, path, &notes, error);
    m3_error_free(&notes);
    if (status) return status;
    status = m3_model_without_weights(&c->model, &config, modules > others ? modules : others, error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(c->file); i++)
        status = bind(c, m3_safetensors_at(c->file, i), error);
    return status;
}

int m3_companions_load(struct m3_companions **companions, const struct m3_safetensors *dump,
                       const struct m3_safetensors *file, struct m3_error *error)
{
    struct m3_companions *c = *companions = calloc(1, sizeof *c);
    if (!c) return m3_fail_memory(error, "companions", sizeof *c);
    c->dump = dump;
    c->file = file ? file : dump;
    m3_semantics_read(&c->semantics, m3_safetensors_metadata(c->file, "semantics"));
    int status = file ? m3_origin_same_run(file, dump, error) : M3_OK;
    if (!status) status = load_model(c, error);
    if (!status) status = m3_case_from_dump(&c->the_case, c->file, &c->model->config, error);
    if (!status)
        status = m3_case_check(&c->the_case, &c->model->config, 1, m3_safetensors_path(c->file), M3_BAD_INPUT, error);
    if (!status) return M3_OK;
    m3_companions_free(c);
    *companions = NULL;
    return status;
}

void m3_companions_free(struct m3_companions *c)
{
    if (!c) return;
    m3_model_close(c->model);
    m3_case_free(&c->the_case);
    free(c);
}

/* ---- one tap */

enum { FIELDS = M3_COMPANION_WEIGHT };

/* Tensor "<tap>.<field>" as doubles in place, or as a copy if they are unaligned or other floats in the file. */
static int numbers(const double **values, double **owned, const struct m3_tensor *t, struct m3_error *error)
{
    if (t->dtype == M3_F64 && (uintptr_t)t->data % _Alignof(double) == 0) {
        *values = t->data;
        return M3_OK;
    }
    *owned = malloc((size_t)t->count * sizeof **owned + 1);
    if (!*owned) return m3_fail_memory(error, t->name, (size_t)t->count * sizeof **owned);
    for (int64_t i = 0; i < t->count; i++) (*owned)[i] = m3_decode(t->dtype, t->data, i);
    *values = *owned;
    return M3_OK;
}

/* Does the tensor have the dimensions [from, to) of the tap? */
static int has_dimensions(const struct m3_tensor *t, const struct m3_tensor *tap, int from, int to)
{
    return t->rank == to - from && memcmp(t->shape, tap->shape + from, (size_t)t->rank * sizeof *t->shape) == 0;
}

/* Bounds have the shape of the tap; a gain too, or that of one row, flat; margins are one per decision. */
static int fits(const struct m3_tensor *t, const struct m3_tensor *tap, enum m3_companion_field field, int64_t width)
{
    if (!is_float(t->dtype)) return 0;
    if (field == M3_COMPANION_MARGIN) return has_dimensions(t, tap, 0, tap->rank - 1);
    if (field == M3_COMPANION_GAIN && t->rank == 1 && tap->rank > 1) return t->shape[0] == width;
    return has_dimensions(t, tap, 0, tap->rank);
}

static int read_field(struct m3_companion *out, const struct m3_companions *c, const struct m3_tensor *tap,
                      const char *name, enum m3_companion_field field, struct m3_error *error)
{
    const double **const to[FIELDS] = {
        &out->bound, &out->walk, &out->gain, &out->intermediates, &out->intermediates_walk, &out->margin
    };
    char whole[NAME + 16];
    snprintf(whole, sizeof whole, "%s.%s", name, m3_companion_names[field]);
    const struct m3_tensor *t = m3_safetensors_find(c->file, whole);
    if (!t) return M3_OK;
    if (!fits(t, tap, field, out->width))
        return misshapen(c, t, field == M3_COMPANION_MARGIN ? tap->rank - 1 : tap->rank, tap->shape, "floats", error);
    if (field == M3_COMPANION_GAIN) out->gain_stride = t->rank == tap->rank ? out->width : 0;
    if (field == M3_COMPANION_MARGIN) out->decisions = t->count;
    int status = numbers(to[field], &out->owned[field], t, error);
    const double *values = *to[field];
    for (int64_t i = 0; !status && field != M3_COMPANION_MARGIN && i < t->count; i++)
        if (!(values[i] >= 0 && values[i] < INFINITY))
            status =
                m3_fail(error, M3_BAD_INPUT, "%s: %s: element %" PRId64 ": got %g, expected a number of at least 0",
                        m3_safetensors_path(c->file), whole, i, values[i]);
    return status;
}

static int read_steps(int64_t *steps, const struct m3_companions *c, const char *name, const char *which,
                      struct m3_error *error)
{
    char key[NAME + 16], *end;
    snprintf(key, sizeof key, "%s.%s", name, which);
    const char *text = m3_safetensors_metadata(c->file, key);
    *steps = text ? strtoll(text, &end, 10) : -1;
    if (text && end != text && !*end && *steps >= 0) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected the number of steps of a bound",
                   m3_safetensors_path(c->file), key, text ? text : "none");
}

int m3_companion_read(struct m3_companion *out, const struct m3_companions *c, enum m3_tap tap, int64_t layer,
                      struct m3_error *error)
{
    char name[NAME];
    *out = (struct m3_companion){ .n = -1, .f = -1 };
    const struct m3_tensor *values =
        m3_tap_name(name, sizeof name, tap, layer) ? NULL : m3_safetensors_find(c->dump, name);
    if (!values || values->rank < 1) return M3_OK;
    out->rows = values->shape[0];
    out->width = 1;
    for (int i = 1; i < values->rank; i++) out->width *= values->shape[i];
    int status = M3_OK;
    for (int field = 0; field < FIELDS && !status; field++) status = read_field(out, c, values, name, field, error);
    if (!status && out->bound) status = read_steps(&out->n, c, name, "n", error);
    return status || !out->bound ? status : read_steps(&out->f, c, name, "f", error);
}

void m3_companion_free(struct m3_companion *companion)
{
    for (int i = 0; i < FIELDS; i++) free(companion->owned[i]);
    *companion = (struct m3_companion){ .n = -1, .f = -1 };
}
