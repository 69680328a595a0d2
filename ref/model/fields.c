#include "model/fields.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* All enumerations here have the same representation: small, none negative. */
static unsigned *choice_of(const void *s, const struct m3_field *f)
{
    return (unsigned *)(void *)((char *)(uintptr_t)s + f->offset);
}

static int64_t *count_of(const void *s, const struct m3_field *f)
{
    return (int64_t *)(void *)((char *)(uintptr_t)s + f->offset);
}

static double *number_of(const void *s, const struct m3_field *f)
{
    return (double *)(void *)((char *)(uintptr_t)s + f->offset);
}

static int is_number(const struct m3_field *f) { return f->values[0] && !*f->values[0]; }

int m3_field_is_named(const struct m3_field *f) { return f->values[0] && !is_number(f); }

static int set_choice(void *to, const struct m3_field *f, const char *value, struct m3_error *error)
{
    for (unsigned i = 0; i < M3_FIELD_VALUES && f->values[i]; i++)
        if (strcmp(f->values[i], value) == 0) {
            *choice_of(to, f) = i;
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "--set %s: got %s, expected %s, %s%s%s", f->name, value, f->values[0], f->values[1],
                   f->values[2] ? ", " : "", f->values[2] ? f->values[2] : "");
}

static int set_count(void *to, const struct m3_field *f, const char *value, struct m3_error *error)
{
    char *end;
    errno = 0;
    long long count = strtoll(value, &end, 10);
    if (errno || end == value || *end || count < 0 || count > INT32_MAX)
        return m3_fail(error, M3_USAGE, "--set %s: got %s, expected a number from 0 to %d", f->name, value, INT32_MAX);
    *count_of(to, f) = count;
    return M3_OK;
}

static int set_number(void *to, const struct m3_field *f, const char *value, struct m3_error *error)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0 && number <= f->most))
        return m3_fail(error, M3_USAGE, "--set %s: got %s, expected a number from 0 to %g", f->name, value, f->most);
    *number_of(to, f) = number;
    return M3_OK;
}

const struct m3_field *m3_field_of(const struct m3_field *fields, int count, const char *assignment)
{
    const size_t length = strcspn(assignment, "=");
    for (int i = 0; i < count; i++)
        if (assignment[length] && strlen(fields[i].name) == length && !strncmp(fields[i].name, assignment, length))
            return &fields[i];
    return NULL;
}

int m3_field_set(void *to, const struct m3_field *f, const char *assignment, struct m3_error *error)
{
    const char *value = assignment + strlen(f->name) + 1;
    if (is_number(f)) return set_number(to, f, value, error);
    return f->values[0] ? set_choice(to, f, value, error) : set_count(to, f, value, error);
}

void m3_field_choices(char text[M3_FIELD_CHOICES], const struct m3_field *f)
{
    int at = snprintf(text, M3_FIELD_CHOICES, "%s", is_number(f) ? "NUMBER" : f->values[0] ? f->values[0] : "N");
    for (int i = 1; i < M3_FIELD_VALUES && f->values[i]; i++)
        at += snprintf(text + at, (size_t)(M3_FIELD_CHOICES - at), "|%s", f->values[i]);
}

void m3_field_default(char text[M3_FIELD_CHOICES], const struct m3_field *f)
{
    if (m3_field_is_named(f)) snprintf(text, M3_FIELD_CHOICES, "%s", f->values[0]);
    else snprintf(text, M3_FIELD_CHOICES, "%.9g", f->preset);
}

static size_t size_of(const struct m3_field *f)
{
    return is_number(f) ? sizeof(double) : f->values[0] ? sizeof(unsigned) : sizeof(int64_t);
}

void m3_field_copy(void *to, const void *from, const struct m3_field *f)
{
    memcpy((char *)to + f->offset, (const char *)from + f->offset, size_of(f));
}

int m3_field_is_same(const void *a, const void *b, const struct m3_field *f)
{
    return memcmp((const char *)a + f->offset, (const char *)b + f->offset, size_of(f)) == 0;
}

void m3_field_print(char *text, size_t size, const void *from, const struct m3_field *f)
{
    if (is_number(f)) snprintf(text, size, "%s=%.9g", f->name, *number_of(from, f));
    else if (f->values[0]) snprintf(text, size, "%s=%s", f->name, f->values[*choice_of(from, f)]);
    else snprintf(text, size, "%s=%" PRId64, f->name, *count_of(from, f));
}

int m3_field_set_tried(void *to, const struct m3_field *f, int i)
{
    if (is_number(f)) *number_of(to, f) = i == 0 ? f->preset : NAN;
    else if (f->values[0]) *choice_of(to, f) = (unsigned)i;
    else *count_of(to, f) = i;
    return is_number(f) ? i < 2 : f->values[0] ? i < M3_FIELD_VALUES && f->values[i] : i <= f->tried;
}

void m3_fields_reset(void *to, const struct m3_field *fields, int count)
{
    for (int i = 0; i < count; i++) {
        m3_field_set_tried(to, &fields[i], 0);
        if (!fields[i].values[0]) *count_of(to, &fields[i]) = (int64_t)fields[i].preset;
    }
}

char *m3_fields_json(const void *from, const struct m3_field *fields, int count)
{
    json_t *object = json_object();
    int bad = !object;
    for (int i = 0; !bad && i < count; i++) {
        const struct m3_field *f = &fields[i];
        if (is_number(f))
            bad = *number_of(from, f) != f->preset &&
                  json_object_set_new(object, f->name, json_real(*number_of(from, f)));
        else if (f->values[0] && *choice_of(from, f) != 0)
            bad = json_object_set_new(object, f->name, json_string(f->values[*choice_of(from, f)]));
        else if (!f->values[0] && *count_of(from, f) != (int64_t)f->preset)
            bad = json_object_set_new(object, f->name, json_integer(*count_of(from, f)));
    }
    char *text = bad ? NULL : m3_json_dump(object, JSON_COMPACT);
    json_decref(object);
    return text;
}
