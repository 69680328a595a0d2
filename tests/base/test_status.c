#include "base/status.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Goal:  every line is kept in order, and the status is that of the first.
 * Seen to fail with the status of the last line, and without the newline. */
START_TEST(lines_and_first_status)
{
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_fail(&error, M3_ABSENT, "%s: got %d", "a.json", 7), M3_ABSENT);
    ck_assert_int_eq(m3_fail(&error, M3_IO, "second"), M3_IO);
    ck_assert_int_eq(error.status, M3_ABSENT);
    ck_assert_int_eq(error.count, 2);
    ck_assert_str_eq(error.text, "a.json: got 7\nsecond\n");
    ck_assert_uint_eq(error.length, strlen(error.text));
    m3_error_free(&error);
    ck_assert_ptr_null(error.text);
    ck_assert_int_eq(error.count, 0);
}
END_TEST

/* Goal: a name from a file cannot break a line, forge a second one, or steer a terminal. */
START_TEST(control_characters)
{
    struct m3_error error = { 0 };
    m3_fail(&error, M3_BAD_INPUT, "%s: \x1b[2J \t\x7f \xc3\xa9", "a\nm3ref: all is well");
    ck_assert_str_eq(error.text, "a?m3ref: all is well: ?[2J ?? \xc3\xa9\n");
    m3_error_free(&error);
}
END_TEST

START_TEST(no_error_wanted)
{
    ck_assert_int_eq(m3_fail(NULL, M3_USAGE, "nobody reads this"), M3_USAGE);
    ck_assert_int_eq(m3_fail_memory(NULL, "x", 1), M3_INTERNAL);
}
END_TEST

START_TEST(memory_line)
{
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_fail_memory(&error, "w.safetensors", 123), M3_INTERNAL);
    ck_assert_str_eq(error.text, "w.safetensors: no memory for 123 bytes\n");
    m3_error_free(&error);
}
END_TEST

static char *printed(const struct m3_error *error)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    m3_error_print(error, out);
    fclose(out);
    return text;
}

START_TEST(printing)
{
    struct m3_error error = { 0 };
    char *text = printed(&error);
    ck_assert_str_eq(text, "");
    free(text);

    m3_fail(&error, M3_IO, "one");
    m3_fail(&error, M3_IO, "two");
    text = printed(&error);
    ck_assert_str_eq(text, "m3ref: one\nm3ref: two\n");
    free(text);
    m3_error_free(&error);
}
END_TEST

/* Goal: a file with a million faults does not fill memory or the screen, and the rest is counted. */
START_TEST(many_lines)
{
    struct m3_error error = { 0 };
    for (int i = 0; i < M3_ERROR_LINES + 5; i++) m3_fail(&error, M3_BAD_INPUT, "line %d", i);
    ck_assert_int_eq(error.count, M3_ERROR_LINES + 5);
    ck_assert_int_eq(error.kept, M3_ERROR_LINES);
    char *text = printed(&error), *last = strstr(text, "m3ref: line 199\n");
    ck_assert_ptr_nonnull(last);
    ck_assert_str_eq(last, "m3ref: line 199\nm3ref: 5 lines more\n");
    free(text);
    m3_error_free(&error);
}
END_TEST

Suite *m3_suite(void)
{
    Suite *suite = suite_create("status");
    TCase *test = tcase_create("status");
    tcase_add_test(test, lines_and_first_status);
    tcase_add_test(test, control_characters);
    tcase_add_test(test, no_error_wanted);
    tcase_add_test(test, memory_line);
    tcase_add_test(test, printing);
    tcase_add_test(test, many_lines);
    suite_add_tcase(suite, test);
    return suite;
}
