/* Errors inherited through operators whose weights are not there: from how far the candidate's input is from the
 * reference's, and the gains that stand beside the reference's taps. Norms, rotations, attention, scores, activations
 * and sums need none of this: they are recomputed from the candidate's own taps. SPEC 7.8. */
#ifndef M3_ORACLE_JUDGE_DRIFT_H
#define M3_ORACLE_JUDGE_DRIFT_H

#include "oracle/error/propagate.h"

/* How far one row of input has moved: dx = along x + what is square to x. */
struct m3_drift {
    double xx, xd, dd;          /* sums of x^2, x dx, dx^2 */
    int64_t n;                  /* length of x */
};

/* Adds n channels to a drift that began as zeros: an input may come in parts. */
void m3_drift_add(struct m3_drift *drift, const double *reference, const double *candidate, int64_t n);
double m3_drift_along(const struct m3_drift *drift);            /* 0 for x = 0 */
double m3_drift_length(const struct m3_drift *drift);           /* of dx */
double m3_drift_across(const struct m3_drift *drift);           /* of what is square to x */
/* Is it finite? If not, nothing can be said of what it moves. */
int m3_drift_is_known(const struct m3_drift *drift);

/* Outputs of one row, that a linear operator made (or one that bends: w2 act(w1 x, w3 x)). */
struct m3_drift_row {
    const double *reference;    /* [width] outputs */
    const double *bias;         /* [width], which no input moves; NULL: none */
    const double *gain;         /* [width] */
    int64_t width;
    int bends;
};

/* Adds to elements `at` on of *out: error gain |dx|, times 1.5 if it bends;
 * variance (along (reference - bias))^2 + gain^2 |across|^2 / n. */
void m3_drift_propagate(struct m3_spread *out, int64_t at, const struct m3_drift *drift,
                        const struct m3_drift_row *row);

#endif
