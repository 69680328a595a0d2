#include "oracle/error/profiles/codes.h"

#include <math.h>

#include "base/minmax.h"
#include "oracle/error/tiers/tiers.h"

struct m3_code_format m3_code_format_of(const struct m3_input_rounding *rule)
{
    switch (rule->codes) {
    case M3_CODES_Q8_0:
    case M3_CODES_Q8_K: return (struct m3_code_format){ 8, 0, 127 };
    case M3_CODES_NVFP4:
    case M3_CODES_MXFP4: return (struct m3_code_format){ 2, -1, 6 };
    default: return (struct m3_code_format){ 4, -9, 448 };
    }
}

int64_t m3_codes_group(const struct m3_input_rounding *rule, int64_t width)
{
    switch (rule->codes) {
    case M3_CODES_Q8_0:
    case M3_CODES_MXFP4: return 32;
    case M3_CODES_Q8_K: return 256;
    case M3_CODES_NVFP4: return 16;
    default: return rule->group != M3_GROUP_BLOCK ? width : rule->scaling == M3_SCALE_MX32 ? 32 : 128;
    }
}

int m3_codes_need_tensor(const struct m3_input_rounding *rule)
{
    return rule->codes == M3_CODES_NVFP4 || (m3_has_codes(rule) && rule->group == M3_GROUP_TENSOR);
}

/* The power of two by which MX formats scale: the greatest that is not above largest over the largest code's own power
 * of two, 2^exponent; or the least that brings the largest number within the codes. */
static double power_of_two(const struct m3_input_rounding *rule, double largest, double code, int exponent)
{
    int of_largest, of_share;
    frexp(largest, &of_largest);                        /* largest is in [2^(of_largest - 1), 2^of_largest) */
    if (rule->exponent_down) return ldexp(1, of_largest - 1 - exponent);
    const double share = frexp(largest / code, &of_share);
    return ldexp(1, share == 0.5 ? of_share - 1 : of_share);
}

static double nearest(const struct m3_code_format *format, double code)
{
    int exponent;
    frexp(code, &exponent);
    const int step = exponent - format->bits > format->least ? exponent - format->bits : format->least;
    return fmax(-format->largest, fmin(format->largest, ldexp(nearbyint(ldexp(code, -step)), step)));
}

struct m3_code_scale m3_codes_scale(const struct m3_input_rounding *rule, double largest, double tensor)
{
    static const struct m3_code_format e4m3 = { 4, -9, 448 };
    struct m3_code_scale scale = { 1, 1 };
    if (!(largest > 0)) return scale;
    switch (rule->codes) {
    case M3_CODES_Q8_0:
    case M3_CODES_Q8_K: scale.divides = (double)(float)(largest / 127); break;
    case M3_CODES_NVFP4: {
        const double global = (double)(float)(tensor / (6 * 448));
        const double stored = nearest(&e4m3, largest / 6 / global) * global;
        return stored > 0 ? (struct m3_code_scale){ stored, stored } : (struct m3_code_scale){ 1, 0 };
    }
    case M3_CODES_MXFP4: scale.divides = power_of_two(rule, largest, 6, 2); break;
    default:
        scale.divides =
            rule->scaling == M3_SCALE_MX32 ? power_of_two(rule, largest, 448, 8) : (double)(float)(largest / 448);
    }
    scale.multiplies = rule->codes == M3_CODES_Q8_0 ? m3_stored_as(scale.divides, M3_F16) : scale.divides;
    return scale;
}

double m3_coded(const struct m3_input_rounding *rule, double x, const struct m3_code_scale *scale)
{
    const struct m3_code_format format = m3_code_format_of(rule);
    return nearest(&format, x / scale->divides) * scale->multiplies;
}

/* ---- what it may cost */

/* A relative error of 2^-4, or 2^-3 if the number saturates, plus half the smallest step. */
static double e4m3_error(double *variance, const struct m3_input_rounding *rule, double size, double largest)
{
    const double largest_code = 448, half_step = 0x1p-10;
    double scale = largest / largest_code, saturated = INFINITY;
    if (rule->scaling == M3_SCALE_MX32 && largest > 0) {
        int exponent;
        frexp(largest, &exponent);                      /* largest is in [2^(exponent-1), 2^exponent) */
        if (rule->exponent_down) saturated = largest_code * ldexp(1, exponent - 9);
        int fits = largest <= largest_code * ldexp(1, exponent - 9);
        scale = ldexp(1, fits ? exponent - 9 : exponent - 8);
    }
    const double share = (size > saturated ? 0x1p-3 : 0x1p-4) * size, floor = half_step * scale;
    *variance = (share * share + floor * floor) / 3;
    return share + floor;
}

/* Half a step, and the rounding of the scale, which is stored in F16 (Q8_0) or in float (Q8_K); 2^-22: that of x over
 * the scale, in float, which decides near the middle between two codes. */
static double int8_error(double *variance, const struct m3_input_rounding *rule, double size, double largest)
{
    const double half = largest / 254, f16 = rule->codes == M3_CODES_Q8_0 ? 0x1p-11 : 0;
    const double share = (f16 + 0x1p-22) * (size + half), floor = f16 > 0 ? 127 * 0x1p-25 : 0;
    *variance = (half * half + share * share + floor * floor) / 3;
    return half + share + floor;
}

/* Codes 0, 1/2, 1, 3/2, 2, 3, 4, 6: up to 5/4 of the scale the error is at most a quarter of it, beyond that at most a
 * fifth of the number; where the largest may saturate, a quarter of it. 2^-20: divisions that are approximate.
 * NVFP4: the scale of a block is the 6th part of its largest number, in E4M3 times a global scale: off by 2^-4 of
 * itself, or by half the smallest step of E4M3. The global scale may be up to 16 times what this tensor needs. */
static double fp4_error(double *variance, const struct m3_input_rounding *rule, double size, double largest,
                        double tensor)
{
    double scale, lost = 0, share = 0.2;
    if (rule->codes == M3_CODES_NVFP4) {
        const double step = 16 * 0x1p-10 * tensor / (6 * 448);
        scale = largest / 6 * (1 + 0x1p-4) + step;
        lost = 6 * step;
    } else {
        struct m3_input_rounding up = *rule;
        up.exponent_down = 0;
        scale = power_of_two(&up, largest, 6, 2);
        if (rule->exponent_down) share = 0.25;
    }
    const double error = fmax(scale / 4, share * size) + lost + 0x1p-20 * size;
    *variance = error * error / 3;
    return error;
}

double m3_codes_error(double *variance, const struct m3_input_rounding *rule, double x, double largest, double tensor)
{
    *variance = 0;
    if (x == 0 || !(largest > 0)) return 0;
    switch (rule->codes) {
    case M3_CODES_Q8_0:
    case M3_CODES_Q8_K: return int8_error(variance, rule, fabs(x), largest);
    case M3_CODES_NVFP4:
    case M3_CODES_MXFP4: return fp4_error(variance, rule, fabs(x), largest, tensor);
    default: return e4m3_error(variance, rule, fabs(x), largest);
    }
}

double m3_read_value(double x, const struct m3_read_rounding *rule, double scale)
{
    const struct m3_code_format format = { .bits = -ilogb(rule->u),
                                           .least = rule->floor > 0 ? ilogb(2 * rule->floor) : -1074,
                                           .largest = rule->largest > 0 ? rule->largest : INFINITY };
    return isfinite(x) ? nearest(&format, x / scale) * scale : x;
}
