/* Functions of one variable, in double. */
#ifndef M3_ORACLE_ERROR_PRIVATE_FUNCTIONS_H
#define M3_ORACLE_ERROR_PRIVATE_FUNCTIONS_H

#include "ops/exp.h"
#include "ops/math.h"

static inline double m3_logistic(double x) { return 1 / (1 + m3_exp_body(-x)); }

/* B of sig(a) = s. Below the smallest normal number any value is allowed, because 1 / (1 + exp(-x)) is 0 where exp(-x)
 * is infinite, and relative errors grow: steps u B covers that. */
static inline double m3_logistic_bound(double s, double steps, double u)
{
    const double least_normal = u > 0x1p-53 ? 0x1p-126 : 0x1p-1022;
    return m3_select(s < least_normal, s + least_normal / (u * steps), s);
}

/* exp(x) - 1 without cancellation, x >= 0: relative error below 1e-10. */
static inline double m3_exp_minus_1(double x)
{
    return x > 0.01 ? m3_exp(x) - 1 : x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4)));
}

#endif
