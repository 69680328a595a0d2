#include "oracle/judge/spans.h"

#include <stddef.h>

#include "oracle/judge/choices/taint.h"

static int fits_slots(const struct m3_tensor *ids, const struct m3_tensor *tap)
{
    return m3_holds_ids(ids) && ids->rank == 2 && ids->shape[0] == tap->shape[0] && ids->shape[1] == tap->shape[1];
}

/* Returns NULL, or why the slots cannot be aligned. */
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
    return NULL;
}

/* The number of groups of heads in `attn` and `attn_lse`, from the selected blocks in the same dump; 0: not known. */
static int64_t groups_of(const struct m3_matched *matched)
{
    char name[64];
    if (matched->taint == NULL || (matched->tap != M3_TAP_ATTN && matched->tap != M3_TAP_ATTN_LSE)) return 0;
    if (m3_tap_name(name, sizeof name, M3_TAP_INDEX_BLOCKS, matched->layer) != 0) return 0;
    const struct m3_tensor *blocks = m3_safetensors_find(matched->reference->file, name);
    if (blocks == NULL || blocks->rank != 3 || blocks->shape[1] == 0 || matched->want->rank < 2) return 0;
    return matched->want->shape[1] % blocks->shape[1] == 0 ? blocks->shape[1] : 0;
}

const char *m3_span_walk_begin(struct m3_span_walk *walk, const struct m3_matched *matched)
{
    *walk = (struct m3_span_walk){ .matched = matched, .nth = -1, .width = 1 };
    const char *why = m3_row_walk_begin(&walk->rows, matched);
    if (why == NULL && (matched->tap == M3_TAP_EXPERT_WEIGHTS || matched->tap == M3_TAP_EXPERT_OUT))
        why = align_slots(walk, matched);
    if (why != NULL) return why;
    walk->groups = groups_of(matched);
    for (int i = 1; i < matched->want->rank; i++) walk->width *= matched->want->shape[i];
    return NULL;
}

/* The candidate's slot for the expert in the reference's; -1 if it did not select that expert. */
static int64_t candidate_slot(const struct m3_span_walk *walk, int64_t slot)
{
    const int64_t slots = walk->slots, id = m3_id_at(walk->want_ids, walk->row.want * slots + slot);
    for (int64_t k = 0; k < slots; k++)
        if (m3_id_at(walk->got_ids, walk->row.got * slots + k) == id) return k;
    return -1;
}

static int is_judged(const struct m3_span_walk *walk, int64_t group)
{
    const struct m3_matched *m = walk->matched;
    enum m3_tainted how = m3_taint_of(m->taint, (enum m3_tap)m->tap, m->layer, walk->row.number, group);
    return how == M3_TAINT_NONE || (how == M3_TAINT_DRIFT && m->drift_is_judged);
}

/* The largest number of spans in which the current row is judged; 0: it is left out. */
static int64_t slots_of_row(struct m3_span_walk *walk)
{
    const struct m3_matched *m = walk->matched;
    const int partial =
        walk->groups > 0 && m3_taint_is_partial(m->taint, (enum m3_tap)m->tap, m->layer, walk->row.number);
    const int judged = is_judged(walk, -1);
    walk->left_out += !judged;
    if (partial) return walk->groups;
    if (!judged) return 0;
    return walk->want_ids != NULL ? m->want->shape[1] : 1;
}

int m3_span_walk_next(struct m3_span_walk *walk, struct m3_span *span)
{
    for (;;) {
        while (walk->slot == walk->slots) {
            if (!m3_row_walk_next(&walk->rows, &walk->row)) return 0;
            walk->nth++;
            walk->slot = 0;
            walk->slots = slots_of_row(walk);
        }
        const int64_t slot = walk->slot++, length = walk->width / walk->slots;
        const int64_t other = walk->want_ids != NULL ? candidate_slot(walk, slot) : slot;
        if (other < 0 || (walk->want_ids == NULL && walk->slots > 1 && !is_judged(walk, slot))) continue;
        *span = (struct m3_span){ .row = walk->row.number,
                                  .nth = walk->nth,
                                  .length = length,
                                  .want = walk->row.want * walk->width + slot * length,
                                  .got = walk->row.got * walk->width + other * length };
        return 1;
    }
}
