/* The upper tail of the standard normal distribution in double as an inline body, for the exact GELU. What exp.h says
 * of bits, branches, vectors and needs holds here too. */
#ifndef M3_OPS_ERF_H
#define M3_OPS_ERF_H

#include <stdint.h>

#include "ops/exp.h"

/* From here on the tail is less than half the least double, so 0. */
static const double m3_tail_end = 39;

/* An unevaluated sum of two doubles, hi of 26 bits: the product of two such is exact. */
struct m3_parts { double hi, lo; };

/* x with the lower 27 of its 53 bits cleared. */
static inline double m3_upper_bits(double x)
{
    return m3_from_bits(m3_bits(x) & ~UINT64_C(0x7ffffff));
}

/* 1 / (a + k) to about 2^-75, by one Newton step from y, which is that to 2^-50. a >= 0. */
static inline struct m3_parts m3_reciprocal_of_sum(double a, double k, double y)
{
    double sum_hi = m3_upper_bits(a + k), sum_lo = (k - sum_hi) + a, y_hi = m3_upper_bits(y);
    return (struct m3_parts){ y_hi, ((1 - y_hi * sum_hi) - y_hi * sum_lo) * y };
}

/* erfc(|x| / sqrt 2) / 2, any x. Error below 2 ulp; the worst of ten million points has 1.71, and 1.18 where the
 * result is subnormal. Exactly 1/2 at 0; 0 from 38.49 to inf.
 *
 *     a = |x|,  t = (a - 5.5) / (a + 5.5),  tail = exp(-a^2 / 2) p(t) / (a + k),  k = 61/64
 *
 * p: degree 22, even and odd powers apart, by a Remez exchange in 60 digits for the least relative error on
 * 0 <= a <= 39, then rounded to double: 2^-57.1. 5.5 is the place where degree 22 does best. k keeps p between 0.39
 * and 0.53, so that little but p_0 counts in its rounding, and is the fraction near 1 for which p_0 is nearly a double.
 * The two terms after p_0 were rounded in turn, and what follows fitted again.
 * Often wrong: a^2 rounded to double costs a^2 / 4 ulp, up to 350; 1 - erf has no correct digit left from 8.3 on; one
 * rounding for each of a + k, its reciprocal, p, exp and their products makes 4 ulp. Hence hi and lo throughout, with
 * one division for both fractions; 2^64 keeps the parts of the last product from underflow where it is normal. */
static inline double m3_tail_body(double x)
{
    const double k = 0x1.e8p-1, p_0 = 0x1.d0d313e1abd51p-2;
    double a = m3_from_bits(m3_bits(x) & ~(UINT64_C(1) << 63));
    a = m3_select(a > m3_tail_end, m3_tail_end, a);

    double a_hi = m3_upper_bits(a);
    double upper = 0.5 * (a_hi * a_hi), lower = 0.5 * ((a - a_hi) * (a + a_hi));
    double square_hi = upper + lower, square_lo = (upper - square_hi) + lower;
    double e = 0x1p64 * m3_exp_sum(-square_hi, -square_lo);

    double w = 1 / ((a + k) * (a + 5.5));
    struct m3_parts u = m3_reciprocal_of_sum(a, k, (a + 5.5) * w);
    struct m3_parts v = m3_reciprocal_of_sum(a, 5.5, (a + k) * w);
    double t = (1 - 11 * v.hi) - 11 * v.lo;

    double z = t * t;
    double even = -0x1.311d6f78fc84dp-30;
    even = even * z + 0x1.a5c7699792141p-28;
    even = even * z - 0x1.76ede29269484p-25;
    even = even * z + 0x1.e975f46a4a5a8p-22;
    even = even * z - 0x1.3e946f8644f5cp-18;
    even = even * z + 0x1.47f08296ec603p-15;
    even = even * z - 0x1.4b181e9cbcda9p-14;
    even = even * z - 0x1.1b418d5081881p-8;
    even = even * z - 0x1.357cd7e9657a0p-6;
    even = even * z - 0x1.87addc660674ap-6;
    even = even * z + 0x1.fba5bc94cf87bp-6;
    double odd = -0x1.1242ce8708d8bp-28;
    odd = odd * z + 0x1.2900aa58d6c5ep-25;
    odd = odd * z - 0x1.ce270d60d07f7p-23;
    odd = odd * z + 0x1.1b3dc8411faeap-20;
    odd = odd * z - 0x1.86750e67c7a3dp-22;
    odd = odd * z - 0x1.82e946aa40d97p-14;
    odd = odd * z + 0x1.322d7a10dcb73p-10;
    odd = odd * z + 0x1.572dd268b4146p-7;
    odd = odd * z + 0x1.a515cb46ce64fp-6;
    odd = odd * z + 0x1.8d3f883857ce8p-8;
    odd = odd * z - 0x1.505f02d0d22fbp-4;
    double p_rest = z * even + t * odd;
    double p = p_0 + p_rest;
    double p_hi = m3_upper_bits(p), p_lo = (p_0 - p_hi) + p_rest;

    double r_exact = u.hi * p_hi, r_more = u.hi * p_lo + u.lo * p;
    double r = r_exact + r_more;
    double r_hi = m3_upper_bits(r), r_lo = (r_exact - r_hi) + r_more;
    double e_hi = m3_upper_bits(e), e_lo = e - e_hi;
    return (e_hi * r_hi + (e_hi * r_lo + e_lo * r)) * 0x1p-64;
}

#endif
