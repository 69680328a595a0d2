#include "base/status.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"

__attribute__((format(printf, 2, 0))) static void add_first(struct m3_error *error, const char *what, va_list values)
{
    char *line = error->first;
    vsnprintf(line, M3_ERROR_ROOM - 1, what, values);
    m3_make_printable(line, strlen(line));
    memcpy(line + strlen(line), "\n", 2);
}

__attribute__((format(printf, 2, 0))) static void add_line(struct m3_error *error, const char *what, va_list values)
{
    if (error->first[0]) {
        error->lost++;
        return;
    }
    va_list again;
    va_copy(again, values);
    int length = vsnprintf(NULL, 0, what, again);
    va_end(again);
    if (length < 0) return;

    char *text = realloc(error->text, error->length + (size_t)length + 2);
    if (!text) {
        error->lost++;
        if (!error->text && !error->first[0]) add_first(error, what, values);
        return;
    }
    char *line = text + error->length;
    vsnprintf(line, (size_t)length + 1, what, values);
    m3_make_printable(line, (size_t)length);
    memcpy(line + length, "\n", 2);
    error->text = text;
    error->length += (size_t)length + 1;
    error->kept++;
}

int m3_fail(struct m3_error *error, enum m3_status status, const char *what, ...)
{
    if (!error) return status;
    if (error->count++ == 0) error->status = status;
    if (error->kept == M3_ERROR_LINES) return status;

    va_list values;
    va_start(values, what);
    add_line(error, what, values);
    va_end(values);
    return status;
}

int m3_fail_because(struct m3_error *error, enum m3_status status, const struct m3_error *why)
{
    const char *lines = m3_error_lines(why);
    return lines ? m3_fail(error, status, "%.*s", (int)strcspn(lines, "\n"), lines) : (int)status;
}

int m3_fail_memory(struct m3_error *error, const char *for_what, size_t bytes)
{
    return m3_fail(error, M3_INTERNAL, "%s: no memory for %zu bytes", for_what, bytes);
}

void m3_error_print(const struct m3_error *error, FILE *out)
{
    const char *end;
    for (const char *line = m3_error_lines(error); line && *line; line = end + 1) {
        end = strchr(line, '\n');
        fprintf(out, "m3ref: %.*s\n", (int)(end - line), line);
    }
    if (error->kept == M3_ERROR_LINES && error->count > error->kept)
        fprintf(out, "m3ref: %d lines more\n", error->count - error->kept);
}

const char *m3_error_lines(const struct m3_error *error)
{
    return error->text || !error->first[0] ? error->text : error->first;
}

const char *m3_next_line(const char **at, size_t *length)
{
    const char *line = *at;
    if (!line || !*line) return NULL;
    *length = strcspn(line, "\n");
    *at = line + *length + (line[*length] == '\n');
    return line;
}

void m3_add_notes(struct m3_error *to, const struct m3_error *notes)
{
    const char *at = m3_error_lines(notes), *line;
    size_t length;
    while ((line = m3_next_line(&at, &length))) m3_fail(to, M3_OK, "%.*s", (int)length, line);
    to->lost += notes->lost;
}

int m3_notes_whole(const struct m3_error *notes, struct m3_error *error)
{
    return notes->lost ? m3_fail_memory(error, "a note", notes->length) : M3_OK;
}

void m3_error_free(struct m3_error *error)
{
    free(error->text);
    *error = (struct m3_error){ 0 };
}
