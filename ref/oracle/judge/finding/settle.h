/* The one place where the verdict on a tap is settled, from all that is known of it. From the surest to the least:
 *
 * - its own bounds: the operator, recomputed from the candidate's own inputs by the weights or by companions;
 * - honest implementations of the profile, row by row, where several operators were judged together or inputs drift;
 * - what whole passes may differ: the error that the reference states, and an envelope.
 *
 * A pass that the profile would also give to zeros, or to a known mistake, is none. What is proven stays: NaN, an
 * infinity on one side, a coarser format, another set. SPEC 7. */
#ifndef M3_ORACLE_JUDGE_FINDING_SETTLE_H
#define M3_ORACLE_JUDGE_FINDING_SETTLE_H

#include "oracle/judge/finding/finding.h"
#include "oracle/judge/rows/rows.h"

/* What is known besides the finding's own verdict. */
struct m3_evidence {
    const struct m3_row_verdict *rows;  /* NULL: honest implementations were not asked */
    int is_bounded; /* the finding's own verdict is by bounds, which rows that pass do not replace */
    int after_failure; /* an earlier tap fails: honest implementations do not inherit its error */
    int is_sharp; /* the rows tell the mistake to which the bounds are blind */
};

/* Settles the verdict of a finding that its own judge has filled. */
void m3_finding_settle(struct m3_finding *finding, const struct m3_evidence *evidence);

/* Adds what a comparison of the same candidate with the truth says: the verdict of taps that nothing else could judge,
 * and for reports its own finding on each tap. `compared` must stay open. */
void m3_judgement_compare(struct m3_judgement *judgement, const struct m3_judgement *compared);

#endif
