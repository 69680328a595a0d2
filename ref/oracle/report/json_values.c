#include "oracle/report/private/json_values.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/error/tiers/tiers.h"
#include "oracle/report/private/format.h"

json_t *m3_json_known(double value) { return isnan(value) ? json_null() : m3_json_number(value); }

/* Text may quote the name of a file, which may contain any byte: bytes that are not ASCII become '?' unless the whole
 * text is UTF-8. */
static json_t *string_of(const char *text, size_t length)
{
    json_t *string = json_stringn(text, length);
    char *ascii = string == NULL ? strndup(text, length) : NULL;
    if (ascii == NULL) return string;
    for (char *c = ascii; *c != '\0'; c++) *c = (unsigned char)*c > 126 ? '?' : *c;
    string = json_string(ascii);
    free(ascii);
    return string;
}

json_t *m3_json_text(const char *text) { return text != NULL ? string_of(text, strlen(text)) : json_null(); }

json_t *m3_json_place(const int64_t *index, int rank)
{
    json_t *place = json_array();
    for (int i = 0; i < rank; i++) m3_json_append(place, json_integer(index[i]));
    return place;
}

json_t *m3_json_sequence(int64_t in_sequence)
{
    return in_sequence > 0 ? json_integer((json_int_t)in_sequence - 1) : json_null();
}

json_t *m3_json_tiers(int tiers)
{
    json_t *names = json_array();
    for (int bit = 0; bit < M3_TIERS; bit++)
        if (tiers & 1 << bit) m3_json_append(names, json_string(m3_tier_name((enum m3_tier)(1 << bit))));
    return names;
}

json_t *m3_json_parameter(const struct m3_parameter *found)
{
    const int is_found = found->name != NULL;
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "parameter", m3_json_text(found->name), "estimate",
                     is_found ? m3_json_number(found->estimate) : json_null(), "standard_error",
                     is_found ? m3_json_number(found->standard_error) : json_null(), "expected",
                     is_found ? m3_json_number(found->expected) : json_null(), "z",
                     found->tested > 0 ? m3_json_number(found->z) : json_null());
}

json_t *m3_json_join(json_t *object, json_t *more)
{
    m3_json_update(object, more);
    return object;
}

json_t *m3_json_notes(const struct m3_error *lines)
{
    json_t *list = json_array();
    const char *at = lines->text, *line;
    size_t length;
    while ((line = m3_next_line(&at, &length)) != NULL) m3_json_append(list, string_of(line, length));
    return list;
}

int m3_json_end(FILE *out, struct m3_error *error)
{
    errno = 0;
    if (fflush(out) != 0 || ferror(out))
        return m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(errno));
    return M3_OK;
}
