/* What the two tables of rotary angles share: the angle as SPEC forms it, and how near its cosine and sine must be.
 * Include in one test file. */
#ifndef M3_TESTS_ANGLE_TWIN_H
#define M3_TESTS_ANGLE_TWIN_H

#include <math.h>

#include "ops/ops.h"
#include "twin.h"

static inline long double ulp_of_real(long double x)
{
    int exponent;
    frexpl(x, &exponent);
    return fmaxl(ldexpl(1, exponent - (sizeof(real) == 4 ? 24 : 53)), twin_least());
}

/* The angle as "Order" forms it, from this frequency. */
static inline double formed(int64_t pos, double frequency, enum m3_rope_angle mode)
{
    volatile float product = (float)pos * (float)frequency;
    return mode == M3_ANGLE_F32 ? (double)product : (double)pos * frequency;
}

/* Are both within an ulp of the cosine and sine of this angle? */
static inline int angle_fits(real cosine, real sine, double angle)
{
    const long double c = cosl(angle), s = sinl(angle);
    return twin_within(cosine, c, ulp_of_real(c)) && twin_within(sine, s, ulp_of_real(s));
}

#endif
