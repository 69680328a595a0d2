/* The dump of the chosen rows. */
#include <stdlib.h>
#include <string.h>

#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/sample/sample.h"

struct taking {
    const struct m3_sample *sample;
    const struct m3_safetensors *dump;
    struct m3_safetensors *view;
    struct m3_error *error;
};

/* Of rows of the sequence: modules have fewer, and are not judged. */
enum kind { WHOLE, CHOSEN, LEFT_OUT };

static enum kind kind_of(const struct taking *t, const struct m3_tensor *tensor)
{
    enum m3_tap tap;
    int64_t layer;
    if (m3_tap_parse(tensor->name, &tap, &layer) || m3_tap_table[tap].shape[0] != 'T') return WHOLE;
    if (m3_mtp_module_of(layer) >= 0) return LEFT_OUT;
    if (tensor->rank < 1 || tensor->shape[0] != t->sample->of) return WHOLE;
    return m3_is_cached(tap) ? WHOLE : CHOSEN;
}

static int add_chosen(const struct taking *t, const struct m3_tensor *tensor)
{
    int64_t shape[M3_MAX_RANK], n = 0;
    const uint64_t each = (uint64_t)tensor->bytes / (uint64_t)tensor->shape[0];
    char *to = m3_safetensors_memory(t->view, (uint64_t)t->sample->count * each, t->error);
    if (!to) return M3_INTERNAL;
    for (int64_t r = 0; r < t->sample->of; r++)
        if (t->sample->chosen[r])
            memcpy(to + (uint64_t)n++ * each, (const char *)tensor->data + (uint64_t)r * each, each);
    memcpy(shape, tensor->shape, sizeof shape);
    shape[0] = n;
    return m3_safetensors_add(t->view, tensor->name, tensor->dtype, tensor->rank, shape, to, t->error);
}

/* `chosen_only`: those of the sample; otherwise of all rows. */
static int add_numbers(const struct taking *t, const char *name, int chosen_only)
{
    const int64_t count = chosen_only ? t->sample->count : t->sample->of;
    int32_t *rows = m3_safetensors_memory(t->view, (uint64_t)count * sizeof *rows, t->error);
    int64_t n = 0;
    if (!rows) return M3_INTERNAL;
    for (int64_t r = 0; r < t->sample->of; r++)
        if (!chosen_only || t->sample->chosen[r]) rows[n++] = (int32_t)r;
    return m3_safetensors_add(t->view, name, M3_I32, 1, &count, rows, t->error);
}

static int fill(const struct taking *t)
{
    int status = M3_OK;
    for (int64_t i = 0; !status && i < m3_safetensors_count(t->dump); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(t->dump, i);
        const enum kind kind = kind_of(t, tensor);
        if (kind == CHOSEN) status = add_chosen(t, tensor);
        else if (kind == WHOLE)
            status = m3_safetensors_add(t->view, tensor->name, tensor->dtype, tensor->rank, tensor->shape, tensor->data,
                                        t->error);
    }
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(t->dump, key));)
        status = m3_safetensors_state(t->view, key, m3_safetensors_metadata(t->dump, key), t->error);
    if (!status) status = add_numbers(t, "rows", 1);
    if (!status) status = add_numbers(t, M3_CACHE_ROWS, 0);
    return status ? status : m3_safetensors_complete(t->view, t->error);
}

int m3_sample_take(struct m3_safetensors **dump, const struct m3_sample *sample, struct m3_error *error)
{
    struct taking t = { .sample = sample, .dump = *dump, .error = error };
    int status = m3_safetensors_make(&t.view, m3_safetensors_path(*dump), error);
    if (!status) status = fill(&t);
    if (status) {
        m3_safetensors_close(t.view);
        return status;
    }
    m3_safetensors_keep(t.view, *dump);
    *dump = t.view;
    return M3_OK;
}
