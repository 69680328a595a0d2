#include "oracle/error/bounds.h"

#include <math.h>

#include "ops/math.h"

struct m3_arithmetic m3_arithmetic_f32(void)
{
    return (struct m3_arithmetic){ .u = 0x1p-24, .c = 4, .c_turn = 1, .angle = M3_ANGLE_F64, .lambda = 7 };
}

struct m3_arithmetic m3_arithmetic_f64(void)
{
    return (struct m3_arithmetic){ .u = 0x1p-53, .c = 4, .c_turn = 1, .angle = M3_ANGLE_F64, .lambda = 7 };
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

int m3_bound_copy(struct m3_ctx *ctx, struct m3_bound *out, int64_t elements)
{
    (void)ctx;
    out->n = out->f = 0;
    for (int64_t i = 0; i < elements; i++) {
        out->bound[i] = 0;
        if (out->walk) out->walk[i] = 0;
    }
    return M3_OK;
}

int m3_bound_add(struct m3_ctx *ctx, struct m3_bound *out, const double *a, const double *b, int64_t n)
{
    out->n = 0;
    out->f = 2;                                 /* one, and one more for what a fused kernel had not yet rounded */
#pragma omp parallel for num_threads(m3_team(ctx, n))
    for (int64_t i = 0; i < n; i++) {
        double y = a[i] + b[i];
        out->bound[i] = fabs(a[i]) + fabs(b[i]);
        if (out->walk) out->walk[i] = sqrt(a[i] * a[i] + b[i] * b[i] + y * y);
    }
    return M3_OK;
}

int m3_bound_jitter(struct m3_ctx *ctx, struct m3_bound *out, const double *x, int64_t n, double eps)
{
    out->n = 0;
    out->f = 2;
#pragma omp parallel for num_threads(m3_team(ctx, n))
    for (int64_t i = 0; i < n; i++) {
        out->bound[i] = fabs(x[i]) * (1 + eps);
        if (out->walk) out->walk[i] = sqrt(2) * out->bound[i];
    }
    return M3_OK;
}
