/* Numbers that share a scale: codes of few bits, times the scale. So engines round the inputs of products. SPEC 7.3. */
#ifndef M3_ORACLE_ERROR_CODES_H
#define M3_ORACLE_ERROR_CODES_H

#include "oracle/error/profile.h"

/* How the codes themselves are spaced: `bits` significant bits, but no step below 2^least, up to `largest`. */
struct m3_code_format {
    int bits, least;
    double largest;
};

/* A plain program divides numbers by one scale and multiplies codes by the other; they differ where the scale itself is
 * rounded after it has been used. */
struct m3_code_scale {
    double divides, multiplies;
};

/* All functions take a rule with m3_has_codes. `largest` is the largest number of those that share the scale, `tensor`
 * that of the whole tensor. */
struct m3_code_format m3_code_format_of(const struct m3_input_rounding *rule);
/* How many consecutive numbers of a row of `width` numbers share a scale. */
int64_t m3_codes_group(const struct m3_input_rounding *rule, int64_t width);
/* Does a scale depend on the largest number of the whole tensor? */
int m3_codes_need_tensor(const struct m3_input_rounding *rule);
struct m3_code_scale m3_codes_scale(const struct m3_input_rounding *rule, double largest, double tensor);
/* x as a plain program reads it: rounded to the nearest code. */
double m3_coded(const struct m3_input_rounding *rule, double x, const struct m3_code_scale *scale);
/* The most that any program may lose of x, and the variance of what it loses. */
double m3_codes_error(double *variance, const struct m3_input_rounding *rule, double x, double largest, double tensor);

/* x as it is read from a cache: the nearest code, ties to even, times the scale. */
double m3_read_value(double x, const struct m3_read_rounding *rule, double scale);

#endif
