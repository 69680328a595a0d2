/* Where in a tap the error is: its tokens and channels, gathered in cells. */
#ifndef M3_ORACLE_REPORT_PRIVATE_HEAT_MAP_H
#define M3_ORACLE_REPORT_PRIVATE_HEAT_MAP_H

#include "oracle/judge/align.h"
#include "oracle/judge/compare.h"

enum { M3_HEAT_ROWS = 64, M3_HEAT_COLUMNS = 128, M3_HEAT_LEVELS = 9 };

struct m3_heat {
    int rows, columns;                  /* of cells: at most those above, and no more than there are */
    int64_t tokens, channels;           /* row i of tokens is in cell row i * rows / tokens, and so are channels */
    int64_t first[M3_HEAT_ROWS];        /* row number of the first token of each cell row */
    /* [rows, columns]: the largest share of what is allowed (m3_share_of_allowed); NaN where nothing was compared. */
    double cells[M3_HEAT_ROWS * M3_HEAT_COLUMNS];
    int worst_row, worst_column; /* cell of the stage's place */
    /* Level k holds shares up to edges[k] and above the one before it: 0.1, 1, then evenly in the logarithm up to a
     * power of ten that no finite share exceeds, but half a decade each at most. */
    double edges[M3_HEAT_LEVELS];
};

/* Of a stage of floats that was judged. At most `rows` x `columns` cells. */
void m3_heat_fill(struct m3_heat *heat, const struct m3_stage *stage, const struct m3_matched *matched, int rows,
                  int columns);

/* Level of a cell: 0 .. M3_HEAT_LEVELS - 1; M3_HEAT_LEVELS if it is infinite; -1 if it is 0 or empty. */
int m3_heat_level(const struct m3_heat *heat, double share);

#endif
