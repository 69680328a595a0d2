#ifndef _GNU_SOURCE
#define _GNU_SOURCE     /* RTLD_NEXT */
#endif
#include "base/status.h"

#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Goal:  every line is kept in order, and the status is that of the first.
 * Seen to fail with the status of the last line, and without the newline. */
TEST(lines_and_first_status)
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

/* Goal: a name from a file cannot break a line, forge a second one, or steer a terminal. */
TEST(control_characters)
{
    struct m3_error error = { 0 };
    m3_fail(&error, M3_BAD_INPUT, "%s: \x1b[2J \t\x7f \xc3\xa9", "a\nm3ref: all is well");
    ck_assert_str_eq(error.text, "a?m3ref: all is well: ?[2J ?? \xc3\xa9\n");
    m3_error_free(&error);
}

TEST(no_error_wanted)
{
    ck_assert_int_eq(m3_fail(NULL, M3_USAGE, "nobody reads this"), M3_USAGE);
    ck_assert_int_eq(m3_fail_memory(NULL, "x", 1), M3_INTERNAL);
}

TEST(memory_line)
{
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_fail_memory(&error, "w.safetensors", 123), M3_INTERNAL);
    ck_assert_str_eq(error.text, "w.safetensors: no memory for 123 bytes\n");
    m3_error_free(&error);
}

static char *printed(const struct m3_error *error)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    m3_error_print(error, out);
    fclose(out);
    return text;
}

TEST(printing)
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

/* Goal: a file with a million faults does not fill memory or the screen, and the rest is counted. */
TEST(many_lines)
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

static int no_memory;

/* In the place of libc's, for the library too. */
void *realloc(void *old, size_t bytes)
{
    void *(*below)(void *, size_t), *symbol = dlsym(RTLD_NEXT, "realloc");
    memcpy(&below, &symbol, sizeof below);
    return no_memory ? NULL : below(old, bytes);
}

/* Goal:  where memory is short the first line is still said, cut, and alone; and that a note was lost is known.
 * Given: no memory for two lines, of which the first is long; then for one after a line that is kept.
 * Seen to fail with the line dropped (nothing is printed), with the later lines counted ("1 lines more"), and with a
 * later line that has memory in its place. */
TEST(no_memory_for_a_line)
{
    struct m3_error error = { 0 }, told = { 0 };
    no_memory = 1;
    ck_assert_int_eq(m3_fail(&error, M3_IO, "disk: full %1000d", 1), M3_IO);
    ck_assert_int_eq(m3_fail(&error, M3_IO, "what follows"), M3_IO);
    no_memory = 0;
    ck_assert_ptr_null(error.text);
    ck_assert_int_eq(strncmp(m3_error_lines(&error), "disk: full   ", 13), 0);
    char *text = printed(&error);
    ck_assert_uint_le(strlen(text), M3_ERROR_ROOM + sizeof "m3ref: ");
    ck_assert_int_eq(strncmp(text, "m3ref: disk: full ", 18), 0);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
    ck_assert_int_eq(m3_fail_because(&told, M3_USAGE, &error), M3_USAGE);
    ck_assert_int_eq(strncmp(m3_error_lines(&told), "disk: full ", 11), 0);
    m3_error_free(&told);
    ck_assert_int_eq(m3_notes_whole(&error, &told), M3_INTERNAL);
    ck_assert_int_eq(told.count, 1);
    m3_error_free(&told);
    m3_error_free(&error);
    ck_assert_int_eq(m3_notes_whole(&error, &told), M3_OK);

    no_memory = 1;
    m3_fail(&error, M3_OK, "said, cut");
    no_memory = 0;
    m3_fail(&error, M3_OK, "what follows, with memory");
    ck_assert_str_eq(m3_error_lines(&error), "said, cut\n");
    m3_error_free(&error);

    m3_fail(&error, M3_OK, "whole");
    no_memory = 1;
    m3_fail(&error, M3_OK, "lost");
    no_memory = 0;
    ck_assert_str_eq(m3_error_lines(&error), "whole\n");
    ck_assert_int_eq(m3_notes_whole(&error, &told), M3_INTERNAL);
    m3_error_free(&told);
    m3_error_free(&error);
}
