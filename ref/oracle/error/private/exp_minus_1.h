/* exp(x) - 1 without cancellation, for errors of logits. */
#ifndef M3_ORACLE_ERROR_PRIVATE_EXP_MINUS_1_H
#define M3_ORACLE_ERROR_PRIVATE_EXP_MINUS_1_H

#include "ops/math.h"

/* x >= 0; relative error below 1e-10. */
static inline double m3_exp_minus_1(double x)
{
    return x > 0.01 ? m3_exp(x) - 1 : x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4)));
}

#endif
