#include "oracle/report/private/json_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/report/private/format.h"

const char *const m3_verdict_names[] = { "pass", "suspect", "fail", "not_judged", "not_comparable" };
const char *const m3_choice_names[] = { "identical", "permuted", "tie", "admissible", "inadmissible" };

json_t *m3_json_known(double value) { return isnan(value) ? json_null() : m3_json_number(value); }

/* Words may quote the name of a file, which may be anything: bytes that are not ASCII become '?' where not all of it is
 * UTF-8. */
static json_t *words(const char *text, size_t length)
{
    json_t *string = json_stringn(text, length);
    char *ascii = string == NULL ? strndup(text, length) : NULL;
    if (ascii == NULL) return string;
    for (char *c = ascii; *c != '\0'; c++) *c = (unsigned char)*c > 126 ? '?' : *c;
    string = json_string(ascii);
    free(ascii);
    return string;
}

json_t *m3_json_text(const char *text) { return text != NULL ? words(text, strlen(text)) : json_null(); }

json_t *m3_json_notes(const struct m3_error *lines)
{
    json_t *list = json_array();
    const char *at = lines->text, *line;
    size_t length;
    while ((line = m3_next_note(&at, &length)) != NULL) m3_json_append(list, words(line, length));
    return list;
}
