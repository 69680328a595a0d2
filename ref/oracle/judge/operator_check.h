/* Judges float taps of a whole pass without the weights, with what `run --bounds` wrote beside the reference: what an
 * operator makes of the candidate's own inputs where no weights are needed, else the reference's output with its bounds
 * and as much as the candidate's inputs have drifted. SPEC 7.8. */
#ifndef M3_ORACLE_JUDGE_OPERATOR_CHECK_H
#define M3_ORACLE_JUDGE_OPERATOR_CHECK_H

#include "oracle/error/profile.h"
#include "oracle/error/tiers.h"
#include "oracle/judge/align.h"
#include "oracle/judge/companions.h"
#include "oracle/judge/compare.h"

struct m3_operator_check;

/* All stay open as long as it is used. M3_INTERNAL. */
int m3_operator_check_new(struct m3_operator_check **w, const struct m3_companions *companions,
                          const struct m3_profile *profile, const struct m3_side *candidate, struct m3_error *error);
void m3_operator_check_free(struct m3_operator_check *check);                       /* NULL is fine */

enum m3_check {
    M3_CHECK_NONE,              /* inputs are missing: something else has to judge */
    M3_CHECK_RECOMPUTED,        /* from the candidate's inputs; all rows that can be */
    M3_CHECK_DRIFT,             /* bounds and measured drift; rows that are not tainted */
    M3_CHECK_NO_GAIN,           /* weights are needed, and there is nothing to say how far drift goes */
};

/* What was found of a tap. */
struct m3_operator_check_result {
    enum m3_check how;
    struct m3_tier_result tiers;
    int64_t n, f, elements;
    int64_t rows;               /* recomputed: fewer than the candidate's, if inputs of some are missing */
    int64_t row, rest;          /* of the worst element: number of its row, place in that row; row -1: none */
    double got, want;           /* there; want: recomputed, or the reference's */
    double allowed_most, allowed_l2;    /* by HARD: the largest; in L2, over that of the reference */
    double quantiles[M3_QUANTILES];     /* of what was created; else NaN */
    char effective[96];         /* likewise; else "" */
    const char *why;            /* of M3_CHECK_NONE: static text */
};

/* This tap was judged: what others inherit from it is excused from now on. Taps that nobody judged excuse nothing.
 * M3_INTERNAL. */
int m3_operator_check_admit(struct m3_operator_check *check, enum m3_tap tap, int64_t layer, struct m3_error *error);

/* Taps in execution order, each admitted before the next is judged. M3_INTERNAL. */
int m3_operator_check_judge(struct m3_operator_check_result *found, struct m3_operator_check *check,
                            const struct m3_matched *matched, struct m3_error *error);

#endif
