/* The text of each token, from tokenizer.json of a model folder: for showing ids, not for making them. */
#ifndef M3_IO_VOCABULARY_H
#define M3_IO_VOCABULARY_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

struct m3_vocabulary;

/* The texts of ids 0 to V - 1. NULL without an error if the folder has no tokenizer.json, or one that cannot be used:
 * then a note says why. M3_INTERNAL, M3_IO. */
int m3_vocabulary_open(struct m3_vocabulary **vocabulary, const char *folder, int64_t V, struct m3_error *notes,
                       struct m3_error *error);
void m3_vocabulary_close(struct m3_vocabulary *vocabulary);

/* The bytes of an id, which need not be whole characters; NULL if it has none, or there is no vocabulary. */
const char *m3_vocabulary_text(const struct m3_vocabulary *vocabulary, int64_t id, size_t *length);
/* The bytes of n ids in a row, to be freed. */
int m3_vocabulary_join(char **text, size_t *length, const struct m3_vocabulary *vocabulary, const int32_t *ids,
                       int64_t n, struct m3_error *error);

/* Prints bytes in double quotes. Quotes, backslashes, and what may steer a terminal or is no UTF-8 are escaped as in
 * C. */
void m3_print_quoted(FILE *out, const char *text, size_t length);
/* The same bytes in UTF-8, to be freed: each one that belongs to no character becomes U+FFFD. NULL if memory is
 * short. */
char *m3_whole_characters(const char *text, size_t length, size_t *whole);

#endif
