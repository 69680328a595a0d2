/* Prints a comparison. Judging is done: these only put it into text. */
#ifndef M3_ORACLE_REPORT_REPORT_H
#define M3_ORACLE_REPORT_REPORT_H

#include <stdio.h>

#include "oracle/judge/compare.h"

/* For people: one aligned line per stage and one more for each that fails, the notes, the first divergence, and last
 * the verdict. M3_IO if it cannot be written. */
int m3_report_text(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);

/* For programs: one JSON object per stage on a line of its own, then one of type "summary". Numbers that are not
 * finite are the strings "nan", "inf", "-inf"; what does not apply is null. M3_IO, M3_INTERNAL. */
int m3_report_json(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);

/* What the files about a comparison say more: which dumps it is of. */
struct m3_report_subject {
    const struct m3_comparison *comparison;
    const struct m3_safetensors *reference, *candidate;
    const char *spec;           /* where links to the specification lead: "SPEC.md", or another path or address */
};

/* For continuous integration: JUnit's XML, one suite with one case per stage, `classname` the layer and `name` the tap.
 * A stage that fails or is suspect is a failure, one without a verdict is skipped; a comparison that exits with 3 has
 * one case more, an error. M3_IO, M3_INTERNAL. */
int m3_report_junit(FILE *out, const struct m3_report_subject *subject, struct m3_error *error);

/* For people: one HTML page that needs nothing else. SPEC 7. M3_IO, M3_INTERNAL. */
int m3_report_html(FILE *out, const struct m3_report_subject *subject, struct m3_error *error);

struct m3_blame;

/* Of a blame. For people: a line per tap and one more for each that does not pass, the notes, the culprit, and last the
 * verdict. For programs: one JSON object of type "blame" per tap, then the summary. M3_IO, M3_INTERNAL. */
int m3_report_blame_text(FILE *out, const struct m3_blame *blame, struct m3_error *error);
int m3_report_blame_json(FILE *out, const struct m3_blame *blame, struct m3_error *error);

#endif
