/* What explains the taps of a dump that do not pass: a known mistake, another reading of the model, a word of the
 * profile. The functions work on a judge's own state. */
#ifndef M3_ORACLE_CAUSE_TAP_H
#define M3_ORACLE_CAUSE_TAP_H

#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/check/check.h"

/* naming.c: sets item->blamed->mistake, if the tap fails and a known mistake explains it. `dumped` are all its rows,
 * `made` the right results. M3_INTERNAL. */
int m3_blame_name_mistake(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_tap_values *dumped,
                          const struct m3_recomputed *made);
/* Adds a note for each mistake. */
void m3_blame_say_mistakes(struct m3_judgement *result);

/* score.c: of a tap that passes or is suspect, although roundings are coarse: names the known mistake in whose direction
 * its errors lie, and what else would pass. `made` are the right results. M3_INTERNAL. */
int m3_blame_score(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_tap_values *dumped,
                   const struct m3_recomputed *made);

/* emulated.c: of an operator that reads inputs or a cache which the profile rounds otherwise than that of `b` does: *fits
 * says whether the candidate's errors are such as this rounding makes, by rows about `near`; 1 also where that cannot be
 * tried. M3_INTERNAL. */
int m3_blame_emulate(int *fits, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t near,
                     const struct m3_profile *profile);

/* explained.c: sets result->explained_by. */
int m3_blame_explain(struct m3_judgement *result, const struct m3_blaming *b);

/* readings.c: fills check->reading with one by which nothing is wrong, among those that change the culprit's operator.
 */
int m3_check_readings(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                      struct m3_error *error);

#endif
