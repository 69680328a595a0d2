/* Tensor-parallel engines may end an MoE block with a single sum over the ranks: each rank adds its part of the shared
 * expert to its part of the routed sum before the parts are rounded. Then neither term exists, and a dump that holds
 * both does not say what was rounded. REFERENCE 7.5. */
#include <stdio.h>

#include "oracle/judge/blame/private/blame.h"

static int is_given(const struct m3_blame_item *item, int64_t layer)
{
    if (item->layer != layer || !item->dumped || m3_tap_order(item->tap, layer, M3_TAP_MLP_NORM, layer) < 0) return 0;
    return item->tap != M3_TAP_EXPERT_OUT && item->tap != M3_TAP_ROUTED && item->tap != M3_TAP_SHARED;
}

static int may_apply(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_blame_item *shared = m3_blame_find(b, M3_TAP_SHARED, item->layer);
    if (item->tap != M3_TAP_MLP || !shared || !b->side.file || !b->setting->profile) return 0;
    return m3_profile_partials(b->setting->profile, shared->name).ranks > 0;
}

int m3_blame_reduced_once(struct m3_recomputed *made, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    struct m3_trace *trace = NULL;
    *made = (struct m3_recomputed){ 0 };
    if (!may_apply(b, item)) {
        snprintf(made->missing, sizeof made->missing, "parts of a sum over ranks");
        return M3_OK;
    }
    int status = m3_trace_new(&trace, b->setting, b->error);
    for (int64_t i = 0; i < b->count && &b->items[i] != item && !status; i++) {
        struct m3_tap_values value;
        if (!is_given(&b->items[i], item->layer)) continue;
        status = m3_blame_read(&value, b, &b->items[i]);
        if (!status) status = m3_trace_take(trace, &value, b->error);
    }
    if (!status) status = m3_trace_recompute(made, trace, item->tap, item->layer, b->error);
    m3_trace_free(trace);
    return status;
}
