#include <jansson.h>

#include "oracle/check/check.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"
#include "oracle/report/report.h"

int m3_report_check_text(FILE *out, const struct m3_check *check, enum m3_report_extent extent, struct m3_error *error)
{
    const int status = m3_report_blame_text(out, &check->blame, extent, error);
    if (status) return status;
    fprintf(out, "%s: %s\n", m3_verdict_name(check->verdict), check->sentence);
    return m3_report_end(out, "report", error);
}

static json_t *summary(const struct m3_check *check)
{
    const struct m3_blamed *culprit = check->blame.culprit;
    return json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:b, s:I, s:o, s:s}", "type", "summary",
        "verdict", m3_verdict_name(check->verdict), "first_divergence", m3_json_text(culprit ? culprit->name : NULL),
        "culprit", m3_json_text(culprit ? culprit->name : NULL), "operator",
        m3_json_text(culprit ? culprit->operator : NULL), "mistake", m3_json_text(check->mistake), "reading",
        m3_json_text(check->reading[0] ? check->reading : NULL), "profile_word",
        m3_json_text(check->profile_word[0] ? check->profile_word : NULL), "judged", (json_int_t)check->judged,
        "failed", (json_int_t)check->failed, "suspect", (json_int_t)check->suspect, "stages", (json_int_t)check->stages,
        "truth_reused", check->truth.reused, "double_passes", (json_int_t)check->double_passes, "notes",
        m3_json_notes(&check->blame.notes), "sentence", check->sentence);
}

int m3_report_check_json(FILE *out, const struct m3_check *check, enum m3_report_extent extent, struct m3_error *error)
{
    int status = m3_report_whole(&check->blame.notes, error);
    if (!status) status = m3_print_blame_taps(out, &check->blame, extent, error);
    if (!status) status = m3_json_line(out, summary(check), error);
    return status ? status : m3_json_end(out, error);
}
