/* Where the error is in a tap: its tokens and channels, grouped in cells. */
#ifndef M3_ORACLE_REPORT_PRIVATE_HEAT_MAP_H
#define M3_ORACLE_REPORT_PRIVATE_HEAT_MAP_H

#include "oracle/judge/align.h"
#include "oracle/judge/compare.h"

enum { M3_HEAT_ROWS = 64, M3_HEAT_COLUMNS = 128, M3_HEAT_LEVELS = 9 };

struct m3_heat {
    int rows, columns;                  /* of cells: at most the limits above and the numbers of items */
    int64_t tokens, channels;           /* row i of tokens is in cell row i * rows / tokens; likewise channels */
    int64_t first[M3_HEAT_ROWS];        /* row number of the first token of each cell row */
    /* [rows, columns]: the largest share of the allowance (m3_share_of_allowed); NaN if nothing was compared. */
    double cells[M3_HEAT_ROWS * M3_HEAT_COLUMNS];
    int worst_row, worst_column; /* cell of the stage's place */
    /* Level k holds shares up to edges[k] and above edges[k - 1]: 0.1, 1, then evenly spaced in the logarithm up to a
     * power of ten that no finite share exceeds, each at most half a decade wide. */
    double edges[M3_HEAT_LEVELS];
};

/* Fills the map of a judged float stage; `index` is the place that is marked. At most `rows` x `columns` cells. */
void m3_heat_fill(struct m3_heat *heat, const struct m3_finding *stage, const int64_t *index,
                  const struct m3_matched *matched, int rows, int columns);

/* Level of a cell: 0 .. M3_HEAT_LEVELS - 1; M3_HEAT_LEVELS if it is infinite; -1 if it is 0 or empty. */
int m3_heat_level(const struct m3_heat *heat, double share);

#endif
