/* Declarations shared by the files that implement operator_check.h. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_OPERATOR_CHECK_H
#define M3_ORACLE_JUDGE_PRIVATE_OPERATOR_CHECK_H

#include "oracle/error/recompute.h"
#include "oracle/judge/companions/operator_check.h"
#include "oracle/judge/side_by_side.h"

struct m3_operator_check {
    const struct m3_companions *companions;
    const struct m3_side *candidate;
    struct m3_setting setting;
    struct m3_ctx ctx;
    struct m3_trace *trace;
    int64_t next;               /* index of the next tap of the call: those before it are in the trace */
    struct m3_admitted {
        enum m3_tap tap;
        int64_t layer;
    } *admitted;                /* [count], in execution order: taps that were themselves judged */
    int64_t count, room;
};

/* ---- operator_check.c */

int m3_operator_check_is_admitted(const struct m3_operator_check *check, enum m3_tap tap, int64_t layer);

/* Judges by the tiers, with found->n and f. has_suspect: for attention. */
void m3_operator_check_judge_sides(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                                   const struct m3_side_by_side *s, const char *name, int has_suspect);

/* ---- operator_check_inputs.c */

/* The candidate's tensor of a tap, if it has the shape expected in this call. */
const struct m3_tensor *m3_operator_check_fitting(const struct m3_operator_check *check, enum m3_tap tap,
                                                  int64_t layer);
/* Puts all admitted taps before this one into the trace. */
int m3_operator_check_put_before(struct m3_operator_check *check, enum m3_tap tap, int64_t layer,
                                 struct m3_error *error);

/* ---- operator_check_drift.c */

int m3_operator_check_judge_drift(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                                  const struct m3_matched *matched, struct m3_error *error);

#endif
