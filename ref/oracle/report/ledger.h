/* The output of `compare --ledger`: one JSON object per line for every decision, in the order of judgement. SPEC
 * 7.6. */
#ifndef M3_ORACLE_REPORT_LEDGER_H
#define M3_ORACLE_REPORT_LEDGER_H

#include <stdio.h>

#include "oracle/judge/choices/certificate.h"

struct m3_ledger {
    FILE *out;
    int64_t sequence;               /* of the decisions that follow; -1: there is one sequence */
};

/* For struct m3_compared_parts (batch/several.h), whose self is a struct m3_ledger. */
void m3_ledger_begin(void *ledger, int64_t sequence);
/* A function for struct m3_decision_sink, whose self is a struct m3_ledger. M3_IO, M3_INTERNAL. */
int m3_ledger_write(void *ledger, const struct m3_judged_decision *decision, struct m3_error *error);

#endif
