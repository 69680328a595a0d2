#include "base/printable.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

uint32_t m3_utf8(const char *at, size_t length, size_t *bytes)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *text = (const unsigned char *)at, c = text[0];
    const size_t n = c < 0x80                ? 1
                     : c >= 0xC2 && c < 0xE0 ? 2
                     : c >= 0xE0 && c < 0xF0 ? 3
                     : c >= 0xF0 && c < 0xF5 ? 4
                                             : 0;
    uint32_t point = n < 2 ? c : c & (0x7FU >> n);
    *bytes = 0;
    if (n == 0 || n > length) return 0;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        point = point << 6 | (text[i] & 0x3FU);
    }
    if (point < least[n] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return 0;
    *bytes = n;
    return point;
}

int m3_steers_terminal(uint32_t point)
{
    return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x61C || point == 0x200E || point == 0x200F ||
           (point >= 0x2028 && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
}

void m3_make_printable(char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t bytes;
        const uint32_t point = m3_utf8(text + i, length - i, &bytes);
        if (bytes > 0 && !m3_steers_terminal(point)) {
            i += bytes;
            continue;
        }
        if (bytes == 0) bytes = 1;
        memset(text + i, '?', bytes);
        i += bytes;
    }
}

struct m3_printable m3_printable(const char *path)
{
    struct m3_printable shown;
    snprintf(shown.text, sizeof shown.text, "%s", path);
    m3_make_printable(shown.text, strlen(shown.text));
    return shown;
}
