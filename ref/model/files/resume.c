#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "model/files/resume.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/version.h"
#include "io/open.h"
#include "model/files/cache_file.h"
#include "model/files/origin.h"
#include "model/semantics.h"

/* Tensors of a file: [T,width] each. */
struct numbers {
    const char *name;
    int64_t width;
    void *data;
};

struct label {
    const char *key;
    char *value;
};
enum { MOST_LABELS = 20 };

struct m3_resume_folder {
    char *path;
    int lock;                   /* an open file of the folder; -1: none */
    const struct m3_resume_run *run;
    struct label labels[MOST_LABELS];       /* what the state belongs to */
    int label_count;
    char *command;
    struct m3_resume resume;
    struct m3_writer *dump;     /* NULL: none */
    uint64_t dumped, size;      /* bytes of the dump's tensors that are done; of its file */
};

/* ---- what a state belongs to */

static int label(struct m3_resume_folder *f, const char *key, const char *value, struct m3_error *error)
{
    char *copy = strdup(value);
    if (!copy || f->label_count == MOST_LABELS) {
        free(copy);
        return m3_fail_memory(error, f->path, strlen(value));
    }
    f->labels[f->label_count++] = (struct label){ key, copy };
    return M3_OK;
}

static int label_bytes(struct m3_resume_folder *f, const char *key, const void *bytes, size_t count,
                       struct m3_error *error)
{
    char hex[65];
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, f->path, 0);
    m3_sha256_add(hash, bytes, count);
    if (m3_sha256_end(hash, hex)) return m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", f->path);
    return label(f, key, hex, error);
}

static int label_model(struct m3_resume_folder *f, struct m3_error *error)
{
    const struct m3_resume_run *run = f->run;
    const char *weights;
    char model[65], *semantics = m3_semantics_json(run->request->semantics);
    int status = semantics ? M3_OK : m3_fail_memory(error, "the semantics", 0);
    if (!status) status = m3_checkpoint_sha256(run->model->checkpoint, model, error);
    if (!status) status = m3_checkpoint_weights_sha256(run->model->checkpoint, &weights, error);
    if (!status) status = label(f, "model_sha256", model, error);
    if (!status) status = label(f, "weights_sha256", weights, error);
    if (!status) status = label(f, "semantics", semantics, error);
    free(semantics);
    return status;
}

static int label_inputs(struct m3_resume_folder *f, struct m3_error *error)
{
    const struct m3_request *r = f->run->request;
    const struct m3_config *config = &f->run->model->config;
    const size_t row = (size_t)config->H * f->run->engine->real_bytes;
    const size_t patch = (size_t)m3_config_size(config, 'C') * sizeof(float);
    const int64_t held = r->cache ? m3_cache_length(r->cache, M3_CACHE_MAIN) : 0;
    char sha256[65] = "";
    int status = label(f, "case_sha256", f->run->c->sha256, error);
    if (!status && r->pictures)
        status = label_bytes(f, "pixels_sha256", r->pictures->pixels, (size_t)r->pictures->P * patch, error);
    if (!status && r->hidden) status = label_bytes(f, "hidden_sha256", r->hidden, (size_t)r->T * row, error);
    if (!status && held > 0) status = m3_cache_sha256(sha256, r->cache, config, held, error);
    if (!status && r->cache) status = label(f, "cache_sha256", sha256, error);
    return status;
}

static int label_options(struct m3_resume_folder *f, struct m3_error *error)
{
    const struct m3_resume_run *run = f->run;
    char layers[48];
    snprintf(layers, sizeof layers, "%" PRId64 ":%" PRId64, run->request->first_layer, run->request->end_layer);
    int status = label(f, "producer", M3_PRODUCER, error);
    if (!status) status = label(f, "precision", run->engine->precision, error);
    if (!status) status = label(f, "linear", run->request->linear == M3_LINEAR_ORDERED ? "ordered" : "blas", error);
    if (!status) status = label(f, "ops", run->ops ? run->ops : "default", error);
    if (!status) status = label(f, "layers", layers, error);
    if (!status) status = label(f, "dump", run->dumps ? "yes" : "no", error);
    if (!status && run->dumps) status = label(f, "taps", run->taps ? run->taps : "*", error);
    return status;
}

/* ---- files */

static int needs_start(const struct m3_resume_folder *f)
{
    const struct m3_request *r = f->run->request;
    return r->semantics->mtp_embed == M3_MTP_EMBED_FUSED && m3_request_modules(f->run->model, r) > 0;
}

static char *path_of(const struct m3_resume_folder *f, const char *name)
{
    char *path;
    return asprintf(&path, "%s/m3ref-%s", f->path, name) < 0 ? NULL : path;
}

static uint64_t bytes_of(const struct m3_resume_folder *f, const struct numbers *x)
{
    return (uint64_t)(f->run->request->T * x->width) * f->run->engine->real_bytes;
}

static enum m3_dtype dtype_of(const struct m3_resume_folder *f)
{
    return f->run->engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;
}

static int hash_numbers(char hex[65], const struct m3_resume_folder *f, const struct numbers *x, int count,
                        struct m3_error *error)
{
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, f->path, 0);
    for (int i = 0; i < count; i++) m3_sha256_add(hash, x[i].data, bytes_of(f, &x[i]));
    return m3_sha256_end(hash, hex) ? m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", f->path) : M3_OK;
}

static int state_count(struct m3_writer *writer, const char *key, uint64_t count, struct m3_error *error)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, count);
    return m3_writer_metadata(writer, key, text, error);
}

static int state_labels(struct m3_writer *writer, const struct m3_resume_folder *f, int64_t layer, const char *data,
                        struct m3_error *error)
{
    int status = m3_writer_metadata(writer, "format", "m3ref-resume", error);
    if (!status) status = m3_writer_metadata(writer, "format_version", "1", error);
    if (!status) status = m3_writer_metadata(writer, "command", f->command, error);
    for (int i = 0; !status && i < f->label_count; i++)
        status = m3_writer_metadata(writer, f->labels[i].key, f->labels[i].value, error);
    if (!status) status = m3_writer_metadata(writer, "data_sha256", data, error);
    if (!status) status = state_count(writer, "layer", (uint64_t)layer, error);
    if (!status) status = state_count(writer, "dumped", f->dumped, error);
    return status ? status : state_count(writer, "dump_size", f->size, error);
}

static int save(const struct m3_resume_folder *f, const char *name, int64_t layer, const struct numbers *x, int count,
                struct m3_error *error)
{
    struct m3_writer *writer = NULL;
    char data[65], *path = path_of(f, name);
    int status = path ? m3_writer_new(&writer, path, error) : m3_fail_memory(error, name, 0);
    if (!status) status = hash_numbers(data, f, x, count, error);
    if (!status) status = state_labels(writer, f, layer, data, error);
    for (int i = 0; !status && i < count; i++)
        status =
            m3_writer_tensor(writer, x[i].name, dtype_of(f), 2, (int64_t[]){ f->run->request->T, x[i].width }, error);
    if (!status) status = m3_writer_begin(writer, error);
    for (int i = 0; !status && i < count; i++) status = m3_writer_write(writer, x[i].data, bytes_of(f, &x[i]), error);
    if (!status) status = m3_writer_commit(writer, error);
    else m3_writer_abandon(writer);
    free(path);
    return status;
}

static int read_numbers(const struct m3_resume_folder *f, const struct m3_safetensors *file, const struct numbers *x,
                        int count, struct m3_error *error)
{
    char data[65];
    for (int i = 0; i < count; i++) {
        const struct m3_tensor *t = m3_safetensors_find(file, x[i].name);
        if (!t || t->dtype != dtype_of(f) || t->rank != 2 || t->shape[1] != x[i].width ||
            t->bytes != bytes_of(f, &x[i]))
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected %s [%" PRId64 ",%" PRId64 "]",
                           m3_safetensors_path(file), x[i].name, t ? "another shape or dtype" : "no such tensor",
                           m3_dtype_name(dtype_of(f)), f->run->request->T, x[i].width);
        memcpy(x[i].data, t->data, t->bytes);
    }
    const int status = hash_numbers(data, f, x, count, error);
    return status ? status : m3_origin_require(file, "data_sha256", data, error);
}

/* A label that is missing here means another run too. */
static int check_labels(const struct m3_resume_folder *f, const struct m3_safetensors *file, struct m3_error *error)
{
    static const char *const optional[] = { "pixels_sha256", "hidden_sha256", "cache_sha256", "taps" };
    int status = m3_origin_require(file, "format", "m3ref-resume", error);
    if (!status) status = m3_origin_require(file, "format_version", "1", error);
    for (int i = 0; !status && i < f->label_count; i++)
        status = m3_origin_require(file, f->labels[i].key, f->labels[i].value, error);
    for (size_t i = 0; !status && i < sizeof optional / sizeof *optional; i++) {
        int known = 0;
        for (int k = 0; k < f->label_count; k++) known |= strcmp(f->labels[k].key, optional[i]) == 0;
        if (!known && m3_safetensors_metadata(file, optional[i]))
            status =
                m3_fail(error, M3_BAD_INPUT, "%s: %s: got one, expected none", m3_safetensors_path(file), optional[i]);
    }
    return status;
}

static int open_file(struct m3_safetensors **file, const struct m3_resume_folder *f, const char *name,
                     struct m3_error *error)
{
    char *path = path_of(f, name);
    *file = NULL;
    int status = path ? m3_safetensors_open(file, path, error) : m3_fail_memory(error, name, 0);
    if (!status) status = check_labels(f, *file, error);
    free(path);
    return status;
}

static int load(const struct m3_resume_folder *f, const char *name, const struct numbers *x, int count,
                struct m3_error *error)
{
    struct m3_safetensors *file;
    int status = open_file(&file, f, name, error);
    if (!status) status = read_numbers(f, file, x, count, error);
    m3_safetensors_close(file);
    return status;
}

/* The rows of the run in layer l of its cache; returns how many tensors. */
static int keys_of(struct numbers x[3], char name[40], const struct m3_resume_folder *f, int64_t l)
{
    const struct m3_request *r = f->run->request;
    const struct m3_config *c = &f->run->model->config;
    const struct m3_cached *held = m3_cache_at(r->cache, l);
    const size_t before = (size_t)m3_cache_length(r->cache, M3_CACHE_MAIN) * f->run->engine->real_bytes;
    const int64_t kv = c->G * c->D;
    x[0] = (struct numbers){ "k", kv, (char *)held->k + before * (size_t)kv };
    x[1] = (struct numbers){ "v", kv, (char *)held->v + before * (size_t)kv };
    snprintf(name, 40, "keys.%" PRId64 ".safetensors", l);
    if (!m3_config_sparse(c, l)) return 2;
    x[2] = (struct numbers){ "index_k", c->X, (char *)held->index_k + before * (size_t)c->X };
    return 3;
}

/* ---- between layers */

/* The state comes last: it says that the other files hold what it needs. */
static int keep(void *self, int64_t layer, const void *hidden, struct m3_error *error)
{
    struct m3_resume_folder *f = self;
    const struct m3_request *r = f->run->request;
    const struct numbers state = { "hidden", f->run->model->config.H, (void *)(uintptr_t)hidden };
    struct numbers keys[3];
    char name[40];
    int status = M3_OK;
    if (layer == r->first_layer && needs_start(f)) status = save(f, "start.safetensors", layer, &state, 1, error);
    if (!status && r->cache && layer > r->first_layer) {
        const int count = keys_of(keys, name, f, layer - 1);
        status = save(f, name, layer, keys, count, error);
    }
    if (!status && f->dump) status = m3_writer_sync(f->dump, &f->dumped, &f->size, error);
    return status ? status : save(f, "state.safetensors", layer, &state, 1, error);
}

static int read_count(uint64_t *count, const struct m3_safetensors *file, const char *key, struct m3_error *error)
{
    const char *text = m3_safetensors_metadata(file, key);
    char *end = NULL;
    errno = 0;
    *count = text ? strtoull(text, &end, 10) : 0;
    if (text && end != text && !*end && !errno && *count <= INT64_MAX) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected a number", m3_safetensors_path(file), key,
                   text ? text : "none");
}

static int read_state(struct m3_resume_folder *f, const struct m3_safetensors *file, void *hidden,
                      struct m3_error *error)
{
    const struct m3_request *r = f->run->request;
    const struct numbers state = { "hidden", f->run->model->config.H, hidden };
    uint64_t layer = 0;
    int status = read_numbers(f, file, &state, 1, error);
    if (!status) status = read_count(&layer, file, "layer", error);
    if (!status) status = read_count(&f->dumped, file, "dumped", error);
    if (!status) status = read_count(&f->size, file, "dump_size", error);
    if (!status && ((int64_t)layer < r->first_layer || (int64_t)layer > r->end_layer))
        status = m3_fail(error, M3_BAD_INPUT, "%s: layer: got %" PRIu64 ", expected %" PRId64 " to %" PRId64,
                         m3_safetensors_path(file), layer, r->first_layer, r->end_layer);
    const char *command = status ? NULL : m3_safetensors_metadata(file, "command");
    free(f->command);
    f->command = strdup(command ? command : "");
    if (!status && !f->command) status = m3_fail_memory(error, f->path, 0);
    f->resume.layer = (int64_t)layer;
    return status;
}

/* The part of the dump that is there must be as long as it was. */
static int check_dump(const struct m3_resume_folder *f, struct m3_error *error)
{
    struct stat info = { 0 };
    char *path = path_of(f, "dump.part");
    int status = path ? m3_look(&info, path, error) : m3_fail_memory(error, f->path, 0);
    if (!status && (info.st_mode == 0 || (uint64_t)info.st_size < f->size))
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: got %s, expected at least the %" PRIu64 " bytes of the layers that "
                         "are done",
                         path, info.st_mode == 0 ? "no such file" : "a shorter file", f->size);
    free(path);
    return status;
}

static int read_keys(const struct m3_resume_folder *f, struct m3_error *error)
{
    const struct m3_request *r = f->run->request;
    struct numbers keys[3];
    char name[40];
    int status = m3_cache_reserve(r->cache, M3_CACHE_MAIN, m3_cache_length(r->cache, M3_CACHE_MAIN) + r->T, error);
    for (int64_t l = r->first_layer; !status && l < f->resume.layer; l++) {
        const int count = keys_of(keys, name, f, l);
        status = load(f, name, keys, count, error);
    }
    return status;
}

/* hidden, embedded: room for [T,H]. */
static int read_all(struct m3_resume_folder *f, void *hidden, void *embedded, struct m3_error *error)
{
    const struct numbers start = { "hidden", f->run->model->config.H, embedded };
    struct m3_safetensors *file;
    int status = open_file(&file, f, "state.safetensors", error);
    if (!status) status = read_state(f, file, hidden, error);
    m3_safetensors_close(file);
    if (!status && f->run->dumps) status = check_dump(f, error);
    if (!status && needs_start(f)) status = load(f, "start.safetensors", &start, 1, error);
    if (!status && f->run->request->cache) status = read_keys(f, error);
    return status;
}

/* ---- the folder */

static int is_ours(const char *name) { return strncmp(name, "m3ref-", 6) == 0 || strncmp(name, ".m3ref-", 7) == 0; }

/* Removes the files of the folder whose names are ours, or (removes 0) looks for others. */
static int visit(const struct m3_resume_folder *f, int removes, struct m3_error *error)
{
    struct dirent *entry;
    DIR *dir = opendir(f->path);
    int status = dir ? M3_OK : m3_fail(error, M3_IO, "%s: cannot be read: %s", f->path, strerror(errno));
    while (!status && !(status = m3_next_entry(&entry, dir, f->path, error)) && entry) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (!removes && !is_ours(name))
            status = m3_fail(error, M3_USAGE,
                             "--resume: %s: got a folder with %s in it, expected a new or empty one, or "
                             "that of an interrupted run",
                             f->path, name);
        else if (removes && is_ours(name) && unlinkat(dirfd(dir), name, 0) != 0)
            status =
                m3_fail(error, M3_IO, "%s: %s: cannot be removed after the run: %s", f->path, name, strerror(errno));
    }
    if (dir) closedir(dir);
    return status;
}

/* Two runs at once would write one dump. Where files cannot be locked, nothing is. */
static int lock(struct m3_resume_folder *f, struct m3_error *error)
{
    if (mkdir(f->path, 0777) != 0 && errno != EEXIST)
        return m3_fail(error, M3_IO, "--resume: %s: cannot be made: %s", f->path, strerror(errno));
    f->lock = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->lock < 0) return m3_fail(error, M3_IO, "--resume: %s: cannot be opened: %s", f->path, strerror(errno));
    if (flock(f->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return M3_OK;
    return m3_fail(error, M3_USAGE, "--resume: %s: got a folder that another run is using, expected one for this run",
                   f->path);
}

static int find_state(struct m3_resume_folder *f, struct m3_error *error)
{
    const size_t bytes = (size_t)(f->run->request->T * f->run->model->config.H) * f->run->engine->real_bytes;
    char *path = path_of(f, "state.safetensors");
    int exists = 0, status = path ? m3_look_for(&exists, path, error) : m3_fail_memory(error, f->path, 0);
    free(path);
    if (status || !exists) return status;
    void *hidden = malloc(bytes), *embedded = needs_start(f) ? malloc(bytes) : NULL;
    f->resume.hidden = hidden;
    f->resume.embedded = embedded;
    if (!hidden || (needs_start(f) && !embedded)) return m3_fail_memory(error, "--resume", bytes);
    return read_all(f, hidden, embedded, error);
}

int m3_resume_open(struct m3_resume_folder **folder, const char *path, const struct m3_resume_run *run,
                   struct m3_error *error)
{
    struct m3_resume_folder *f = calloc(1, sizeof *f);
    *folder = NULL;
    if (!f) return m3_fail_memory(error, path, sizeof *f);
    f->lock = -1;
    f->run = run;
    f->path = strdup(path);
    f->command = strdup(run->command);
    f->resume = (struct m3_resume){ .self = f, .keep = keep };
    int status = f->path && f->command ? M3_OK : m3_fail_memory(error, path, strlen(path));
    if (!status) status = lock(f, error);
    if (!status) status = visit(f, 0, error);
    if (!status) status = label_options(f, error);
    if (!status) status = label_inputs(f, error);
    if (!status) status = label_model(f, error);
    if (!status) status = find_state(f, error);
    if (status) m3_resume_close(f);
    else *folder = f;
    return status;
}

const struct m3_resume *m3_resume_of(const struct m3_resume_folder *f) { return &f->resume; }

const char *m3_resume_command(const struct m3_resume_folder *f) { return f->command; }

int m3_resume_writer(struct m3_writer **writer, const struct m3_resume_folder *f, const char *path,
                     struct m3_error *error)
{
    char *part = path_of(f, "dump.part");
    *writer = NULL;
    if (!part) return m3_fail_memory(error, f->path, 0);
    if (!f->resume.hidden) unlink(part);        /* of a run that was killed before its first state */
    const int status = m3_writer_continue(writer, path, part, error);
    free(part);
    return status;
}

int m3_resume_dump(struct m3_resume_folder *f, struct m3_dump *dump, struct m3_error *error)
{
    f->dump = m3_dump_writer(dump);
    if (!f->resume.hidden) return M3_OK;
    const uint64_t begun = m3_writer_written(f->dump);
    if (f->dumped < begun)
        return m3_fail(error, M3_BAD_INPUT, "%s: dumped: got %" PRIu64 ", expected at least %" PRIu64, f->path,
                       f->dumped, begun);
    return m3_writer_skip(f->dump, f->dumped - begun, error);
}

/* Without its state a folder is that of no run. */
int m3_resume_remove(const struct m3_resume_folder *f, struct m3_error *error)
{
    char *state = path_of(f, "state.safetensors");
    if (!state) return m3_fail_memory(error, f->path, 0);
    unlink(state);
    free(state);
    return visit(f, 1, error);
}

void m3_resume_close(struct m3_resume_folder *f)
{
    if (!f) return;
    for (int i = 0; i < f->label_count; i++) free(f->labels[i].value);
    if (f->lock >= 0) close(f->lock);
    free((void *)(uintptr_t)f->resume.hidden);
    free((void *)(uintptr_t)f->resume.embedded);
    free(f->command);
    free(f->path);
    free(f);
}
