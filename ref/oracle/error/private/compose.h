/* The text that --profile takes, as one JSON object: a base, the files that build on it, and words. SPEC 7.3. */
#ifndef M3_ORACLE_ERROR_PRIVATE_COMPOSE_H
#define M3_ORACLE_ERROR_PRIVATE_COMPOSE_H

#include <jansson.h>

#include "base/status.h"

/* Reads "NAME+word+word", where NAME is built in or the path of a JSON file. *root is NULL on failure. M3_ABSENT: no
 * such profile or file; M3_BAD_INPUT: an unknown word, a bad "base", a file that is no JSON. */
int m3_profile_compose(json_t **root, const char *text, struct m3_error *error);
/* Removes the fields that only people read. */
void m3_profile_forget_words(json_t *root);

#endif
