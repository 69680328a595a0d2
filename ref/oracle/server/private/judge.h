/* The statistics of an answer among honest runs. */
#ifndef M3_ORACLE_SERVER_PRIVATE_JUDGE_H
#define M3_ORACLE_SERVER_PRIVATE_JUDGE_H

#include "oracle/judge/rows/distances.h"
#include "oracle/server/private/runs.h"
#include "oracle/variants/mistakes.h"

/* An answer that is so many times as far off as any honest run. */
#define M3_SERVER_FAILS 2.0
#define M3_SERVER_SUSPECT 1.5

struct m3_weighing {
    const struct m3_question *question;
    const double *got;                  /* [entries] the server's */
    struct m3_told truth, *runs;        /* [run_count] */
    int64_t run_count;
    double resolution;                  /* of the printed numbers: what no run can explain */
};

/* Fills the verdict and the figures of `result`, whose places are those of the question. M3_INTERNAL: no memory. */
int m3_weigh(struct m3_server *result, const struct m3_weighing *w, struct m3_error *error);

/* The worst quotient of the distances between the answer and `told`, over quantiles of the positions, to the largest of
 * an honest run's distance from the truth; NaN if no position has log-probabilities. M3_INTERNAL: no memory. */
int m3_weigh_against(double *worst, const struct m3_weighing *w, const struct m3_told *told, int is_fine,
                     struct m3_error *error);

/* How far the answer has moved from the honest runs toward a run with a mistake: `share` of the way, and z in standard
 * deviations of the honest runs. 0, if the mistake hardly moves anything here. M3_INTERNAL: no memory. */
int m3_weigh_toward(double *z, double *share, const struct m3_weighing *w, const struct m3_told *wrong,
                    struct m3_error *error);

/* tokens.c: generated tokens and lists that the logits do not allow. */
int m3_weigh_tokens(struct m3_server *result, const struct m3_weighing *w, struct m3_error *error);

/* Half the last printed digit of the numbers, or the spacing of float at the largest, whichever is greater. */
double m3_resolution_of(const double *got, int64_t n);

/* causes.c: which of the causes, whose runs are tried one by one, is nearest to the answer. */
struct m3_cause {
    const struct m3_mistake *mistake;   /* or NULL */
    char reading[M3_SEMANTICS_TEXT];    /* or "" */
};
struct m3_causes {
    double worst, second;               /* quotients of m3_weigh_against; `near` has the least */
    struct m3_cause near, toward;       /* toward: has the greatest z of m3_weigh_toward */
    double z, share;
};
struct m3_causes m3_causes_begin(void);
int m3_cause_try(struct m3_causes *causes, const struct m3_cause *cause, const struct m3_weighing *w,
                 const struct m3_told *told, int is_fine, struct m3_error *error);
/* May programs of such a profile do that? */
int m3_cause_permitted(const struct m3_mistake *mistake, int is_fine);
/* Names the cause in `result`. An answer that has moved far toward a mistake does not pass. */
int m3_causes_settle(struct m3_server *result, const struct m3_causes *causes, const struct m3_weighing *w,
                     struct m3_error *error);

/* Tries temperatures, other readings and known mistakes on an answer that does not pass. */
int m3_find_cause(struct m3_server *result, const struct m3_server_plan *plan, const struct m3_weighing *w,
                  struct m3_error *error);
/* sentence.c */
void m3_server_say(struct m3_server *result, const struct m3_server_plan *plan);

#endif
