#include "oracle/spans.h"

#include <stddef.h>

#include "model/taps.h"

static int fits_slots(const struct m3_tensor *ids, const struct m3_tensor *tap)
{
    return m3_holds_ids(ids) && ids->rank == 2 && ids->shape[0] == tap->shape[0] && ids->shape[1] == tap->shape[1];
}

/* NULL, or why the slots cannot be aligned. */
static const char *align_slots(struct m3_span_walk *walk, const struct m3_matched *matched)
{
    char name[64];
    if (m3_tap_name(name, sizeof name, M3_TAP_EXPERTS, matched->layer) != 0) return NULL;
    const struct m3_tensor *want_ids = m3_safetensors_find(matched->reference->file, name);
    const struct m3_tensor *got_ids = m3_safetensors_find(matched->candidate->file, name);
    if (want_ids == NULL || got_ids == NULL) return NULL;

    const struct m3_tensor *want = matched->want;
    if (want->rank < 2 || !fits_slots(want_ids, want) || !fits_slots(got_ids, matched->got))
        return "slots do not fit `moe.experts`";
    walk->want_ids = want_ids;
    walk->got_ids = got_ids;
    walk->slots = want->shape[1];
    return NULL;
}

const char *m3_span_walk_begin(struct m3_span_walk *walk, const struct m3_matched *matched)
{
    *walk = (struct m3_span_walk){ .nth = -1, .slots = 1 };
    const char *why = m3_row_walk_begin(&walk->rows, matched);
    if (why == NULL && (matched->tap == M3_TAP_EXPERT_WEIGHTS || matched->tap == M3_TAP_EXPERT_OUT))
        why = align_slots(walk, matched);
    if (why != NULL) return why;

    walk->length = 1;
    for (int i = walk->want_ids != NULL ? 2 : 1; i < matched->want->rank; i++) walk->length *= matched->want->shape[i];
    walk->slot = walk->slots;
    return NULL;
}

/* The candidate's slot for the expert in the reference's; -1 if it chose another. */
static int64_t candidate_slot(const struct m3_span_walk *walk, int64_t slot)
{
    if (walk->want_ids == NULL) return slot;
    int64_t id = m3_id_at(walk->want_ids, walk->row.want * walk->slots + slot);
    for (int64_t k = 0; k < walk->slots; k++)
        if (m3_id_at(walk->got_ids, walk->row.got * walk->slots + k) == id) return k;
    return -1;
}

int m3_span_walk_next(struct m3_span_walk *walk, struct m3_span *span)
{
    for (;;) {
        if (walk->slot == walk->slots) {
            if (!m3_row_walk_next(&walk->rows, &walk->row)) return 0;
            walk->nth++;
            walk->slot = 0;
            if (walk->slots == 0) continue;
        }
        int64_t slot = walk->slot++, other = candidate_slot(walk, slot);
        if (other < 0) continue;
        *span = (struct m3_span){ .row = walk->row.number, .nth = walk->nth, .length = walk->length,
                                 .want = (walk->row.want * walk->slots + slot) * walk->length,
                                 .got = (walk->row.got * walk->slots + other) * walk->length };
        return 1;
    }
}
