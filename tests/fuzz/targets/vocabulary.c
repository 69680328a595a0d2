#include "io/vocabulary.h"

#include <stdlib.h>

#include "fuzz.h"

enum { V = 64 };

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_vocabulary *v;
    int32_t ids[V];
    size_t length;
    char *text;
    fuzz_file("tokenizer.json", parts[0]);
    const int status = m3_vocabulary_open(&v, fuzz_path("."), V, &notes, &error);
    if (!v && !notes.count) fuzz_broken("no vocabulary, and no note");
    for (int i = 0; i < V; i++) ids[i] = i;
    if (m3_vocabulary_join(&text, &length, v, ids, V, NULL) == M3_OK) {
        char *whole = m3_whole_characters(text, length, &length);
        for (size_t i = 0; whole && i < length; i++) fuzz_see(whole[i]);
        free(whole);
        free(text);
    }
    m3_vocabulary_close(v);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}
