#include "oracle/judge/choices/taint.h"

#include <stdint.h>
#include <stdlib.h>

struct entry {
    struct m3_flip flip;
    int64_t least_row;          /* smallest row of this flip and all before it */
};

struct slot {
    int64_t row, layer;         /* row -1: empty */
};

struct m3_taint {
    struct entry *entries;      /* in the order of layer, kind (blocks first), row, group */
    int64_t count, room, last_layer;
    struct slot *slots;         /* [capacity], a power of two; by row, the first layer in which it has a flip */
    int64_t rows, capacity;     /* rows with a flip; a row may have any number, so they are hashed */
};

struct m3_taint *m3_taint_new(int64_t last_layer)
{
    struct m3_taint *taint = calloc(1, sizeof *taint);
    if (taint != NULL) taint->last_layer = last_layer;
    return taint;
}

void m3_taint_free(struct m3_taint *taint)
{
    if (taint == NULL) return;
    free(taint->entries);
    free(taint->slots);
    free(taint);
}

/* The slot of a row, or the empty one where it belongs. */
static struct slot *slot_of(struct slot *slots, int64_t capacity, int64_t row)
{
    const uint64_t hash = (uint64_t)row * UINT64_C(0x9E3779B97F4A7C15);
    int64_t at = (int64_t)((hash ^ hash >> 32) & (uint64_t)(capacity - 1));
    while (slots[at].row >= 0 && slots[at].row != row) at = (at + 1) & (capacity - 1);
    return &slots[at];
}

static int64_t earliest(const struct m3_taint *taint, int64_t row)
{
    const struct slot *slot = taint->capacity > 0 && row >= 0 ? slot_of(taint->slots, taint->capacity, row) : NULL;
    return slot != NULL && slot->row == row ? slot->layer : INT64_MAX;
}

/* Half of the slots stay empty. */
static int grow_slots(struct m3_taint *taint, struct m3_error *error)
{
    if (2 * taint->rows < taint->capacity) return M3_OK;
    const int64_t capacity = taint->capacity > 0 ? 2 * taint->capacity : 64;
    struct slot *slots = malloc((size_t)capacity * sizeof *slots);
    if (slots == NULL) return m3_fail_memory(error, "rows of flips", (size_t)capacity * sizeof *slots);
    for (int64_t i = 0; i < capacity; i++) slots[i].row = -1;
    for (int64_t i = 0; i < taint->capacity; i++)
        if (taint->slots[i].row >= 0) *slot_of(slots, capacity, taint->slots[i].row) = taint->slots[i];
    free(taint->slots);
    taint->slots = slots;
    taint->capacity = capacity;
    return M3_OK;
}

static int grow(struct m3_taint *taint, struct m3_error *error)
{
    if (taint->count == taint->room) {
        int64_t room = 2 * taint->room + 64;
        struct entry *entries = realloc(taint->entries, (size_t)room * sizeof *entries);
        if (entries == NULL) return m3_fail_memory(error, "flips", (size_t)room * sizeof *entries);
        taint->entries = entries;
        taint->room = room;
    }
    return grow_slots(taint, error);
}

int m3_taint_add(struct m3_taint *taint, int64_t layer, int64_t row, int64_t group, struct m3_error *error)
{
    int status = grow(taint, error);
    if (status != M3_OK) return status;
    struct entry *entry = &taint->entries[taint->count];
    *entry = (struct entry){ .flip = { .layer = layer, .row = row, .group = group }, .least_row = row };
    if (taint->count > 0 && entry[-1].least_row < row) entry->least_row = entry[-1].least_row;
    taint->count++;
    struct slot *slot = slot_of(taint->slots, taint->capacity, row);
    if (slot->row < 0) *slot = (struct slot){ row, layer }, taint->rows++;
    else if (layer < slot->layer) slot->layer = layer;
    return M3_OK;
}

int m3_taint_is_empty(const struct m3_taint *taint) { return taint == NULL || taint->count == 0; }

/* The order by layer, kind and row. */
static int64_t order(const struct m3_flip *flip, int64_t layer, int experts, int64_t row)
{
    if (flip->layer != layer) return flip->layer < layer ? -1 : 1;
    if ((flip->group < 0) != experts) return experts ? -1 : 1;
    return flip->row < row ? -1 : flip->row > row;
}

/* The number of flips before those of the row in the layer, of blocks or of experts. */
static int64_t flips_before(const struct m3_taint *taint, int64_t layer, int experts, int64_t row)
{
    int64_t low = 0, high = taint->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (order(&taint->entries[middle].flip, layer, experts, row) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The first flip of the row in the layer; NULL: none. */
static const struct entry *find(const struct m3_taint *taint, int64_t layer, int experts, int64_t row)
{
    const struct entry *entry = taint->entries + flips_before(taint, layer, experts, row);
    return entry < taint->entries + taint->count && order(&entry->flip, layer, experts, row) == 0 ? entry : NULL;
}

/* Did another selection of blocks in this layer change this row of the tap? */
static int by_blocks(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row, int64_t group)
{
    if (tap < M3_TAP_ATTN_LSE) return 0;
    const struct entry *entry = find(taint, layer, 0, row), *end = taint->entries + taint->count;
    if (entry == NULL || tap > M3_TAP_ATTN || group < 0) return entry != NULL;
    for (; entry < end && order(&entry->flip, layer, 0, row) == 0; entry++)
        if (entry->flip.group == group) return 1;
    return 0;
}

/* The shared expert does not depend on the selected experts. */
static int by_experts(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row)
{
    if (tap < M3_TAP_EXPERT_WEIGHTS || tap == M3_TAP_EXPERT_OUT || tap == M3_TAP_SHARED) return 0;
    return find(taint, layer, 1, row) != NULL;
}

enum m3_tainted m3_taint_of(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row, int64_t group)
{
    if (m3_taint_is_empty(taint) || tap <= M3_TAP_FUSED || tap == M3_TAP_MTP_EMBED_NORM) return M3_TAINT_NONE;
    if (tap == M3_TAP_FINAL_NORM || tap == M3_TAP_LOGITS) layer = taint->last_layer;    /* as if they ended it */
    int64_t first = earliest(taint, row);
    if (first < layer) return M3_TAINT_OTHER;
    if (first == layer && (by_blocks(taint, tap, layer, row, group) || by_experts(taint, tap, layer, row)))
        return M3_TAINT_OTHER;
    int64_t before = flips_before(taint, layer, 0, -1);
    return before > 0 && taint->entries[before - 1].least_row < row ? M3_TAINT_DRIFT : M3_TAINT_NONE;
}

int m3_taint_is_partial(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row)
{
    if (m3_taint_is_empty(taint) || (tap != M3_TAP_ATTN && tap != M3_TAP_ATTN_LSE)) return 0;
    return earliest(taint, row) == layer && find(taint, layer, 0, row) != NULL;
}
