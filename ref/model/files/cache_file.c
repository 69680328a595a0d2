#include "model/files/cache_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/version.h"
#include "io/safetensors.h"
#include "model/files/origin.h"
#include "model/semantics.h"

static const char *const kinds[3] = { "k", "v", "index_k" };

/* One tensor of the file. */
struct entry {
    char name[64];
    int rank;
    int64_t shape[3];
    uint64_t bytes;
    void *data;                 /* in the cache */
};

/* Fills e with the i-th of 3 x layers entries. Returns 0 if there is none: a layer that is not sparse has no index
 * keys. */
static int entry_at(struct entry *e, const struct m3_cache *cache, const struct m3_config *c, int64_t i, int64_t S)
{
    const struct m3_cached *held = m3_cache_at(cache, i / 3);
    int index = i % 3 == 2;
    if (index && !m3_config_sparse(c, i / 3)) return 0;
    *e = (struct entry){ .rank = index ? 2 : 3,
                         .shape = { S, index ? c->X : c->G, c->D },
                         .data = index   ? held->index_k
                                 : i % 3 ? held->v
                                         : held->k };
    snprintf(e->name, sizeof e->name, "layers.%" PRId64 ".%s", i / 3, kinds[i % 3]);
    e->bytes = (uint64_t)(S * (index ? c->X : c->G * c->D)) * m3_cache_real_bytes(cache);
    return 1;
}

int m3_cache_sha256(char sha256[65], const struct m3_cache *cache, const struct m3_config *c, int64_t S,
                    struct m3_error *error)
{
    struct entry e;
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "a hash", 0);
    for (int64_t i = 0; i < 3 * c->layers; i++)
        if (entry_at(&e, cache, c, i, S)) m3_sha256_add(hash, e.data, e.bytes);
    return m3_sha256_end(hash, sha256) ? m3_fail(error, M3_INTERNAL, "SHA-256 of the cache failed") : M3_OK;
}

/* Strings of the metadata, name and value; a file must have them to be loaded. */
struct labels {
    char model_sha256[65], data_sha256[65], *semantics;
};

static int make_labels(struct labels *l, const struct m3_model *model, const struct m3_semantics *semantics,
                       struct m3_error *error)
{
    *l = (struct labels){ .semantics = m3_semantics_json(semantics) };
    if (!l->semantics) return m3_fail_memory(error, "the semantics", 0);
    return m3_checkpoint_sha256(model->checkpoint, l->model_sha256, error);
}

int m3_cache_save(const struct m3_cache *cache, struct m3_writer *writer, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    enum m3_dtype dtype = engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;
    int64_t S = m3_cache_length(cache, M3_CACHE_MAIN);
    struct labels l;
    struct entry e;

    const char *weights_sha256 = NULL;
    int status = make_labels(&l, model, semantics, error);
    if (!status) status = m3_checkpoint_weights_sha256(model->checkpoint, &weights_sha256, error);
    if (!status) status = m3_cache_sha256(l.data_sha256, cache, c, S, error);
    const char *const strings[][2] = {
        { "format", "m3ref-cache" },      { "format_version", "1" },
        { "producer", M3_PRODUCER },      { "precision", engine->precision },
        { "semantics", l.semantics },     { "model_sha256", l.model_sha256 },
        { "data_sha256", l.data_sha256 }, { "weights_sha256", weights_sha256 },
        { "arithmetic", M3_ARITHMETIC },
    };
    for (size_t i = 0; !status && i < sizeof strings / sizeof strings[0]; i++)
        status = m3_writer_metadata(writer, strings[i][0], strings[i][1], error);
    for (int64_t i = 0; !status && i < 3 * c->layers; i++)
        if (entry_at(&e, cache, c, i, S)) status = m3_writer_tensor(writer, e.name, dtype, e.rank, e.shape, error);
    if (!status) status = m3_writer_begin(writer, error);
    for (int64_t i = 0; !status && i < 3 * c->layers; i++)
        if (entry_at(&e, cache, c, i, S)) status = m3_writer_write(writer, e.data, e.bytes, error);
    if (!status) status = m3_writer_commit(writer, error);
    else m3_writer_abandon(writer);
    free(l.semantics);
    return status;
}

/* "F32 [7,2,10]" */
static void describe(char text[96], enum m3_dtype dtype, int rank, const int64_t *shape)
{
    int n = snprintf(text, 96, "%s [", m3_dtype_name(dtype));
    for (int i = 0; i < rank && n < 70; i++)
        n += snprintf(text + n, 96 - (size_t)n, "%s%" PRId64, i ? "," : "", shape[i]);
    snprintf(text + n, 96 - (size_t)n, "]");
}

static int fail_tensor(const struct m3_safetensors *file, const struct entry *e, enum m3_dtype dtype,
                       const struct m3_tensor *t, struct m3_error *error)
{
    char should[96], is[96] = "no such tensor";
    describe(should, dtype, e->rank, e->shape);
    if (t) describe(is, t->dtype, t->rank, t->shape);
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected %s", m3_safetensors_path(file), e->name, is, should);
}

/* The number of places, from the first tensor; all others must agree with it. */
static int read_length(int64_t *S, const struct m3_safetensors *file, const struct m3_config *c, enum m3_dtype dtype,
                       struct m3_error *error)
{
    const struct entry e = { .name = "layers.0.k", .rank = 3, .shape = { 1, c->G, c->D } };
    const struct m3_tensor *k = m3_safetensors_find(file, e.name);
    if (!k || k->rank != 3 || k->shape[0] < 1 || k->shape[1] != c->G || k->shape[2] != c->D)
        return fail_tensor(file, &e, dtype, k, error);
    *S = k->shape[0];
    return M3_OK;
}

/* Copies a tensor and gives back the pages of the file: with all of them beside the cache, memory would hold it
 * twice. */
static void copy(const struct entry *e, const struct m3_tensor *t)
{
    enum { PIECE = 16 << 20 };
    for (uint64_t at = 0; at < e->bytes; at += PIECE) {
        const uint64_t n = e->bytes - at < PIECE ? e->bytes - at : PIECE;
        memcpy((char *)e->data + at, (const char *)t->data + at, n);
        m3_pages_release((const char *)t->data + at, n);
    }
}

static int read_entry(const struct entry *e, const struct m3_safetensors *file, enum m3_dtype dtype,
                      struct m3_error *error)
{
    const struct m3_tensor *t = m3_safetensors_find(file, e->name);
    if (!t || t->dtype != dtype || t->rank != e->rank || t->bytes != e->bytes ||
        memcmp(t->shape, e->shape, (size_t)e->rank * sizeof *e->shape) != 0)
        return fail_tensor(file, e, dtype, t, error);
    copy(e, t);
    for (int64_t i = 0; i < t->count; i++)
        if (!isfinite(m3_decode(dtype, e->data, i)))
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: element %" PRId64 ": got %g, expected a number",
                           m3_safetensors_path(file), e->name, i, m3_decode(dtype, e->data, i));
    return M3_OK;
}

static int read_numbers(struct m3_cache *cache, const struct m3_safetensors *file, const struct m3_config *c,
                        enum m3_dtype dtype, struct m3_error *error)
{
    int64_t S = 0, found = 0;
    char sha256[65];
    struct entry e;
    int status = read_length(&S, file, c, dtype, error);
    if (!status) status = m3_cache_reserve(cache, M3_CACHE_MAIN, S, error);
    for (int64_t i = 0; !status && i < 3 * c->layers; i++) {
        if (!entry_at(&e, cache, c, i, S)) continue;
        status = read_entry(&e, file, dtype, error);
        found++;
    }
    if (!status && found != m3_safetensors_count(file))
        status = m3_fail(error, M3_BAD_INPUT, "%s: got %" PRId64 " tensors, expected %" PRId64,
                         m3_safetensors_path(file), m3_safetensors_count(file), found);
    if (!status) status = m3_cache_sha256(sha256, cache, c, S, error);
    if (!status) status = m3_origin_require(file, "data_sha256", sha256, error);
    if (!status) m3_cache_set_length(cache, M3_CACHE_MAIN, S);
    return status;
}

int m3_cache_load(struct m3_cache *cache, const char *path, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error)
{
    const struct m3_origin origin = { .weights = model->checkpoint };
    struct m3_safetensors *file = NULL;
    struct labels l;
    int status = make_labels(&l, model, semantics, error);
    if (!status) status = m3_safetensors_open(&file, path, error);
    if (!status) status = m3_origin_require(file, "format", "m3ref-cache", error);
    if (!status) status = m3_origin_require(file, "format_version", "1", error);
    if (!status) status = m3_origin_require(file, "model_sha256", l.model_sha256, error);
    if (!status && m3_safetensors_metadata(file, "arithmetic"))
        status = m3_origin_require(file, "arithmetic", M3_ARITHMETIC, error);
    if (!status) status = m3_origin_check_weights(file, &origin, M3_BAD_INPUT, error);
    if (!status) status = m3_origin_require(file, "precision", engine->precision, error);
    if (!status) status = m3_origin_require(file, "semantics", l.semantics, error);
    if (!status)
        status =
            read_numbers(cache, file, &model->config, engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32, error);
    m3_safetensors_close(file);
    free(l.semantics);
    return status;
}

int m3_cache_places(int64_t *places, const char *path, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    int status = m3_safetensors_open(&file, path, error);
    if (!status) status = m3_origin_require(file, "format", "m3ref-cache", error);
    if (!status) status = m3_origin_require(file, "format_version", "1", error);
    const struct m3_tensor *k = status ? NULL : m3_safetensors_find(file, "layers.0.k");
    if (!status && (!k || k->rank != 3 || k->count < 1))
        status = m3_fail(error, M3_BAD_INPUT, "%s: layers.0.k: got %s, expected keys [S,G,D]", path,
                         k ? "another shape" : "no such tensor");
    if (!status) *places = k->shape[0];
    m3_safetensors_close(file);
    return status;
}
