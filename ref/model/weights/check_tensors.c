#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
/* Binds every tensor of a checkpoint to its field in the model, after checking name, dtype and shape against the table
 * in tensors.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/matrix.h"
#include "model/graph/graph.h"
#include "model/model.h"
#include "model/weights/tensors.h"

enum { MOST_FINDINGS = 100 };       /* the report for a checkpoint of another model would be endless */

/* The layers of a run; end 0: all of them. */
struct part {
    int64_t first, end, layers;
    int ends_with_embedding;    /* the head or a module after the last layer reads the embedding */
};

struct binder {
    struct m3_model *model;
    const struct part *part;
    const struct m3_tensor **claimed;       /* tensors that a row has claimed */
    int64_t count, capacity;
    int64_t findings;
    int64_t cast;                           /* tensors in 16 bits that the releases hold in F32 */
    uint64_t next_id;
    struct m3_error *error;
};

/* Is a tensor of this name needed, by the prefixes of SPEC 3.2? */
static int is_needed(void *self, const char *name)
{
    static const char layer[] = "model.layers.";
    static const char *const before[] = { "vision_tower.", "multi_modal_projector.", "patch_merge_mlp." };
    const struct part *part = self;
    const char *at = strstr(name, layer);
    if (part->end == 0) return 1;
    if (at) {
        const long long l = strtoll(at + strlen(layer), NULL, 10);
        return l >= part->first && l < part->end;
    }
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        if (strstr(name, before[i])) return part->first == 0;
    if (strstr(name, "embed_tokens"))
        return part->first == 0 || (part->end == part->layers && part->ends_with_embedding);
    return part->end == part->layers;
}

static int finding(struct binder *b, enum m3_status status, const char *path, const char *name, const char *what)
{
    if (++b->findings <= MOST_FINDINGS) m3_fail(b->error, status, "%s: %s: %s", path, name, what);
    return status;
}

/* "[3,4] F32" */
static void describe(char *text, size_t size, const char *dtype, int rank, const int64_t *shape)
{
    size_t n = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%" PRId64, i ? "," : "", shape[i]);
    if (n < size) snprintf(text + n, size - n, "] %s", dtype);
}

static void mismatch(struct binder *b, const char *path, const struct m3_tensor *got, const char *dtype, int rank,
                     const int64_t *shape)
{
    char is[160], should[160], what[400];
    describe(is, sizeof is, m3_dtype_name(got->dtype), got->rank, got->shape);
    describe(should, sizeof should, dtype, rank, shape);
    snprintf(what, sizeof what, "got %s, expected %s", is, should);
    finding(b, M3_BAD_INPUT, path, got->name, what);
}

static int same_shape(const struct m3_tensor *tensor, int rank, const int64_t *shape)
{
    return tensor->rank == rank && memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

/* The dtype rule of the row for this model family. */
static enum m3_tensor_dtype dtype_rule(const struct binder *b, const struct m3_tensor_spec *spec)
{
    int is_free = b->model->config.type == M3_TYPE_M2 || b->model->config.is_requantised;
    return is_free && spec->row->dtype == M3_TENSOR_FLOAT ? M3_TENSOR_PLAIN : spec->row->dtype;
}

static int dtype_fits(enum m3_dtype dtype, enum m3_tensor_dtype rule)
{
    if (dtype == M3_F32 || dtype == M3_F64) return 1;
    if (rule == M3_TENSOR_FLOAT) return 0;
    return dtype == M3_BF16 || dtype == M3_F16;
}

static const char *dtype_words(enum m3_tensor_dtype rule)
{
    switch (rule) {
    case M3_TENSOR_FLOAT: return "F32 or F64";
    case M3_TENSOR_PLAIN: return "BF16, F16, F32 or F64";
    default: return "BF16, F16, F32, F64, F8_E4M3 or codes of 4 bits";
    }
}

static int claim(struct binder *b, const struct m3_tensor *tensor)
{
    if (b->count == b->capacity) {
        int64_t capacity = b->capacity ? 2 * b->capacity : 1024;
        const struct m3_tensor **more = realloc(b->claimed, (size_t)capacity * sizeof *more);
        if (!more) return m3_fail_memory(b->error, "the binding table", (size_t)capacity * sizeof *more);
        b->claimed = more;
        b->capacity = capacity;
    }
    b->claimed[b->count++] = tensor;
    return M3_OK;
}

static const struct m3_tensor *find_tensor(const void *files, const char *name, const char **path)
{
    return m3_checkpoint_find(files, name, path);
}

static void add_problem(void *self, const char *path, const char *tensor, const char *what)
{
    finding(self, M3_BAD_INPUT, path, tensor, what);
}

static struct m3_tensor_source source_of(const struct binder *b)
{
    const struct m3_checkpoint *files = b->model->checkpoint;
    return (struct m3_tensor_source){ find_tensor, files, m3_checkpoint_config_path(files) };
}

/* Sets the shape of a weight, without data. */
static int shape_tensor(void *self, const struct m3_tensor_spec *spec)
{
    struct m3_weight weight = { .dtype = M3_F32, .rows = spec->rank > 1 ? spec->shape[0] : 1, .cols = 1 };
    for (int i = spec->rank > 1; i < spec->rank; i++) weight.cols *= spec->shape[i];
    *m3_tensor_field(self, spec) = weight;
    return M3_OK;
}

/* A matrix in codes, under one of its two names. */
static int bind_matrix(struct binder *b, const struct m3_tensor_spec *spec, const char *name)
{
    const struct m3_tensor_source source = source_of(b);
    const struct m3_matrix_report report = { add_problem, b };
    struct m3_matrix matrix;
    int status = M3_OK;
    m3_matrix_find(&matrix, &source, name, spec->shape[0], spec->shape[1], &report);
    for (int i = 0; i < matrix.count && !status; i++) status = claim(b, matrix.of[i]);
    const int64_t stated = b->model->config.matrix_group;
    if (matrix.weight.dtype == M3_I4 && stated && matrix.weight.group && matrix.weight.group != stated) {
        char what[120];
        snprintf(what, sizeof what, "got groups of %" PRId64 " columns, expected %" PRId64 " by quantization_config",
                 matrix.weight.group, stated);
        finding(b, M3_BAD_INPUT, m3_checkpoint_config_path(b->model->checkpoint), name, what);
    }
    matrix.weight.id = ++b->next_id;
    *m3_tensor_field(b->model, spec) = matrix.weight;
    return status;
}

static void report_missing(struct binder *b, const struct m3_tensor_spec *spec)
{
    char should[160], what[256];
    describe(should, sizeof should, dtype_words(dtype_rule(b, spec)), spec->rank, spec->shape);
    snprintf(what, sizeof what, "got no such tensor, expected %s", should);
    finding(b, M3_BAD_INPUT, m3_checkpoint_config_path(b->model->checkpoint), spec->name, what);
}

static int bind_tensor(void *self, const struct m3_tensor_spec *spec)
{
    struct binder *b = self;
    const struct m3_tensor_source source = source_of(b);
    const char *path;
    if (spec->row->dtype == M3_TENSOR_MATRIX && m3_matrix_is_coded(&source, spec->name))
        return bind_matrix(b, spec, spec->name);
    if (spec->row->dtype == M3_TENSOR_MATRIX && spec->other[0] && m3_matrix_is_coded(&source, spec->other))
        return bind_matrix(b, spec, spec->other);

    const struct m3_tensor *tensor = m3_checkpoint_find(b->model->checkpoint, spec->name, &path);
    if (!tensor && spec->other[0]) tensor = m3_checkpoint_find(b->model->checkpoint, spec->other, &path);
    if (!tensor && !is_needed((void *)(uintptr_t)b->part, spec->name)) return shape_tensor(b->model, spec);
    if (!tensor) {
        report_missing(b, spec);
        return M3_OK;
    }
    int status = claim(b, tensor);
    if (status) return status;
    if (!same_shape(tensor, spec->rank, spec->shape) || !dtype_fits(tensor->dtype, dtype_rule(b, spec))) {
        mismatch(b, path, tensor, dtype_words(dtype_rule(b, spec)), spec->rank, spec->shape);
        return M3_OK;
    }
    b->cast += spec->row->dtype == M3_TENSOR_FLOAT && m3_dtype_bytes(tensor->dtype) == 2;

    struct m3_weight weight = { .data = tensor->data, .dtype = tensor->dtype, .id = ++b->next_id };
    weight.rows = tensor->rank > 1 ? tensor->shape[0] : 1;
    weight.cols = tensor->count / weight.rows;
    *m3_tensor_field(b->model, spec) = weight;
    return M3_OK;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)*(const struct m3_tensor *const *)a, y = (uintptr_t)*(const struct m3_tensor *const *)b;
    return (x > y) - (x < y);
}

/* Reports tensors that no row has claimed. Tensors of multi-token prediction under other names, of an index branch that
 * the config switches off, and scales of activations are notes. */
static void report_extra(struct binder *b, struct m3_error *notes)
{
    const struct m3_checkpoint *files = b->model->checkpoint;
    const struct m3_config *config = &b->model->config;
    int64_t mtp = 0, index = 0, activations = 0;
    if (b->count) qsort(b->claimed, (size_t)b->count, sizeof *b->claimed, by_address);

    for (int64_t i = 0; i < m3_checkpoint_count(files); i++) {
        const char *path;
        const struct m3_tensor *tensor = m3_checkpoint_at(files, i, &path);
        if (b->count && bsearch(&tensor, b->claimed, (size_t)b->count, sizeof *b->claimed, by_address)) continue;
        if (strncmp(tensor->name, "mtp.", 4) == 0 || strstr(tensor->name, ".mtp.")) {
            mtp++;
            continue;
        }
        if (config->sparse_switched_off && strstr(tensor->name, ".self_attn.index_")) {
            index++;
            continue;
        }
        if (config->is_requantised && m3_is_of_activations(tensor->name)) {
            activations++;
            continue;
        }
        finding(b, M3_BAD_INPUT, path, tensor->name,
                "got a tensor that a model of this config does not have, expected none");
    }
    if (index)
        m3_fail(notes, M3_OK, "%s: %" PRId64 " tensors of the index branch are not used: use_sparse_attention is false",
                m3_checkpoint_config_path(files), index);
    if (activations)
        m3_fail(notes, M3_OK, "%s: %" PRId64 " scales of activations are not used: the reference rounds no activation",
                m3_checkpoint_config_path(files), activations);
    if (b->cast && config->type != M3_TYPE_M2)
        m3_fail(notes, M3_OK,
                "%s: %" PRId64 " tensors of routers or of the patch embedding are not in F32, as released",
                m3_checkpoint_config_path(files), b->cast);
    int otherwise_named = mtp && !b->model->mtp_modules;
    if (config->mtp_modules != b->model->mtp_modules && !otherwise_named)
        m3_fail(notes, M3_OK, "%s: num_mtp_modules: got %" PRId64 ", but the files hold %" PRId64,
                m3_checkpoint_config_path(files), config->mtp_modules, b->model->mtp_modules);
    if (mtp)
        m3_fail(notes, M3_OK, "%s: %" PRId64 " tensors of multi-token prediction are not used",
                m3_checkpoint_config_path(files), mtp);
}

/* The prefix of tensor names: empty in a text-only file, which uses the names of the full model without their
 * prefix. */
static const char *name_prefix(const struct m3_checkpoint *files)
{
    return m3_checkpoint_names(files, "model.embed_tokens.weight") ? "" : "language_model.";
}

/* The number of modules; they are numbered from 0 without gaps. */
static int64_t count_modules(const struct m3_checkpoint *files)
{
    char name[96];
    for (int64_t m = 0;; m++) {
        snprintf(name, sizeof name, "%smodel.mtp.layers.%" PRId64 ".eh_proj.weight", name_prefix(files), m);
        if (!m3_checkpoint_names(files, name)) return m;
    }
}

static int bind_all(struct m3_model *model, const struct part *part, struct m3_error *notes, struct m3_error *error)
{
    struct binder b = { .model = model, .part = part, .error = error };
    int status = m3_tensors_each(&model->config, model->mtp_modules, name_prefix(model->checkpoint), bind_tensor, &b);
    if (!status) report_extra(&b, notes);
    if (b.findings > MOST_FINDINGS)
        m3_fail(error, M3_BAD_INPUT, "%s: %" PRId64 " more problems of this kind",
                m3_checkpoint_config_path(model->checkpoint), b.findings - MOST_FINDINGS);
    free(b.claimed);
    if (!status && b.findings) status = M3_BAD_INPUT;
    if (!status && model->config.tied_embeddings) model->lm_head = model->embed;
    return status;
}

/* Allocates the layers, including those of model->mtp_modules modules. */
static int make_layers(struct m3_model *model, struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    int64_t layers = c->layers + model->mtp_modules;
    model->layers = calloc((size_t)layers, sizeof *model->layers);
    model->mtp = calloc((size_t)model->mtp_modules + 1, sizeof *model->mtp);
    if (!model->layers || !model->mtp)
        return m3_fail_memory(error, "the layers", (size_t)layers * sizeof *model->layers);
    if (c->vision.present) {
        size_t depth = (size_t)c->vision.layers;
        model->vision.layers = calloc(depth, sizeof *model->vision.layers);
        if (!model->vision.layers)
            return m3_fail_memory(error, "the vision layers", depth * sizeof *model->vision.layers);
    }
    for (int64_t l = 0; l < layers; l++) {
        if (!m3_config_moe(c, l)) continue;
        model->layers[l].experts = calloc((size_t)c->E, sizeof *model->layers[l].experts);
        if (!model->layers[l].experts)
            return m3_fail_memory(error, "the experts", (size_t)c->E * sizeof *model->layers[l].experts);
    }
    return M3_OK;
}

static int open_part(struct m3_model **model, const char *folder, struct part *part, struct m3_error *notes,
                     struct m3_error *error)
{
    *model = NULL;
    struct m3_model *m = calloc(1, sizeof *m);
    if (!m) return m3_fail_memory(error, "a model", sizeof *m);

    int status = m3_checkpoint_open_part(&m->checkpoint, folder, part->end ? is_needed : NULL, part, error);
    if (!status) status = m3_config_read(&m->config, m3_checkpoint_config_path(m->checkpoint), notes, error);
    if (!status) m->mtp_modules = count_modules(m->checkpoint);
    if (!status) status = make_layers(m, error);
    if (!status) status = bind_all(m, part, notes, error);
    if (!status) status = m3_graphs_record(m, error);
    if (status) m3_model_close(m);
    else *model = m;
    return status;
}

int m3_model_open(struct m3_model **model, const char *folder, struct m3_error *notes, struct m3_error *error)
{
    struct part all = { .end = 0 };
    return open_part(model, folder, &all, notes, error);
}

/* The number of layers, before any weight file is opened. */
static int count_layers(struct part *part, const char *folder, struct m3_error *error)
{
    struct m3_config config = { 0 };
    struct m3_error notes = { 0 };
    char *path = NULL;
    if (asprintf(&path, "%s/config.json", folder) < 0) return m3_fail_memory(error, folder, strlen(folder));
    const int status = m3_config_read(&config, path, &notes, error);
    part->layers = config.layers;
    part->ends_with_embedding = config.tied_embeddings || config.mtp_modules > 0;
    m3_config_free(&config);
    m3_error_free(&notes);
    free(path);
    return status;
}

static int check_part(const struct part *part, const char *folder, struct m3_error *error)
{
    if (part->first >= 0 && part->first < part->end && part->end <= part->layers) return M3_OK;
    return m3_fail(error, M3_USAGE,
                   "--layers: got %" PRId64 ":%" PRId64 ", expected A:B with A < B and B at most %" PRId64
                   ", the layers of %s",
                   part->first, part->end, part->layers, folder);
}

int m3_model_list_files(const char *folder, int64_t first, int64_t end,
                        void (*visit)(void *to, const char *name, int is_needed, int64_t bytes), void *to,
                        struct m3_error *error)
{
    struct part part = { .first = first, .end = end };
    int status = count_layers(&part, folder, error);
    if (!status && end > 0) status = check_part(&part, folder, error);
    return status ? status : m3_checkpoint_list(folder, end > 0 ? is_needed : NULL, &part, visit, to, error);
}

int m3_model_open_layers(struct m3_model **model, const char *folder, int64_t first, int64_t end,
                         struct m3_error *notes, struct m3_error *error)
{
    struct part part = { .first = first, .end = end };
    *model = NULL;
    int status = count_layers(&part, folder, error);
    if (!status) status = check_part(&part, folder, error);
    if (status) return status;
    return open_part(model, folder, &part, notes, error);
}

int m3_model_without_weights(struct m3_model **model, struct m3_config *config, int64_t modules, struct m3_error *error)
{
    struct m3_model *m = *model = calloc(1, sizeof *m);
    if (!m) {
        m3_config_free(config);
        return m3_fail_memory(error, "a model", sizeof *m);
    }
    m->config = *config;
    m->mtp_modules = modules;
    *config = (struct m3_config){ 0 };
    int status = make_layers(m, error);
    if (!status) status = m3_tensors_each(&m->config, modules, m3_tensors_prefix(&m->config), shape_tensor, m);
    if (!status && m->config.tied_embeddings) m->lm_head = m->embed;
    if (!status) status = m3_graphs_record(m, error);
    if (!status) return M3_OK;
    m3_model_close(m);
    *model = NULL;
    return status;
}

void m3_model_close(struct m3_model *model)
{
    if (!model) return;
    for (int64_t l = 0; model->layers && l < model->config.layers + model->mtp_modules; l++)
        free(model->layers[l].experts);
    free(model->layers);
    free(model->mtp);
    free(model->vision.layers);
    m3_graphs_free(model);
    m3_checkpoint_close(model->checkpoint);
    m3_config_free(&model->config);
    free(model);
}
