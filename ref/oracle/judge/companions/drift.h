/* Errors inherited through operators whose weights are not available: computed from the distance of the candidate's
 * input from the reference's, and from the gains in the reference's companions. Norms, rotations, attention, scores,
 * activations and sums do not need this: they are recomputed from the candidate's own taps. SPEC 7.8. */
#ifndef M3_ORACLE_JUDGE_DRIFT_H
#define M3_ORACLE_JUDGE_DRIFT_H

#include "oracle/error/propagate.h"

/* How far one row of input has moved: dx = along x + a part orthogonal to x. */
struct m3_drift {
    double xx, xd, dd;          /* sums of x^2, x dx, dx^2 */
    int64_t n;                  /* length of x */
};

/* Adds n channels to a drift, initially zeros: an input may arrive in parts. */
void m3_drift_add(struct m3_drift *drift, const double *reference, const double *candidate, int64_t n);
double m3_drift_along(const struct m3_drift *drift);            /* 0 for x = 0 */
double m3_drift_length(const struct m3_drift *drift);           /* of dx */
double m3_drift_across(const struct m3_drift *drift);           /* of the part orthogonal to x */
/* Is it finite? If not, its effect is unknown. */
int m3_drift_is_known(const struct m3_drift *drift);

/* The outputs of one row of a linear operator, or of a nonlinear one: w2 act(w1 x, w3 x). */
struct m3_drift_row {
    const double *reference;    /* [width] outputs */
    const double *bias;         /* [width], not moved by any input; NULL: none */
    const double *gain;         /* [width] */
    int64_t width;
    int bends;
};

/* Adds to *out, from element `at` on: error gain |dx|, times 1.5 if nonlinear;
 * variance (along (reference - bias))^2 + gain^2 |across|^2 / n. */
void m3_drift_propagate(struct m3_spread *out, int64_t at, const struct m3_drift *drift,
                        const struct m3_drift_row *row);

#endif
