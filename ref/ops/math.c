/* This file uses only + - * /, comparisons and integer operations on bits, as exp.h explains: no fma, no tables.
 * Taylor coefficients are written as fractions. */
#include "ops/math.h"
#include "ops/exp.h"

#include <float.h>
#include <math.h>           /* NAN and INFINITY only */
#include <stdint.h>

/* An unevaluated sum of two doubles, |lo| at most about an ulp of hi. */
struct dd {
    double hi, lo;
};

/* a + b exactly, if |a| >= |b| or a is 0. */
static struct dd fast_two_sum(double a, double b)
{
    double s = a + b;
    return (struct dd){ s, b - (s - a) };
}

/* a + b exactly (Knuth). */
static struct dd two_sum(double a, double b)
{
    double s = a + b, b_part = s - a;
    return (struct dd){ s, (a - (s - b_part)) + (b - b_part) };
}

/* The upper 26 bits of a and the rest (Veltkamp); |a| < 2^996. */
static struct dd split(double a)
{
    double c = a * 0x1.0000002p27;      /* 2^27 + 1 */
    double hi = c - (c - a);
    return (struct dd){ hi, a - hi };
}

/* a * b exactly, except for overflow and underflow (Dekker). */
static struct dd two_prod(double a, double b)
{
    double p = a * b;
    struct dd u = split(a), v = split(b);
    return (struct dd){ p, ((u.hi * v.hi - p) + u.hi * v.lo + u.lo * v.hi) + u.lo * v.lo };
}

/* a + b, |a| >= |b| or a is 0; relative error about 2^-104 unless they cancel. */
static struct dd add_smaller(struct dd a, struct dd b)
{
    struct dd s = fast_two_sum(a.hi, b.hi);
    return fast_two_sum(s.hi, s.lo + (a.lo + b.lo));
}

/* a * b; relative error about 2^-103. */
static struct dd multiply(struct dd a, struct dd b)
{
    struct dd p = two_prod(a.hi, b.hi);
    return fast_two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

double m3_exp(double x) { return m3_exp_body(x); }

/* ln x for finite x > 0; relative error below 2^-68, which pow needs because it multiplies the error by up to 745.
 *
 *     x = 2^k m,  m in [sqrt(1/2), sqrt(2)),  s = (m - 1) / (m + 1),  z = s^2 <= 0.0295
 *     ln x = k ln 2 + 2 s (1 + z (1/3 + z (1/5 + z T(z))))
 *
 * Taylor series of 2 artanh(s) up to s^25. T is plain double: z^3 < 2^-15 keeps its rounding below 2^-70; the rest is
 * double-double.
 * Often wrong: m - 1 is exact but m + 1 and the quotient are not; k ln 2 and ln m must not have opposite signs and
 * similar size, so m is centred on 1 instead of lying in [1, 2). */
static struct dd log_sum(double x)
{
    int64_t k = 0;
    if (x < DBL_MIN) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t centred = m3_bits(x) + (m3_bits(1.0) - m3_bits(0x1.6a09e667f3bcdp-1));
    int64_t e = (int64_t)(centred >> 52) - 1023;
    double m = m3_from_bits(m3_bits(x) - ((uint64_t)e << 52));
    k += e;

    struct dd den = two_sum(m, 1);
    double q = (m - 1) / den.hi;
    struct dd back = two_prod(q, den.hi);
    struct dd s = { q, (((m - 1) - back.hi) - back.lo - q * den.lo) / den.hi };
    struct dd z = multiply(s, s);

    double t = 1.0 / 25;
    t = t * z.hi + 1.0 / 23;
    t = t * z.hi + 1.0 / 21;
    t = t * z.hi + 1.0 / 19;
    t = t * z.hi + 1.0 / 17;
    t = t * z.hi + 1.0 / 15;
    t = t * z.hi + 1.0 / 13;
    t = t * z.hi + 1.0 / 11;
    t = t * z.hi + 1.0 / 9;
    t = t * z.hi + 1.0 / 7;

    const struct dd third = { 1.0 / 3, 0x1.5555555555555p-56 }, fifth = { 1.0 / 5, -0x1.999999999999ap-57 };
    struct dd series = add_smaller(fifth, (struct dd){ t * z.hi, 0 });
    series = add_smaller(third, multiply(series, z));
    struct dd twice_s = { 2 * s.hi, 2 * s.lo };
    struct dd log_m = add_smaller(twice_s, multiply(twice_s, multiply(series, z)));
    return add_smaller((struct dd){ (double)k * m3_ln2_hi, (double)k * m3_ln2_lo }, log_m);
}

/* log_sum rounded: error < 0.501 ulp. */
double m3_log(double x)
{
    if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
    if (x == INFINITY) return x;
    struct dd l = log_sum(x);
    return l.hi + l.lo;
}

/* exp(y ln x), with the logarithm and the product in double-double: error < 0.78 ulp, < 0.9 ulp if subnormal. Often
 * wrong: with ln x rounded to double the error is |y ln x| ulp, up to 700 ulp. */
double m3_pow(double x, double y)
{
    if (!(x > 0 && x < INFINITY && y > -INFINITY && y < INFINITY)) return NAN;
    y = y > 0x1p70 ? 0x1p70 : y < -0x1p70 ? -0x1p70 : y;    /* |ln x| is 0 or >= 2^-53: the result is certain */
    struct dd l = log_sum(x);
    struct dd p = two_prod(l.hi, y);
    double lo = p.lo + l.lo * y;
    if (p.hi > 746 || p.hi < -746) lo = 0;
    return m3_exp_sum(p.hi, lo);
}

/* a - k pi/2, |result| <= pi/4 (1 + 2^-50), relative error below 2^-54.5; k modulo 4 in *quadrant. 0 <= a <= 2^53.
 *
 * k pi/2 reaches 2^53 while the result may be as small as 2^-60.5 (at 0x1.6c6cbc45dc8dep+5). Three parts of pi/2 hold
 * 161 bits; the products with two of them are exact in two doubles. The parts that are rounded (p2.lo, p3 and their
 * sum) are below 2^-54.5 of the smallest result in every binade of a (from the convergents of 2^e/pi).
 * Often wrong: near 2^53 the product a * 2/pi rounded to double misses the nearest integer; hence k in two steps. The
 * first may be restricted to even values (above 2^51 the shift rounds to multiples of 2); the second corrects it. */
static struct dd reduce_by_half_pi(double a, unsigned *quadrant)
{
    const double shift = 0x1.8p52;
    struct dd turns = two_prod(a, 0x1.45f306dc9c883p-1);
    double turns_lo = turns.lo + a * -0x1.6b01ec5417056p-55;
    double k1 = (turns.hi + shift) - shift;
    double k2 = (((turns.hi - k1) + turns_lo) + shift) - shift;
    double k = k1 + k2;
    *quadrant = (unsigned)((int64_t)k & 3);

    struct dd p1 = two_prod(k, 0x1.921fb54442d18p+0);
    struct dd p2 = two_prod(k, 0x1.1a62633145c07p-54);
    double p3 = k * -0x1.f1976b7ed8fbcp-110;

    double s1 = (a - p1.hi) - p1.lo;                /* exact: for k > 5 all are multiples of 2^-49, or p1.lo is 0 */
    struct dd s2 = two_sum(s1, -p2.hi);
    return two_sum(s2.hi, s2.lo - (p2.lo + p3));
}

/* x = k pi/2 + r, |r| <= pi/4; Taylor series of sine and cosine at r (up to r^17 and r^16, truncation below 2^-58),
 * exchanged and negated according to k mod 4. Error < 0.85 ulp, also next to multiples of pi/2.
 * Often wrong: the low part of r matters in both (r_lo cos r in the sine, -r_lo r in the cosine); 1 - r^2/2 needs the
 * rounding errors of the square and of the difference, otherwise the cosine is off by a further quarter ulp. */
void m3_sincos(double *sine, double *cosine, double x)
{
    double a = m3_from_bits(m3_bits(x) << 1 >> 1);  /* |x|, also of -0 */
    if (!(a <= 0x1p53)) {
        *sine = *cosine = NAN;
        return;
    }
    unsigned quadrant;
    struct dd r = reduce_by_half_pi(a, &quadrant);
    struct dd z = two_prod(r.hi, r.hi);

    double p = 1.0 / 355687428096000;               /* 17! */
    p = p * z.hi - 1.0 / 1307674368000;
    p = p * z.hi + 1.0 / 6227020800;
    p = p * z.hi - 1.0 / 39916800;
    p = p * z.hi + 1.0 / 362880;
    p = p * z.hi - 1.0 / 5040;
    p = p * z.hi + 1.0 / 120;
    p = p * z.hi - 1.0 / 6;

    double q = 1.0 / 20922789888000;                /* 16! */
    q = q * z.hi - 1.0 / 87178291200;
    q = q * z.hi + 1.0 / 479001600;
    q = q * z.hi - 1.0 / 3628800;
    q = q * z.hi + 1.0 / 40320;
    q = q * z.hi - 1.0 / 720;
    q = q * z.hi + 1.0 / 24;

    double half = 0.5 * z.hi;
    double w = 1 - half, w_err = (1 - w) - half;
    double s = r.hi + (r.hi * z.hi * p + r.lo * w);
    double c = w + (z.hi * z.hi * q + (w_err - (0.5 * z.lo + r.hi * r.lo)));

    double swapped_s = quadrant & 1 ? c : s, swapped_c = quadrant & 1 ? s : c;
    int s_negative = (quadrant >> 1) ^ (unsigned)(m3_bits(x) >> 63), c_negative = ((quadrant + 1) >> 1) & 1;
    *sine = s_negative ? -swapped_s : swapped_s;
    *cosine = c_negative ? -swapped_c : swapped_c;
}
