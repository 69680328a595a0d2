#include "oracle/error/propagate.h"

#include <math.h>

void m3_propagate_store(struct m3_spread *out, const double *y, int64_t n, double u, double floor)
{
    for (int64_t i = 0; i < n; i++) {
        double relative = u * fabs(y[i]), least = y[i] != 0 ? floor : 0;
        out->error[i] += relative + least;
        out->variance[i] += (relative * relative + least * least) / 3;
    }
}

double m3_store_floor(enum m3_dtype dtype)
{
    switch (dtype) {
    case M3_F16: return 0x1p-25;
    case M3_BF16: return 0x1p-134;
    default: return 0;
    }
}
