/* Under which one more word would a run pass that does not? A statement about the engine's roundings; the verdict stays
 * what it is. SPEC 7.3. */
#ifndef M3_ORACLE_ERROR_EXPLAIN_H
#define M3_ORACLE_ERROR_EXPLAIN_H

#include "oracle/error/profile.h"
#include "model/taps.h"

/* Does the run pass under this profile, which has one word more? Sets *passes; returns 0 or M3_INTERNAL. */
typedef int (*m3_explain_try)(void *self, const struct m3_profile *profile, int *passes);

/* Tries words in the order of what they allow, little first, but only those that say something about the operator of
 * the tap (-1: any); other scales of E4M3 only where the profile has some. text: of `profile`, without which nothing is
 * tried. Writes the word, or "", to explained [M3_EXPLAINED]. M3_INTERNAL, or the status of a try. */
enum { M3_EXPLAINED = 32 };
int m3_explain(char *explained, const char *text, const struct m3_profile *profile, int tap, int64_t layer,
               m3_explain_try try, void *self, struct m3_error *error);

#endif
