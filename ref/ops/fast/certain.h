/* A shorter exp for results that are rounded to float, and when it is certain to give the same float as the full one.
 * Then the last bits of the double do not matter, and operations may be fused where the processor can do that. */
#ifndef M3_OPS_FAST_CERTAIN_H
#define M3_OPS_FAST_CERTAIN_H

#include "ops/exp.h"

/* a b + c, rounded once or twice. */
static inline double m3_times_plus(double a, double b, double c)
{
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* m3_exp_brief but for the last bits: relative error < 2^-39 for |x| <= 700, anything beyond. */
static inline double m3_exp_near(double x)
{
    const double *c = m3_brief_p;
    double shifted = m3_times_plus(x, m3_log2_e, m3_brief_shift), n = shifted - m3_brief_shift;
    double r = m3_times_plus(n, -m3_ln2, x), z = r * r;
    double even = m3_times_plus(m3_times_plus(m3_times_plus(c[6], z, c[4]), z, c[2]), z, c[0]);
    double odd = m3_times_plus(m3_times_plus(c[5], z, c[3]), z, c[1]);
    double p = m3_times_plus(r, odd, even);
    return (1 + m3_times_plus(z, p, r)) * m3_from_bits(m3_bits(shifted) << 52);
}

/* For s that is rounded to a normal float: 0 only if every double within 2^-39 s of s is rounded to the same float,
 * because s is not near the middle of two floats. */
static inline int64_t m3_is_near_middle(double s)
{
    const uint64_t near = 1 << 14, middle = 1 << 28;
    return (int64_t)((m3_bits(s) - middle + near) & (2 * middle - 1)) < (int64_t)(2 * near);
}

#endif
