#include <errno.h>
#include <math.h>
#include <string.h>

#include "oracle/json.h"
#include "oracle/report.h"

static json_t *place(const struct m3_stage *stage)
{
    json_t *index = json_array();
    for (int i = 0; i < stage->rank; i++) json_array_append_new(index, json_integer(stage->index[i]));
    return index;
}

/* A stage with a number for every key, or null where nothing was measured or no place is shown. */
static json_t *float_stage(const struct m3_stage *stage)
{
    int judged = stage->verdict == M3_PASS || stage->verdict == M3_FAIL, shown = stage->rank > 0;
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}",
                     "type", "stage", "tap", stage->tap, "verdict", m3_verdict_names[stage->verdict],
                     "rel_l2", judged ? m3_json_number(stage->rel_l2) : json_null(),
                     "max_abs", judged ? m3_json_number(stage->max_abs) : json_null(),
                     "index", place(stage),
                     "got", shown ? m3_json_number(stage->got) : json_null(),
                     "want", shown ? m3_json_number(stage->want) : json_null(),
                     "max_rel", judged ? m3_json_number(stage->max_rel) : json_null(),
                     "allowed_l2", judged ? m3_json_number(stage->allowed_l2) : json_null(),
                     "allowed_max", judged ? m3_json_number(stage->allowed_max) : json_null(),
                     "headroom", judged ? m3_json_number(stage->headroom) : json_null(),
                     "elements", (json_int_t)stage->elements, "violations", (json_int_t)stage->violations,
                     "note", m3_json_text(stage->note));
}

static json_t *selection_stage(const struct m3_stage *stage)
{
    int shown = stage->rank > 0;
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                     "s:o, s:o}",
                     "type", "selection", "tap", stage->tap, "verdict", m3_choice_names[stage->choice],
                     "rows", (json_int_t)stage->rows, "differing", (json_int_t)stage->differing,
                     "identical", (json_int_t)stage->choices[M3_IDENTICAL],
                     "permuted", (json_int_t)stage->choices[M3_PERMUTED],
                     "tie", (json_int_t)stage->choices[M3_TIE],
                     "admissible", (json_int_t)stage->choices[M3_ADMISSIBLE],
                     "inadmissible", (json_int_t)stage->choices[M3_INADMISSIBLE],
                     "certified", (json_int_t)stage->certified, "tainted", (json_int_t)stage->tainted,
                     "index", place(stage),
                     "got", shown ? json_integer((json_int_t)stage->got) : json_null(),
                     "want", shown ? json_integer((json_int_t)stage->want) : json_null(),
                     "gap", shown ? m3_json_known(stage->gap) : json_null(),
                     "bound", shown ? m3_json_known(stage->bound) : json_null(),
                     "least_gap", m3_json_known(stage->least_gap),
                     "scores", m3_json_text(stage->scores), "bounded_by", m3_json_text(stage->bounded_by),
                     "note", m3_json_text(stage->note));
}

static json_t *summary(const struct m3_comparison *comparison)
{
    const struct m3_stage *first = comparison->divergence, *tightest = comparison->tightest;
    const char *verdict = comparison->status == M3_OK ? "pass"
                        : comparison->status == M3_WRONG ? "fail" : "not_comparable";
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}",
                     "type", "summary", "verdict", verdict, "first_divergence", m3_json_text(first ? first->tap : NULL),
                     "stages", (json_int_t)comparison->count, "missing", (json_int_t)comparison->missing,
                     "judged", (json_int_t)comparison->judged, "failed", (json_int_t)comparison->failed,
                     "not_judged", (json_int_t)comparison->not_judged,
                     "not_comparable", (json_int_t)comparison->not_comparable, "extra", (json_int_t)comparison->extra,
                     "headroom", tightest ? m3_json_number(tightest->headroom) : json_null(),
                     "headroom_tap", m3_json_text(tightest ? tightest->tap : NULL),
                     "notes", m3_json_notes(&comparison->notes));
}

int m3_report_json(FILE *out, const struct m3_comparison *comparison, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < comparison->count && status == M3_OK; i++) {
        const struct m3_stage *stage = &comparison->stages[i];
        int chosen = stage->selection && stage->verdict <= M3_FAIL;
        status = m3_json_line(out, chosen ? selection_stage(stage) : float_stage(stage), error);
    }
    if (status == M3_OK && comparison->next_token.tap != NULL)
        status = m3_json_line(out, selection_stage(&comparison->next_token), error);
    if (status == M3_OK) status = m3_json_line(out, summary(comparison), error);
    if (status == M3_OK && fflush(out) != 0)
        status = m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(errno));
    return status;
}
