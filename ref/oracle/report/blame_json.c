#include "oracle/blame/blame.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"
#include "oracle/report/report.h"

/* The worst tier that fails, or null. */
static json_t *worst_tier(int tiers)
{
    return tiers ? json_string(m3_tier_name((enum m3_tier)(tiers & -tiers))) : json_null();
}

/* The keys that every tap has, the fixed ones first. */
static json_t *common(const struct m3_blamed *tap)
{
    const int judged = m3_is_judged(tap->verdict), shown = tap->rank > 0;
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "type",
        "blame", "tap", tap->name, "operator", tap->operator, "inherited",
        judged ? m3_json_known(tap->inherited) : json_null(), "created",
        judged ? m3_json_number(tap->created) : json_null(), "allowed",
        judged ? m3_json_number(tap->allowed) : json_null(), "verdict", m3_verdict_name(tap->verdict), "section",
        tap->section, "elements", (json_int_t)tap->elements, "rows", (json_int_t)tap->rows, "left_out",
        (json_int_t)tap->left_out, "operators", (json_int_t)tap->operators, "since",
        m3_json_text(tap->since[0] ? tap->since : NULL), "index", m3_json_place(tap->index, tap->rank), "sequence",
        m3_json_sequence(tap->in_sequence), "got", shown ? m3_json_number(tap->got) : json_null(), "want",
        shown ? m3_json_number(tap->want) : json_null(), "note", m3_json_text(tap->note[0] ? tap->note : NULL),
        "mistake", m3_json_text(tap->mistake ? tap->mistake->id : NULL));
}

static json_t *float_tap(const struct m3_blamed *tap)
{
    const struct m3_tier_result *r = &tap->tiers;
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "tier", worst_tier(r->tiers), "tiers",
        m3_json_tiers(r->tiers), "headroom", m3_json_number(r->headroom), "z2", m3_json_number(r->z2), "violations",
        (json_int_t)r->hard, "not_judged", (json_int_t)r->not_judged, "judged_by", m3_json_text(tap->judged_by),
        "row_error", m3_json_known(tap->row_error), "row_error_largest", m3_json_known(tap->row_error_largest),
        "row_nearest", m3_json_known(tap->row_nearest), "row_nearest_largest", m3_json_known(tap->row_nearest_largest));
    return m3_json_join(m3_json_join(common(tap), more), m3_json_parameter(&r->parameter));
}

static json_t *choice_tap(const struct m3_blamed *tap)
{
    json_t *more =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "choice", m3_choice_text(tap->choice), "scores",
                  tap->scores ? tap->scores : "none", "identical", (json_int_t)tap->choices[M3_CHOICE_IDENTICAL],
                  "permuted", (json_int_t)tap->choices[M3_CHOICE_PERMUTED], "tie",
                  (json_int_t)tap->choices[M3_CHOICE_TIE], "admissible", (json_int_t)tap->choices[M3_CHOICE_ADMISSIBLE],
                  "inadmissible", (json_int_t)tap->choices[M3_CHOICE_INADMISSIBLE], "gap", m3_json_known(tap->gap));
    return m3_json_join(common(tap), more);
}

static json_t *summary(const struct m3_blame *blame)
{
    const struct m3_blamed *culprit = blame->culprit;
    const char *verdict = m3_verdict_name(blame->verdict);
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:o}", "type", "summary", "culprit",
        m3_json_text(culprit ? culprit->name : NULL), "operator", m3_json_text(culprit ? culprit->operator : NULL),
        "section", m3_json_text(culprit ? culprit->section : NULL), "verdict", verdict, "taps",
        (json_int_t)blame->count, "judged", (json_int_t)blame->judged, "failed", (json_int_t)blame->failed, "suspect",
        (json_int_t)blame->suspect, "not_judged", (json_int_t)blame->not_judged, "not_comparable",
        (json_int_t)blame->not_comparable, "notes", m3_json_notes(&blame->notes), "unjudged",
        (json_int_t)blame->unjudged, "explained_by", m3_json_text(blame->explained_by[0] ? blame->explained_by : NULL),
        "mistake", m3_json_text(blame->mistake));
}

int m3_print_blame_taps(FILE *out, const struct m3_blame *blame, enum m3_report_extent extent, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < blame->count && !status; i++) {
        const struct m3_blamed *tap = &blame->taps[i];
        const int wrong = tap->verdict == M3_VERDICT_FAIL || tap->verdict == M3_VERDICT_SUSPECT;
        if (extent == M3_REPORT_FAILING && !wrong) continue;
        status = m3_json_line(out, tap->selection ? choice_tap(tap) : float_tap(tap), error);
    }
    return status;
}

int m3_report_blame_json(FILE *out, const struct m3_blame *blame, enum m3_report_extent extent, struct m3_error *error)
{
    int status = m3_report_whole(&blame->notes, error);
    if (!status) status = m3_print_blame_taps(out, blame, extent, error);
    if (!status) status = m3_json_line(out, summary(blame), error);
    return status ? status : m3_json_end(out, error);
}
