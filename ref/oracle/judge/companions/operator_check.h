/* Judges float taps of a whole pass without the weights, by the companions that `run --bounds` writes: where no
 * weights are needed, against the operator applied to the candidate's own inputs; otherwise against the reference's
 * output, with its bounds and an allowance for the drift of the candidate's inputs. SPEC 7.8. */
#ifndef M3_ORACLE_JUDGE_OPERATOR_CHECK_H
#define M3_ORACLE_JUDGE_OPERATOR_CHECK_H

#include "oracle/error/profile.h"
#include "oracle/error/tiers/tiers.h"
#include "oracle/judge/align.h"
#include "oracle/judge/companions/companions.h"
#include "oracle/judge/compare.h"

struct m3_operator_check;

/* All arguments must stay open while it is used. M3_INTERNAL. */
int m3_operator_check_new(struct m3_operator_check **w, const struct m3_companions *companions,
                          const struct m3_profile *profile, const struct m3_side *candidate, struct m3_error *error);
void m3_operator_check_free(struct m3_operator_check *check);                       /* NULL is fine */

enum m3_check {
    M3_CHECK_NONE,              /* inputs are missing: it must be judged in another way */
    M3_CHECK_RECOMPUTED,        /* from the candidate's inputs; all rows for which that is possible */
    M3_CHECK_DRIFT,             /* bounds and measured drift; rows that are not tainted */
    M3_CHECK_NO_GAIN,           /* weights are needed, and no gain limits the drift */
};

/* The result for a tap. */
struct m3_operator_check_result {
    enum m3_check how;
    struct m3_tier_result tiers;
    int64_t n, f, elements;
    int64_t rows;               /* number recomputed: fewer than the candidate's if inputs of some are missing */
    int64_t row, rest;          /* of the worst element: number of its row, index in that row; row -1: none */
    double got, want;           /* there; want: recomputed, or the reference's */
    double allowed_most, allowed_l2;    /* by HARD: the largest; in L2, relative to that of the reference */
    double quantiles[M3_QUANTILES];     /* of the operator's own errors; otherwise NaN */
    char effective[96];         /* likewise; otherwise "" */
    const char *why;            /* of M3_CHECK_NONE: static text */
};

/* Declares that this tap was judged: errors that others inherit from it are allowed from now on. Errors of unjudged
 * taps are not. M3_INTERNAL. */
int m3_operator_check_admit(struct m3_operator_check *check, enum m3_tap tap, int64_t layer, struct m3_error *error);

/* Judges a tap. Taps must come in execution order, each admitted before the next is judged. M3_INTERNAL. */
int m3_operator_check_judge(struct m3_operator_check_result *found, struct m3_operator_check *check,
                            const struct m3_matched *matched, struct m3_error *error);

#endif
