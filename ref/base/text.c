#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

void m3_text_add(struct m3_text *to, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(to->text + to->length, to->room - to->length, format, list);
    va_end(list);
    if (n > 0) to->length += (size_t)n < to->room - to->length ? (size_t)n : to->room - to->length - 1;
}
