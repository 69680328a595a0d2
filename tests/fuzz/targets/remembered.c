/* The remembered hashes of large files, and two fingerprints as files state them. */
#include <stdlib.h>
#include <string.h>

#include "io/fingerprint.h"
#include "io/fingerprint/remembered.h"
#include "world.h"

const int fuzz_parts = 3;
void fuzz_begin(void) { fuzz_world(); }

static char *text_of(struct fuzz_bytes part)
{
    char *text = strndup((const char *)part.bytes, part.size);
    if (!text) fuzz_broken("no memory");
    return text;
}

/* What is written beside the lines of the file is found again, whatever they are. */
static void remember(const char *memory)
{
    static char hash[1][65] = { "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" };
    struct stat state;
    char found[65] = "", *lines = m3_remembered_read(memory), *key;
    if (stat("tests/fuzz/little.json", &state)) fuzz_broken("tests/fuzz/little.json is not there");
    key = m3_remembered_key("tests/fuzz/little.json", &state, "sampled");
    if (lines) fuzz_see(m3_remembered_find(found, lines, key));
    m3_remembered_write(memory, lines, &key, hash, 1);
    free(lines);
    lines = m3_remembered_read(memory);
    if (lines && *lines && !(m3_remembered_find(found, lines, key) && strcmp(found, hash[0]) == 0))
        fuzz_broken("a hash that was written is not found");
    free(lines);
    free(key);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    const char *memory = fuzz_file("remembered", parts[0]);
    const struct m3_fingerprint_how how = { .whole = 0, .memory = memory },
                                    all = { .whole = 1 << 20, .memory = memory };
    struct m3_error error = { 0 };
    char *made = NULL, *difference, *got = text_of(parts[1]), *expected = text_of(parts[2]);
    remember(memory);
    uint64_t left;
    int status = m3_fingerprint_left(&left, fuzz_world()->model->checkpoint, &all, &error);
    fuzz_see((double)left);
    fuzz_check(status, &error);
    status = m3_fingerprint(&made, fuzz_world()->model->checkpoint, &how, &error);
    free(made);
    fuzz_check(status, &error);
    status = m3_fingerprint_compare(&difference, got, expected, &error);
    free(difference);
    free(got);
    free(expected);
    fuzz_check(status, &error);
}
