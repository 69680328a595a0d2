/* exp, log, sin, cos, pow in double, without libm: same bits on every IEEE machine, compiler and vector width (see
 * exp.h for what that needs). libm differs between machines, and between CPUs under one library.
 *
 * Errors are below 0.9 ulp of the double result (math.c and exp.h bound each function). So a result rounded to float
 * is the correctly rounded float, unless the exact value is within 2^-29 float ulp of the middle of two floats.
 * Which NaN is returned is not defined. */
#ifndef M3_OPS_MATH_H
#define M3_OPS_MATH_H

/* Any x. Inf above 709.78; below -708.4 subnormal, then 0. Hot loops include ops/exp.h for the same body inline. */
double m3_exp(double x);

/* Any x; -inf for 0 and -0, NaN below. */
double m3_log(double x);

/* |x| <= 2^53, else both are NaN: there doubles lie two radians or more apart, so the angle is a mistake. */
void m3_sincos(double *sine, double *cosine, double x);

/* x^y for 0 < x < inf and finite y; NaN for all other arguments (also where C's pow has a value: 0, negative, inf). */
double m3_pow(double x, double y);

#endif
