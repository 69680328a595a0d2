/* Elements of one float or count tap of two dumps, as the judges read them: in pieces, by several threads, with
 * results that do not depend on their number. Used only by the judges of floats. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_VALUES_H
#define M3_ORACLE_JUDGE_PRIVATE_VALUES_H

#include "oracle/judge/judge.h"
#include "oracle/judge/spans.h"

/* Consecutive elements. */
struct m3_piece {
    int64_t row; /* number of the first element's row */
    int64_t want, got, length;
};

struct m3_pieces {
    struct m3_piece *all;
    int64_t count, elements, rows_left_out;
    int64_t width; /* elements of a row; a piece of several rows has rows of consecutive numbers */
};

/* Lists all elements that are judged by value, in order, in pieces of at most M3_PIECE elements. M3_INTERNAL. */
enum { M3_PIECE = 1 << 14 };
int m3_pieces_of(struct m3_pieces *pieces, struct m3_span_walk walk, const char *tap, struct m3_error *error);
void m3_pieces_free(struct m3_pieces *pieces);

/* want, got [n] := elements of a piece from its i-th element on. */
void m3_piece_read(double *want, double *got, const struct m3_finding *stage, const struct m3_piece *piece, int64_t i,
                   int64_t n);

/* Makes element i of a piece the place of the stage. */
void m3_piece_show(struct m3_finding *stage, const struct m3_pieces *pieces, const struct m3_piece *piece, int64_t i);

/* Is every value one of BF16, or of F16, although a finer format is declared? Only values far above `rounding`, the
 * error of a legitimate result, are significant; SPEC 7.2. M3_DTYPES: no. */
enum m3_dtype m3_pieces_grid(const struct m3_finding *stage, const struct m3_pieces *pieces, double rounding);

/* Quantiles and effective precision of the stage. For a larger tap only about this many elements are read, in runs
 * spread over it. M3_INTERNAL. */
enum { M3_PRECISION_ELEMENTS = 1 << 15 };
int m3_stage_precision(struct m3_finding *stage, const struct m3_pieces *pieces, struct m3_error *error);

#endif
