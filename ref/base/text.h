/* A text that grows in a given buffer; what does not fit is cut off. */
#ifndef M3_BASE_TEXT_H
#define M3_BASE_TEXT_H

#include <stddef.h>

struct m3_text {
    char *text;
    size_t room, length;
};

__attribute__((format(printf, 2, 3))) void m3_text_add(struct m3_text *to, const char *format, ...);

#endif
