/* The statistics of an answer among honest runs. */
#ifndef M3_ORACLE_SERVER_PRIVATE_JUDGE_H
#define M3_ORACLE_SERVER_PRIVATE_JUDGE_H

#include "oracle/judge/rows/distances.h"
#include "oracle/judge/server/private/runs.h"
#include "oracle/variants/mistakes.h"

/* An answer that is so many times as far off as any honest run. */
#define M3_SERVER_FAILS 2.0
#define M3_SERVER_SUSPECT 1.5

struct m3_weighing {
    const struct m3_question *question;
    const double *got;                  /* [entries] the server's */
    struct m3_told truth, *runs;        /* [run_count] */
    int64_t run_count;
    const double *others; /* of each row, choices that may be others (honest_margins.h); NULL: not known */
    const int32_t *tokens; /* of each row; NULL: not known */
    double resolution; /* of the printed numbers: what no run can explain */
};

/* Fills the verdict and the figures of `result`, whose places are those of the question. M3_INTERNAL: no memory. */
int m3_weigh(struct m3_server *result, const struct m3_weighing *w, struct m3_error *error);

/* The worst quotient of the distances between the answer and `told`, over quantiles of the positions, to the largest of
 * an honest run's distance from the truth; NaN if no position has log-probabilities. M3_INTERNAL: no memory. */
int m3_weigh_against(double *worst, const struct m3_weighing *w, const struct m3_told *told, int is_fine,
                     struct m3_error *error);

/* tokens.c: generated tokens and lists that the logits do not allow. */
int m3_weigh_tokens(struct m3_server *result, const struct m3_weighing *w, struct m3_error *error);

/* Half the last printed digit of the numbers, or the spacing of float at the largest, whichever is greater. */
double m3_resolution_of(const double *got, int64_t n);

/* sentence.c */
void m3_server_say(struct m3_server *result, const struct m3_server_plan *plan);

#endif
