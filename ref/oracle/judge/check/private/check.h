/* Shared by the files of this folder. */
#ifndef M3_ORACLE_CHECK_PRIVATE_CHECK_H
#define M3_ORACLE_CHECK_PRIVATE_CHECK_H

#include "oracle/judge/check/check.h"

/* Judges by blame and, if there are notes to make, by comparison with the truth: what m3_check finds, but for the cause.
 */
int m3_check_judge(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                   const struct m3_blame_options *options, struct m3_error *notes, struct m3_error *error);

/* The tap whose known mistake is named: the culprit, or, if that is only suspect and no mistake explains it, the first
 * that fails. NULL: nothing is wrong. */
const struct m3_finding *m3_check_named(const struct m3_check *check);

/* The surest cause: a reading by which nothing is wrong wins over a mistake that is no part of it, and over a
 * profile's word. M3_INTERNAL. */
int m3_check_name_cause(struct m3_check *check, const struct m3_check_plan *plan, struct m3_error *error);

/* *taps := patterns of the taps that the setting judges, to be freed; NULL: all. */
int m3_part_taps(char **taps, const struct m3_setting *setting, struct m3_error *error);

/* Fills check->sentence from the rest. */
void m3_check_say(struct m3_check *check, const struct m3_check_plan *plan);

#endif
