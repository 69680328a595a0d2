/* Dumps of one sequence with dimensions of 1 before those of the taps. */
#include <inttypes.h>
#include <string.h>

#include "base/minmax.h"
#include "model/taps.h"
#include "oracle/judge/batch/split.h"
#include "oracle/judge/align.h"
#include "oracle/judge/hints.h"

/* The dimensions to drop before those of a tap; 0 for another tensor. */
static int lead_of(const struct m3_tensor *t, enum m3_tap *tap)
{
    int64_t layer;
    int lead = 0;
    *tap = M3_TAPS;
    if (m3_tap_parse(t->name, tap, &layer)) return 0;
    const int rank = (int)strlen(m3_tap_table[*tap].shape);
    while (t->rank - lead > rank && t->shape[lead] == 1) lead++;
    return t->rank - lead == rank ? lead : 0;
}

int64_t m3_batch_longest(const struct m3_safetensors *file)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        enum m3_tap tap;
        const int lead = lead_of(t, &tap);
        if (tap != M3_TAPS && m3_tap_table[tap].shape[0] == 'T' && t->rank > lead) rows = m3_max(rows, t->shape[lead]);
    }
    return rows;
}

/* The dimensions to drop, with that of the row if it is the last one of a longer case. */
static int dropped(const struct m3_tensor *t, int64_t rows)
{
    enum m3_tap tap;
    const int lead = lead_of(t, &tap);
    if (tap == M3_TAPS || !m3_is_logits(tap) || t->rank - lead != 2 || t->shape[lead] != 1 || rows < 2) return lead;
    return m3_holds_floats(t) ? lead + 1 : lead;
}

/* Is there a tap with the rows that the dump numbers? Otherwise nothing can be judged, which is said at once. */
static int check_numbers(const struct m3_safetensors *file, struct m3_error *error)
{
    const struct m3_tensor *rows = m3_safetensors_find(file, "rows"), *first = NULL;
    for (int64_t i = 0; rows && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        enum m3_tap tap;
        const int lead = lead_of(t, &tap);
        if (tap == M3_TAPS || m3_tap_table[tap].shape[0] != 'T') continue;
        if (t->rank <= lead || t->shape[lead] == rows->count) return M3_OK;
        if (m3_is_logits(tap) && (t->shape[lead] == 1 || t->rank - lead == 1)) return M3_OK;
        if (!first || strncmp(first->name, "mtp.", 4) == 0) first = t;
    }
    if (!first || strncmp(first->name, "mtp.", 4) == 0) return M3_OK;
    return m3_fail(error, M3_NOT_COMPARABLE, "%s: %s: got %" PRId64 " rows, expected %" PRId64 ", as they are numbered",
                   m3_safetensors_path(file), first->name, first->shape[lead_of(first, &(enum m3_tap){ 0 })],
                   rows->count);
}

int m3_batch_drop_ones(struct m3_safetensors **file, int64_t rows, struct m3_error *notes, struct m3_error *error)
{
    struct m3_safetensors *given = *file, *made;
    const int has_numbers = m3_safetensors_find(given, "rows") != NULL;
    int64_t changed = 0;
    int status = check_numbers(given, error);
    if (status) return status;
    rows = has_numbers ? 0 : m3_max(rows, m3_batch_longest(given));
    for (int64_t i = 0; i < m3_safetensors_count(given); i++) changed += dropped(m3_safetensors_at(given, i), rows) > 0;
    if (changed == 0) return M3_OK;
    status = m3_safetensors_make(&made, m3_safetensors_path(given), error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(given); i++) {
        const struct m3_tensor *t = m3_safetensors_at(given, i);
        const int drop = dropped(t, rows);
        status = m3_safetensors_add(made, t->name, t->dtype, t->rank - drop, t->shape + drop, t->data, error);
    }
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(given, key));)
        status = m3_safetensors_state(made, key, m3_safetensors_metadata(given, key), error);
    if (!status) status = m3_safetensors_complete(made, error);
    if (status) {
        m3_safetensors_close(made);
        return status;
    }
    m3_fail(notes, M3_OK, "taps with dimensions of 1 before their own, which are dropped: %" PRId64, changed);
    m3_safetensors_keep(made, given);
    *file = made;
    return M3_OK;
}
