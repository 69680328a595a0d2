#include "oracle/judge/finding/settle.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Where the bad rows are, if only some are. */
static void note_few(struct m3_finding *f, const struct m3_row_verdict *rows)
{
    char which[64];
    const int64_t last = rows->first_bad + rows->bad_rows - 1;
    f->first_bad = rows->first_bad;
    f->bad_rows = rows->bad_rows;
    if (rows->bad_rows == 0) return;
    if (rows->bad_rows == 1) snprintf(which, sizeof which, "row %" PRId64 " only, which is", last);
    else snprintf(which, sizeof which, "rows %" PRId64 " to %" PRId64 " only, each", rows->first_bad, last);
    m3_finding_note(f, "%s at least %.3g times as far off as any honest implementation there", which, rows->times);
}

static void take_rows(struct m3_finding *f, const struct m3_row_verdict *rows)
{
    f->verdict = rows->verdict;
    f->judged_by = M3_BY_ROWS;
    f->pattern = rows->pattern;
    f->note[0] = '\0';
    f->violations = 0;
    f->rows_left_out = 0;
    note_few(f, rows);
    if (!f->made_by) {
        f->tiers.headroom = rows->share;
        return;
    }
    f->tiers = (struct m3_tier_result){ .verdict = rows->verdict, .headroom = rows->share, .worst = -1, .z2 = NAN };
    f->rank = 0;        /* a row is off, not an element */
    f->rows = rows->rows;
    f->elements = f->candidate->count;
    f->inherited = NAN;
    f->created = f->off.rel_l2 = rows->error;
    f->allowed = f->off.allowed_l2 = rows->error_largest;
    if (rows->verdict == M3_VERDICT_PASS || rows->bad_rows > 0) return;
    char said[sizeof f->note] = "";
    m3_finding_say_rows(&(struct m3_text){ said, sizeof said, 0 }, f);
    m3_finding_note(f, "%s", said);
}

/* Among honest implementations. They pass what its own bounds pass, and say nothing of what is too far off after an
 * earlier failure. */
static void settle_rows(struct m3_finding *f, const struct m3_evidence *e)
{
    const struct m3_row_verdict *rows = e->rows;
    f->row_error = rows->error;
    f->row_error_largest = rows->error_largest;
    f->row_nearest = rows->nearest;
    f->row_nearest_largest = rows->nearest_largest;
    if (!m3_is_judged(rows->verdict)) {
        /* A tap that was recomputed says itself what it lacks. */
        if (f->verdict == M3_VERDICT_PASS || isnan(rows->error) || f->made_by) return;
        f->verdict = M3_VERDICT_NOT_JUDGED;
        m3_finding_note(f, "%s", rows->why ? rows->why : "");
    } else if (f->verdict == M3_VERDICT_NOT_JUDGED && rows->verdict != M3_VERDICT_PASS && e->after_failure) {
        m3_finding_note(f, "farther off than honest implementations, but after a tap that fails");
    } else if (f->verdict != M3_VERDICT_PASS || rows->verdict != M3_VERDICT_PASS || !e->is_bounded) {
        take_rows(f, rows);
    }
}

static void settle_blind(struct m3_finding *f)
{
    f->verdict = M3_VERDICT_NOT_JUDGED;
    f->is_blind = 1;
    if (strcmp(f->blind_to, "zeros") == 0) m3_finding_note(f, "the profile allows errors as large as the values");
    else if (f->is_blind_to_pattern) m3_finding_note(f, "the profile allows %s in its place", f->blind_to);
    else m3_finding_note(f, "the profile allows what the mistake %s makes", f->blind_to);
}

/* Errors in the direction of a known mistake are that mistake, however small they are beside roundings. */
static void settle_direction(struct m3_finding *f)
{
    f->verdict = M3_VERDICT_FAIL;
    f->tiers.tiers |= M3_TIER_MISTAKE;
}

void m3_finding_settle(struct m3_finding *f, const struct m3_evidence *e)
{
    if (e->rows && f->share == 0) settle_rows(f, e);
    if (f->share > 0 && m3_is_judged(f->verdict)) settle_direction(f);
    if (f->verdict == M3_VERDICT_PASS && f->blind_to && !(e->is_sharp && !isnan(f->row_error))) settle_blind(f);
    if (!f->beyond_envelope || (f->verdict != M3_VERDICT_PASS && f->verdict != M3_VERDICT_NOT_JUDGED)) return;
    f->verdict = M3_VERDICT_SUSPECT;
    f->judged_by = M3_BY_ENVELOPE;
}

/* What was not recomputed is judged by the comparison with the truth: a tap, or rows whose inputs the dump does not hold,
 * such as those of a cache, if nothing before has made them wrong. */
static int is_needed(const struct m3_finding *f, const struct m3_finding *compared, int is_wrong_before)
{
    if (f->is_blind || !m3_is_judged(compared->verdict)) return 0;
    if (f->verdict == M3_VERDICT_NOT_JUDGED) return 1;
    return f->verdict == M3_VERDICT_PASS && f->rows_left_out > 0 && compared->verdict == M3_VERDICT_FAIL &&
           !is_wrong_before;
}

static void fill_in(struct m3_finding *f, const struct m3_finding *compared, int is_wrong_before)
{
    f->compared = compared;
    if (!is_needed(f, compared, is_wrong_before)) return;
    f->pattern = compared->pattern;
    f->verdict = compared->verdict;
    f->judged_by = M3_BY_COMPARISON;
    f->tiers.headroom = compared->tiers.headroom;
    f->got = compared->got, f->want = compared->want;
    f->rank = compared->rank;
    memcpy(f->index, compared->index, sizeof f->index);
    m3_finding_note(f, "judged by the comparison with the truth");
}

static const struct m3_finding *find(const struct m3_judgement *compared, const struct m3_finding *f)
{
    for (int64_t i = 0; i < compared->count; i++)
        if (strcmp(compared->findings[i].tap, f->tap) == 0) return &compared->findings[i];
    return NULL;
}

void m3_judgement_compare(struct m3_judgement *all, const struct m3_judgement *compared)
{
    int is_wrong_before = 0;
    all->compared = compared;
    for (int64_t i = 0; i < all->count; i++) {
        struct m3_finding *f = &all->findings[i];
        const struct m3_finding *other = find(compared, f);
        /* Another sequence may be the worst there. */
        if (other && other->in_sequence != f->in_sequence) other = find(&compared->parts[f->in_sequence - 1], f);
        if (other) fill_in(f, other, is_wrong_before);
        is_wrong_before |= m3_finding_is_wrong(f);
    }
    m3_judgement_settle(all, all->extra);
}
