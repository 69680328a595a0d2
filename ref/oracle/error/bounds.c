#include "oracle/error/bounds.h"

#include <math.h>

#include "ops/math.h"

struct m3_arithmetic m3_arithmetic_f32(void)
{
    return (struct m3_arithmetic){ .u = 0x1p-24, .c = 4, .c_turn = 1, .angle = M3_ANGLE_F64, .lambda = 7 };
}

double m3_bound_eta(double u) { return u > 0x1p-53 ? 0x1p-149 : 0x1p-1074; }

double m3_bound_allowed(double bound, double steps, double u)
{
    double underflow = bound > 0 ? steps * m3_bound_eta(u) : 0;
    return u * steps * bound + 0x1p-53 * steps * bound + underflow;
}

double m3_lambda(int64_t elements)
{
    const double alpha = 1e-6;
    return sqrt(2 * m3_log(2 * (double)elements / alpha));
}
