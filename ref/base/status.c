#include "base/status.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Names in a file may contain any byte: a control character must not break the line or reach a terminal. */
static void blank_controls(char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F) text[i] = '?';
}

__attribute__((format(printf, 2, 0))) static void add_line(struct m3_error *error, const char *what, va_list values)
{
    va_list again;
    va_copy(again, values);
    int length = vsnprintf(NULL, 0, what, again);
    va_end(again);
    if (length < 0) return;

    char *text = realloc(error->text, error->length + (size_t)length + 2);
    if (!text) return;
    char *line = text + error->length;
    vsnprintf(line, (size_t)length + 1, what, values);
    blank_controls(line, (size_t)length);
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

int m3_fail_memory(struct m3_error *error, const char *for_what, size_t bytes)
{
    return m3_fail(error, M3_INTERNAL, "%s: no memory for %zu bytes", for_what, bytes);
}

void m3_error_print(const struct m3_error *error, FILE *out)
{
    const char *end;
    for (const char *line = error->text; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        fprintf(out, "m3ref: %.*s\n", (int)(end - line), line);
    }
    if (error->count > error->kept) fprintf(out, "m3ref: %d lines more\n", error->count - error->kept);
}

void m3_error_free(struct m3_error *error)
{
    free(error->text);
    *error = (struct m3_error){ 0 };
}
