/* Text of files on a terminal. */
#ifndef M3_BASE_PRINTABLE_H
#define M3_BASE_PRINTABLE_H

#include <stddef.h>

/* Replaces by '?' each byte of what may steer a terminal or reorder its lines: control characters, also those of
 * U+0080 to U+009F, separators of lines, marks of the direction of writing, and bytes that are not UTF-8. */
void m3_make_printable(char *text, size_t length);

#endif
