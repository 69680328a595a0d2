/* What the files of operator_check.h share. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_OPERATOR_CHECK_H
#define M3_ORACLE_JUDGE_PRIVATE_OPERATOR_CHECK_H

#include "oracle/error/recompute.h"
#include "oracle/judge/operator_check.h"
#include "oracle/judge/side_by_side.h"

struct m3_operator_check {
    const struct m3_companions *companions;
    const struct m3_side *candidate;
    struct m3_setting setting;
    struct m3_ctx ctx;
    struct m3_trace *trace;
    int64_t next;               /* of the call's taps: those before it have been given to the trace */
    struct m3_admitted {
        enum m3_tap tap;
        int64_t layer;
    } *admitted;                /* [count], in execution order: taps that were judged themselves */
    int64_t count, room;
};

/* ---- operator_check.c */

int m3_operator_check_is_admitted(const struct m3_operator_check *check, enum m3_tap tap, int64_t layer);

/* By the tiers, with found->n and f. has_suspect: of attention. */
void m3_operator_check_judge_sides(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                                   const struct m3_side_by_side *s, const char *name, int has_suspect);

/* ---- operator_check_inputs.c */

/* The candidate's tensor of a tap, if it has the shape that the call gives it. */
const struct m3_tensor *m3_operator_check_fitting(const struct m3_operator_check *check, enum m3_tap tap,
                                                  int64_t layer);
/* Tells the trace all admitted taps before this one. */
int m3_operator_check_put_before(struct m3_operator_check *check, enum m3_tap tap, int64_t layer,
                                 struct m3_error *error);

/* ---- operator_check_drift.c */

int m3_operator_check_judge_drift(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                                  const struct m3_matched *matched, struct m3_error *error);

#endif
