/* The output of `compare --ledger`: one JSON object per line for every decision, in the order of judgement. SPEC
 * 7.6. */
#ifndef M3_ORACLE_REPORT_LEDGER_H
#define M3_ORACLE_REPORT_LEDGER_H

#include "oracle/judge/certificate.h"

/* A function for struct m3_decision_sink, whose self is a FILE. M3_IO, M3_INTERNAL. */
int m3_ledger_write(void *file, const struct m3_judged_decision *decision, struct m3_error *error);

#endif
