/* Floats of two dumps: by bounds where companions say enough, else by what the whole pass is allowed. Used by compare.c
 * alone. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_FLOATS_H
#define M3_ORACLE_JUDGE_PRIVATE_FLOATS_H

#include "oracle/judge/judge.h"
#include "oracle/judge/operator_check.h"
#include "oracle/judge/ranking.h"

/* What all stages share. */
struct m3_comparing {
    struct m3_comparison *result;
    const struct m3_profile *profile; /* NULL: fp32, and nothing exact */
    struct m3_coarse_table coarse;
    struct m3_selection_rules rules;
    struct m3_operator_check *check; /* NULL: the reference has no companions */
    struct m3_ranking ranking;
    int64_t without_error; /* stages whose fp32 error is not stated; the first of them */
    const char *first_without;
    int is_weak; /* the last stage was found to be no garbage, and that is all */
};

int m3_judge_floats(struct m3_stage *stage, struct m3_comparing *all, struct m3_matched matched,
                    const struct m3_coarseness *coarse, struct m3_error *error);

#endif
