#include "oracle/report/private/json_values.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "oracle/report/private/format.h"

const char *const m3_verdict_names[] = { "pass", "suspect", "fail", "not_judged", "not_comparable" };
const char *const m3_choice_names[] = { "identical", "permuted", "tie", "admissible", "inadmissible" };

json_t *m3_json_number(double value)
{
    if (isnan(value)) return json_string("nan");
    if (isinf(value)) return json_string(value > 0 ? "inf" : "-inf");
    return json_real(value);
}

json_t *m3_json_known(double value) { return isnan(value) ? json_null() : m3_json_number(value); }

json_t *m3_json_text(const char *text) { return text != NULL ? json_string(text) : json_null(); }

json_t *m3_json_notes(const struct m3_error *lines)
{
    json_t *list = json_array();
    const char *at = lines->text, *line;
    size_t length;
    while ((line = m3_next_note(&at, &length)) != NULL) json_array_append_new(list, json_stringn(line, length));
    return list;
}

int m3_json_line(FILE *out, json_t *object, struct m3_error *error)
{
    if (object == NULL) return m3_fail_memory(error, "JSON line", 0);
    int failed = json_dumpf(object, out, JSON_COMPACT) != 0 || fputc('\n', out) == EOF;
    json_decref(object);
    if (failed) return m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(errno));
    return M3_OK;
}
