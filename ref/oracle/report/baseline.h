/* An earlier report, the lines of `compare --json`, beside a new comparison: which stages changed their verdict. */
#ifndef M3_ORACLE_REPORT_BASELINE_H
#define M3_ORACLE_REPORT_BASELINE_H

#include <stdio.h>

#include "oracle/judge/compare.h"
#include "oracle/report/report.h"

struct m3_baseline;

/* M3_BAD_INPUT if a line is not an object, a stage has no tap or an unknown verdict, or no line is a stage. */
int m3_baseline_open(struct m3_baseline **baseline, const char *path, struct m3_error *error);
void m3_baseline_close(struct m3_baseline *baseline);

enum m3_baseline_change {
    M3_BASELINE_WORSE,
    M3_BASELINE_MISSING,
    M3_BASELINE_BETTER,
    M3_BASELINE_NEW,
    M3_BASELINE_NONE,
    M3_BASELINE_KINDS
};

/* Prints how many stages changed and which, the worse ones first: for people, or as JSON lines of type "change" and one
 * of type "baseline". counts [M3_BASELINE_KINDS]. M3_NOT_COMPARABLE, with nothing printed: a baseline that states another
 * model, case or profile than the comparison (m3_judgement_is_of). M3_IO, M3_INTERNAL. */
int m3_baseline_report(FILE *out, int64_t *counts, const struct m3_baseline *baseline,
                       const struct m3_judgement *comparison, enum m3_report_extent extent, int json,
                       struct m3_error *error);

#endif
