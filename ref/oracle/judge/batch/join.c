#include "oracle/judge/batch/join.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/taps.h"

struct joining {
    struct m3_writer *writer;
    const struct m3_batch *batch;
    struct m3_safetensors *const *parts;
    int64_t count;
    struct m3_error *error;
};

/* Is it a tap with a row for each token? */
static int is_of_rows(const char *name, enum m3_tap *tap)
{
    int64_t layer;
    return m3_tap_parse(name, tap, &layer) == 0 && m3_tap_table[*tap].shape[0] == 'T';
}

/* The first part that has the tensor. */
static int64_t first_with(const struct joining *j, const char *name)
{
    int64_t b = 0;
    while (b < j->count && !m3_safetensors_find(j->parts[b], name)) b++;
    return b;
}

/* Has every part the same tensor? Weights are stored once. */
static int is_common(const struct joining *j, const char *name)
{
    const struct m3_tensor *first = m3_safetensors_find(j->parts[0], name);
    for (int64_t b = 1; first && b < j->count; b++) {
        const struct m3_tensor *t = m3_safetensors_find(j->parts[b], name);
        if (!t || t->dtype != first->dtype || t->bytes != first->bytes || t->rank != first->rank) return 0;
        if (memcmp(t->shape, first->shape, (size_t)t->rank * sizeof *t->shape) != 0) return 0;
        if (t->bytes > 0 && memcmp(t->data, first->data, t->bytes) != 0) return 0;
    }
    return first != NULL;
}

/* The shape of a tap over all sequences: the rows of all, and blocks for the longest. */
static int joined_shape(int64_t shape[M3_MAX_RANK], const struct joining *j, const char *name)
{
    int rank = 0;
    for (int64_t b = 0; b < j->count; b++) {
        const struct m3_tensor *t = m3_safetensors_find(j->parts[b], name);
        if (!t) continue;
        for (int i = 0; i < t->rank; i++) {
            if (rank == 0) shape[i] = t->shape[i];
            else if (i == 0) shape[0] += t->shape[0];
            else shape[i] = m3_max(shape[i], t->shape[i]);
        }
        rank = t->rank;
    }
    return rank;
}

static const char *own_name(char *name, size_t size, int64_t b, const char *of)
{
    snprintf(name, size, "sequences.%" PRId64 ".%s", b, of);
    return name;
}

enum { NAME = 256 };

/* Appends a tensor with rows of scores made as wide as those of the longest sequence. */
static int append_wider(const struct joining *j, int64_t index, const struct m3_tensor *t, int64_t width)
{
    const int64_t own = t->shape[t->rank - 1], lines = own > 0 ? t->count / own : 0;
    const size_t size = m3_dtype_bytes(t->dtype);
    char *line = malloc((size_t)width * size + 1);
    if (!line) return m3_fail_memory(j->error, t->name, (size_t)width * size);
    for (int64_t i = 0; i < width; i++) {
        const float narrow = -INFINITY;
        const double wide = -INFINITY;
        if (size == sizeof wide) memcpy(line + (size_t)i * size, &wide, size);
        else memcpy(line + (size_t)i * size, &narrow, size);
    }
    int status = M3_OK;
    for (int64_t i = 0; !status && i < lines; i++) {
        memcpy(line, (const char *)t->data + (size_t)(i * own) * size, (size_t)own * size);
        status = m3_writer_append(j->writer, index, line, (uint64_t)width * size, j->error);
    }
    free(line);
    return status;
}

/* Declares a name of part b (index NULL), or writes what was declared for it; *index counts what was declared. */
static int each(struct joining *j, int64_t b, const struct m3_tensor *t, int writes, int64_t *index)
{
    int64_t shape[M3_MAX_RANK];
    char name[NAME];
    enum m3_tap tap;
    int status = M3_OK;
    if (strcmp(t->name, "rows") == 0) return M3_OK;
    if (is_of_rows(t->name, &tap)) {
        if (first_with(j, t->name) != b) return M3_OK;
        const int rank = joined_shape(shape, j, t->name);
        if (!writes) return m3_writer_tensor(j->writer, t->name, t->dtype, rank, shape, j->error);
        for (int64_t i = 0; !status && i < j->count; i++) {
            const struct m3_tensor *part = m3_safetensors_find(j->parts[i], t->name);
            if (!part) continue;
            status = part->shape[rank - 1] == shape[rank - 1]
                         ? m3_writer_append(j->writer, *index, part->data, part->bytes, j->error)
                         : append_wider(j, *index, part, shape[rank - 1]);
        }
    } else {
        const int common = is_common(j, t->name);
        if (common && b > 0) return M3_OK;
        if (!writes)
            return m3_writer_tensor(j->writer, common ? t->name : own_name(name, sizeof name, b, t->name), t->dtype,
                                    t->rank, t->shape, j->error);
        status = m3_writer_append(j->writer, *index, t->data, t->bytes, j->error);
    }
    ++*index;
    return status;
}

static int all(struct joining *j, int writes, int64_t first)
{
    int64_t index = first;
    int status = M3_OK;
    for (int64_t b = 0; !status && b < j->count; b++)
        for (int64_t i = 0; !status && i < m3_safetensors_count(j->parts[b]); i++)
            status = each(j, b, m3_safetensors_at(j->parts[b], i), writes, &index);
    return status;
}

static int has_common_string(const struct joining *j, const char *key)
{
    const char *first = m3_safetensors_metadata(j->parts[0], key);
    for (int64_t b = 1; first && b < j->count; b++) {
        const char *other = m3_safetensors_metadata(j->parts[b], key);
        if (!other || strcmp(other, first) != 0) return 0;
    }
    return first != NULL;
}

static int describe(const struct joining *j)
{
    char *layout = m3_layout_json(&j->batch->layout), name[NAME];
    int status = layout ? m3_writer_metadata(j->writer, "sequences", layout, j->error)
                        : m3_fail_memory(j->error, "sequences", 0);
    free(layout);
    if (!status) status = m3_writer_metadata(j->writer, "case_sha256", j->batch->sha256, j->error);
    for (int64_t b = 0; !status && b < j->count; b++)
        for (const char *key = NULL; !status && (key = m3_safetensors_next_key(j->parts[b], key));) {
            const int common = strcmp(key, "case_sha256") != 0 && has_common_string(j, key);
            const char *value = m3_safetensors_metadata(j->parts[b], key);
            if (common && b > 0) continue;
            status = m3_writer_metadata(j->writer, common ? key : own_name(name, sizeof name, b, key), value, j->error);
        }
    return status;
}

/* The rows of part b: those that it numbers, or all. */
static int64_t rows_of(const struct joining *j, int64_t b)
{
    const struct m3_tensor *rows = m3_safetensors_find(j->parts[b], "rows");
    return rows ? rows->count : j->batch->layout.lengths[b];
}

static int write_rows(const struct joining *j)
{
    int status = M3_OK;
    for (int64_t b = 0; !status && b < j->count; b++) {
        const struct m3_tensor *rows = m3_safetensors_find(j->parts[b], "rows");
        for (int64_t r = 0; !status && r < rows_of(j, b); r++) {
            const int32_t sequence = (int32_t)b;
            const int32_t row = rows ? (int32_t)m3_decode(rows->dtype, rows->data, r) : (int32_t)r;
            status = m3_writer_append(j->writer, 0, &sequence, sizeof sequence, j->error);
            if (!status) status = m3_writer_append(j->writer, 1, &row, sizeof row, j->error);
        }
    }
    return status;
}

int m3_batch_join(const char *path, const struct m3_batch *batch, struct m3_safetensors *const *parts, int sealed,
                  struct m3_error *error)
{
    struct joining j = { .batch = batch, .parts = parts, .count = batch->layout.count, .error = error };
    int64_t rows = 0;
    int status = m3_writer_new(&j.writer, path, error);
    if (status) return status;
    for (int64_t b = 0; b < j.count; b++) rows += rows_of(&j, b);
    status = m3_writer_tensor(j.writer, "sequences", M3_I32, 1, &rows, error);
    if (!status) status = m3_writer_tensor(j.writer, "rows", M3_I32, 1, &rows, error);
    if (!status) status = all(&j, 0, 2);
    if (!status) status = describe(&j);
    if (!status && sealed) status = m3_writer_seal(j.writer, error);
    if (!status) status = m3_writer_begin(j.writer, error);
    if (!status) status = write_rows(&j);
    if (!status) status = all(&j, 1, 2);
    if (!status) return m3_writer_commit(j.writer, error);
    m3_writer_abandon(j.writer);
    return status;
}
