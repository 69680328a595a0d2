/* Prints a finished comparison; nothing is judged here. */
#ifndef M3_ORACLE_REPORT_REPORT_H
#define M3_ORACLE_REPORT_REPORT_H

#include <stdio.h>

#include "oracle/judge/compare.h"

/* For people: the verdict with place, size and next step, the notes, the stages that do not pass, worst first, the
 * first divergence, and the verdict again; at most 25 lines. The second prints every stage, in order of execution, and
 * every note. M3_IO if writing fails; M3_INTERNAL. */
int m3_report_text(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);
int m3_report_text_all(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);

/* For programs: one JSON object per stage, each on its own line, then one of type "summary". Numbers that are not
 * finite are the strings "nan", "inf", "-inf"; values that do not apply are null. M3_IO, M3_INTERNAL. */
int m3_report_json(FILE *out, const struct m3_comparison *comparison, struct m3_error *error);

/* Further data for report files: the dumps that were compared. */
struct m3_report_subject {
    const struct m3_comparison *comparison;
    const struct m3_safetensors *reference, *candidate;
    const char *command;        /* in titles: "compare", "op rms_norm" */
    int only_findings;          /* HTML: the files hold no values of the reference, so that nothing can be drawn */
    const char *spec;           /* target of links to the specification: "SPEC.md", or another path or address */
};

/* For continuous integration: JUnit's XML, one suite with one case per stage, `classname` the layer and `name` the
 * tap. A stage that fails or is suspect is a failure, one without a verdict is skipped; a comparison that exits with 3
 * has one more case, an error. M3_IO, M3_INTERNAL. */
int m3_report_junit(FILE *out, const struct m3_report_subject *subject, struct m3_error *error);

/* For people: one self-contained HTML page. SPEC 7. M3_IO, M3_INTERNAL. */
int m3_report_html(FILE *out, const struct m3_report_subject *subject, struct m3_error *error);

struct m3_blame;
struct m3_check;

/* A check: the blame's report without its verdict lines, and in the last line the verdict in plain words. For programs:
 * the lines of the blame, then a summary. M3_IO, M3_INTERNAL. */
int m3_report_check_text(FILE *out, const struct m3_check *check, struct m3_error *error);
int m3_report_check_text_all(FILE *out, const struct m3_check *check, struct m3_error *error);
int m3_report_check_json(FILE *out, const struct m3_check *check, struct m3_error *error);

/* The same for a blame. For people likewise, with the culprit. For programs: one JSON object of type "blame" per tap, then the summary. M3_IO,
 * M3_INTERNAL. */
int m3_report_blame_text(FILE *out, const struct m3_blame *blame, struct m3_error *error);
int m3_report_blame_text_all(FILE *out, const struct m3_blame *blame, struct m3_error *error);
int m3_report_blame_json_taps(FILE *out, const struct m3_blame *blame, struct m3_error *error);  /* no summary */
int m3_report_blame_json(FILE *out, const struct m3_blame *blame, struct m3_error *error);

#endif
