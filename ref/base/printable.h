/* Text of files on a terminal. */
#ifndef M3_BASE_PRINTABLE_H
#define M3_BASE_PRINTABLE_H

#include <stddef.h>
#include <stdint.h>

/* Replaces by '?' each byte of what may steer a terminal or reorder its lines: control characters, also those of
 * U+0080 to U+009F, separators of lines, marks of the direction of writing, and bytes that are not UTF-8. */
void m3_make_printable(char *text, size_t length);

/* A path as it is printed: m3_printable(path).text. */
struct m3_printable {
    char text[4096];
};
struct m3_printable m3_printable(const char *path);

/* The character at `text`, and its bytes; 0 bytes if it is no UTF-8. `length` is at least 1. */
uint32_t m3_utf8(const char *text, size_t length, size_t *bytes);
/* Is it one of those that are replaced? */
int m3_steers_terminal(uint32_t character);

#endif
