#include "model/files/case.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/sha256.h"
#include "io/safetensors.h"
#include "model/files/batch.h"

void m3_case_hash_tensor(struct m3_sha256 *hash, const char *name, const int64_t *values, int rank,
                         const int64_t *shape)
{
    const uint64_t width = (uint64_t)rank;
    int64_t count = 1;
    m3_sha256_add(hash, name, strlen(name) + 1);
    m3_sha256_add(hash, &width, sizeof width);
    m3_sha256_add(hash, shape, (size_t)rank * sizeof *shape);
    for (int i = 0; i < rank; i++) count *= shape[i];
    m3_sha256_add(hash, values, (size_t)count * sizeof *values);
}

/* `width` 0: rank 1. */
static void hash_tensor(struct m3_sha256 *hash, const char *name, const int64_t *values, int64_t rows, int64_t width)
{
    m3_case_hash_tensor(hash, name, values, width ? 2 : 1, (const int64_t[]){ rows, width });
}

/* Hashes the tensors that the case has, in byte order of their names. Pixels are not hashed. */
static int hash_case(struct m3_case *c, const int64_t *ids, const int64_t *mask, int has_positions,
                     struct m3_error *error)
{
    const struct m3_pictures *s = &c->pictures;
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "a hash", 0);
    if (mask) hash_tensor(hash, "attention_mask", mask, c->places, 0);
    if (s->images) hash_tensor(hash, "image_grid_thw", s->grid[0], s->images, 3);
    hash_tensor(hash, "input_ids", ids, c->T, 0);
    if (has_positions) hash_tensor(hash, "position_ids", c->positions, c->T, 0);
    if (s->videos) hash_tensor(hash, "video_grid_thw", s->grid[s->images], s->videos, 3);
    return m3_sha256_end(hash, c->sha256) ? m3_fail(error, M3_INTERNAL, "SHA-256 of the case failed") : M3_OK;
}

/* Copies the ids; one that does not fit becomes -1, which is in no vocabulary, and the first is kept. mask [c->places]
 * or NULL. */
static int fill(struct m3_case *c, const int64_t *ids, const int64_t *positions, const int64_t *mask, int64_t T,
                struct m3_error *error)
{
    c->T = T;
    if (mask && !(c->seen = malloc((size_t)c->places))) return m3_fail_memory(error, "the mask", (size_t)c->places);
    for (int64_t j = 0; mask && j < c->places; j++) c->seen[j] = mask[j] != 0;
    c->ids = malloc((size_t)T * sizeof *c->ids);
    c->positions = malloc((size_t)T * sizeof *c->positions);
    if (!c->ids || !c->positions) return m3_fail_memory(error, "the case", (size_t)T * sizeof *c->positions);
    for (int64_t t = 0; t < T; t++) {
        const int fits = ids[t] >= 0 && ids[t] <= INT32_MAX;
        if (!fits && !c->misfit) c->misfit = ids[t];
        c->ids[t] = fits ? (int32_t)ids[t] : -1;
        c->positions[t] = positions ? positions[t] : t;
    }
    c->has_positions = positions != NULL;
    return hash_case(c, ids, mask, positions != NULL, error);
}

int m3_case_from_values(struct m3_case *c, const int64_t *ids, const int64_t *positions, int64_t T,
                        struct m3_error *error)
{
    memset(c, 0, sizeof *c);
    return fill(c, ids, positions, NULL, T, error);
}

static int64_t occurrences(const int64_t *ids, int64_t T, int64_t id)
{
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++) n += ids[t] == id;
    return n;
}

/* Replaces each placeholder of one kind by as many as its picture has tokens, if there are as many placeholders as
 * pictures [first, end). *ids, to be freed by the caller, may move. */
static int expand(int64_t **ids, int64_t *T, int64_t placeholder, const struct m3_pictures *pictures, int64_t first,
                  int64_t end, const struct m3_vision_config *config, struct m3_error *error)
{
    int64_t tokens = 0, to = 0, picture = first;
    for (int64_t i = first; i < end; i++) tokens += m3_pictures_tokens(pictures, i, config);
    if (end == first || placeholder < 0 || tokens == end - first) return M3_OK;
    if (occurrences(*ids, *T, placeholder) != end - first) return M3_OK;

    int64_t length = *T - (end - first) + tokens, *longer = malloc((size_t)length * sizeof *longer);
    if (!longer) return m3_fail_memory(error, "the ids", (size_t)length * sizeof *longer);
    for (int64_t t = 0; t < *T; t++) {
        int64_t times = (*ids)[t] == placeholder ? m3_pictures_tokens(pictures, picture++, config) : 1;
        while (times--) longer[to++] = (*ids)[t];
    }
    free(*ids);
    *ids = longer;
    *T = length;
    return M3_OK;
}

int m3_case_from_ids(struct m3_case *c, const int64_t *ids, int64_t T, struct m3_pictures *pictures,
                     const struct m3_config *config, struct m3_error *error)
{
    const struct m3_vision_config *v = &config->vision;
    memset(c, 0, sizeof *c);
    if (pictures) c->pictures = *pictures, *pictures = (struct m3_pictures){ 0 };
    if (T < 1) return m3_fail(error, M3_USAGE, "--ids: got none, expected at least one");

    int64_t images = c->pictures.images, all = images + c->pictures.videos, *own = malloc((size_t)T * sizeof *own);
    if (!own) return m3_fail_memory(error, "the ids", (size_t)T * sizeof *own);
    memcpy(own, ids, (size_t)T * sizeof *own);
    int status = expand(&own, &T, v->image_token, &c->pictures, 0, images, v, error);
    if (!status) status = expand(&own, &T, v->video_token, &c->pictures, images, all, v, error);
    if (!status) status = fill(c, own, NULL, NULL, T, error);
    free(own);
    return status;
}

static int64_t integer_at(const struct m3_tensor *tensor, int64_t i)
{
    int64_t value;
    if (tensor->dtype == M3_I32) return (int64_t)m3_decode(M3_I32, tensor->data, i);
    memcpy(&value, (const char *)tensor->data + 8 * i, 8);
    return value;
}

/* Reads an I32 or I64 vector; the caller frees *values. T < 0: any length from 1. */
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
    for (int64_t t = 0; t < *T; t++) (*values)[t] = integer_at(tensor, t);
    return M3_OK;
}

/* Reads attention_mask [S] of 0 and 1; S is known only when the case is placed after its prefix. The caller frees
 * *mask. */
static int read_mask(struct m3_case *c, int64_t **mask, const struct m3_safetensors *file, struct m3_error *error)
{
    const struct m3_tensor *tensor = m3_safetensors_find(file, "attention_mask");
    if (!tensor) return M3_OK;
    c->places = -1;
    int status = read_vector(mask, &c->places, tensor, m3_safetensors_path(file), error);
    for (int64_t j = 0; !status && j < c->places; j++)
        if ((*mask)[j] != 0 && (*mask)[j] != 1)
            status =
                m3_fail(error, M3_BAD_INPUT, "%s: attention_mask: place %" PRId64 ": got %" PRId64 ", expected 0 or 1",
                        m3_safetensors_path(file), j, (*mask)[j]);
    return status;
}

/* Reads pixels [P,C] F32 and grids [n,3] of one kind of picture: both or neither must be there. */
static int read_pictures(struct m3_case *c, const struct m3_safetensors *file, int is_video,
                         const struct m3_config *config, struct m3_error *error)
{
    const char *path = m3_safetensors_path(file), *pixel_name = is_video ? "pixel_values_videos" : "pixel_values";
    const char *grid_name = is_video ? "video_grid_thw" : "image_grid_thw";
    const struct m3_tensor *pixels = m3_safetensors_find(file, pixel_name);
    const struct m3_tensor *grid = m3_safetensors_find(file, grid_name);
    int64_t width = m3_config_size(config, 'C');
    if (!pixels && !grid) return M3_OK;

    if (!config->vision.present)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got pictures, expected none: the model has no vision part", path,
                       pixels ? pixel_name : grid_name);
    if (!pixels || !grid)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got no such tensor, expected it together with %s", path,
                       pixels ? grid_name : pixel_name, pixels ? pixel_name : grid_name);
    if (pixels->dtype != M3_F32 || pixels->rank != 2 || pixels->shape[1] != width || pixels->shape[0] < 1)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: %s: got %s of rank %d and width %" PRId64 ", expected F32 [P,%" PRId64 "], P at least 1",
                       path, pixel_name, m3_dtype_name(pixels->dtype), pixels->rank,
                       pixels->rank ? pixels->shape[pixels->rank - 1] : 0, width);
    if ((grid->dtype != M3_I32 && grid->dtype != M3_I64) || grid->rank != 2 || grid->shape[1] != 3 || !grid->shape[0])
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s of rank %d, expected I32 or I64 [n,3]", path, grid_name,
                       m3_dtype_name(grid->dtype), grid->rank);

    /* Copied, because data in a file is not aligned. */
    float *numbers = malloc((size_t)pixels->count * sizeof *numbers);
    int64_t (*grids)[3] = malloc((size_t)grid->shape[0] * sizeof *grids);
    int status = numbers && grids ? M3_OK : m3_fail_memory(error, pixel_name, (size_t)pixels->count * sizeof *numbers);
    if (!status) memcpy(numbers, pixels->data, (size_t)pixels->count * sizeof *numbers);
    for (int64_t i = 0; !status && i < grid->count; i++) grids[i / 3][i % 3] = integer_at(grid, i);
    if (!status)
        status = m3_pictures_add_patches(&c->pictures, is_video, numbers, pixels->shape[0], grids, grid->shape[0],
                                         &config->vision, path, error);
    free(numbers);
    free(grids);
    return status;
}

static int refuse_unsupported(const struct m3_safetensors *file, const char *path, struct m3_error *error)
{
    static const char *const known[] = { "input_ids",      "position_ids",        "attention_mask", "pixel_values",
                                         "image_grid_thw", "pixel_values_videos", "video_grid_thw", "labels" };
    int status = M3_OK;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const char *name = m3_safetensors_at(file, i)->name;
        int is_known = 0;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) is_known |= strcmp(name, known[k]) == 0;
        if (!is_known)
            status = m3_fail(error, M3_BAD_INPUT,
                             "%s: %s: got a tensor that this version does not support, expected "
                             "input_ids, labels, position_ids, attention_mask, pixel_values, image_grid_thw, "
                             "pixel_values_videos and video_grid_thw only",
                             path, name);
    }
    return status;
}

int m3_case_read(struct m3_case *c, const char *path, const struct m3_config *config, struct m3_error *error)
{
    struct m3_safetensors *file;
    int64_t *ids = NULL, *positions = NULL, *mask = NULL, T = -1;
    memset(c, 0, sizeof *c);

    int status = m3_safetensors_open(&file, path, error);
    if (status) return status;
    const struct m3_tensor *id_tensor = m3_safetensors_find(file, "input_ids");
    const struct m3_tensor *position_tensor = m3_safetensors_find(file, "position_ids");

    if (!id_tensor)
        status = m3_fail(error, M3_BAD_INPUT, "%s: input_ids: got no such tensor, expected I32 or I64 [T]", path);
    if (!status && m3_is_batch(file))
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: input_ids: got several sequences, expected one, [T]: only run, grad, compare, blame and "
                         "check take several",
                         path);
    if (!status) status = refuse_unsupported(file, path, error);
    if (!status) status = read_vector(&ids, &T, id_tensor, path, error);
    if (!status && position_tensor) status = read_vector(&positions, &T, position_tensor, path, error);
    if (!status) status = read_mask(c, &mask, file, error);
    if (!status) status = read_pictures(c, file, 0, config, error);
    if (!status) status = read_pictures(c, file, 1, config, error);
    if (!status) status = fill(c, ids, positions, mask, T, error);

    free(mask);
    free(ids);
    free(positions);
    m3_safetensors_close(file);
    return status;
}

/* Reads an integer tensor of rank `rank`; *values, to be freed, is NULL if the file has none. `width`: of a row. */
static int read_beside(int64_t **values, int64_t *rows, const struct m3_safetensors *file, const char *name, int rank,
                       int64_t width, struct m3_error *error)
{
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    *values = NULL;
    *rows = 0;
    if (!t) return M3_OK;
    const int is_integer = t->dtype == M3_I32 || t->dtype == M3_I64 || t->dtype == M3_U8;
    if (!is_integer || t->rank != rank || t->count < 1 || (rank == 2 && t->shape[1] != width))
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s of rank %d and %" PRId64 " values, expected integers [n%s]",
                       m3_safetensors_path(file), name, m3_dtype_name(t->dtype), t->rank, t->count,
                       rank == 2 ? ",3" : "");
    *rows = t->shape[0];
    *values = malloc((size_t)t->count * sizeof **values);
    if (!*values) return m3_fail_memory(error, name, (size_t)t->count * sizeof **values);
    for (int64_t i = 0; i < t->count; i++)
        (*values)[i] = t->dtype == M3_U8 ? (int64_t)m3_decode(M3_U8, t->data, i) : integer_at(t, i);
    return M3_OK;
}

static int read_grids(struct m3_case *c, const struct m3_safetensors *file, int is_video,
                      const struct m3_config *config, struct m3_error *error)
{
    const char *name = is_video ? "case.video_grid_thw" : "case.image_grid_thw", *path = m3_safetensors_path(file);
    int64_t *grid, count;
    int status = read_beside(&grid, &count, file, name, 2, 3, error);
    if (grid && !config->vision.present)
        status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got pictures, expected none: the model has no vision part", path,
                         name);
    if (grid && !status)
        status = m3_pictures_add_grids(&c->pictures, is_video, (const int64_t (*)[3])(const void *)grid, count,
                                       &config->vision, path, error);
    free(grid);
    return status;
}

/* The tensor must have as many values as there are tokens, or places. */
static int check_count(const int64_t *values, int64_t got, int64_t want, const struct m3_safetensors *file,
                       const char *name, struct m3_error *error)
{
    if (!values || got == want) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " values, expected %" PRId64, m3_safetensors_path(file),
                   name, got, want);
}

/* A label that says a number of cached places; 0 without it. */
static int read_places(int64_t *places, const struct m3_safetensors *file, const char *label, int64_t most,
                       struct m3_error *error)
{
    const char *text = m3_safetensors_metadata(file, label);
    char *end = "";
    *places = text ? strtoll(text, &end, 10) : 0;
    if (!*end && *places >= 0 && *places <= most) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected a number of cached places, at most %" PRId64,
                   m3_safetensors_path(file), label, text, most);
}

int m3_case_from_dump(struct m3_case *c, const struct m3_safetensors *file, const struct m3_config *config,
                      struct m3_error *error)
{
    const char *sha256 = m3_safetensors_metadata(file, "case_sha256");
    int64_t *ids, *positions = NULL, *mask = NULL, T, rows;
    memset(c, 0, sizeof *c);
    int status = read_beside(&ids, &T, file, "case.input_ids", 1, 0, error);
    if (!status && !ids)
        status = m3_fail(error, M3_BAD_INPUT, "%s: got no case.input_ids, expected those of the dump",
                         m3_safetensors_path(file));
    if (!status) status = read_places(&c->p0, file, "case.cached", INT64_C(1) << 53, error);
    if (!status) status = read_places(&c->shift, file, "case.shift", c->p0, error);
    if (!status) status = read_beside(&positions, &rows, file, "case.position_ids", 1, 0, error);
    if (!status) status = check_count(positions, rows, T, file, "case.position_ids", error);
    if (!status) status = read_beside(&mask, &c->places, file, "case.attention_mask", 1, 0, error);
    if (!status) status = check_count(mask, c->places, c->p0 + T, file, "case.attention_mask", error);
    if (!status) status = read_grids(c, file, 0, config, error);
    if (!status) status = read_grids(c, file, 1, config, error);
    if (!status) status = fill(c, ids, positions, mask, T, error);
    if (!status) m3_case_continue(c, c->p0);
    if (!status && sha256 && strlen(sha256) < sizeof c->sha256) strcpy(c->sha256, sha256);
    free(ids);
    free(positions);
    free(mask);
    return status;
}

void m3_case_continue(struct m3_case *c, int64_t p0)
{
    c->p0 = p0;
    for (int64_t t = 0; t < c->T && !c->has_positions; t++) c->positions[t] += p0;
}

int m3_case_shift(struct m3_case *c, int64_t shift, struct m3_error *error)
{
    if (shift == 0) return M3_OK;
    const size_t places = (size_t)(shift + c->T);
    c->seen = malloc(places);
    if (!c->seen) return m3_fail_memory(error, "the mask", places);
    memset(c->seen, 0, (size_t)shift);
    memset(c->seen + shift, 1, (size_t)c->T);
    c->places = shift + c->T;
    c->p0 = c->shift = shift;
    return M3_OK;
}

void m3_case_unshift(struct m3_case *c)
{
    if (c->shift == 0) return;
    free(c->seen);
    c->seen = NULL;
    c->places = c->p0 = c->shift = 0;
}

/* There must be as many placeholders as the pictures of one kind have tokens. */
static int check_placeholders(const struct m3_case *c, const char *kind, int64_t placeholder, int64_t pictures,
                              int64_t tokens, const char *source, enum m3_status status, struct m3_error *error)
{
    int64_t n = 0;
    if (placeholder < 0 && pictures > 0)
        return m3_fail(error, status, "%s: got %" PRId64 " %s%s, expected none: the config names no %s_token_index",
                       source, pictures, kind, pictures == 1 ? "" : "s", kind);
    for (int64_t t = 0; t < c->T && placeholder >= 0; t++) n += c->ids[t] == placeholder;
    if (n == tokens) return M3_OK;
    return m3_fail(error, status,
                   "%s: got %" PRId64 " placeholders of %ss (id %" PRId64 "), expected %" PRId64
                   ", the tokens of %" PRId64 " %s%s",
                   source, n, kind, placeholder, tokens, pictures, kind, pictures == 1 ? "" : "s");
}

int m3_case_check(const struct m3_case *c, const struct m3_config *config, int allow_long, const char *source,
                  enum m3_status status, struct m3_error *error)
{
    const struct m3_vision_config *v = &config->vision;
    const struct m3_pictures *s = &c->pictures;
    int wrong = v->present ? check_placeholders(c, "image", v->image_token, s->images, m3_pictures_image_tokens(s, v),
                                                source, status, error)
                           : M3_OK;
    if (!wrong && v->present)
        wrong = check_placeholders(c, "video", v->video_token, s->videos, m3_pictures_video_tokens(s, v), source,
                                   status, error);
    if (wrong) return wrong;

    if (c->seen && c->places != c->p0 + c->T)
        return m3_fail(error, status,
                       "%s: attention_mask: got %" PRId64 " places, expected %" PRId64 ", %" PRId64
                       " before the case and its %" PRId64 " tokens",
                       source, c->places, c->p0 + c->T, c->p0, c->T);
    for (int64_t t = 0; t < c->T; t++) {
        if (c->ids[t] < 0 || c->ids[t] >= config->V)
            return m3_fail(error, status, "%s: token %" PRId64 ": got id %" PRId64 ", expected 0 to %" PRId64, source,
                           t, c->ids[t] < 0 ? c->misfit : c->ids[t], config->V - 1);
        if (c->positions[t] < 0)
            return m3_fail(error, status, "%s: token %" PRId64 ": got position %" PRId64 ", expected none below 0",
                           source, t, c->positions[t]);
        if (c->positions[t] > INT64_C(1) << 53)
            return m3_fail(error, status,
                           "%s: token %" PRId64 ": got position %" PRId64 ", expected at most 2^53: beyond that, "
                           "neighbours have the same angle",
                           source, t, c->positions[t]);
        int64_t place = c->p0 - c->shift + t;
        if (!allow_long && (place >= config->max_positions || c->positions[t] >= config->max_positions))
            return m3_fail(error, status,
                           "%s: token %" PRId64 ": got position %" PRId64 ", expected below "
                           "max_position_embeddings %" PRId64 " (--allow-long allows it)",
                           source, t, place >= config->max_positions ? place : c->positions[t], config->max_positions);
    }
    return M3_OK;
}

int64_t m3_case_reach(const struct m3_case *c)
{
    int64_t place = c->p0 - c->shift + c->T - 1, position = c->positions[c->T - 1];
    return place > position ? place : position;
}

void m3_case_free(struct m3_case *c)
{
    free(c->ids);
    free(c->positions);
    free(c->seen);
    m3_pictures_free(&c->pictures);
    memset(c, 0, sizeof *c);
}

struct m3_request m3_case_request(const struct m3_case *c)
{
    return (struct m3_request){ .ids = c->ids,
                                .positions = c->positions,
                                .T = c->T,
                                .seen = c->seen,
                                .shift = c->shift,
                                .pictures = c->pictures.P > 0 ? &c->pictures : NULL };
}

int m3_case_makes(const struct m3_case *c, enum m3_tap tap)
{
    return c->pictures.P > 0 || m3_tap_table[tap].where > M3_WHERE_AFTER_VISION_LAYERS;
}

int64_t m3_case_rows(const struct m3_case *c, const struct m3_config *config, enum m3_tap tap, int64_t layer)
{
    switch (m3_tap_table[tap].shape[0]) {
    case 'P': return c->pictures.P;
    case 'M': return c->pictures.P > 0 ? m3_merged(c->pictures.P, &config->vision) : 0;
    case 'O': return c->pictures.images + c->pictures.videos;
    default: return m3_max(0, m3_layer_rows(layer, c->T));
    }
}

int64_t m3_case_width(const struct m3_case *c, const struct m3_config *config, enum m3_tap tap, int64_t layer)
{
    const int64_t places = c->p0 + m3_case_rows(c, config, tap, layer);
    int64_t width = 1;
    for (const char *letter = m3_tap_table[tap].shape + 1; *letter; letter++)
        width *= *letter == 'B' ? (places + config->block - 1) / config->block : m3_config_size(config, *letter);
    return width;
}
