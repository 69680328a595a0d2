/* The findings on several sequences as one. SPEC 7.19. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/finding/finding.h"
#include "oracle/variants/mistakes.h"

/* ---- one tap */

static int weight_of(const struct m3_finding *f)
{
    switch (f->verdict) {
    case M3_VERDICT_FAIL: return 5;
    case M3_VERDICT_NOT_COMPARABLE: return 4;
    case M3_VERDICT_SUSPECT: return 3;
    case M3_VERDICT_NOT_JUDGED: return f->excused || (f->candidate && f->candidate->count == 0) ? 0 : 2;
    default: return 1;
    }
}

static double share_of(const struct m3_finding *f)
{
    if (f->selection) return (double)f->choices[M3_CHOICE_INADMISSIBLE];
    return isnan(f->tiers.headroom) ? INFINITY : f->tiers.headroom;
}

/* Does `b` count more than `a` for the verdict on their tap? */
static int is_worse(const struct m3_finding *b, const struct m3_finding *a)
{
    if (weight_of(a) != weight_of(b)) return weight_of(b) > weight_of(a);
    if (a->selection && b->selection && a->choice != b->choice) return b->choice > a->choice;
    return share_of(b) > share_of(a);
}

/* The worse of two, with the counts of both. */
static void add(struct m3_finding *to, const struct m3_finding *from)
{
    struct m3_finding sum = is_worse(from, to) ? *from : *to;
    sum.rows = to->rows + from->rows;
    sum.rows_left_out = to->rows_left_out + from->rows_left_out;
    sum.elements = to->elements + from->elements;
    sum.violations = to->violations + from->violations;
    sum.differing = to->differing + from->differing;
    sum.certified = to->certified + from->certified;
    sum.tainted = to->tainted + from->tainted;
    sum.off.peak = fmax(to->off.peak, from->off.peak);
    sum.least_gap = fmin(to->least_gap, from->least_gap);       /* of a NaN and a number: the number */
    for (int i = 0; i < M3_CHOICES; i++) sum.choices[i] = to->choices[i] + from->choices[i];
    if (!sum.mistake && to->mistake && to->verdict == sum.verdict) sum.mistake = to->mistake;
    *to = sum;
}

/* The same of sequence b, whose part keeps its flips. */
static struct m3_finding of_sequence(const struct m3_finding *finding, int64_t b)
{
    struct m3_finding own = *finding;
    own.in_sequence = b + 1;
    own.flips = NULL;
    return own;
}

static int by_execution(const void *a, const void *b)
{
    const struct m3_finding *x = a, *y = b;
    const int order = m3_tap_order(x->id, x->layer, y->id, y->layer);
    if (order != 0) return order;
    return (x->in_sequence > y->in_sequence) - (x->in_sequence < y->in_sequence);
}

static int gather(struct m3_judgement *all, struct m3_error *error)
{
    int64_t room = 0, count = 0;
    for (int64_t b = 0; b < all->part_count; b++) room += all->parts[b].count;
    all->findings = calloc((size_t)room + 1, sizeof *all->findings);
    if (!all->findings) return m3_fail_memory(error, "findings", (size_t)room * sizeof *all->findings);
    for (int64_t b = 0; b < all->part_count; b++)
        for (int64_t i = 0; i < all->parts[b].count; i++)
            all->findings[count++] = of_sequence(&all->parts[b].findings[i], b);
    qsort(all->findings, (size_t)count, sizeof *all->findings, by_execution);
    for (int64_t i = 0; i < count; i++) {
        struct m3_finding *last = all->count > 0 ? &all->findings[all->count - 1] : NULL;
        if (last && strcmp(last->tap, all->findings[i].tap) == 0) add(last, &all->findings[i]);
        else all->findings[all->count++] = all->findings[i];
    }
    return M3_OK;
}

/* ---- notes */

/* Of a sequence of which the candidate holds something. */
static const char *notes_of(const struct m3_judgement *part) { return part->count > 0 ? part->notes.text : NULL; }

static int has_line(const char *notes, const char *line, size_t length)
{
    for (const char *at = notes; at && *at; at += strcspn(at, "\n") + 1) {
        if (strcspn(at, "\n") == length && memcmp(at, line, length) == 0) return 1;
        if (!at[strcspn(at, "\n")]) break;
    }
    return 0;
}

/* How many sequences with findings have it; all of them say what is said once. */
static int64_t sayers(const struct m3_judgement *all, const char *line, size_t length)
{
    int64_t count = 0;
    for (int64_t b = 0; b < all->part_count; b++) count += has_line(notes_of(&all->parts[b]), line, length);
    return count;
}

static void gather_notes(struct m3_judgement *all, int64_t silent)
{
    for (int64_t b = 0; b < all->part_count; b++)
        for (const char *line = notes_of(&all->parts[b]), *end; line && *line; line = *end ? end + 1 : end) {
            const size_t length = strcspn(line, "\n");
            end = line + length;
            if (has_line(all->notes.text, line, length)) continue;
            if (sayers(all, line, length) == all->part_count - silent)
                m3_fail(&all->notes, M3_OK, "%.*s", (int)length, line);
            else m3_fail(&all->notes, M3_OK, "sequence %" PRId64 ": %.*s", b, (int)length, line);
        }
    if (silent > 0)
        m3_fail(&all->notes, M3_OK, "sequences of which the candidate holds nothing: %" PRId64 " of %" PRId64, silent,
                all->part_count);
}

/* ---- the whole */

static void add_next_token(struct m3_judgement *all, int64_t b)
{
    if (!all->parts[b].next_token.tap) return;
    const struct m3_finding token = of_sequence(&all->parts[b].next_token, b);
    if (all->next_token.tap) add(&all->next_token, &token);
    else all->next_token = token;
}

/* That some sequence lacks: of the one that lacks most. */
static void take_missing(struct m3_judgement *all, struct m3_judgement *part)
{
    if (part->count == 0 || part->missing <= all->missing) return;
    free(all->missing_taps);
    all->missing = part->missing;
    memcpy(all->missing_names, part->missing_names, sizeof all->missing_names);
    all->missing_taps = part->missing_taps;
    part->missing_taps = NULL;
}

static void find_mistake(struct m3_judgement *all)
{
    const struct m3_mistake *found = all->first ? all->first->mistake : NULL;
    for (int64_t i = 0; i < all->count && !found; i++) found = all->findings[i].mistake;
    if (found) all->mistake = found->id;
}

/* One word that explains every sequence that does not pass. */
static void find_word(struct m3_judgement *all)
{
    const char *word = NULL;
    for (int64_t b = 0; b < all->part_count; b++) {
        const struct m3_judgement *part = &all->parts[b];
        if (part->verdict != M3_VERDICT_FAIL && part->verdict != M3_VERDICT_SUSPECT) continue;
        if (word && strcmp(word, part->explained_by) != 0) return;
        word = part->explained_by;
    }
    if (word) memcpy(all->explained_by, word, sizeof all->explained_by);
}

int m3_judgement_together(struct m3_judgement *all, struct m3_judgement *parts, struct m3_side *sides, int64_t count,
                          struct m3_error *error)
{
    int64_t silent = 0, more = 0;
    *all = (struct m3_judgement){ .status = M3_NOT_COMPARABLE,
                                  .verdict = M3_VERDICT_NOT_COMPARABLE,
                                  .is_recomputed = parts[0].is_recomputed,
                                  .parts = parts,
                                  .sides = sides,
                                  .part_count = count };
    const int status = gather(all, error);
    if (status) return status;
    for (int64_t b = 0; b < count; b++) {
        silent += parts[b].count == 0;
        more = m3_max(more, parts[b].unjudged - (parts[b].not_judged - parts[b].excused));
        all->extra = m3_max(all->extra, parts[b].extra);
        all->double_passes += parts[b].double_passes;
        add_next_token(all, b);
        take_missing(all, &parts[b]);
    }
    gather_notes(all, silent);
    m3_judgement_settle(all, more);
    find_mistake(all);
    find_word(all);
    return M3_OK;
}
