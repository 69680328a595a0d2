#ifndef _GNU_SOURCE
#define _GNU_SOURCE     /* RTLD_NEXT */
#endif
#include "base/memory_stream.h"

#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int fails_at, calls; /* the n-th realloc fails; 0: none */

/* In the place of libc's, for the library too. */
void *realloc(void *old, size_t bytes)
{
    void *(*below)(void *, size_t), *symbol = dlsym(RTLD_NEXT, "realloc");
    memcpy(&below, &symbol, sizeof below);
    return ++calls == fails_at ? NULL : below(old, bytes);
}

static int has_no_stream;

FILE *fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions)
{
    FILE *(*below)(void *, const char *, cookie_io_functions_t);
    void *symbol = dlsym(RTLD_NEXT, "fopencookie");
    memcpy(&below, &symbol, sizeof below);
    return has_no_stream ? NULL : below(cookie, mode, functions);
}

static char *lines(int count)
{
    struct m3_memory_stream stream;
    FILE *out = m3_memory_open(&stream);
    ck_assert_ptr_nonnull(out);
    for (int i = 0; i < count; i++) fprintf(out, "line %6d\n", i);
    return m3_memory_close(&stream);
}

TEST(texts)
{
    static const int counts[] = { 0, 1, 1000, 100000 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char *text = lines(counts[i]);
        ck_assert_ptr_nonnull(text);
        ck_assert_uint_eq(strlen(text), 12 * (size_t)counts[i]);
        for (int k = 0; k < counts[i]; k++) ck_assert_int_eq(atoi(text + 12 * k + 5), k);
        free(text);
    }
}

/* Goal:  no text with a part missing: whichever allocation fails, there is no text at all.
 * Given: each realloc of a text of 1.2 MB, in turn. The text goes on after the failure.
 * Seen to fail with the record of the failure left out, and with open_memstream, which gives a text. */
TEST(no_memory)
{
    calls = 0;
    free(lines(100000));
    const int all = calls;
    ck_assert_int_gt(all, 5);
    for (int n = 1; n <= all; n++) {
        calls = 0;
        fails_at = n;
        char *text = lines(100000);
        fails_at = 0;
        ck_assert_msg(text == NULL, "allocation %d of %d failed, and the text has %zu bytes", n, all, strlen(text));
    }
}

/* Goal:  a stream that could not be opened holds nothing, whether it is closed or not.
 * Seen to fail with the first room of the text kept. */
TEST(no_stream)
{
    struct m3_memory_stream stream;
    has_no_stream = 1;
    ck_assert_ptr_null(m3_memory_open(&stream));
    has_no_stream = 0;
    ck_assert_ptr_null(stream.text);
    ck_assert_ptr_null(m3_memory_close(&stream));
}
