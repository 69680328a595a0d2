/* What one element may be off by, from its bound: for verdicts on elements one by one, and in kernels. Without branches,
 * so that loops over it vectorise. */
#ifndef M3_ORACLE_ERROR_PRIVATE_ALLOWANCE_H
#define M3_ORACLE_ERROR_PRIVATE_ALLOWANCE_H

#include <stdint.h>

#include "ops/exp.h"

/* What the allowances of all elements of a tap have in common. */
struct m3_allowing {
    double u, u_steps, own_steps; /* u steps, 2^-53 steps */
    double roundings; /* lambda sqrt(n) + f */
    double underflow, underflow_variance;
    double u2_walk; /* of walk^2 / 3 */
    double lambda;
};

/* A = u steps B + 2^-53 steps B + (B > 0 ? steps eta : 0) + extra, and the same with lambda sqrt(n) + f instead of
 * steps in its first term; the rest is all but that term. */
static inline double m3_allowed_rest(const struct m3_allowing *k, double B, double extra)
{
    return k->own_steps * B + m3_select(B > 0, k->underflow, 0) + extra;
}

static inline double m3_allowed_variance(const struct m3_allowing *k, double B, double walk, double extra)
{
    return extra + k->u2_walk * (walk * walk) / 3 + m3_select(B > 0, k->underflow_variance, 0);
}

static inline double m3_smaller(double x, double y) { return m3_select(x < y, x, y); }

enum { M3_PIECE = 256 };

/* What the elements of a piece add to the sums of a verdict, and their shares of what is allowed. */
struct m3_terms {
    double e[M3_PIECE], z2[M3_PIECE], ratio[M3_PIECE], share[M3_PIECE];
    int64_t with_bound, with_sigma;
};

#endif
