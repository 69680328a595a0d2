/* exp, log, sin, cos, pow in double, without libm: with the same bits on every IEEE machine, compiler and vector width
 * (see exp.h for the requirements). The results of libm differ between machines, and with one library even between
 * CPUs.
 *
 * Errors are below 0.9 ulp of the double result (math.c and exp.h bound each function). A result rounded to float is
 * therefore the correctly rounded float, unless the exact value is within 2^-29 float ulp of the middle of two floats.
 * Which NaN is returned is not defined. */
#ifndef M3_OPS_MATH_H
#define M3_OPS_MATH_H

/* e^x for any x: inf above 709.78; subnormal below -708.4, then 0. Hot loops include ops/exp.h for the same body
 * inline. */
double m3_exp(double x);

/* ln x for any x: -inf for 0 and -0, NaN for negative x. */
double m3_log(double x);

/* Both for |x| <= 2^53. Beyond that both are NaN: doubles there lie two radians or more apart, so the angle is a
 * mistake. */
void m3_sincos(double *sine, double *cosine, double x);

/* x^y for 0 < x < inf and finite y; NaN for all other arguments (also where C's pow has a value: 0, negative, inf). */
double m3_pow(double x, double y);

#endif
