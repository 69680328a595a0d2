/* Judges float taps of a whole pass without the weights, with what `run --bounds` wrote beside the reference: what an
 * operator makes of the candidate's own inputs where no weights are needed, else the reference's output with its bounds
 * and as much as the candidate's inputs have drifted. SPEC 7.8. */
#ifndef M3_ORACLE_WEIGHTLESS_H
#define M3_ORACLE_WEIGHTLESS_H

#include "oracle/align.h"
#include "oracle/companions.h"
#include "oracle/profile.h"
#include "oracle/tiers.h"

struct m3_weightless;

/* All stay open as long as it is used. M3_INTERNAL. */
int m3_weightless_new(struct m3_weightless **w, const struct m3_companions *companions,
                      const struct m3_profile *profile, const struct m3_side *candidate, struct m3_error *error);
void m3_weightless_free(struct m3_weightless *w);                       /* NULL is fine */

enum m3_weightless_how {
    M3_WEIGHTLESS_NOT,          /* inputs are lacking: something else has to judge */
    M3_WEIGHTLESS_CREATED,      /* made again from the candidate's inputs; all rows that can be */
    M3_WEIGHTLESS_DRIFT,        /* bounds and measured drift; rows that are not tainted */
    M3_WEIGHTLESS_NO_GAIN,      /* weights are needed, and there is nothing to say how far drift goes */
};

/* What was found of a tap. */
struct m3_weightless_found {
    enum m3_weightless_how how;
    struct m3_tier_result tiers;
    int64_t n, f, elements;
    int64_t rows;               /* made again: fewer than the candidate's, if inputs of some are lacking */
    int64_t row, rest;          /* of the worst element: number of its row, place in that row; row -1: none */
    double got, want;           /* there; want: made again, or the reference's */
    double allowed_most, allowed_l2;    /* by HARD: the largest; in L2, over that of the reference */
    double quantiles[M3_QUANTILES];     /* of what was created; else NaN */
    char looks[96];             /* likewise; else "" */
    const char *why;            /* of M3_WEIGHTLESS_NOT, in words; static */
};

/* This tap was judged: what others inherit from it is excused from now on. Taps that nobody judged excuse nothing.
 * M3_INTERNAL. */
int m3_weightless_admit(struct m3_weightless *w, enum m3_tap tap, int64_t layer, struct m3_error *error);

/* Taps in execution order, each admitted before the next is judged. M3_INTERNAL. */
int m3_weightless_judge(struct m3_weightless_found *found, struct m3_weightless *w, const struct m3_matched *matched,
                        struct m3_error *error);

#endif
