/* The candidate's taps, as operands for recomputing others. SPEC 7.8. */
#include <stdlib.h>

#include "oracle/judge/choices/certificate.h"
#include "oracle/judge/companions/private/operator_check.h"

/* The tensor of a tap, if it has the shape expected in this call. */
const struct m3_tensor *m3_operator_check_fitting(const struct m3_operator_check *check, enum m3_tap tap, int64_t layer)
{
    char name[96];
    if (m3_tap_name(name, sizeof name, tap, layer) != 0) return NULL;
    const struct m3_tensor *t = m3_safetensors_find(check->candidate->file, name);
    const struct m3_tensor *rows = m3_side_rows(check->candidate, tap);
    if (t == NULL || t->rank == 0) return NULL;
    int64_t width = 1;
    for (int i = 1; i < t->rank; i++) width *= t->shape[i];
    const int64_t all = m3_tap_rows(&check->setting, tap, layer), last = t->shape[0] - 1;
    if (width != m3_tap_width(&check->setting, tap, layer) || (rows != NULL && rows->count != t->shape[0])) return NULL;
    return last < 0 || m3_row_number(rows, last) < all ? t : NULL;
}

/* Ids of a row, blocks in the form for operators: ascending, then -1. Returns whether the row can be used. lists
 * [2,width]. */
static int read_ids(int32_t *ids, int64_t *lists, const struct m3_operator_check *check, const struct m3_tensor *t,
                    enum m3_tap tap, int64_t layer, int64_t r, int64_t width, int64_t number)
{
    const struct m3_case *c = check->setting.the_case;
    const struct m3_config *config = &check->setting.model->config;
    const int blocks = tap == M3_TAP_INDEX_BLOCKS;
    const int64_t groups = blocks ? config->G : 1, k = width / groups;
    const int64_t limit = blocks ? (c->p0 + number) / config->block + 1 : config->E;
    const int64_t all = blocks ? (c->p0 + m3_tap_rows(&check->setting, tap, layer) - 1) / config->block + 1 : 0;
    int64_t *dumped = lists, *sound = lists + width, count;
    int usable = 1;
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t i = 0; i < k; i++) dumped[i] = m3_id_at(t, r * width + g * k + i);
        if (blocks) m3_drop_unseen(dumped, NULL, k, limit - 1, all, NULL);
        usable &= m3_ids_fault(sound, &count, dumped, k, limit, blocks) == NULL && count > 0;
        for (int64_t i = 0; usable && i < k; i++)
            ids[g * k + i] = (int32_t)(!blocks ? dumped[i] : i < count ? sound[i] : -1);
    }
    return usable;
}

/* Puts the rows of a tap that an operator can use into the trace. */
static int put(struct m3_operator_check *check, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    const struct m3_tensor *t = m3_operator_check_fitting(check, tap, layer),
                           *rows = m3_side_rows(check->candidate, tap);
    const int ids = m3_tap_table[tap].kind == M3_KIND_CHOICES;
    if (m3_tap_table[tap].kind == M3_KIND_COUNTS) return M3_OK;
    if (t == NULL || !(ids ? m3_holds_ids(t) : m3_holds_floats(t))) return M3_OK;
    const int64_t width = m3_tap_width(&check->setting, tap, layer);
    struct m3_tap_values value = { .tap = tap, .layer = layer, .rows = t->shape[0], .width = width };
    int64_t *lists = malloc((size_t)(2 * width + 1) * sizeof *lists), kept = 0;
    int status = lists ? m3_read_rows(&value, t, NULL, NULL, &check->ctx, error)
                       : m3_fail_memory(error, t->name, (size_t)width * sizeof *lists);
    for (int64_t r = 0; r < value.rows && status == M3_OK; r++) {
        value.numbers[r] = m3_row_number(rows, r);
        if (ids)
            value.usable[r] =
                (unsigned char)read_ids(value.ids + r * width, lists, check, t, tap, layer, r, width, value.numbers[r]);
        kept += value.usable[r];
    }
    if (status == M3_OK && kept > 0) status = m3_trace_take(check->trace, &value, error);
    m3_tap_values_free(&value);
    free(lists);
    return status;
}

int m3_operator_check_put_before(struct m3_operator_check *check, enum m3_tap tap, int64_t layer,
                                 struct m3_error *error)
{
    enum m3_tap next;
    int64_t of_layer;
    int status = M3_OK;
    while (status == M3_OK && m3_trace_tap(&check->setting, check->next, &next, &of_layer) &&
           m3_tap_order(next, of_layer, tap, layer) < 0) {
        if (m3_operator_check_is_admitted(check, next, of_layer)) status = put(check, next, of_layer, error);
        check->next++;
    }
    return status;
}
