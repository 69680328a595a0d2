#ifndef M3_BASE_MINMAX_H
#define M3_BASE_MINMAX_H

#include <math.h>
#include <stdint.h>

static inline int64_t m3_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t m3_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Is abs(x) a power of two? No for 0, infinities and NaN. */
static inline int m3_is_power_of_two(double x)
{
    int exponent;
    return isfinite(x) && frexp(fabs(x), &exponent) == 0.5;
}

#endif
