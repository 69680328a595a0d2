/* What reaches a terminal of the bytes of a name. */
#include "base/printable.h"

#include <check.h>
#include <string.h>

/* Goal:  words of all languages stay; what steers a terminal, breaks or reorders a line, and what is not UTF-8, goes.
 * Seen to fail with: characters of U+0080 to U+009F let through, marks of direction let through, bytes that are not
 *        UTF-8 let through, lengths beyond the text. */
static const struct {
    const char *given, *wanted;
} texts[] = {
    { "", "" },
    { "layers.0.mid", "layers.0.mid" },
    { "mod\xc3\xa8le \xe6\xa8\xa1 \xf0\x9f\x99\x82", "mod\xc3\xa8le \xe6\xa8\xa1 \xf0\x9f\x99\x82" },
    { "\x1b[2J\x07\b\r\n\t\x7f", "?[2J??????" },
    { "a\xc2\x9b"
      "31mb",
      "a??31mb" },                                        /* CSI in one character */
    { "a\xc2\xa0", "a\xc2\xa0" },                         /* the first after them: a blank */
    { "a\xe2\x80\xae", "a???" },                          /* from right to left */
    { "\xe2\x81\xa6x\xe2\x81\xa9", "???x???" },
    { "\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f", "????????" },
    { "x\xe2\x80\xa8y\xe2\x80\xa9", "x???y???" },         /* separators of lines */
    { "\x9b\xff\xc0\x80", "????" },                       /* no UTF-8: bare bytes, and a zero in two */
    { "\xe0\x9f\xbf\xed\xa0\x80", "??????" },             /* longer than needed; a half of a pair */
    { "\xf4\x90\x80\x80\xf5", "?????" },                  /* beyond the last character */
    { "end\xe2\x80", "end??" },                           /* cut */
    { "\xc3(", "?(" },
};

LOOP_TEST(printable, sizeof texts / sizeof texts[0])
{
    char text[64];
    strcpy(text, texts[_i].given);
    m3_make_printable(text, strlen(text));
    ck_assert_str_eq(text, texts[_i].wanted);
}

/* Claim: nothing behind the length is read or written. */
TEST(length)
{
    char text[] = "ab\xe2\x80\xae\n";
    m3_make_printable(text, 4);
    ck_assert_str_eq(text, "ab??\xae\n");
}
