#include "model/resume/identity.h"

#include <cblas.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/version.h"
#include "io/open.h"
#include "model/files/cache_file.h"
#include "model/files/origin.h"
#include "model/semantics.h"

int m3_resume_label(struct m3_resume_identity *id, const char *key, const char *value, struct m3_error *error)
{
    char *copy = strdup(value);
    if (!copy || id->count == M3_RESUME_LABELS) {
        free(copy);
        return m3_fail_memory(error, key, strlen(value));
    }
    id->labels[id->count].key = key;
    id->labels[id->count++].value = copy;
    return M3_OK;
}

static int label_number(struct m3_resume_identity *id, const char *key, int64_t number, struct m3_error *error)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, number);
    return m3_resume_label(id, key, text, error);
}

static int end_hash(struct m3_resume_identity *id, const char *key, struct m3_sha256 *hash, struct m3_error *error)
{
    char hex[65];
    if (m3_sha256_end(hash, hex)) return m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", key);
    return m3_resume_label(id, key, hex, error);
}

/* bytes NULL: there are none. */
static int label_bytes(struct m3_resume_identity *id, const char *key, const void *bytes, size_t count,
                       struct m3_error *error)
{
    if (!bytes) return m3_resume_label(id, key, "none", error);
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, key, 0);
    m3_sha256_add(hash, bytes, count);
    return end_hash(id, key, hash, error);
}

int m3_resume_label_file(struct m3_resume_identity *id, const char *key, const char *path, struct m3_error *error)
{
    enum { PIECE = 1 << 16 };
    static const char what[] = "cannot be read";
    ssize_t got;
    int file;
    if (!path) return m3_resume_label(id, key, "none", error);
    int status = m3_open_file(&file, path, error);
    if (status) return status;
    struct m3_sha256 *hash = m3_sha256_new();
    char *piece = malloc(PIECE);
    if (!hash || !piece) status = m3_fail_memory(error, path, PIECE);
    while (!status && (got = read(file, piece, PIECE)) != 0) {
        if (got > 0) m3_sha256_add(hash, piece, (size_t)got);
        else if (errno != EINTR) status = m3_fail(error, M3_IO, "%s: %s: %s", path, what, strerror(errno));
    }
    free(piece);
    close(file);
    if (!status) return end_hash(id, key, hash, error);
    free(hash);
    return status;
}

/* The arithmetic of the program, of the library of matrix products, and of the inner loops that were chosen for this
 * processor. */
static int label_build(struct m3_resume_identity *id, const struct m3_engine *engine, struct m3_error *error)
{
    int status = m3_resume_label(id, "arithmetic", M3_ARITHMETIC, error);
    if (!status) status = m3_resume_label(id, "blas", openblas_get_config(), error);
    return status ? status : m3_resume_label(id, "kernels", engine->kernels(), error);
}

static int label_options(struct m3_resume_identity *id, const struct m3_resume_run *run, struct m3_error *error)
{
    const struct m3_request *r = run->request;
    int status = m3_resume_label(id, "precision", run->engine->precision, error);
    if (!status) status = m3_resume_label(id, "linear", r->linear == M3_LINEAR_ORDERED ? "ordered" : "blas", error);
    if (!status) status = m3_resume_label(id, "ops", run->ops ? run->ops : "none", error);
    if (!status) status = m3_resume_label_file(id, "ops_sha256", run->ops_path, error);
    if (!status) status = m3_resume_label_file(id, "decisions_sha256", run->decisions, error);
    if (!status) status = label_number(id, "first_layer", r->first_layer, error);
    if (!status) status = label_number(id, "end_layer", r->end_layer, error);
    if (!status) status = m3_resume_label(id, "dump", run->dumps ? "yes" : "no", error);
    if (!status) status = m3_resume_label(id, "taps", run->taps ? run->taps : "*", error);
    return status ? status : m3_resume_label(id, "companions", run->companions, error);
}

static int label_case(struct m3_resume_identity *id, const struct m3_resume_run *run, struct m3_error *error)
{
    const struct m3_request *r = run->request;
    const struct m3_config *config = &run->model->config;
    const size_t row = (size_t)config->H * run->engine->real_bytes;
    const size_t patch = (size_t)m3_config_size(config, 'C') * sizeof(float);
    const int64_t held = r->cache ? m3_cache_length(r->cache, M3_CACHE_MAIN) : 0;
    char cached[65] = "none";
    int status = m3_resume_label(id, "case_sha256", run->c->sha256, error);
    if (!status)
        status = label_bytes(id, "pixels_sha256", r->pictures ? r->pictures->pixels : NULL,
                             r->pictures ? (size_t)r->pictures->P * patch : 0, error);
    if (!status) status = label_bytes(id, "hidden_sha256", r->hidden, (size_t)r->T * row, error);
    if (!status) status = label_number(id, "shift", r->shift, error);
    if (!status) status = m3_resume_label(id, "cache", r->cache ? "yes" : "no", error);
    if (!status) status = label_number(id, M3_RESUME_CACHED, held, error);
    if (!status && held > 0) status = m3_cache_sha256(cached, r->cache, config, held, error);
    return status ? status : m3_resume_label(id, "cache_sha256", cached, error);
}

static int label_model(struct m3_resume_identity *id, const struct m3_resume_run *run, struct m3_error *error)
{
    const char *weights;
    char model[65], config[65], *semantics = m3_semantics_json(run->request->semantics);
    int status =
        semantics ? m3_resume_label(id, "semantics", semantics, error) : m3_fail_memory(error, "the semantics", 0);
    free(semantics);
    if (!status) status = m3_checkpoint_sha256(run->model->checkpoint, model, error);
    if (!status) status = m3_resume_label(id, "model_sha256", model, error);
    if (!status) status = m3_checkpoint_config_sha256(run->model->checkpoint, config, error);
    if (!status) status = m3_resume_label(id, "config_sha256", config, error);
    if (!status) status = m3_checkpoint_weights_sha256(run->model->checkpoint, &weights, error);
    return status ? status : m3_resume_label(id, "weights_sha256", weights, error);
}

int m3_resume_identify(struct m3_resume_identity *id, const struct m3_resume_run *run, struct m3_error *error)
{
    *id = (struct m3_resume_identity){ .count = 0 };
    int status = m3_resume_label(id, "format", "m3ref-resume", error);
    if (!status) status = m3_resume_label(id, "format_version", "1", error);
    if (!status) status = label_build(id, run->engine, error);
    if (!status) status = label_options(id, run, error);
    if (!status) status = label_case(id, run, error);
    return status ? status : label_model(id, run, error);
}

void m3_resume_identity_free(struct m3_resume_identity *id)
{
    for (int i = 0; i < id->count; i++) free(id->labels[i].value);
    id->count = 0;
}

int m3_resume_identity_write(const struct m3_resume_identity *id, struct m3_writer *writer, struct m3_error *error)
{
    int status = M3_OK;
    for (int i = 0; !status && i < id->count; i++)
        status = m3_writer_metadata(writer, id->labels[i].key, id->labels[i].value, error);
    return status;
}

int m3_resume_identity_check(const struct m3_resume_identity *id, const struct m3_safetensors *state,
                             struct m3_error *error)
{
    int status = M3_OK;
    for (int i = 0; !status && i < id->count; i++)
        status = m3_origin_require(state, id->labels[i].key, id->labels[i].value, error);
    return status;
}
