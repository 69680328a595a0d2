/* Blame of taps that the caller gives one by one. */
#include <stdlib.h>

#include "oracle/judge/blame/private/blame.h"

/* The index of an item among the given taps; -1: it is not there. */
static int given_of(const struct m3_tap_values *given, int count, const struct m3_blame_item *item)
{
    for (int i = 0; i < count; i++)
        if (given[i].tap == item->tap && given[i].layer == item->layer) return i;
    return -1;
}

static int list_given(struct m3_judgement *result, struct m3_blaming *b, const struct m3_tap_values *given,
                      const struct m3_tensor *const *tensors, int operands, int count)
{
    int status = m3_blame_list_items(b);
    result->findings = calloc((size_t)count + 1, sizeof *result->findings);
    if (!status && !result->findings)
        status = m3_fail_memory(b->error, "results", (size_t)count * sizeof *result->findings);
    if (status) return status;
    int found = 0;
    for (int64_t i = 0; i < b->count; i++) {
        struct m3_blame_item *item = &b->items[i];
        const int at = given_of(given, count, item);
        if (at < 0) continue;
        found++;
        item->dumped = tensors[at];
        if (at >= operands) m3_blame_begin_tap(b, item, &result->findings[result->count++], tensors[at], NULL);
    }
    if (found < count) return m3_fail(b->error, M3_USAGE, "got a tap that this call does not have");
    return M3_OK;
}

int m3_blame_given(struct m3_judgement *result, const struct m3_setting *setting, struct m3_tap_values *given,
                   const struct m3_tensor *const *tensors, int operands, int count, struct m3_error *error)
{
    struct m3_tap_values none = { 0 };
    const struct m3_blame_options options = { 0 };
    struct m3_blaming b = { .setting = setting, .options = &options, .error = error };
    m3_coarse_begin(&b.coarse, setting->profile);
    *result =
        (struct m3_judgement){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE, .is_recomputed = 1 };
    int status = list_given(result, &b, given, tensors, operands, count);
    if (!status) m3_blame_mark_needed(&b);
    if (!status) status = m3_trace_new(&b.trace, setting, error);
    for (int64_t i = 0; !status && i < b.count; i++) {
        struct m3_blame_item *item = &b.items[i];
        const int at = given_of(given, count, item);
        if (item->needed) status = m3_blame_judge_tap(&b, item, at < 0 ? &none : &given[at]);
        if (!status && item->blamed) m3_blame_count_together(&b, item);
    }
    if (!status) status = m3_blame_settle(result, &b);
    if (!status) m3_judgement_settle(result, 0);
    m3_trace_free(b.trace);
    free(b.items);
    return status;
}
