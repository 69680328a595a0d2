/* Judges floats of two dumps: by bounds if companions are sufficient, otherwise by the tolerance of the whole pass.
 * Used only by compare.c. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_FLOATS_H
#define M3_ORACLE_JUDGE_PRIVATE_FLOATS_H

#include "oracle/judge/judge.h"
#include "oracle/judge/companions/operator_check.h"
#include "oracle/judge/rows/ranking.h"

/* The data shared by all stages. */
struct m3_comparing {
    struct m3_judgement *result;
    const struct m3_profile *profile; /* NULL: fp32, and no tap is exact */
    struct m3_coarse_table coarse;
    struct m3_selection_rules rules;
    struct m3_operator_check *check; /* NULL: the reference has no companions */
    struct m3_ranking ranking;
    const struct m3_safetensors *rows; /* honest implementations of the profile, row by row; NULL: none */
    int64_t without_error; /* stages whose fp32 error is not stated; the first of them */
    const char *first_without;
    int stop; /* at the first stage that does not pass */
    int64_t failed, wrong; /* so far; wrong: fail or are suspect */
};

int m3_judge_floats(struct m3_finding *stage, struct m3_comparing *all, struct m3_matched matched,
                    const struct m3_coarseness *coarse, struct m3_error *error);

#endif
