/* The elements of one tap that belong together, in the order of the reference. */
#ifndef M3_ORACLE_JUDGE_SPANS_H
#define M3_ORACLE_JUDGE_SPANS_H

#include "oracle/judge/align.h"

/* Consecutive elements: offsets in the reference and the candidate, in the row numbered `row`, the nth of both. */
struct m3_span {
    int64_t row, nth, want, got, length;
};

/* All spans of a tap that are judged by value: one per row, or one for each expert slot that both sides have, or one
 * for each group of heads if others are tainted. Copy it to walk again. */
struct m3_span_walk {
    const struct m3_matched *matched;
    struct m3_row_walk rows;
    struct m3_row_pair row;
    const struct m3_tensor *want_ids, *got_ids;     /* [rows, slots]; NULL: slot for slot */
    int64_t groups;                 /* of heads; 0: not known */
    int64_t width;                  /* elements of a row */
    int64_t nth, slots, slot;       /* of the current row; its number among the rows of both */
    int64_t left_out;               /* rows so far that were not fully judged because of other selections */
};

/* Returns NULL, or why the two cannot be compared. `moe.weights` and `moe.expert_out` are aligned by expert id if both
 * dumps hold `moe.experts`. */
const char *m3_span_walk_begin(struct m3_span_walk *walk, const struct m3_matched *matched);
/* The next span; returns 0 at the end. */
int m3_span_walk_next(struct m3_span_walk *walk, struct m3_span *span);

#endif
