/* What `compare --ledger` writes: one JSON object a line for every decision, in the order in which they are judged.
 * SPEC 7.6. */
#ifndef M3_ORACLE_REPORT_LEDGER_H
#define M3_ORACLE_REPORT_LEDGER_H

#include <stdio.h>

#include "oracle/judge/certificate.h"

struct m3_ledger_line {
    const char *tap;
    int64_t row, group;             /* its number in the sequence; -1: the tap has no groups */
    const struct m3_decision *decision;
    const struct m3_certificate *certificate;
    const char *scores, *bounded_by;    /* as in struct m3_stage */
    int tainted;                    /* left out of judgement */
};

/* M3_IO, M3_INTERNAL. */
int m3_ledger_print(FILE *out, const struct m3_ledger_line *line, struct m3_error *error);

#endif
