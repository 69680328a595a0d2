#include "model/files/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* An integer tensor of the file. `values` NULL: the file has none. */
struct integers {
    const char *name;
    int64_t *values;
    int rank;
    int64_t shape[2];
};

enum { IDS, MASK, ENDS, POSITIONS, TENSORS };

struct reading {
    const struct m3_safetensors *file;
    const char *path;
    struct integers of[TENSORS];
    struct m3_error *error;
};

int m3_is_batch(const struct m3_safetensors *file)
{
    const struct m3_tensor *ids = m3_safetensors_find(file, "input_ids");
    return m3_safetensors_find(file, "cu_seqlens") || (ids && ids->rank == 2);
}

int64_t m3_layout_rows(const struct m3_layout *l)
{
    int64_t rows = 0;
    for (int64_t b = 0; b < l->count; b++) rows += l->lengths[b];
    return rows;
}

static int64_t integer_at(const struct m3_tensor *tensor, int64_t i)
{
    int64_t value;
    if (tensor->dtype != M3_I64) return (int64_t)m3_decode(tensor->dtype, tensor->data, i);
    memcpy(&value, (const char *)tensor->data + 8 * i, 8);
    return value;
}

static int read_integers(struct reading *r, int which, const char *name)
{
    struct integers *out = &r->of[which];
    const struct m3_tensor *t = m3_safetensors_find(r->file, name);
    *out = (struct integers){ .name = name };
    if (!t) return M3_OK;
    if ((t->dtype != M3_I32 && t->dtype != M3_I64) || t->rank < 1 || t->rank > 2 || t->count < 1)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: %s: got %s of rank %d with %" PRId64 " values, expected I32 or I64 of rank 1 or 2, "
                       "with at least one value",
                       r->path, name, m3_dtype_name(t->dtype), t->rank, t->count);
    out->rank = t->rank;
    memcpy(out->shape, t->shape, sizeof out->shape);
    out->values = malloc((size_t)t->count * sizeof *out->values);
    if (!out->values) return m3_fail_memory(r->error, name, (size_t)t->count * sizeof *out->values);
    for (int64_t i = 0; i < t->count; i++) out->values[i] = integer_at(t, i);
    return M3_OK;
}

static int refuse_others(const struct reading *r)
{
    for (int64_t i = 0; i < m3_safetensors_count(r->file); i++) {
        const char *name = m3_safetensors_at(r->file, i)->name;
        int known = strcmp(name, "labels") == 0;
        for (int k = 0; k < TENSORS; k++) known |= strcmp(name, r->of[k].name) == 0;
        if (known) continue;
        if (strncmp(name, "pixel_values", 12) == 0 || strstr(name, "grid_thw"))
            return m3_fail(r->error, M3_BAD_INPUT,
                           "%s: %s: got pictures with several sequences, expected none: give each sequence with "
                           "pictures a case of its own",
                           r->path, name);
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: %s: got a tensor that several sequences do not have, expected input_ids, labels, "
                       "attention_mask, cu_seqlens and position_ids only",
                       r->path, name);
    }
    return M3_OK;
}

static int same_shape(const struct integers *a, const struct integers *b)
{
    return a->rank == b->rank && a->shape[0] == b->shape[0] && (a->rank == 1 || a->shape[1] == b->shape[1]);
}

static int check_shape(const struct reading *r, int which)
{
    const struct integers *x = &r->of[which], *ids = &r->of[IDS];
    char got[64], want[64];
    if (!x->values || same_shape(x, ids)) return M3_OK;
    snprintf(got, sizeof got, x->rank == 2 ? "[%" PRId64 ",%" PRId64 "]" : "[%" PRId64 "]", x->shape[0], x->shape[1]);
    snprintf(want, sizeof want, ids->rank == 2 ? "[%" PRId64 ",%" PRId64 "]" : "[%" PRId64 "]", ids->shape[0],
             ids->shape[1]);
    return m3_fail(r->error, M3_BAD_INPUT, "%s: %s: got %s, expected %s, as input_ids", r->path, x->name, got, want);
}

static int make_room(struct m3_batch *batch, int64_t count, struct m3_error *error)
{
    struct m3_layout *l = &batch->layout;
    l->count = count;
    l->lengths = calloc((size_t)count, sizeof *l->lengths);
    l->before = calloc((size_t)count, sizeof *l->before);
    batch->cases = calloc((size_t)count, sizeof *batch->cases);
    if (l->lengths && l->before && batch->cases) return M3_OK;
    return m3_fail_memory(error, "sequences", (size_t)count * sizeof *batch->cases);
}

/* The tokens of a row of the mask lie together: padding is before or after them. */
static int measure_row(struct m3_layout *l, int64_t b, const struct reading *r)
{
    const int64_t *mask = r->of[MASK].values ? r->of[MASK].values + b * l->slots : NULL;
    int64_t first = 0, end = l->slots;
    for (int64_t s = 0; mask && s < l->slots; s++)
        if (mask[s] != 0 && mask[s] != 1)
            return m3_fail(r->error, M3_BAD_INPUT,
                           "%s: attention_mask: sequence %" PRId64 ", slot %" PRId64 ": got %" PRId64
                           ", expected 0 or 1",
                           r->path, b, s, mask[s]);
    while (mask && first < end && !mask[first]) first++;
    while (mask && end > first && !mask[end - 1]) end--;
    if (end == first)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: attention_mask: sequence %" PRId64 ": got padding alone, expected at least one token",
                       r->path, b);
    for (int64_t s = first; mask && s < end; s++)
        if (!mask[s])
            return m3_fail(r->error, M3_BAD_INPUT,
                           "%s: attention_mask: sequence %" PRId64 ", slot %" PRId64
                           ": got 0 between tokens, expected padding only before or after them",
                           r->path, b, s);
    l->before[b] = first;
    l->lengths[b] = end - first;
    return M3_OK;
}

static int measure_padded(struct m3_batch *batch, const struct reading *r)
{
    const struct integers *ids = &r->of[IDS];
    int status = make_room(batch, ids->shape[0], r->error);
    batch->layout.slots = ids->shape[1];
    if (!status) status = check_shape(r, MASK);
    for (int64_t b = 0; !status && b < batch->layout.count; b++) status = measure_row(&batch->layout, b, r);
    return status;
}

static int measure_packed(struct m3_batch *batch, const struct reading *r)
{
    const struct integers *ids = &r->of[IDS], *ends = &r->of[ENDS];
    const int64_t T = ids->rank == 2 ? ids->shape[1] : ids->shape[0], count = ends->shape[0] - 1;
    if (ids->rank == 2 && ids->shape[0] != 1)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: cu_seqlens: got it with input_ids [%" PRId64 ",%" PRId64 "], expected [T] or [1,T]",
                       r->path, ids->shape[0], ids->shape[1]);
    if (r->of[MASK].values)
        return m3_fail(r->error, M3_BAD_INPUT, "%s: attention_mask: got it with cu_seqlens, expected one of the two",
                       r->path);
    if (ends->rank != 1 || count < 1)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: cu_seqlens: got rank %d with %" PRId64 " values, expected [B+1], B at least 1", r->path,
                       ends->rank, ends->shape[0]);
    if (ends->values[0] != 0)
        return m3_fail(r->error, M3_BAD_INPUT, "%s: cu_seqlens[0]: got %" PRId64 ", expected 0", r->path,
                       ends->values[0]);
    for (int64_t b = 0; b < count; b++)
        if (ends->values[b + 1] <= ends->values[b])
            return m3_fail(r->error, M3_BAD_INPUT,
                           "%s: cu_seqlens[%" PRId64 "]: got %" PRId64 " after %" PRId64
                           ", expected more: sequence %" PRId64 " has no token",
                           r->path, b + 1, ends->values[b + 1], ends->values[b], b);
    if (ends->values[count] != T)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: cu_seqlens[%" PRId64 "]: got %" PRId64 ", expected %" PRId64 ", the tokens of input_ids",
                       r->path, count, ends->values[count], T);
    int status = make_room(batch, count, r->error);
    for (int64_t b = 0; !status && b < count; b++) batch->layout.lengths[b] = ends->values[b + 1] - ends->values[b];
    return status;
}

/* The first of a sequence's values in a tensor that is shaped as input_ids. */
static const int64_t *values_of(const struct integers *x, const struct m3_layout *l, int64_t b)
{
    int64_t first = 0;
    for (int64_t i = 0; !l->slots && i < b; i++) first += l->lengths[i];
    return x->values ? x->values + (l->slots ? b * l->slots + l->before[b] : first) : NULL;
}

static int hash(struct m3_batch *batch, const struct reading *r)
{
    static const int in_order[TENSORS] = { MASK, ENDS, IDS, POSITIONS };
    struct m3_sha256 *state = m3_sha256_new();
    if (!state) return m3_fail_memory(r->error, "a hash", 0);
    for (int i = 0; i < TENSORS; i++) {
        const struct integers *x = &r->of[in_order[i]];
        if (x->values) m3_case_hash_tensor(state, x->name, x->values, x->rank, x->shape);
    }
    return m3_sha256_end(state, batch->sha256) ? m3_fail(r->error, M3_INTERNAL, "SHA-256 of the case failed") : M3_OK;
}

static int read_several(struct m3_batch *batch, const struct m3_safetensors *file, struct m3_error *error)
{
    struct reading r = { .file = file, .path = m3_safetensors_path(file), .error = error };
    int status = read_integers(&r, IDS, "input_ids");
    if (!status) status = read_integers(&r, MASK, "attention_mask");
    if (!status) status = read_integers(&r, ENDS, "cu_seqlens");
    if (!status) status = read_integers(&r, POSITIONS, "position_ids");
    if (!status) status = refuse_others(&r);
    if (!status && !r.of[IDS].values)
        status = m3_fail(error, M3_BAD_INPUT, "%s: input_ids: got no such tensor, expected I32 or I64", r.path);
    if (!status) status = check_shape(&r, POSITIONS);
    if (!status) status = r.of[ENDS].values ? measure_packed(batch, &r) : measure_padded(batch, &r);
    for (int64_t b = 0; !status && b < batch->layout.count; b++)
        status = m3_case_from_values(&batch->cases[b], values_of(&r.of[IDS], &batch->layout, b),
                                     values_of(&r.of[POSITIONS], &batch->layout, b), batch->layout.lengths[b], error);
    if (!status) status = hash(batch, &r);
    for (int i = 0; i < TENSORS; i++) free(r.of[i].values);
    return status;
}

int m3_batch_read(struct m3_batch *batch, const char *path, const struct m3_config *config, struct m3_error *error)
{
    struct m3_safetensors *file;
    struct m3_case one = { 0 };
    *batch = (struct m3_batch){ 0 };
    int status = m3_safetensors_open(&file, path, error);
    if (status) return status;
    batch->is_several = m3_is_batch(file);
    if (batch->is_several) status = read_several(batch, file, error);
    m3_safetensors_close(file);
    if (!batch->is_several) {
        status = m3_case_read(&one, path, config, error);
        if (!status) status = m3_batch_of_case(batch, &one, error);
        m3_case_free(&one);
    }
    batch->layout.block = config->block;
    return status;
}

int m3_batch_of_ids(struct m3_batch *batch, const int32_t *const *ids, const int64_t *lengths, int64_t count,
                    struct m3_error *error)
{
    struct reading r = { .path = "sequences", .error = error };
    int64_t T = 0;
    for (int64_t b = 0; b < count; b++) T += lengths[b];
    int64_t *values = malloc((size_t)T * sizeof *values + 1), *ends = calloc((size_t)count + 1, sizeof *ends);
    *batch = (struct m3_batch){ .is_several = 1 };
    int status = values && ends ? M3_OK : m3_fail_memory(error, "sequences", (size_t)T * sizeof *values);
    for (int64_t b = 0; b < count && !status; b++) {
        for (int64_t i = 0; i < lengths[b]; i++) values[ends[b] + i] = ids[b][i];
        ends[b + 1] = ends[b] + lengths[b];
    }
    r.of[IDS] = (struct integers){ "input_ids", values, 1, { T } };
    r.of[ENDS] = (struct integers){ "cu_seqlens", ends, 1, { count + 1 } };
    if (!status) status = measure_packed(batch, &r);
    for (int64_t b = 0; b < count && !status; b++)
        status =
            m3_case_from_values(&batch->cases[b], values_of(&r.of[IDS], &batch->layout, b), NULL, lengths[b], error);
    if (!status) status = hash(batch, &r);
    free(values);
    free(ends);
    return status;
}

int m3_batch_of_case(struct m3_batch *batch, struct m3_case *c, struct m3_error *error)
{
    *batch = (struct m3_batch){ 0 };
    int status = make_room(batch, 1, error);
    if (status) return status;
    batch->layout.lengths[0] = c->T;
    memcpy(batch->sha256, c->sha256, sizeof batch->sha256);
    batch->cases[0] = *c;
    *c = (struct m3_case){ 0 };
    return M3_OK;
}

/* ---- layouts in metadata */

char *m3_layout_json(const struct m3_layout *l)
{
    json_t *lengths = json_array(), *before = json_array();
    for (int64_t b = 0; b < l->count; b++) {
        json_array_append_new(lengths, json_integer((json_int_t)l->lengths[b]));
        json_array_append_new(before, json_integer((json_int_t)l->before[b]));
    }
    json_t *object = json_pack("{s:o, s:o, s:I, s:I}", "lengths", lengths, "before", before, "slots",
                               (json_int_t)l->slots, "block", (json_int_t)l->block);
    char *text = object ? m3_json_dump(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

static int read_layout(struct m3_layout *l, const json_t *object)
{
    const json_t *lengths = json_object_get(object, "lengths"), *before = json_object_get(object, "before");
    const int64_t count = (int64_t)json_array_size(lengths);
    if (count < 1 || json_array_size(before) != (size_t)count) return -1;
    l->lengths = calloc((size_t)count, sizeof *l->lengths);
    l->before = calloc((size_t)count, sizeof *l->before);
    if (!l->lengths || !l->before) return -1;
    l->count = count;
    l->slots = json_integer_value(json_object_get(object, "slots"));
    l->block = json_integer_value(json_object_get(object, "block"));
    int good = l->slots >= 0 && l->slots < INT64_C(1) << 40 && l->block >= 0 && l->block < INT64_C(1) << 40;
    for (int64_t b = 0; b < count && good; b++) {
        l->lengths[b] = json_integer_value(json_array_get(lengths, (size_t)b));
        l->before[b] = json_integer_value(json_array_get(before, (size_t)b));
        good = l->lengths[b] > 0 && l->lengths[b] < INT64_C(1) << 40 && l->before[b] >= 0 &&
               l->before[b] <= INT64_C(1) << 40 && (!l->slots || l->before[b] + l->lengths[b] <= l->slots);
    }
    return good ? 0 : -1;
}

int m3_layout_of_dump(struct m3_layout *layout, const struct m3_safetensors *file, struct m3_error *error)
{
    const char *text = m3_safetensors_metadata(file, "sequences");
    *layout = (struct m3_layout){ 0 };
    if (!text) return M3_OK;
    json_t *object = m3_json_of_text(text);
    const int bad = read_layout(layout, object);
    json_decref(object);
    if (bad)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: metadata sequences: got %.60s, expected the lengths of the sequences, as run writes them",
                       m3_safetensors_path(file), text);
    return M3_OK;
}

/* ---- the rest */

int m3_batch_anchor(struct m3_batch *batch, enum m3_block_anchor anchor, struct m3_error *error)
{
    struct m3_layout *l = &batch->layout;
    int status = M3_OK;
    for (int64_t b = 0; l->by_slot && b < l->count; b++) m3_case_unshift(&batch->cases[b]);
    l->by_slot = anchor == M3_ANCHOR_SLOT && l->slots > 0 && l->block > 0;
    for (int64_t b = 0; !status && l->by_slot && b < l->count; b++)
        status = m3_case_shift(&batch->cases[b], l->before[b] % l->block, error);
    return status;
}

int m3_batch_check(const struct m3_batch *batch, const struct m3_config *config, int allow_long, const char *source,
                   enum m3_status status, struct m3_error *error)
{
    int wrong = M3_OK;
    for (int64_t b = 0; !wrong && b < batch->layout.count; b++) {
        char name[4200];
        snprintf(name, sizeof name, "%s: sequence %" PRId64, source, b);
        wrong = m3_case_check(&batch->cases[b], config, allow_long, batch->is_several ? name : source, status, error);
    }
    return wrong;
}

void m3_layout_free(struct m3_layout *layout)
{
    free(layout->lengths);
    free(layout->before);
    *layout = (struct m3_layout){ 0 };
}

void m3_batch_free(struct m3_batch *batch)
{
    for (int64_t b = 0; batch->cases && b < batch->layout.count; b++) m3_case_free(&batch->cases[b]);
    free(batch->cases);
    m3_layout_free(&batch->layout);
    *batch = (struct m3_batch){ 0 };
}
