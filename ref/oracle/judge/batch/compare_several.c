#include <stdlib.h>

#include "model/taps.h"
#include "oracle/judge/batch/several.h"
#include "oracle/judge/align.h"

int m3_holds_taps(const struct m3_safetensors *file)
{
    enum m3_tap tap;
    int64_t layer;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++)
        if (m3_tap_parse(m3_safetensors_at(file, i)->name, &tap, &layer) == 0) return 1;
    return 0;
}

static int compare_each(struct m3_judgement *results, struct m3_side *sides, const struct m3_compared_parts *parts,
                        const struct m3_compare_options *options, struct m3_error *error)
{
    struct m3_compare_options own = *options;
    int64_t held = 0, count = parts->reference->count;
    int status = M3_OK;
    for (int64_t b = 0; b < count; b++) held += m3_holds_taps(parts->candidate->files[b]);
    for (int64_t b = 0; !status && b < count; b++) {
        const struct m3_safetensors *reference = parts->reference->files[b], *candidate = parts->candidate->files[b];
        if (held > 0 && !m3_holds_taps(candidate)) continue;
        if (parts->begin) parts->begin(parts->self, b);
        if (parts->companions->count > 0) own.companions = parts->companions->files[b];
        status = m3_side_begin(&sides[2 * b], reference, error);
        if (!status) status = m3_side_begin(&sides[2 * b + 1], candidate, error);
        if (!status) status = m3_compare(&results[b], reference, candidate, &own, error);
    }
    return status;
}

int m3_compare_several(struct m3_judgement *result, const struct m3_compared_parts *parts,
                       const struct m3_compare_options *options, struct m3_error *error)
{
    const int64_t count = parts->reference->count;
    struct m3_judgement *results = calloc((size_t)count, sizeof *results);
    struct m3_side *sides = calloc((size_t)count * 2, sizeof *sides);
    *result = (struct m3_judgement){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    int status = results && sides ? compare_each(results, sides, parts, options, error)
                                  : m3_fail_memory(error, "sequences", (size_t)count * sizeof *results);
    if (!status) return m3_judgement_together(result, results, sides, count, error);
    for (int64_t b = 0; results && b < count; b++) m3_judgement_free(&results[b]);
    free(results);
    free(sides);
    return status;
}
