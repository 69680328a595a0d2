#include <math.h>

#include "oracle/error/parameters/parameters.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"
#include "oracle/report/report.h"

/* A measured number, or null. */
static json_t *measured(int is_measured, double value) { return is_measured ? m3_json_number(value) : json_null(); }

/* {"50": x, "90": .., "99": .., "100": ..} in percent of the elements. */
static json_t *quantiles(const struct m3_stage *stage)
{
    json_t *all = json_object();
    if (isnan(stage->quantiles[0])) {
        json_decref(all);
        return json_null();
    }
    for (int k = 0; k < M3_QUANTILES; k++) {
        char key[16];
        snprintf(key, sizeof key, "%g", 100 * m3_quantiles[k]);
        m3_json_set(all, key, m3_json_number(stage->quantiles[k]));
    }
    return all;
}

static json_t *note_of(const struct m3_stage *stage)
{
    char text[M3_PARAMETER_TEXT];
    if (stage->note != NULL || stage->parameter.name == NULL) return m3_json_text(stage->note);
    m3_parameter_say(text, sizeof text, &stage->parameter);
    return m3_json_text(text);
}

/* A stage with a number for every key, or null if nothing was measured or there is no place. */
static json_t *float_stage(const struct m3_stage *stage)
{
    int judged = m3_is_judged(stage->verdict), shown = stage->rank > 0;
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}", "type", "stage", "tap",
        stage->tap, "verdict", m3_verdict_name(stage->verdict), "rel_l2", measured(judged, stage->rel_l2), "max_abs",
        measured(judged, stage->max_abs), "index", m3_json_place(stage->index, stage->rank), "sequence",
        m3_json_sequence(stage->in_sequence), "got", measured(shown, stage->got), "want", measured(shown, stage->want),
        "max_rel", measured(judged, stage->max_rel), "allowed_l2", measured(judged, stage->allowed_l2), "allowed_max",
        measured(judged, stage->allowed_max), "headroom", measured(judged, stage->headroom), "elements",
        (json_int_t)stage->elements, "violations", (json_int_t)stage->violations, "note", note_of(stage));
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "judged_by",
        m3_json_text(judged ? stage->judged_by : NULL), "n",
        stage->n < 0 ? json_null() : json_integer((json_int_t)stage->n), "f",
        stage->f < 0 ? json_null() : json_integer((json_int_t)stage->f), "tier", m3_json_tiers(stage->tiers),
        "tiers_off", m3_json_tiers(stage->tiers_off), "z2", m3_json_known(stage->z2), "rows_not_judged",
        (json_int_t)stage->rows_left_out, "quantiles", quantiles(stage), "precision",
        m3_json_text(stage->effective[0] != '\0' ? stage->effective : NULL), "percentile",
        m3_json_known(stage->percentile), "envelope_median", m3_json_known(stage->envelope_median), "envelope_largest",
        m3_json_known(stage->envelope_largest), "row_error", m3_json_known(stage->row_error), "row_error_largest",
        m3_json_known(stage->row_error_largest), "row_nearest", m3_json_known(stage->row_nearest),
        "row_nearest_largest", m3_json_known(stage->row_nearest_largest));
    return m3_json_join(m3_json_join(line, more), m3_json_parameter(&stage->parameter));
}

static json_t *selection_stage(const struct m3_stage *stage)
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
        m3_json_text(stage->bounded_by), "note", m3_json_text(stage->note));
}

static json_t *summary(const struct m3_comparison *comparison)
{
    const struct m3_stage *first = comparison->divergence, *tightest = comparison->tightest;
    const struct m3_stage *farthest = comparison->envelope.farthest;
    const int has_envelope = comparison->envelope.runs > 0;
    const char *verdict = m3_verdict_name(comparison->verdict);
    return json_pack(
        "{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, "
        "s:o, s:o}",
        "type", "summary", "verdict", verdict, "first_divergence", m3_json_text(first ? first->tap : NULL), "stages",
        (json_int_t)comparison->count, "missing", (json_int_t)comparison->missing, "judged",
        (json_int_t)comparison->judged, "failed", (json_int_t)comparison->failed, "suspects",
        (json_int_t)comparison->suspects, "not_judged", (json_int_t)comparison->not_judged, "not_comparable",
        (json_int_t)comparison->not_comparable, "extra", (json_int_t)comparison->extra, "headroom",
        tightest ? m3_json_number(tightest->headroom) : json_null(), "headroom_tap",
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

static int is_left_out(const struct m3_stage *stage, enum m3_report_extent extent)
{
    const int wrong = stage->verdict == M3_VERDICT_FAIL || stage->verdict == M3_VERDICT_SUSPECT;
    return extent == M3_REPORT_FAILING && !wrong;
}

int m3_report_json(FILE *out, const struct m3_comparison *comparison, enum m3_report_extent extent,
                   struct m3_error *error)
{
    int status = m3_report_whole(&comparison->notes, error);
    for (int64_t i = 0; i < comparison->count && status == M3_OK; i++) {
        const struct m3_stage *stage = &comparison->stages[i];
        if (is_left_out(stage, extent)) continue;
        int chosen = stage->selection && m3_is_judged(stage->verdict);
        status = m3_json_line(out, chosen ? selection_stage(stage) : float_stage(stage), error);
    }
    if (status == M3_OK && comparison->next_token.tap != NULL && !is_left_out(&comparison->next_token, extent))
        status = m3_json_line(out, selection_stage(&comparison->next_token), error);
    if (status == M3_OK) status = m3_json_line(out, summary(comparison), error);
    return status != M3_OK ? status : m3_json_end(out, error);
}
