/* Distances among honest runs of a profile, at the rows of a tap or the positions of an answer. SPEC 7.10, 7.18. */
#ifndef M3_ORACLE_JUDGE_ROWS_DISTANCES_H
#define M3_ORACLE_JUDGE_ROWS_DISTANCES_H

#include <stdint.h>

#include "base/status.h"

struct m3_distances {
    int64_t runs, n;            /* honest runs; places */
    double *error, *nearest;    /* [runs + 1, n] from the truth, to the nearest other run: of each run, then of the
                                 * candidate, to which the truth is a run too */
    double *room, *each;        /* [runs + n + 1] */
};

/* Uninitialised. M3_INTERNAL: no memory for what `what` names. Free it in any case. */
int m3_distances_new(struct m3_distances *d, int64_t runs, int64_t n, const char *what, struct m3_error *error);
void m3_distances_free(struct m3_distances *d);

/* The share-quantile of n numbers, with linear interpolation; sorts a copy in `room`. */
double m3_quantile(const double *numbers, int64_t n, double share, double *room);

/* How far the candidate's quantile at the places from `first` on is beyond the largest of the runs: the quotient. Of its
 * own, `resolution` counts as nothing. `of`: d->error or d->nearest. */
double m3_distances_beyond(double *own, double *largest, const struct m3_distances *d, const double *of, int64_t first,
                           double share, double resolution);
/* The distance of a usual run to the nearest other: the median of the runs' quantiles. */
double m3_distances_usual_nearest(const struct m3_distances *d, double share);
/* errors [runs,n]: what nine of ten places stay below in all runs. each, room [n]. */
double m3_usual_error(const double *errors, int64_t runs, int64_t n, double *each, double *room);

#endif
