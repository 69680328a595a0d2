#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/batch/private.h"

static double share_of(const struct m3_blamed *t)
{
    if (t->selection) return (double)t->choices[M3_CHOICE_INADMISSIBLE];
    return isnan(t->tiers.headroom) ? INFINITY : t->tiers.headroom;
}

/* A tap with no row in this sequence says nothing. */
static int weight_of(const struct m3_blamed *t)
{
    return m3_weight_of_verdict(t->verdict, t->candidate && t->candidate->count == 0);
}

static int is_worse(const struct m3_blamed *b, const struct m3_blamed *a)
{
    if (weight_of(a) != weight_of(b)) return weight_of(b) > weight_of(a);
    if (a->selection && b->selection && a->choice != b->choice) return b->choice > a->choice;
    return share_of(b) > share_of(a);
}

/* The worse of two, with the counts of both. */
static void add_tap(struct m3_blamed *to, const struct m3_blamed *from)
{
    struct m3_blamed sum = is_worse(from, to) ? *from : *to;
    sum.rows = to->rows + from->rows;
    sum.left_out = to->left_out + from->left_out;
    sum.elements = to->elements + from->elements;
    sum.tiers.hard = to->tiers.hard + from->tiers.hard;
    for (int i = 0; i < M3_CHOICES; i++) sum.choices[i] = to->choices[i] + from->choices[i];
    if (!sum.mistake && to->mistake && to->verdict == sum.verdict) sum.mistake = to->mistake;
    *to = sum;
}

static int by_execution(const void *a, const void *b)
{
    const struct m3_blamed *x = a, *y = b;
    const int order = m3_tap_order(x->tap, x->layer, y->tap, y->layer);
    if (order != 0) return order;
    return (x->in_sequence > y->in_sequence) - (x->in_sequence < y->in_sequence);
}

static int gather_taps(struct m3_blame *result, struct m3_error *error)
{
    int64_t room = 0, count = 0;
    for (int64_t b = 0; b < result->part_count; b++) room += result->parts[b].count;
    result->taps = calloc((size_t)room + 1, sizeof *result->taps);
    if (!result->taps) return m3_fail_memory(error, "the list of taps", (size_t)room * sizeof *result->taps);
    for (int64_t b = 0; b < result->part_count; b++)
        for (int64_t i = 0; i < result->parts[b].count; i++) {
            result->taps[count] = result->parts[b].taps[i];
            result->taps[count++].in_sequence = b + 1;
        }
    qsort(result->taps, (size_t)count, sizeof *result->taps, by_execution);
    for (int64_t i = 0; i < count; i++) {
        struct m3_blamed *last = result->count > 0 ? &result->taps[result->count - 1] : NULL;
        if (last && strcmp(last->name, result->taps[i].name) == 0) add_tap(last, &result->taps[i]);
        else result->taps[result->count++] = result->taps[i];
    }
    return M3_OK;
}

static void find_mistake(struct m3_blame *result)
{
    result->mistake = result->culprit && result->culprit->mistake ? result->culprit->mistake->id : NULL;
    for (int64_t i = 0; i < result->count && !result->mistake; i++)
        if (result->taps[i].mistake) result->mistake = result->taps[i].mistake->id;
}

/* One word that explains every sequence that does not pass. */
static void find_word(struct m3_blame *result)
{
    for (int64_t b = 0; b < result->part_count; b++) {
        const struct m3_blame *part = &result->parts[b];
        if (!part->culprit) continue;
        const int other = result->explained_by[0] && strcmp(result->explained_by, part->explained_by) != 0;
        if (other || !part->explained_by[0]) {
            result->explained_by[0] = '\0';
            return;
        }
        memcpy(result->explained_by, part->explained_by, sizeof result->explained_by);
    }
}

static void settle(struct m3_blame *result)
{
    int64_t silent = 0;
    struct m3_blame *most = NULL;       /* that lacks most taps */
    for (int64_t b = 0; b < result->part_count; b++) {
        struct m3_blame *part = &result->parts[b];
        silent += part->count == 0;
        result->extra = m3_max(result->extra, part->extra);
        if (part->count == 0 || part->missing <= result->missing) continue;
        result->missing = part->missing;
        most = part;
    }
    if (most) {
        memcpy(result->missing_names, most->missing_names, sizeof result->missing_names);
        result->missing_taps = most->missing_taps;
        most->missing_taps = NULL;
    }
    m3_blame_find_culprit(result);
    find_mistake(result);
    find_word(result);
    if (silent > 0)
        m3_fail(&result->notes, M3_OK, "sequences of which the candidate holds nothing: %" PRId64 " of %" PRId64,
                silent, result->part_count);
}

int m3_blame_together(struct m3_blame *result, struct m3_blame *parts, int64_t count, struct m3_error *error)
{
    *result = (struct m3_blame){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    result->parts = parts;
    result->part_count = count;
    const struct m3_error **notes = calloc((size_t)count, sizeof *notes);
    int status = notes ? gather_taps(result, error) : m3_fail_memory(error, "notes", (size_t)count * sizeof *notes);
    int64_t held = 0;
    for (int64_t b = 0; !status && b < count; b++)
        if (parts[b].count > 0) notes[held++] = &parts[b].notes;
    if (!status) m3_notes_together(&result->notes, notes, held);
    free(notes);
    if (status) return status;
    settle(result);
    return M3_OK;
}
