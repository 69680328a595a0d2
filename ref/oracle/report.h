/* Prints a comparison. Judging is done: these only choose words. */
#ifndef M3_ORACLE_REPORT_H
#define M3_ORACLE_REPORT_H

#include <stdio.h>

#include "oracle/compare.h"

/* For people: one aligned line per stage and one more for each that fails, the notes, the first divergence, and last
 * the verdict. M3_IO if it cannot be written. */
int m3_report_text(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);

/* For programs: one JSON object per stage on a line of its own, then one of type "summary". Numbers that are not
 * finite are the strings "nan", "inf", "-inf"; what does not apply is null. M3_IO, M3_INTERNAL. */
int m3_report_json(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);

#endif
