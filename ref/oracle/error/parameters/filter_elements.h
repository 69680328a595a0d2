/* What a filter is given: the elements of a tap, a piece at a time. */
#ifndef M3_ORACLE_ERROR_PARAMETERS_FILTER_ELEMENTS_H
#define M3_ORACLE_ERROR_PARAMETERS_FILTER_ELEMENTS_H

#include <stdint.h>

/* Elements that are off by d, where a change of the parameter by 1 moves them by g. Honest errors have variance v and a
 * mean of at most b, and may follow the pattern s, all with the same share of -1 to 1. Elements without a finite d, g or
 * v > 0 are left out, and where g is 0 the parameter has no part. */
enum { M3_FILTER_PIECE = 256 };
struct m3_filter_elements {
    double d[M3_FILTER_PIECE], g[M3_FILTER_PIECE], v[M3_FILTER_PIECE], b[M3_FILTER_PIECE], s[M3_FILTER_PIECE];
    int64_t row[M3_FILTER_PIECE], column[M3_FILTER_PIECE];
    int64_t n;
};

#endif
