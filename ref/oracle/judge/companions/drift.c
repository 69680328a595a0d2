#include "oracle/judge/companions/drift.h"

#include <math.h>

void m3_drift_add(struct m3_drift *drift, const double *reference, const double *candidate, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = reference[i], d = candidate[i] - x;
        drift->xx += x * x;
        drift->xd += x * d;
        drift->dd += d * d;
    }
    drift->n += n;
}

double m3_drift_along(const struct m3_drift *drift) { return drift->xx > 0 ? drift->xd / drift->xx : 0; }

double m3_drift_length(const struct m3_drift *drift) { return sqrt(drift->dd); }

double m3_drift_across(const struct m3_drift *drift)
{
    double rest = drift->dd - m3_drift_along(drift) * drift->xd;
    return rest < 0 ? 0 : sqrt(rest);           /* below 0 only by rounding */
}

int m3_drift_is_known(const struct m3_drift *drift) { return isfinite(drift->xx) && isfinite(drift->dd); }

void m3_drift_propagate(struct m3_spread *out, int64_t at, const struct m3_drift *drift, const struct m3_drift_row *row)
{
    double length = m3_drift_length(drift) * (row->bends ? 1.5 : 1), along = m3_drift_along(drift);
    double across = m3_drift_across(drift), share = drift->n > 0 ? across * across / (double)drift->n : 0;
    for (int64_t i = 0; i < row->width; i++) {
        double by_size = along * (row->reference[i] - (row->bias ? row->bias[i] : 0));
        out->error[at + i] += row->gain[i] * length;
        out->variance[at + i] += by_size * by_size + row->gain[i] * row->gain[i] * share;
    }
}
