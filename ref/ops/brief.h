/* exp and the normal tail, as softmax and GELU use them: the brief forms in float, where they are called billions of
 * times, and the full forms in double. SPEC 8. */
#ifndef M3_OPS_BRIEF_H
#define M3_OPS_BRIEF_H

#include "base/real.h"
#include "ops/erf.h"
#include "ops/exp.h"

/* The weight of a key in a softmax: exp(z), rounded once; z is a logit minus the largest logit: at most 0, or NaN. In
 * two halves, for loops that do one after the other: the whole is a long chain of operations that wait for each
 * other. */
static inline struct m3_exp_argument m3_weight_reduce(real z)
{
    return sizeof(real) == sizeof(float) ? m3_exp_falling_reduce((float)z) : m3_exp_reduce((double)z, 0);
}

static inline real m3_weight_from(struct m3_exp_argument x)
{
    return (real)(sizeof(real) == sizeof(float) ? m3_exp_brief_of(x) : m3_exp_of(x));
}

static inline real m3_weight_of(real z) { return m3_weight_from(m3_weight_reduce(z)); }

/* erfc(|x| / sqrt 2) / 2 for |x| <= m3_tail_most. */
static const real m3_tail_most = sizeof(real) == sizeof(float) ? 15 : 39;

static inline double m3_tail(real x)
{
    return sizeof(real) == sizeof(float) ? m3_tail_brief((float)x) : m3_tail_body((double)x);
}

#endif
