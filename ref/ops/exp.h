/* exp in double as an inline body: multiplication, addition, comparison and integer operations on bits only. Therefore
 * every compiler, optimisation level and vector width gives the same bits. It has no branches: a loop over it
 * vectorises (`#pragma omp simd`), and files compiled for several instruction sets may all include it.
 *
 * Needs round-to-nearest, subnormals on (no flushing to zero), and -ffp-contract=off. */
#ifndef M3_OPS_EXP_H
#define M3_OPS_EXP_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "double expressions must be evaluated in double (x87 arithmetic gives other bits)"
#endif
#ifdef __FAST_MATH__
#error "the error-free sums below are wrong under -ffast-math"
#endif

/* ln 2 in two parts: 42 bits, so that n * hi is exact for |n| < 2^11, and 53 more. */
static const double m3_ln2_hi = 0x1.62e42fefa3800p-1, m3_ln2_lo = 0x1.ef35793c76730p-45;
static const double m3_ln2 = 0x1.62e42fefa39efp-1, m3_log2_e = 0x1.71547652b82fep+0;

static inline uint64_t m3_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double m3_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* condition ? a : b, for condition 0 or 1. It uses masks because gcc turns `?:` with a constant into branches, and the
 * loop around it then does not vectorise. */
static inline double m3_select(int condition, double a, double b)
{
    uint64_t mask = 0 - (uint64_t)condition;
    return m3_from_bits((m3_bits(a) & mask) | (m3_bits(b) & ~mask));
}

/* The reduced argument of exp: r, the rounding error of r, and n in the low bits of `shifted`. */
struct m3_exp_argument {
    double r, r_err, shifted;
};

/* exp(hi + lo), |lo| <= 2^-42: m3_exp_of(m3_exp_reduce(hi, lo)) for hi <= 710, m3_exp_sum(hi, lo) for any hi. Error <
 * 0.75 ulp, < 0.9 ulp where the result is subnormal (it is rounded twice).
 *
 *     n = nearest integer to hi / ln 2,  r = hi + lo - n ln 2,  |r| <= 0.35
 *     exp = 2^n (1 + r + r^2 p(r)),  p of degree 9, even and odd powers summed separately (half the latency)
 *
 * p: the constant 1/2 is fixed; the others come from a Remez exchange in 60 digits that minimises the relative error
 * of exp on |r| <= ln(2)/2, then rounded to double: 2^-57.2.
 * Often wrong: 1 + r loses low bits of r (s_err keeps them); one factor 2^n cannot reach subnormal results, and at n =
 * 1024 it overflows although the product does not, hence two factors of about 2^(n/2).
 * inf, 0 and subnormal results need no branch: hi is clamped to values where the result is certain whatever lo is.
 * Both comparisons are false for NaN, which passes through. */
static inline struct m3_exp_argument m3_exp_reduce(double hi, double lo)
{
    hi = m3_select(hi < -746, -746, hi);

    /* Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits; 2 * 1023 more turns its two halves into
     * biased exponents. */
    const double shift = 0x1.8p52 + 2046;
    double shifted = hi * m3_log2_e + shift;
    double n = shifted - shift;
    double r_hi = hi - n * m3_ln2_hi;               /* exact */
    double minus_r_lo = n * m3_ln2_lo - lo;
    double r = r_hi - minus_r_lo;
    return (struct m3_exp_argument){ r, (r_hi - r) - minus_r_lo, shifted };
}

static inline double m3_exp_of(struct m3_exp_argument x)
{
    uint64_t exponents = m3_bits(x.shifted) - m3_bits(0x1.8p52);
    uint64_t first = exponents >> 1, second = exponents - first;

    double r = x.r, z = r * r;
    double even = 0x1.289f819e4dc42p-22;
    even = even * z + 0x1.a019ab35c2a71p-16;
    even = even * z + 0x1.6c16c17cc0b7cp-10;
    even = even * z + 0x1.555555555320ep-5;
    even = even * z + 0.5;
    double odd = 0x1.ad2027247fbd3p-26;
    odd = odd * z + 0x1.71df5525009b9p-19;
    odd = odd * z + 0x1.a01a011c37133p-13;
    odd = odd * z + 0x1.111111112882ep-7;
    odd = odd * z + 0x1.5555555555501p-3;
    double p = even + r * odd;

    double s = 1 + r;
    double s_err = (1 - s) + r;                     /* exact, |r| < 1 */
    double y = s + (z * p + (s_err + x.r_err * s));
    return y * m3_from_bits(first << 52) * m3_from_bits(second << 52);
}

static inline double m3_exp_sum(double hi, double lo)
{
    return m3_exp_of(m3_exp_reduce(m3_select(hi > 710, 710, hi), lo));
}

/* The first half of m3_exp_body. */
static inline struct m3_exp_argument m3_exp_body_reduce(double x)
{
    return m3_exp_reduce(m3_select(x > 710, 710, x), 0);
}

static inline double m3_exp_body(double x) { return m3_exp_sum(x, 0); }

/* m3_select for floats, of which a vector holds twice as many. */
static inline float m3_select_float(int condition, float a, float b)
{
    uint32_t bits, other, mask = 0 - (uint32_t)condition;
    memcpy(&bits, &a, sizeof bits);
    memcpy(&other, &b, sizeof other);
    bits = (bits & mask) | (other & ~mask);
    memcpy(&a, &bits, sizeof a);
    return a;
}

/* exp for a result that is rounded to float, |x| <= 700: relative error < 2^-39, so it gives the nearest float except
 * for about one argument in 2^14. It takes half the operations of the full body.
 *
 *     as above, with r in one double and p of degree 6: 2^-39.67 */
static const double m3_brief_p[] = { 0x1.000000005ddb4p-1, 0x1.5555557dccf38p-3,  0x1.5555541e80a68p-5,
                                     0x1.1110a26ac15d5p-7, 0x1.6c18d2fa7ab77p-10, 0x1.a1854d5621a99p-13,
                                     0x1.9e894a3146b0fp-16 };

/* Added to a number, leaves its nearest integer n as n + 1023, the exponent of 2^n. */
static const double m3_brief_shift = 0x1.8p52 + 1023;

static inline struct m3_exp_argument m3_exp_brief_reduce(double x)
{
    double shifted = x * m3_log2_e + m3_brief_shift;
    double n = shifted - m3_brief_shift;
    return (struct m3_exp_argument){ x - n * m3_ln2, 0, shifted };
}

static inline double m3_exp_brief_of(struct m3_exp_argument x)
{
    const double *c = m3_brief_p;
    double r = x.r, z = r * r;
    double even = ((c[6] * z + c[4]) * z + c[2]) * z + c[0];
    double odd = (c[5] * z + c[3]) * z + c[1];
    double p = even + r * odd;
    return (1 + (r + z * p)) * m3_from_bits(m3_bits(x.shifted) << 52);
}

static inline double m3_exp_brief(double x) { return m3_exp_brief_of(m3_exp_brief_reduce(x)); }

static inline struct m3_exp_argument m3_exp_falling_reduce(float x)
{
    return m3_exp_brief_reduce((double)m3_select_float(x < -104, -104, x));
}

/* exp of any x <= 0, for a result that is rounded to float: 0 from -104 down. */
static inline double m3_exp_falling(float x) { return m3_exp_brief_of(m3_exp_falling_reduce(x)); }

#endif
