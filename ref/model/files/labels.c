#include "model/files/labels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The tensor, and the file that it is in, for messages. */
struct reading {
    const struct m3_tensor *tensor;
    const char *path;
    const struct m3_layout *layout;
    int64_t V;
    struct m3_error *error;
};

static int64_t label_at(const struct m3_tensor *tensor, int64_t i)
{
    int64_t value;
    if (tensor->dtype != M3_I64) return (int64_t)m3_decode(tensor->dtype, tensor->data, i);
    memcpy(&value, (const char *)tensor->data + 8 * i, 8);
    return value;
}

/* The shape must be that of input_ids. */
static int check_shape(const struct reading *r, const struct m3_tensor *ids)
{
    const struct m3_tensor *t = r->tensor;
    if (!t)
        return m3_fail(r->error, M3_BAD_INPUT, "%s: labels: got no such tensor, expected I32 or I64, as input_ids",
                       r->path);
    if (t->dtype != M3_I32 && t->dtype != M3_I64)
        return m3_fail(r->error, M3_BAD_INPUT, "%s: labels: got %s, expected I32 or I64", r->path,
                       m3_dtype_name(t->dtype));
    if (t->rank != ids->rank || memcmp(t->shape, ids->shape, (size_t)t->rank * sizeof *t->shape) != 0)
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: labels: got rank %d with %" PRId64 " values, expected rank %d with %" PRId64
                       ", as input_ids",
                       r->path, t->rank, t->count, ids->rank, ids->count);
    return M3_OK;
}

/* Padding has no row that predicts, nor one that is predicted. */
static int check_padding(const struct reading *r)
{
    const struct m3_layout *l = r->layout;
    for (int64_t i = 0; l->slots && i < l->count * l->slots; i++) {
        const int64_t b = i / l->slots, slot = i % l->slots, at = slot - l->before[b];
        if ((at >= 0 && at < l->lengths[b]) || label_at(r->tensor, i) == M3_NO_LABEL) continue;
        return m3_fail(r->error, M3_BAD_INPUT,
                       "%s: labels: sequence %" PRId64 ", slot %" PRId64 ": got %" PRId64 " on padding, expected %d",
                       r->path, b, slot, label_at(r->tensor, i), M3_NO_LABEL);
    }
    return M3_OK;
}

/* Labels of sequence b, which begin at `first` in the tensor. */
static int read_sequence(struct m3_labels *labels, int64_t b, int64_t first, const struct reading *r)
{
    const int64_t T = r->layout->lengths[b];
    int32_t *own = labels->of[b] = malloc((size_t)T * sizeof *own);
    if (!own) return m3_fail_memory(r->error, "labels", (size_t)T * sizeof *own);
    for (int64_t t = 0; t < T; t++) {
        const int64_t label = label_at(r->tensor, first + t);
        if (label != M3_NO_LABEL && (label < 0 || label >= r->V))
            return m3_fail(r->error, M3_BAD_INPUT,
                           "%s: labels: sequence %" PRId64 ", token %" PRId64 ": got %" PRId64
                           ", expected 0 to %" PRId64 ", or %d",
                           r->path, b, t, label, r->V - 1, M3_NO_LABEL);
        own[t] = (int32_t)label;
        labels->scored += t > 0 && label != M3_NO_LABEL;
    }
    return M3_OK;
}

static int hash(struct m3_labels *labels, const struct reading *r)
{
    struct m3_sha256 *state = m3_sha256_new();
    int64_t *values = malloc((size_t)r->tensor->count * sizeof *values);
    int status =
        state && values ? M3_OK : m3_fail_memory(r->error, "labels", (size_t)r->tensor->count * sizeof *values);
    for (int64_t i = 0; !status && i < r->tensor->count; i++) values[i] = label_at(r->tensor, i);
    if (!status) m3_case_hash_tensor(state, "labels", values, r->tensor->rank, r->tensor->shape);
    if (state && m3_sha256_end(state, labels->sha256) && !status)
        status = m3_fail(r->error, M3_INTERNAL, "SHA-256 of the labels failed");
    free(values);
    return status;
}

static int read_all(struct m3_labels *labels, const struct reading *r)
{
    const struct m3_layout *l = r->layout;
    int64_t first = 0;
    int status = check_padding(r);
    labels->of = calloc((size_t)l->count, sizeof *labels->of);
    if (!status && !labels->of) status = m3_fail_memory(r->error, "labels", (size_t)l->count * sizeof *labels->of);
    if (!status) labels->count = l->count;
    for (int64_t b = 0; !status && b < l->count; b++) {
        status = read_sequence(labels, b, l->slots ? b * l->slots + l->before[b] : first, r);
        first += l->lengths[b];
    }
    if (!status && labels->scored == 0)
        status = m3_fail(r->error, M3_BAD_INPUT,
                         "%s: labels: got none that a row predicts, expected at least one other than %d after the "
                         "first token",
                         r->path, M3_NO_LABEL);
    return status ? status : hash(labels, r);
}

int m3_labels_read(struct m3_labels *labels, const char *path, const struct m3_batch *batch,
                   const struct m3_config *config, struct m3_error *error)
{
    struct m3_safetensors *file;
    *labels = (struct m3_labels){ 0 };
    int status = m3_safetensors_open(&file, path, error);
    if (status) return status;
    const struct reading r = { m3_safetensors_find(file, "labels"), path, &batch->layout, config->V, error };
    status = check_shape(&r, m3_safetensors_find(file, "input_ids"));
    if (!status) status = read_all(labels, &r);
    m3_safetensors_close(file);
    return status;
}

void m3_labels_free(struct m3_labels *labels)
{
    for (int64_t b = 0; b < labels->count; b++) free(labels->of[b]);
    free(labels->of);
    *labels = (struct m3_labels){ 0 };
}
