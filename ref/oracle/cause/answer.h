/* What explains a server's answer that does not pass: a temperature, another reading of the model, a known mistake. */
#ifndef M3_ORACLE_CAUSE_ANSWER_H
#define M3_ORACLE_CAUSE_ANSWER_H

#include "oracle/judge/server/private/judge.h"

/* Which of the causes, whose runs are tried one by one, is nearest to the answer. */
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

/* toward.c: how far the answer has moved from the honest runs toward a run with a mistake: `share` of the way, and z in
 * standard deviations of the honest runs. 0, if the mistake hardly moves anything here. M3_INTERNAL: no memory. */
int m3_weigh_toward(double *z, double *share, const struct m3_weighing *w, const struct m3_told *wrong,
                    struct m3_error *error);

/* Tries temperatures, other readings and known mistakes on an answer that does not pass. */
int m3_find_cause(struct m3_server *result, const struct m3_server_plan *plan, const struct m3_weighing *w,
                  struct m3_error *error);

#endif
