/* A text that grows in a given buffer. */
#include "base/text.h"

#include <check.h>
#include <string.h>

/* Goal:  what does not fit is cut off, and nothing is written beyond the buffer.
 * Seen to fail with a length that counts what was cut off. */
TEST(grows_and_is_cut)
{
    char buffer[12];
    struct m3_text text = { buffer, 8, 0 };
    memset(buffer, 'x', sizeof buffer);
    m3_text_add(&text, "%d", 12);
    m3_text_add(&text, "%s", "");
    ck_assert_str_eq(buffer, "12");
    ck_assert_uint_eq(text.length, 2);
    m3_text_add(&text, "%s", "34567");
    ck_assert_str_eq(buffer, "1234567");
    ck_assert_uint_eq(text.length, 7);
    m3_text_add(&text, "%s", "89abcdef");
    ck_assert_str_eq(buffer, "1234567");
    ck_assert_uint_eq(text.length, 7);
    ck_assert_int_eq(buffer[8], 'x');
}
