/* A blame in the form of a comparison, so that report files have one writer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "oracle/blame/blame.h"
#include "oracle/report/private/format.h"
#include "oracle/report/report.h"

/* What the report on a terminal says of the tap, in memory; NULL if memory is short. */
static char *finding_of(const struct m3_blamed *tap)
{
    struct m3_memory_stream memory;
    FILE *out = m3_memory_open(&memory);
    if (out != NULL) m3_print_blamed(out, tap);
    return m3_memory_close(&memory);
}

/* The same tap, of the same sequence. */
static const struct m3_stage *compared_stage(const struct m3_comparison *compared, const struct m3_blamed *tap)
{
    for (int64_t i = 0; compared != NULL && i < compared->count; i++)
        if (strcmp(compared->stages[i].tap, tap->name) == 0 && compared->stages[i].in_sequence == tap->in_sequence)
            return &compared->stages[i];
    return NULL;
}

/* A stage with the numbers of blame alone: errors are those that its operator made. */
static struct m3_stage stage_of_blame(const struct m3_blamed *tap)
{
    struct m3_stage stage = { .reference = tap->candidate,
                              .candidate = tap->candidate,
                              .rel_l2 = tap->created,
                              .allowed_l2 = tap->allowed,
                              .max_rel = tap->max_rel,
                              .rows = tap->elements,
                              .gap = NAN,
                              .bound = NAN,
                              .least_gap = NAN,
                              .z2 = tap->tiers.z2,
                              .grid = M3_DTYPES };
    memcpy(stage.choices, tap->choices, sizeof stage.choices);
    for (int k = 0; k < M3_QUANTILES; k++) stage.quantiles[k] = NAN;
    return stage;
}

/* Has blame no verdict of its own, so that it repeats that of the comparison? */
static int is_repeated(const struct m3_blamed *tap, const struct m3_stage *compared)
{
    return compared != NULL && m3_is_judged(tap->verdict) && tap->judged_by == NULL && tap->elements == 0;
}

static void take_verdict(struct m3_stage *stage, const struct m3_blamed *tap)
{
    stage->tap = tap->name;
    stage->selection = tap->selection;
    stage->verdict = tap->verdict;
    stage->note = tap->note[0] ? tap->note : NULL;
    stage->rank = tap->rank;
    stage->in_sequence = tap->in_sequence;
    memcpy(stage->index, tap->index, sizeof stage->index);
    stage->got = tap->got, stage->want = tap->want;
    stage->headroom = tap->tiers.headroom;
    stage->tiers = tap->tiers.tiers;
    stage->violations = tap->tiers.hard;
    stage->elements = tap->elements;
    stage->rows_left_out = tap->left_out;
    stage->choice = tap->choice;
    stage->n = tap->n > 0 ? tap->n : 0, stage->f = tap->f > 0 ? tap->f : 0;
    stage->percentile = stage->envelope_median = stage->envelope_largest = NAN;
    stage->row_error = tap->row_error, stage->row_error_largest = tap->row_error_largest;
    stage->row_nearest = tap->row_nearest, stage->row_nearest_largest = tap->row_nearest_largest;
    stage->judged_by = tap->judged_by ? tap->judged_by : "what the operator makes of the candidate's inputs";
}

static int take_taps(struct m3_blamed_stages *out, const struct m3_blame *blame, const struct m3_comparison *compared,
                     struct m3_error *error)
{
    struct m3_comparison *c = &out->comparison;
    for (int64_t i = 0; i < blame->count; i++) {
        const struct m3_blamed *tap = &blame->taps[i];
        const struct m3_stage *before = compared_stage(compared, tap);
        struct m3_stage *stage = &c->stages[c->count++];
        *stage = before != NULL ? *before : stage_of_blame(tap);
        if (!is_repeated(tap, before)) take_verdict(stage, tap);
        if (tap->verdict != M3_VERDICT_PASS && (out->findings[i] = finding_of(tap)) == NULL)
            return m3_fail_memory(error, tap->name, 0);
        if (!is_repeated(tap, before)) stage->finding = out->findings[i];
        const int measured = m3_is_judged(stage->verdict) && !stage->selection;
        if (measured && (c->tightest == NULL || stage->headroom > c->tightest->headroom)) c->tightest = stage;
        if (tap == blame->culprit) c->divergence = stage;
    }
    return M3_OK;
}

int m3_blamed_stages_make(struct m3_blamed_stages *out, const struct m3_blame *blame,
                          const struct m3_comparison *compared, struct m3_error *error)
{
    const size_t room = (size_t)blame->count + 1;
    *out = (struct m3_blamed_stages){ .comparison = { .status = blame->status,
                                                      .verdict = blame->verdict,
                                                      .judged = blame->judged,
                                                      .failed = blame->failed,
                                                      .suspects = blame->suspect,
                                                      .not_judged = blame->not_judged,
                                                      .not_comparable = blame->not_comparable,
                                                      .unjudged = blame->unjudged,
                                                      .missing = blame->missing,
                                                      .extra = blame->extra,
                                                      .mistake = blame->mistake,
                                                      .taint = compared != NULL ? compared->taint : NULL } };
    struct m3_comparison *c = &out->comparison;
    if (compared != NULL) c->parts = compared->parts, c->part_count = compared->part_count, c->sides = compared->sides;
    c->stages = calloc(room, sizeof *c->stages);
    c->missing_taps = calloc((size_t)blame->missing + 1, sizeof *c->missing_taps);
    out->findings = calloc(room, sizeof *out->findings);
    if (c->stages == NULL || c->missing_taps == NULL || out->findings == NULL)
        return m3_fail_memory(error, "stages", room * sizeof *c->stages);
    for (int64_t i = 0; i < blame->missing; i++) c->missing_taps[i] = blame->missing_taps[i];
    memcpy(c->missing_names, blame->missing_names, sizeof c->missing_names);
    memcpy(c->explained_by, blame->explained_by, sizeof c->explained_by);
    m3_add_notes(&c->notes, &blame->notes);
    return take_taps(out, blame, compared, error);
}

void m3_blamed_stages_free(struct m3_blamed_stages *out)
{
    for (int64_t i = 0; out->findings != NULL && i < out->comparison.count; i++) free(out->findings[i]);
    free(out->findings);
    free(out->comparison.stages);       /* the flips of a stage belong to the comparison */
    free(out->comparison.missing_taps);
    m3_error_free(&out->comparison.notes);
    *out = (struct m3_blamed_stages){ 0 };
}

struct m3_report_cause m3_blame_cause(const struct m3_blame *blame)
{
    const struct m3_blamed *culprit = blame->culprit;
    struct m3_report_cause cause = { .profile_word = blame->explained_by[0] ? blame->explained_by : NULL };
    if (culprit == NULL) return cause;
    cause.culprit = culprit->name;
    cause.operator_name = culprit->operator;
    cause.section = culprit->section;
    if (culprit->mistake != NULL) {
        cause.mistake = culprit->mistake->id;
        cause.mistake_words = culprit->mistake->what;
    }
    return cause;
}
