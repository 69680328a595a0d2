/* Prints what was found; nothing is judged here. */
#ifndef M3_ORACLE_REPORT_REPORT_H
#define M3_ORACLE_REPORT_REPORT_H

#include <stdio.h>

#include "oracle/judge/finding/finding.h"

/* How much of a report is printed. */
enum m3_report_extent {
    M3_REPORT_SHORT,            /* for people: at most 25 lines, without what passes */
    M3_REPORT_ALL,              /* everything */
    M3_REPORT_FAILING           /* what fails or is suspect, all of it, and the summary */
};

/* For people: the verdict with place, size and next step, the stages with those that fail first, what the words mean,
 * the notes, the first divergence, and the verdict again. M3_IO if writing fails; M3_INTERNAL. */
int m3_report_text(FILE *out, const struct m3_judgement *comparison, enum m3_report_extent extent,
                   struct m3_error *error);

/* For programs: one JSON object per stage, each on its own line, then one of type "summary". Numbers that are not
 * finite are the strings "nan", "inf", "-inf"; values that do not apply are null. M3_REPORT_SHORT is everything. M3_IO,
 * M3_INTERNAL. */
int m3_report_json(FILE *out, const struct m3_judgement *comparison, enum m3_report_extent extent,
                   struct m3_error *error);

/* What is most likely the cause, for the top of the HTML page. Texts that are not known are NULL. */
struct m3_report_cause {
    const char *sentence;       /* the verdict in plain words */
    const char *culprit, *operator_name, *section;
    const char *mistake, *mistake_words;
    const char *reading, *profile_word;
    const char *repeat;         /* the command that gives this verdict again, quoted for a shell */
};

/* Further data for report files: the dumps that were compared. */
struct m3_report_subject {
    const struct m3_judgement *judgement;
    const struct m3_safetensors *reference, *candidate;     /* reference NULL: there is only a candidate */
    const char *command;        /* in titles: "compare", "op rms_norm" */
    int only_findings;          /* HTML: the files hold no values of the reference, so that nothing can be drawn */
    const char *spec;           /* target of links to the specification: a path or address; NULL: the page holds it */
    struct m3_report_cause cause;
};

/* For continuous integration: JUnit's XML, one suite with one case per stage, `classname` the layer and `name` the
 * tap. A stage that fails or is suspect is a failure, one without a verdict is skipped, and so is a tap that the
 * candidate lacks; a comparison that exits with 3 has one more case, an error. M3_IO, M3_INTERNAL. */
int m3_report_junit(FILE *out, const struct m3_report_subject *subject, struct m3_error *error);

/* For people: one self-contained HTML page. SPEC 7. M3_IO, M3_INTERNAL. */
int m3_report_html(FILE *out, const struct m3_report_subject *subject, struct m3_error *error);

struct m3_check;

/* The same for a check: in the last line the verdict in plain words. */
int m3_report_check_text(FILE *out, const struct m3_check *check, enum m3_report_extent extent, struct m3_error *error);
int m3_report_check_json(FILE *out, const struct m3_check *check, enum m3_report_extent extent, struct m3_error *error);

/* What the judgement says of the cause. `sentence` and `repeat` are left to the caller. */
struct m3_report_cause m3_cause_of(const struct m3_judgement *judgement);

#endif
