/* Rows of zeros, and rows that equal another row to the last bit: no rounding makes them of rows that differ, whatever
 * choices come before. SPEC 7.10. */
#ifndef M3_ORACLE_JUDGE_ROWS_COPIES_H
#define M3_ORACLE_JUDGE_ROWS_COPIES_H

#include "oracle/judge/align.h"

/* *found := the first of the pairs whose row is such a copy where the reference's is not: it is farther from what the
 * reference has there than `far` times the reference's length. -1: none. M3_INTERNAL: no memory. */
int m3_copies_find(int64_t *found, const struct m3_matched *matched, const struct m3_row_pair *pairs, int64_t count,
                   double far, struct m3_error *error);

#endif
