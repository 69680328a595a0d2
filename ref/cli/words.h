/* Where ids come from, other than the command line: a file, standard input, or words by way of the Python package. */
#ifndef M3_CLI_WORDS_H
#define M3_CLI_WORDS_H

#include <stddef.h>

#include "base/status.h"

struct m3_cli_input;

/* Replaces --ids @FILE or --ids - by the text that is read, and --prompt or --chat by the ids of the words, as
 * `python3 -m m3ref.text` makes them with the tokenizer of `model`. M3_USAGE, M3_BAD_INPUT, M3_ABSENT, M3_UNAVAILABLE,
 * M3_INTERNAL, M3_IO. */
int m3_cli_words(struct m3_cli_input *in, const char *model, struct m3_error *error);

#endif
