#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/taps.h"
#include "oracle/batch/private.h"
#include "oracle/judge/align.h"

int m3_holds_taps(const struct m3_safetensors *file)
{
    enum m3_tap tap;
    int64_t layer;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++)
        if (m3_tap_parse(m3_safetensors_at(file, i)->name, &tap, &layer) == 0) return 1;
    return 0;
}

int m3_weight_of_verdict(enum m3_verdict verdict, int is_excused)
{
    switch (verdict) {
    case M3_VERDICT_FAIL: return 5;
    case M3_VERDICT_NOT_COMPARABLE: return 4;
    case M3_VERDICT_SUSPECT: return 3;
    case M3_VERDICT_NOT_JUDGED: return is_excused ? 0 : 2;
    default: return 1;
    }
}

/* ---- notes */

static int has_line(const struct m3_error *notes, const char *line, size_t length)
{
    for (const char *at = notes->text; at && *at; at += strcspn(at, "\n") + 1) {
        if (strcspn(at, "\n") == length && memcmp(at, line, length) == 0) return 1;
        if (!at[strcspn(at, "\n")]) break;
    }
    return 0;
}

void m3_notes_together(struct m3_error *all, const struct m3_error *const *notes, int64_t count)
{
    for (int64_t b = 0; b < count; b++)
        for (const char *line = notes[b]->text, *end; line && *line; line = *end ? end + 1 : end) {
            const size_t length = strcspn(line, "\n");
            int64_t others = 0;
            end = line + length;
            for (int64_t i = 0; i < count; i++) others += has_line(notes[i], line, length);
            if (has_line(all, line, length)) continue;
            if (others == count) m3_fail(all, M3_OK, "%.*s", (int)length, line);
            else m3_fail(all, M3_OK, "sequence %" PRId64 ": %.*s", b, (int)length, line);
        }
}

/* ---- stages */

static double share_of(const struct m3_stage *s)
{
    if (s->selection) return (double)s->choices[M3_CHOICE_INADMISSIBLE];
    return isnan(s->headroom) ? INFINITY : s->headroom;
}

/* Does `b` count more than `a` for the verdict on their tap? */
static int is_worse(const struct m3_stage *b, const struct m3_stage *a)
{
    const int x = m3_weight_of_verdict(a->verdict, a->excused), y = m3_weight_of_verdict(b->verdict, b->excused);
    if (x != y) return y > x;
    if (a->selection && b->selection && a->choice != b->choice) return b->choice > a->choice;
    return share_of(b) > share_of(a);
}

/* The worse of two, with the counts of both. */
static void add_stage(struct m3_stage *to, const struct m3_stage *from)
{
    struct m3_stage sum = is_worse(from, to) ? *from : *to;
    sum.elements = to->elements + from->elements;
    sum.violations = to->violations + from->violations;
    sum.rows_left_out = to->rows_left_out + from->rows_left_out;
    sum.rows = to->rows + from->rows;
    sum.differing = to->differing + from->differing;
    sum.certified = to->certified + from->certified;
    sum.tainted = to->tainted + from->tainted;
    sum.peak = fmax(to->peak, from->peak);
    sum.least_gap = isnan(to->least_gap) ? from->least_gap : fmin(to->least_gap, from->least_gap);
    for (int i = 0; i < M3_CHOICES; i++) sum.choices[i] = to->choices[i] + from->choices[i];
    sum.flips = NULL;
    *to = sum;
}

static int by_execution(const void *a, const void *b)
{
    const struct m3_stage *x = a, *y = b;
    enum m3_tap tap_x = 0, tap_y = 0;
    int64_t layer_x = 0, layer_y = 0;
    m3_tap_parse(x->tap, &tap_x, &layer_x);
    m3_tap_parse(y->tap, &tap_y, &layer_y);
    const int order = m3_tap_order(tap_x, layer_x, tap_y, layer_y);
    if (order != 0) return order;
    return (x->in_sequence > y->in_sequence) - (x->in_sequence < y->in_sequence);
}

static int gather_stages(struct m3_comparison *result, struct m3_error *error)
{
    int64_t room = 0, count = 0;
    for (int64_t b = 0; b < result->part_count; b++) room += result->parts[b].count;
    result->stages = calloc((size_t)room + 1, sizeof *result->stages);
    if (!result->stages) return m3_fail_memory(error, "stages", (size_t)room * sizeof *result->stages);
    for (int64_t b = 0; b < result->part_count; b++)
        for (int64_t i = 0; i < result->parts[b].count; i++) {
            struct m3_stage *stage = &result->stages[count++];
            *stage = result->parts[b].stages[i];
            stage->in_sequence = b + 1;
            stage->flips = NULL;
        }
    qsort(result->stages, (size_t)count, sizeof *result->stages, by_execution);
    for (int64_t i = 0; i < count; i++) {
        struct m3_stage *last = result->count > 0 ? &result->stages[result->count - 1] : NULL;
        if (last && strcmp(last->tap, result->stages[i].tap) == 0) add_stage(last, &result->stages[i]);
        else result->stages[result->count++] = result->stages[i];
    }
    return M3_OK;
}

static void count_stages(struct m3_comparison *result)
{
    const struct m3_stage *suspect = NULL;
    for (int64_t i = 0; i < result->count; i++) {
        const struct m3_stage *s = &result->stages[i];
        const int is_judged = m3_is_judged(s->verdict);
        result->judged += is_judged;
        result->not_judged += s->verdict == M3_VERDICT_NOT_JUDGED;
        result->not_comparable += s->verdict == M3_VERDICT_NOT_COMPARABLE;
        result->excused += s->verdict == M3_VERDICT_NOT_JUDGED && s->excused;
        if (s->verdict == M3_VERDICT_FAIL && result->failed++ == 0) result->divergence = s;
        if (s->verdict == M3_VERDICT_SUSPECT && result->suspects++ == 0) suspect = s;
        if (!is_judged || s->selection) continue;
        if (!result->tightest || s->headroom > result->tightest->headroom) result->tightest = s;
    }
    if (!result->divergence) result->divergence = suspect;
}

static void add_next_token(struct m3_comparison *result, int64_t b)
{
    struct m3_stage token = result->parts[b].next_token;
    if (!token.tap) return;
    token.in_sequence = b + 1;
    token.flips = NULL;
    if (!result->next_token.tap) result->next_token = token;
    else add_stage(&result->next_token, &token);
}

/* What one word explains in every sequence that does not pass. */
static void find_word(char *word, size_t size, const struct m3_comparison *result)
{
    for (int64_t b = 0; b < result->part_count; b++) {
        const struct m3_comparison *part = &result->parts[b];
        const int wrong = part->verdict == M3_VERDICT_FAIL || part->verdict == M3_VERDICT_SUSPECT;
        if (!wrong) continue;
        if (word[0] && strcmp(word, part->explained_by) != 0) {
            word[0] = '\0';
            return;
        }
        snprintf(word, size, "%s", part->explained_by);
        if (!word[0]) return;
    }
}

/* Taps that some sequence lacks, and the verdict of all. */
static void settle(struct m3_comparison *result)
{
    int64_t beyond = 0, silent = 0;
    struct m3_comparison *most = NULL;      /* whose candidate lacks most taps */
    for (int64_t b = 0; b < result->part_count; b++) {
        struct m3_comparison *part = &result->parts[b];
        add_next_token(result, b);
        silent += part->count == 0;
        result->extra = m3_max(result->extra, part->extra);
        beyond = m3_max(beyond, part->unjudged - (part->not_judged - part->excused));
        if (part->missing <= result->missing) continue;
        result->missing = part->missing;
        most = part;
    }
    if (most) {
        memcpy(result->missing_names, most->missing_names, sizeof result->missing_names);
        result->missing_taps = most->missing_taps;
        most->missing_taps = NULL;
    }
    result->unjudged = result->not_judged - result->excused + beyond;
    m3_compare_settle(result);
    find_word(result->explained_by, sizeof result->explained_by, result);
    if (silent > 0)
        m3_fail(&result->notes, M3_OK, "sequences of which the candidate holds nothing: %" PRId64 " of %" PRId64,
                silent, result->part_count);
}

static int gather_notes(struct m3_comparison *result, struct m3_error *error)
{
    const struct m3_error **notes = calloc((size_t)result->part_count, sizeof *notes);
    int64_t count = 0;
    if (!notes) return m3_fail_memory(error, "notes", (size_t)result->part_count * sizeof *notes);
    for (int64_t b = 0; b < result->part_count; b++)
        if (result->parts[b].count > 0) notes[count++] = &result->parts[b].notes;
    m3_notes_together(&result->notes, notes, count);
    free(notes);
    return M3_OK;
}

int m3_compare_together(struct m3_comparison *result, struct m3_comparison *parts, struct m3_side *sides, int64_t count,
                        struct m3_error *error)
{
    *result = (struct m3_comparison){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    result->parts = parts;
    result->sides = sides;
    result->part_count = count;
    int status = gather_stages(result, error);
    if (!status) status = gather_notes(result, error);
    if (status) return status;
    count_stages(result);
    settle(result);
    return M3_OK;
}

static int compare_each(struct m3_comparison *results, struct m3_side *sides, const struct m3_compared_parts *parts,
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

int m3_compare_several(struct m3_comparison *result, const struct m3_compared_parts *parts,
                       const struct m3_compare_options *options, struct m3_error *error)
{
    const int64_t count = parts->reference->count;
    struct m3_comparison *results = calloc((size_t)count, sizeof *results);
    struct m3_side *sides = calloc((size_t)count * 2, sizeof *sides);
    *result = (struct m3_comparison){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    int status = results && sides ? compare_each(results, sides, parts, options, error)
                                  : m3_fail_memory(error, "sequences", (size_t)count * sizeof *results);
    if (!status) return m3_compare_together(result, results, sides, count, error);
    for (int64_t b = 0; results && b < count; b++) m3_comparison_free(&results[b]);
    free(results);
    free(sides);
    return status;
}
