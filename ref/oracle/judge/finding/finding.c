#include "oracle/judge/finding/finding.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/logits.h"
#include "oracle/judge/choices/taint.h"

const double m3_quantiles[M3_QUANTILES] = { 0.5, 0.9, 0.99, 1 };

const char *m3_basis_text(enum m3_basis basis)
{
    static const char *const texts[M3_BASES] = {
        [M3_BY_EQUALITY] = "equality",
        [M3_BY_SETS] = "sets",
        [M3_BY_CERTIFICATES] = "certificates of its scores",
        [M3_BY_PIXELS] = "the pixels of the case",
        [M3_BY_GRADIENT] = "relative L2 of the gradient",
        [M3_BY_STATED] = "fp32 errors of the reference",
        [M3_BY_PARTLY_STATED] = "bounds, and for rows whose inputs are missing fp32 errors of the reference",
        [M3_BY_DRIFT] = "bounds and measured drift",
        [M3_BY_OPERATOR] = "what the operator makes of the candidate's inputs",
        [M3_BY_BOUNDS] = "bounds of the operator",
        [M3_BY_ROWS] = "honest implementations of the profile",
        [M3_BY_ENVELOPE] = "the envelope",
        [M3_BY_COMPARISON] = "the comparison with the truth",
    };
    return texts[basis];
}

struct m3_finding m3_finding_of(const char *tap, enum m3_tap id, int64_t layer, const struct m3_tensor *reference,
                                const struct m3_tensor *candidate)
{
    struct m3_finding finding = {
        .tap = tap,
        .id = id,
        .layer = layer,
        .reference = reference,
        .candidate = candidate,
        .verdict = M3_VERDICT_NOT_JUDGED,
        .selection = id != M3_TAPS && m3_tap_table[id].kind == M3_KIND_CHOICES,
        .tiers = { .headroom = NAN, .z2 = NAN, .grid = M3_DTYPES },
        .n = -1,
        .f = -1,
        .off = { NAN, NAN, NAN, NAN, NAN, NAN, { NAN, NAN, NAN, NAN }, "" },
        .percentile = NAN,
        .envelope_median = NAN,
        .envelope_largest = NAN,
        .row_error = NAN,
        .row_error_largest = NAN,
        .row_nearest = NAN,
        .row_nearest_largest = NAN,
        .gap = NAN,
        .bound = NAN,
        .least_gap = NAN,
        .operators = 1,
    };
    return finding;
}

struct m3_finding m3_finding_recomputed(const struct m3_tensor *candidate, enum m3_tap id, int64_t layer,
                                        const char *made_by, const char *section)
{
    struct m3_finding finding = m3_finding_of(candidate->name, id, layer, candidate, candidate);
    finding.made_by = made_by;
    finding.section = section;
    finding.judged_by = M3_BY_OPERATOR;
    finding.tiers.headroom = finding.tiers.z2 = 0;
    finding.n = finding.f = 0;
    return finding;
}

void m3_finding_note(struct m3_finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->note, sizeof finding->note, format, arguments);
    va_end(arguments);
}

void m3_finding_place(struct m3_finding *finding, const struct m3_tensor *tensor, int64_t number, int64_t rest,
                      int rank)
{
    finding->rank = rank;
    for (int i = rank - 1; i > 0; i--) {
        finding->index[i] = rest % tensor->shape[i];
        rest /= tensor->shape[i];
    }
    finding->index[0] = number;
}

/* ---- all findings */

static void count(struct m3_judgement *all, const struct m3_finding *finding)
{
    all->judged += m3_is_judged(finding->verdict);
    all->failed += finding->verdict == M3_VERDICT_FAIL;
    all->suspect += finding->verdict == M3_VERDICT_SUSPECT;
    all->not_judged += finding->verdict == M3_VERDICT_NOT_JUDGED;
    all->not_comparable += finding->verdict == M3_VERDICT_NOT_COMPARABLE;
    all->excused += finding->verdict == M3_VERDICT_NOT_JUDGED && finding->excused;
    if (m3_finding_is_wrong(finding) && !all->first) all->first = finding;
    if (!m3_is_judged(finding->verdict) || finding->selection || finding->elements == 0) return;
    if (!all->tightest || finding->tiers.headroom > all->tightest->tiers.headroom) all->tightest = finding;
}

void m3_judgement_settle(struct m3_judgement *all, int64_t more_unjudged)
{
    all->judged = all->failed = all->suspect = all->not_judged = all->not_comparable = all->excused = 0;
    all->first = all->tightest = NULL;
    for (int64_t i = 0; i < all->count; i++) count(all, &all->findings[i]);
    all->unjudged = all->not_judged - all->excused + more_unjudged;
    const enum m3_verdict last = all->next_token.tap ? all->next_token.verdict : M3_VERDICT_PASS;
    const struct m3_tally tally = { .judged = all->judged,
                                    .failed = all->failed + (last == M3_VERDICT_FAIL),
                                    .suspect = all->suspect + (last == M3_VERDICT_SUSPECT),
                                    .not_comparable = all->not_comparable,
                                    .unjudged = all->unjudged };
    all->verdict = m3_run_verdict(&tally);
    all->status = m3_run_status(all->verdict);
}

void m3_judgement_miss(struct m3_judgement *all, const char *tap)
{
    enum { SHOWN = 3 };
    const size_t length = strlen(all->missing_names), room = sizeof all->missing_names - length;
    const int64_t before = all->missing++;
    snprintf(all->missing_taps[before], sizeof all->missing_taps[before], "%s", tap);
    if (before < SHOWN) snprintf(all->missing_names + length, room, "%s%s", before > 0 ? ", " : "", tap);
    else if (before == SHOWN) snprintf(all->missing_names + length, room, " ..");
}

void m3_judgement_free(struct m3_judgement *all)
{
    for (int64_t i = 0; i < all->count; i++) free(all->findings[i].flips);
    free(all->next_token.flips);
    free(all->findings);
    free(all->missing_taps);
    m3_taint_free(all->taint);
    m3_logits_free(all->logits);
    m3_error_free(&all->notes);
    for (int64_t b = 0; b < all->part_count; b++) m3_judgement_free(&all->parts[b]);
    free(all->parts);
    free(all->sides);
    *all = (struct m3_judgement){ 0 };
}
