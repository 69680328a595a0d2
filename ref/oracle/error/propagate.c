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

void m3_propagate_add(struct m3_spread *out, const struct m3_spread *of_a, const struct m3_spread *of_b, int64_t n)
{
    const struct m3_spread *both[] = { of_a, of_b };
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n && !m3_is_exact(both[k]); i++) {
            out->error[i] += both[k]->error[i];
            out->variance[i] += both[k]->variance[i];
        }
}
