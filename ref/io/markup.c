#include "io/markup.h"

#include <ctype.h>
#include <string.h>

void m3_print_markup_part(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '&') fputs("&amp;", out);
        else if (c == '<') fputs("&lt;", out);
        else if (c == '>') fputs("&gt;", out);
        else if (c == '"') fputs("&quot;", out);
        else fputc(c < 32 || c > 126 ? '?' : c, out);
    }
}

void m3_print_markup(FILE *out, const char *text) { m3_print_markup_part(out, text, strlen(text)); }

void m3_print_anchor(FILE *out, const char *heading)
{
    for (; *heading; heading++) {
        unsigned char c = (unsigned char)*heading;
        if (isalnum(c) || c == '_' || c == '-') fputc(tolower(c), out);
        else if (c == ' ') fputc('-', out);
    }
}
