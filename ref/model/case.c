#include "model/case.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "io/safetensors.h"

/* Hashes one tensor: name, a zero byte, rank and dims as u64, values as I64, little-endian. */
static void hash_vector(struct m3_sha256 *hash, const char *name, const int64_t *values, int64_t T)
{
    const uint64_t rank_and_dims[2] = { 1, (uint64_t)T };
    m3_sha256_add(hash, name, strlen(name) + 1);
    m3_sha256_add(hash, rank_and_dims, sizeof rank_and_dims);
    m3_sha256_add(hash, values, (size_t)T * sizeof *values);
}

/* In byte order of names: input_ids, then position_ids where the file gives them. */
static int hash_case(struct m3_case *c, const int64_t *ids, int has_positions, struct m3_error *error)
{
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "a hash", 0);
    hash_vector(hash, "input_ids", ids, c->T);
    if (has_positions) hash_vector(hash, "position_ids", c->positions, c->T);
    return m3_sha256_end(hash, c->sha256) ? m3_fail(error, M3_INTERNAL, "SHA-256 of the case failed") : M3_OK;
}

/* Takes the ids; an id that no int32_t holds becomes -1, which is in no vocabulary. */
static int fill(struct m3_case *c, const int64_t *ids, const int64_t *positions, int64_t T, struct m3_error *error)
{
    c->T = T;
    c->ids = malloc((size_t)T * sizeof *c->ids);
    c->positions = malloc((size_t)T * sizeof *c->positions);
    if (!c->ids || !c->positions) return m3_fail_memory(error, "the case", (size_t)T * sizeof *c->positions);
    for (int64_t t = 0; t < T; t++) {
        c->ids[t] = ids[t] < 0 || ids[t] > INT32_MAX ? -1 : (int32_t)ids[t];
        c->positions[t] = positions ? positions[t] : t;
    }
    return hash_case(c, ids, positions != NULL, error);
}

int m3_case_from_ids(struct m3_case *c, const int64_t *ids, int64_t T, struct m3_error *error)
{
    memset(c, 0, sizeof *c);
    if (T < 1) return m3_fail(error, M3_USAGE, "got no ids, expected at least one");
    return fill(c, ids, NULL, T, error);
}

/* An I32 or I64 vector; *values is to be freed. T < 0: any length from 1. */
static int read_vector(int64_t **values, int64_t *T, const struct m3_tensor *tensor, const char *path,
                       struct m3_error *error)
{
    if ((tensor->dtype != M3_I32 && tensor->dtype != M3_I64) || tensor->rank != 1)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s of rank %d, expected I32 or I64 [T]", path, tensor->name,
                       m3_dtype_name(tensor->dtype), tensor->rank);
    if (tensor->count < 1 || (*T >= 0 && tensor->count != *T))
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " values, expected %s", path, tensor->name,
                       tensor->count, *T < 0 ? "at least one" : "as many as input_ids");
    *T = tensor->count;
    *values = malloc((size_t)*T * sizeof **values);
    if (!*values) return m3_fail_memory(error, tensor->name, (size_t)*T * sizeof **values);
    for (int64_t t = 0; t < *T; t++) {
        if (tensor->dtype == M3_I64) memcpy(*values + t, (const char *)tensor->data + 8 * t, 8);
        else (*values)[t] = (int64_t)m3_decode(M3_I32, tensor->data, t);
    }
    return M3_OK;
}

static int refuse_unsupported(const struct m3_safetensors *file, const char *path, struct m3_error *error)
{
    static const char *const known[] = { "input_ids", "position_ids" };
    int status = M3_OK;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const char *name = m3_safetensors_at(file, i)->name;
        if (strcmp(name, known[0]) == 0 || strcmp(name, known[1]) == 0) continue;
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: %s: got a tensor that this version does not honour, expected input_ids "
                         "and position_ids only",
                         path, name);
    }
    return status;
}

int m3_case_read(struct m3_case *c, const char *path, struct m3_error *error)
{
    struct m3_safetensors *file;
    int64_t *ids = NULL, *positions = NULL, T = -1;
    memset(c, 0, sizeof *c);

    int status = m3_safetensors_open(&file, path, error);
    if (status) return status;
    const struct m3_tensor *id_tensor = m3_safetensors_find(file, "input_ids");
    const struct m3_tensor *position_tensor = m3_safetensors_find(file, "position_ids");

    if (!id_tensor)
        status = m3_fail(error, M3_BAD_INPUT, "%s: input_ids: got no such tensor, expected I32 or I64 [T]", path);
    if (!status) status = refuse_unsupported(file, path, error);
    if (!status) status = read_vector(&ids, &T, id_tensor, path, error);
    if (!status && position_tensor) status = read_vector(&positions, &T, position_tensor, path, error);
    if (!status) status = fill(c, ids, positions, T, error);

    free(ids);
    free(positions);
    m3_safetensors_close(file);
    return status;
}

int m3_case_check(const struct m3_case *c, const struct m3_config *config, int allow_long, const char *source,
                  enum m3_status status, struct m3_error *error)
{
    const struct m3_vision_config *vision = &config->vision;
    for (int64_t t = 0; t < c->T; t++) {
        if (c->ids[t] < 0 || c->ids[t] >= config->V)
            return m3_fail(error, status, "%s: token %" PRId64 ": got id %d, expected 0 to %" PRId64, source, t,
                           c->ids[t], config->V - 1);
        if (vision->present && (c->ids[t] == vision->image_token || c->ids[t] == vision->video_token))
            return m3_fail(error, status, "%s: token %" PRId64 ": got the placeholder id %d, expected a picture for it",
                           source, t, c->ids[t]);
        if (c->positions[t] < 0)
            return m3_fail(error, status, "%s: token %" PRId64 ": got position %" PRId64 ", expected none below 0",
                           source, t, c->positions[t]);
        if (c->positions[t] > INT64_C(1) << 53)
            return m3_fail(error, status,
                           "%s: token %" PRId64 ": got position %" PRId64 ", expected at most 2^53: beyond, "
                           "neighbours have the same angle",
                           source, t, c->positions[t]);
        if (!allow_long && (t >= config->max_positions || c->positions[t] >= config->max_positions))
            return m3_fail(error, status, "%s: token %" PRId64 ": got position %" PRId64 ", expected below "
                           "max_position_embeddings %" PRId64 " (--allow-long allows it)", source, t,
                           t >= config->max_positions ? t : c->positions[t], config->max_positions);
    }
    return M3_OK;
}

void m3_case_free(struct m3_case *c)
{
    free(c->ids);
    free(c->positions);
    memset(c, 0, sizeof *c);
}
