/* The upper tail of the standard normal distribution in double, as an inline body, for the exact GELU. What exp.h says
 * about bits, branches, vectors and requirements applies here too. */
#ifndef M3_OPS_ERF_H
#define M3_OPS_ERF_H

#include <stdint.h>

#include "ops/exp.h"

/* From here on the tail is less than half the smallest positive double, so the result is 0. */
static const double m3_tail_end = 39;

/* x with the lower 27 of its 53 bits cleared. */
static inline double m3_upper_bits(double x) { return m3_from_bits(m3_bits(x) & ~UINT64_C(0x7ffffff)); }

/* erfc(|x| / sqrt 2) / 2, any x. Error below 14 ulp (worst seen in 3,000,000 points: 5.3). Exactly 1/2 at 0; 0 from
 * 38.49 to inf.
 *
 *     a = |x|,  t = (a - 5.5) / (a + 5.5),  tail = exp(-a^2 / 2) p(t) / (a + k),  k = 61/64
 *
 * p: degree 22, even and odd powers summed separately; from a Remez exchange in 60 digits that minimises the relative
 * error on 0 <= a <= 39, then rounded to double: 2^-57.1. 5.5 is the centre for which degree 22 is most accurate. k
 * keeps p between 0.39 and 0.53, so that p_0 dominates its rounding error; it is the fraction near 1 for which p_0 is
 * closest to a double.
 * Error, in 2^-53 of the result: exp 1.5; (a + 5.5) w and the a + k in it 4; t is off by 6, which moves p by up to 0.7
 * of that, 4.2; the last sum of p 1, its smaller part 0.4; two products 2.
 * Often wrong: a^2 rounded to double costs a^2 / 4 ulp, up to 350; 1 - erf has no correct digit left from 8.3 on. */
static inline double m3_tail_body(double x)
{
    const double k = 0x1.e8p-1, p_0 = 0x1.d0d313e1abd51p-2;
    double a = m3_from_bits(m3_bits(x) & ~(UINT64_C(1) << 63));
    a = m3_select(a > m3_tail_end, m3_tail_end, a);

    double a_hi = m3_upper_bits(a);
    double upper = 0.5 * (a_hi * a_hi), lower = 0.5 * ((a - a_hi) * (a + a_hi));
    double square_hi = upper + lower, square_lo = (upper - square_hi) + lower;
    double e = m3_exp_sum(-square_hi, -square_lo);

    double w = 1 / ((a + k) * (a + 5.5));
    double t = (a - 5.5) * ((a + k) * w);

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
    double p = p_0 + (z * even + t * odd);
    return e * (p * ((a + 5.5) * w));
}

/* erfc(|x| / sqrt 2) / 2 for a product with x that is rounded to float, |x| <= 15: relative error < 2^-37.
 *
 *     as above, with p of degree 13 in t = (a - 4.5) / (a + 4.5), for 0 <= a <= 15: 2^-38.09
 *
 * The square of a float is exact in double. */
static inline double m3_tail_brief(float x)
{
    const double k = 0x1.e8p-1;
    double a = m3_from_bits(m3_bits((double)x) & ~(UINT64_C(1) << 63));
    double e = m3_exp_brief(-0.5 * (a * a));
    double w = 1 / ((a + k) * (a + 4.5));
    double t = (a - 4.5) * ((a + k) * w);

    double z = t * t;
    double even = -0x1.a7520f5ba9642p-17;
    even = even * z + 0x1.24b9e7719a291p-14;
    even = even * z + 0x1.172ee4f0920dfp-13;
    even = even * z - 0x1.618c9a838334fp-7;
    even = even * z - 0x1.08668b599d31ep-5;
    even = even * z + 0x1.29e9184949252p-6;
    even = even * z + 0x1.d98ac9c989a26p-2;
    double odd = -0x1.57c485a1c0013p-18;
    odd = odd * z + 0x1.35116dfbb3bf2p-15;
    odd = odd * z - 0x1.78758001ae180p-12;
    odd = odd * z + 0x1.65187aa9df99cp-9;
    odd = odd * z + 0x1.7ef0a910b22b9p-6;
    odd = odd * z + 0x1.71ba40bdc37fdp-6;
    odd = odd * z - 0x1.64f42c4d9c930p-4;
    return e * ((even + t * odd) * ((a + 4.5) * w));
}

#endif
