/* Blame of taps that the caller gives one by one. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/room.h"
#include "oracle/judge/blame/private/blame.h"

/* Row r of the values. */
static void read_reals(struct m3_known *v, const struct m3_blame_item *item, const struct m3_given_tap *given,
                       int64_t r)
{
    const struct m3_tensor *t = given->tensor;
    const int64_t width = item->width;
    const struct m3_weight rows = { .data = t->data, .dtype = t->dtype, .rows = t->shape[0], .cols = width };
    double *to = v->values + r * width;
    int64_t usable = 0;
    m3_expand_f64(to, &rows, given->at[r], 0, width);
#pragma omp simd reduction(+ : usable)
    for (int64_t i = 0; i < width; i++) usable += fabs(to[i]) <= (double)FLT_MAX;
    for (int64_t i = 0; i < width && usable < width; i++)
        if (!m3_is_operand(to[i], item->tap)) return;
    v->usable[r] = 1;
}

static void read_ids(struct m3_known *v, const struct m3_blame_item *item, const struct m3_given_tap *given, int64_t r)
{
    for (int64_t i = 0; i < item->width; i++) {
        const int64_t id = m3_id_at(given->tensor, given->at[r] * item->width + i);
        v->ids[r * item->width + i] = id == (int32_t)id ? (int32_t)id : -2;
    }
    v->usable[r] = 1;
}

static int read_given(struct m3_known *v, const struct m3_blaming *b, const struct m3_blame_item *item,
                      const struct m3_given_tap *given)
{
    const size_t room = (size_t)(given->rows * item->width) + 1;
    const int ids = m3_tap_table[item->tap].kind == M3_KIND_CHOICES;
    *v = (struct m3_known){ .rows = given->rows, .width = item->width };
    if (ids) v->ids = malloc(room * sizeof *v->ids);
    else v->values = m3_room(room, sizeof *v->values);
    v->numbers = malloc(((size_t)given->rows + 1) * sizeof *v->numbers);
    v->usable = calloc((size_t)given->rows + 1, 1);
    if ((!v->ids && !v->values) || !v->numbers || !v->usable)
        return m3_fail_memory(b->error, item->name, room * sizeof *v->values);
    memcpy(v->numbers, given->numbers, (size_t)given->rows * sizeof *v->numbers);
#pragma omp parallel for num_threads(m3_team(b->setting->ctx, given->rows * item->width))
    for (int64_t r = 0; r < given->rows; r++) {
        if (ids) read_ids(v, item, given, r);
        else read_reals(v, item, given, r);
    }
    return M3_OK;
}

static const struct m3_given_tap *given_of(const struct m3_given_tap *given, int count,
                                           const struct m3_blame_item *item)
{
    for (int i = 0; i < count; i++)
        if (given[i].tap == item->tap && given[i].layer == item->layer) return &given[i];
    return NULL;
}

static int list_given(struct m3_judgement *result, struct m3_blaming *b, const struct m3_given_tap *given, int count)
{
    int status = m3_blame_list_items(b);
    result->findings = calloc((size_t)count + 1, sizeof *result->findings);
    if (!status && !result->findings)
        status = m3_fail_memory(b->error, "results", (size_t)count * sizeof *result->findings);
    if (status) return status;
    int found = 0;
    for (int64_t i = 0; i < b->count; i++) {
        struct m3_blame_item *item = &b->items[i];
        const struct m3_given_tap *g = given_of(given, count, item);
        if (!g) continue;
        found++;
        item->dumped = g->tensor;
        if (g->is_judged) m3_blame_begin_tap(b, item, &result->findings[result->count++], g->tensor, NULL);
    }
    if (found < count) return m3_fail(b->error, M3_USAGE, "got a tap that this call does not have");
    return M3_OK;
}

int m3_given_put(struct m3_trace *trace, const struct m3_given_tap *given, const struct m3_setting *setting,
                 struct m3_error *error)
{
    const struct m3_blaming b = { .setting = setting, .trace = trace, .error = error };
    struct m3_blame_item item = { .tap = given->tap, .layer = given->layer };
    struct m3_known values;
    m3_tap_name(item.name, sizeof item.name, item.tap, item.layer);
    item.rows = m3_tap_rows(setting, item.tap, item.layer);
    item.width = m3_tap_width(setting, item.tap, item.layer);
    int status = read_given(&values, &b, &item, given);
    if (!status) status = m3_blame_put(&b, &item, &values);
    m3_known_free(&values);
    return status;
}

static int take_given(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_given_tap *given)
{
    struct m3_known values = { 0 };
    int status = given ? read_given(&values, b, item, given) : M3_OK;
    if (!status) status = m3_blame_judge_tap(b, item, &values);
    m3_known_free(&values);
    return status;
}

int m3_blame_given(struct m3_judgement *result, const struct m3_setting *setting, const struct m3_given_tap *given,
                   int count, struct m3_error *error)
{
    const struct m3_blame_options options = { 0 };
    struct m3_blaming b = { .setting = setting, .options = &options, .error = error };
    m3_coarse_begin(&b.coarse, setting->profile);
    *result =
        (struct m3_judgement){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE, .is_recomputed = 1 };
    int status = list_given(result, &b, given, count);
    if (!status) m3_blame_mark_needed(&b);
    if (!status) status = m3_trace_new(&b.trace, setting, error);
    for (int64_t i = 0; !status && i < b.count; i++) {
        struct m3_blame_item *item = &b.items[i];
        if (item->needed) status = take_given(&b, item, given_of(given, count, item));
        if (!status && item->blamed) m3_blame_count_together(&b, item);
    }
    if (!status) status = m3_blame_settle(result, &b);
    if (!status) m3_judgement_settle(result, 0);
    m3_trace_free(b.trace);
    free(b.items);
    return status;
}
