#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "oracle/report.h"
#include "oracle/words.h"

static const char *const verdict_names[] = { "pass", "suspect", "fail", "not_judged", "not_comparable" };
static const char *const choice_names[] = { "identical", "permuted", "tie", "admissible", "inadmissible" };

static json_t *number(double value)
{
    if (isnan(value)) return json_string("nan");
    if (isinf(value)) return json_string(value > 0 ? "inf" : "-inf");
    return json_real(value);
}

static json_t *text_or_null(const char *text)
{
    return text != NULL ? json_string(text) : json_null();
}

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
                     "type", "stage", "tap", stage->tap, "verdict", verdict_names[stage->verdict],
                     "rel_l2", judged ? number(stage->rel_l2) : json_null(),
                     "max_abs", judged ? number(stage->max_abs) : json_null(),
                     "index", place(stage),
                     "got", shown ? number(stage->got) : json_null(),
                     "want", shown ? number(stage->want) : json_null(),
                     "max_rel", judged ? number(stage->max_rel) : json_null(),
                     "allowed_l2", judged ? number(stage->allowed_l2) : json_null(),
                     "allowed_max", judged ? number(stage->allowed_max) : json_null(),
                     "headroom", judged ? number(stage->headroom) : json_null(),
                     "elements", (json_int_t)stage->elements, "violations", (json_int_t)stage->violations,
                     "note", text_or_null(stage->note));
}

static json_t *selection_stage(const struct m3_stage *stage)
{
    int shown = stage->rank > 0;
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}",
                     "type", "selection", "tap", stage->tap, "verdict", choice_names[stage->choice],
                     "rows", (json_int_t)stage->rows, "differing", (json_int_t)stage->differing,
                     "identical", (json_int_t)stage->choices[M3_IDENTICAL],
                     "permuted", (json_int_t)stage->choices[M3_PERMUTED],
                     "tie", (json_int_t)stage->choices[M3_TIE],
                     "inadmissible", (json_int_t)stage->choices[M3_INADMISSIBLE],
                     "index", place(stage),
                     "got", shown ? json_integer((json_int_t)stage->got) : json_null(),
                     "want", shown ? json_integer((json_int_t)stage->want) : json_null(),
                     "gap", shown && !isnan(stage->gap) ? number(stage->gap) : json_null(),
                     "note", text_or_null(stage->note));
}

static json_t *notes(const struct m3_error *lines)
{
    json_t *list = json_array();
    const char *at = lines->text, *line;
    size_t length;
    while ((line = m3_next_note(&at, &length)) != NULL) json_array_append_new(list, json_stringn(line, length));
    return list;
}

static json_t *summary(const struct m3_comparison *comparison)
{
    const struct m3_stage *first = comparison->divergence, *tightest = comparison->tightest;
    const char *verdict = comparison->status == M3_OK ? "pass"
                        : comparison->status == M3_WRONG ? "fail" : "not_comparable";
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}",
                     "type", "summary", "verdict", verdict, "first_divergence", text_or_null(first ? first->tap : NULL),
                     "stages", (json_int_t)comparison->count, "missing", (json_int_t)comparison->missing,
                     "judged", (json_int_t)comparison->judged, "failed", (json_int_t)comparison->failed,
                     "not_judged", (json_int_t)comparison->not_judged,
                     "not_comparable", (json_int_t)comparison->not_comparable, "extra", (json_int_t)comparison->extra,
                     "headroom", tightest ? number(tightest->headroom) : json_null(),
                     "headroom_tap", text_or_null(tightest ? tightest->tap : NULL),
                     "notes", notes(&comparison->notes));
}

/* Writes one object on one line, and drops it. */
static int print_line(FILE *out, json_t *object, struct m3_error *error)
{
    if (object == NULL) return m3_fail_memory(error, "JSON line", 0);
    int failed = json_dumpf(object, out, JSON_COMPACT) != 0 || fputc('\n', out) == EOF;
    json_decref(object);
    if (failed) return m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(errno));
    return M3_OK;
}

int m3_report_json(FILE *out, const struct m3_comparison *comparison, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < comparison->count && status == M3_OK; i++) {
        const struct m3_stage *stage = &comparison->stages[i];
        int chosen = stage->selection && (stage->verdict == M3_PASS || stage->verdict == M3_FAIL);
        status = print_line(out, chosen ? selection_stage(stage) : float_stage(stage), error);
    }
    if (status == M3_OK) status = print_line(out, summary(comparison), error);
    if (status == M3_OK && fflush(out) != 0)
        status = m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(errno));
    return status;
}
