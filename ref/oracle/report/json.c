#include <inttypes.h>
#include <math.h>

#include "oracle/judge/check/check.h"
#include "oracle/error/parameters/parameters.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"
#include "oracle/report/report.h"

/* A measured number, or null. */
static json_t *measured(int is_measured, double value) { return is_measured ? m3_json_number(value) : json_null(); }

/* {"50": x, "90": .., "99": .., "100": ..} in percent of the elements. */
static json_t *quantiles(const struct m3_finding *stage)
{
    json_t *all = json_object();
    if (isnan(stage->off.quantiles[0])) {
        json_decref(all);
        return json_null();
    }
    for (int k = 0; k < M3_QUANTILES; k++) {
        char key[16];
        snprintf(key, sizeof key, "%g", 100 * m3_quantiles[k]);
        m3_json_set(all, key, m3_json_number(stage->off.quantiles[k]));
    }
    return all;
}

static json_t *note_of(const struct m3_finding *f)
{
    char text[M3_PARAMETER_TEXT];
    if (f->note[0] != '\0' || f->made_by != NULL || f->tiers.parameter.name == NULL)
        return m3_json_text(f->note[0] != '\0' ? f->note : NULL);
    m3_parameter_say(text, sizeof text, &f->tiers.parameter);
    return m3_json_text(text);
}

/* ---- what was compared */

/* A stage with a number for every key, or null if nothing was measured or there is no place. */
static json_t *float_stage(const struct m3_finding *stage)
{
    int judged = m3_is_judged(stage->verdict), shown = stage->rank > 0;
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}", "type", "stage", "tap",
        stage->tap, "verdict", m3_verdict_name(stage->verdict), "rel_l2", measured(judged, stage->off.rel_l2),
        "max_abs", measured(judged, stage->off.max_abs), "index", m3_json_place(stage->index, stage->rank), "sequence",
        m3_json_sequence(stage->in_sequence), "got", measured(shown, stage->got), "want", measured(shown, stage->want),
        "max_rel", measured(judged, stage->off.max_rel), "allowed_l2", measured(judged, stage->off.allowed_l2),
        "allowed_max", measured(judged, stage->off.allowed_max), "headroom", measured(judged, stage->tiers.headroom),
        "elements", (json_int_t)stage->elements, "violations", (json_int_t)stage->violations, "note", note_of(stage));
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "judged_by",
        m3_json_text(judged ? m3_basis_text(stage->judged_by) : NULL), "n",
        stage->n < 0 ? json_null() : json_integer((json_int_t)stage->n), "f",
        stage->f < 0 ? json_null() : json_integer((json_int_t)stage->f), "tier", m3_json_tiers(stage->tiers.tiers),
        "tiers_off", m3_json_tiers(stage->tiers_off), "z2", m3_json_known(stage->tiers.z2), "rows_not_judged",
        (json_int_t)stage->rows_left_out, "quantiles", quantiles(stage), "precision",
        m3_json_text(stage->off.effective[0] != '\0' ? stage->off.effective : NULL), "percentile",
        m3_json_known(stage->percentile), "envelope_median", m3_json_known(stage->envelope_median), "envelope_largest",
        m3_json_known(stage->envelope_largest), "row_error", m3_json_known(stage->row_error), "row_error_largest",
        m3_json_known(stage->row_error_largest), "row_nearest", m3_json_known(stage->row_nearest),
        "row_nearest_largest", m3_json_known(stage->row_nearest_largest));
    return m3_json_join(m3_json_join(line, more), m3_json_parameter(&stage->tiers.parameter));
}

static json_t *selection_stage(const struct m3_finding *stage)
{
    int shown = stage->rank > 0;
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o}",
        "type", "selection", "tap", stage->tap, "verdict", m3_choice_text(stage->choice), "rows",
        (json_int_t)stage->rows, "differing", (json_int_t)stage->differing, "identical",
        (json_int_t)stage->choices[M3_CHOICE_IDENTICAL], "permuted", (json_int_t)stage->choices[M3_CHOICE_PERMUTED],
        "tie", (json_int_t)stage->choices[M3_CHOICE_TIE], "admissible",
        (json_int_t)stage->choices[M3_CHOICE_ADMISSIBLE], "inadmissible",
        (json_int_t)stage->choices[M3_CHOICE_INADMISSIBLE], "certified", (json_int_t)stage->certified, "tainted",
        (json_int_t)stage->tainted, "index", m3_json_place(stage->index, stage->rank), "sequence",
        m3_json_sequence(stage->in_sequence), "got", shown ? json_integer((json_int_t)stage->got) : json_null(), "want",
        shown ? json_integer((json_int_t)stage->want) : json_null(), "gap",
        shown ? m3_json_known(stage->gap) : json_null(), "bound", shown ? m3_json_known(stage->bound) : json_null(),
        "least_gap", m3_json_known(stage->least_gap), "scores", m3_json_text(stage->scores), "bounded_by",
        m3_json_text(stage->bounded_by), "note", note_of(stage));
}

static json_t *compared(const struct m3_finding *f)
{
    return f->selection && m3_is_judged(f->verdict) ? selection_stage(f) : float_stage(f);
}

/* What a map left over; nothing without a map. */
static json_t *with_gaps(json_t *summary, const struct m3_name_gaps *gaps)
{
    if (!gaps) return summary;
    return m3_json_join(summary, json_pack("{s:I, s:o, s:I, s:o}", "map_unknown_tensors", (json_int_t)gaps->unknown,
                                           "map_unknown_first", m3_json_notes(&gaps->unknown_first),
                                           "map_unmatched_taps", (json_int_t)gaps->unmatched, "map_unmatched_first",
                                           m3_json_notes(&gaps->unmatched_first)));
}

static json_t *compared_summary(const struct m3_judgement *comparison)
{
    const struct m3_finding *first = comparison->first, *tightest = comparison->tightest;
    const struct m3_finding *farthest = comparison->envelope.farthest;
    const int has_envelope = comparison->envelope.runs > 0;
    const char *verdict = m3_verdict_name(comparison->verdict);
    return json_pack(
        "{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, "
        "s:o, s:o}",
        "type", "summary", "verdict", verdict, "first_divergence", m3_json_text(first ? first->tap : NULL), "stages",
        (json_int_t)comparison->count, "missing", (json_int_t)comparison->missing, "judged",
        (json_int_t)comparison->judged, "failed", (json_int_t)comparison->failed, "suspects",
        (json_int_t)comparison->suspect, "not_judged", (json_int_t)comparison->not_judged, "not_comparable",
        (json_int_t)comparison->not_comparable, "extra", (json_int_t)comparison->extra, "headroom",
        tightest ? m3_json_number(tightest->tiers.headroom) : json_null(), "headroom_tap",
        m3_json_text(tightest ? tightest->tap : NULL), "ranked",
        has_envelope ? json_integer((json_int_t)comparison->envelope.ranked) : json_null(), "blind",
        has_envelope ? json_integer((json_int_t)comparison->envelope.blind) : json_null(), "percentile",
        farthest ? m3_json_number(comparison->envelope.percentile) : json_null(), "farthest_tap",
        m3_json_text(farthest ? farthest->tap : NULL), "notes", m3_json_notes(&comparison->notes), "unjudged",
        (json_int_t)comparison->unjudged, "excused", (json_int_t)comparison->excused, "explained_by",
        m3_json_text(comparison->explained_by[0] ? comparison->explained_by : NULL), "mistake",
        m3_json_text(comparison->mistake), "model_sha256", m3_json_text(comparison->of.model_sha256), "case_sha256",
        m3_json_text(comparison->of.case_sha256), "profile_sha256", m3_json_text(comparison->of.profile_sha256));
}

/* ---- what was recomputed */

/* The worst tier that fails, or null. */
static json_t *worst_tier(int tiers)
{
    return tiers ? json_string(m3_tier_name((enum m3_tier)(tiers & -tiers))) : json_null();
}

/* The keys that every tap has, the fixed ones first. */
static json_t *recomputed_tap(const struct m3_finding *f)
{
    const int judged = m3_is_judged(f->verdict), shown = f->rank > 0;
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "type", "blame", "tap", f->tap, "operator", f->made_by, "inherited",
                     judged ? m3_json_known(f->inherited) : json_null(), "created",
                     judged ? m3_json_number(f->created) : json_null(), "allowed",
                     judged ? m3_json_number(f->allowed) : json_null(), "verdict", m3_verdict_name(f->verdict),
                     "section", f->section, "elements", (json_int_t)f->elements, "rows", (json_int_t)f->rows,
                     "left_out", (json_int_t)f->rows_left_out, "operators", (json_int_t)f->operators, "since",
                     m3_json_text(f->since[0] ? f->since : NULL), "index", m3_json_place(f->index, f->rank), "sequence",
                     m3_json_sequence(f->in_sequence), "got", shown ? m3_json_number(f->got) : json_null(), "want",
                     shown ? m3_json_number(f->want) : json_null(), "note", note_of(f), "mistake",
                     m3_json_text(f->mistake ? f->mistake->id : NULL));
}

static json_t *recomputed_numbers(const struct m3_finding *f)
{
    const struct m3_tier_result *r = &f->tiers;
    json_t *more =
        json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "tier", worst_tier(r->tiers), "tiers",
                  m3_json_tiers(r->tiers), "headroom", m3_json_number(r->headroom), "z2", m3_json_number(r->z2),
                  "violations", (json_int_t)f->violations, "not_judged", (json_int_t)r->not_judged, "judged_by",
                  m3_json_text(f->judged_by == M3_BY_ROWS ? m3_basis_text(M3_BY_ROWS) : NULL), "row_error",
                  m3_json_known(f->row_error), "row_error_largest", m3_json_known(f->row_error_largest), "row_nearest",
                  m3_json_known(f->row_nearest), "row_nearest_largest", m3_json_known(f->row_nearest_largest));
    return m3_json_join(more, m3_json_parameter(&r->parameter));
}

static json_t *recomputed_choices(const struct m3_finding *f)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "choice", m3_choice_text(f->choice), "scores",
                     f->scores ? f->scores : "none", "identical", (json_int_t)f->choices[M3_CHOICE_IDENTICAL],
                     "permuted", (json_int_t)f->choices[M3_CHOICE_PERMUTED], "tie",
                     (json_int_t)f->choices[M3_CHOICE_TIE], "admissible", (json_int_t)f->choices[M3_CHOICE_ADMISSIBLE],
                     "inadmissible", (json_int_t)f->choices[M3_CHOICE_INADMISSIBLE], "gap", m3_json_known(f->gap));
}

static json_t *recomputed(const struct m3_finding *f)
{
    return m3_json_join(recomputed_tap(f), f->selection ? recomputed_choices(f) : recomputed_numbers(f));
}

static json_t *recomputed_summary(const struct m3_judgement *all)
{
    const struct m3_finding *culprit = all->first;
    json_t *summary = json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:o}", "type", "summary", "culprit",
        m3_json_text(culprit ? culprit->tap : NULL), "operator", m3_json_text(culprit ? culprit->made_by : NULL),
        "section", m3_json_text(culprit ? culprit->section : NULL), "verdict", m3_verdict_name(all->verdict), "taps",
        (json_int_t)all->count, "judged", (json_int_t)all->judged, "failed", (json_int_t)all->failed, "suspect",
        (json_int_t)all->suspect, "not_judged", (json_int_t)all->not_judged, "not_comparable",
        (json_int_t)all->not_comparable, "notes", m3_json_notes(&all->notes), "unjudged", (json_int_t)all->unjudged,
        "explained_by", m3_json_text(all->explained_by[0] ? all->explained_by : NULL), "mistake",
        m3_json_text(all->mistake));
    if (all->rows_judged < all->rows) {
        m3_json_set(summary, "rows_judged", json_integer(all->rows_judged));
        m3_json_set(summary, "rows", json_integer(all->rows));
    }
    return summary;
}

/* "96:118", of those from 96 to 117; [3], [3, 9, 40]; "3::4", every fourth from 3 on; "7 of 118 from 3 on". */
static json_t *pattern_items(const struct m3_pattern_items *is)
{
    if (is->few_count > 0) return m3_json_place(is->few, (int)is->few_count);
    if (is->step == 1) return json_sprintf("%" PRId64 ":%" PRId64, is->first, is->end);
    if (is->step > 1) return json_sprintf("%" PRId64 "::%" PRId64, is->first, is->step);
    return json_sprintf("%" PRId64 " of %" PRId64 " from %" PRId64 " on", is->wrong, is->all, is->first);
}

static json_t *pattern_of(const struct m3_finding *f)
{
    if (!f || (!f->pattern.where[0] && !f->pattern.what[0])) return json_null();
    json_t *pattern = json_pack("{s:o, s:o}", "where", m3_json_text(f->pattern.where[0] ? f->pattern.where : NULL),
                                "what", m3_json_text(f->pattern.what[0] ? f->pattern.what : NULL));
    for (int i = 0; i < 3; i++) {
        const struct m3_pattern_items *is = &f->pattern.items[i];
        char key[32];
        snprintf(key, sizeof key, "%ss", is->noun ? is->noun : "");
        if (is->noun) m3_json_join(pattern, json_pack("{s:o}", key, pattern_items(is)));
    }
    return pattern;
}

/* How often its errors hold those of the mistake that it is named for. */
static json_t *score_of(const struct m3_finding *f)
{
    if (!f || !f->mistake || !(f->share > 0)) return json_null();
    return json_pack("{s:s, s:f, s:o}", "mistake", f->mistake->id, "coefficient", f->share, "error",
                     m3_json_known(f->share_error));
}

static json_t *check_summary(const struct m3_check *check)
{
    const struct m3_judgement *all = &check->blame;
    const struct m3_finding *culprit = all->first;
    return json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:o, s:s}", "type",
        "summary", "verdict", m3_verdict_name(all->verdict), "first_divergence",
        m3_json_text(culprit ? culprit->tap : NULL), "culprit", m3_json_text(culprit ? culprit->tap : NULL), "operator",
        m3_json_text(culprit ? culprit->made_by : NULL), "mistake", m3_json_text(check->mistake), "score",
        score_of(culprit), "pattern", pattern_of(culprit), "reading",
        m3_json_text(check->reading[0] ? check->reading : NULL), "profile_word",
        m3_json_text(check->profile_word[0] ? check->profile_word : NULL), "judged", (json_int_t)all->judged, "failed",
        (json_int_t)all->failed, "suspect", (json_int_t)all->suspect, "stages", (json_int_t)(all->count + all->extra),
        "rows_judged", (json_int_t)check->rows_judged, "rows", (json_int_t)check->rows, "truth_reused",
        check->truth.reused, "double_passes", (json_int_t)check->double_passes, "notes", m3_json_notes(&all->notes),
        "sentence", check->sentence);
}

/* ---- the lines */

static int print_finding(FILE *out, const struct m3_finding *f, enum m3_report_extent extent, struct m3_error *error)
{
    if (extent == M3_REPORT_FAILING && !m3_finding_is_wrong(f)) return M3_OK;
    return m3_json_line(out, f->made_by != NULL ? recomputed(f) : compared(f), error);
}

static int print_findings(FILE *out, const struct m3_judgement *all, enum m3_report_extent extent,
                          struct m3_error *error)
{
    int status = m3_report_whole(&all->notes, error);
    for (int64_t i = 0; i < all->count && status == M3_OK; i++)
        status = print_finding(out, &all->findings[i], extent, error);
    if (status == M3_OK && all->next_token.tap != NULL) status = print_finding(out, &all->next_token, extent, error);
    return status;
}

int m3_report_json(FILE *out, const struct m3_judgement *all, enum m3_report_extent extent, struct m3_error *error)
{
    int status = print_findings(out, all, extent, error);
    if (status == M3_OK)
        status = m3_json_line(
            out, with_gaps(all->is_recomputed ? recomputed_summary(all) : compared_summary(all), all->gaps), error);
    return status != M3_OK ? status : m3_json_end(out, error);
}

int m3_report_check_json(FILE *out, const struct m3_check *check, enum m3_report_extent extent, struct m3_error *error)
{
    int status = print_findings(out, &check->blame, extent, error);
    if (status == M3_OK) status = m3_json_line(out, with_gaps(check_summary(check), check->blame.gaps), error);
    return status != M3_OK ? status : m3_json_end(out, error);
}
