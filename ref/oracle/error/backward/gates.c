#include <math.h>

#include "oracle/error/backward/backward.h"
#include "oracle/error/backward/slope.h"
#include "oracle/error/private/functions.h"
#include "ops/erf.h"

/* Below the smallest normal number a program may have any value, as 1 / (1 + exp(-x)) is 0 where exp(-x) is infinite. */
static double least_normal(double u) { return u > 0x1p-53 ? 0x1p-126 : 0x1p-1022; }

struct m3_slope_errors m3_logistic_errors(double a, double e_a, const struct m3_backward_arithmetic *how)
{
    const double u = how->u, s = m3_logistic(a), rest = m3_logistic(-a);
    struct m3_slope_errors e = { .s = s, .rest = rest };
    e.e_s = s * (rest * (e_a + how->c * u) + 2 * u) + least_normal(u);
    e.e_rest = e.e_s + u;       /* 1 - s, rounded */
    return e;
}

/* Both forms count: s (1 + alpha g (1 - s)) and s + alpha g s (1 - s). alpha and its product with g are rounded. */
int m3_error_gate_backward(struct m3_ctx *ctx, double *dgate, double *dup, const double *dy, const double *gate,
                           const double *up, int64_t n, const struct m3_gate *act,
                           const struct m3_backward_arithmetic *how)
{
#pragma omp parallel for num_threads(m3_team(ctx, n * 32))
    for (int64_t i = 0; i < n; i++) {
        const struct m3_gate_slope k = m3_gate_slope(gate[i], up[i], act);
        const struct m3_slope_errors e = m3_gate_errors(&k, how);
        const double d = fabs(dy[i]), most = 6 * (how->u + how->act);
        if (dgate) dgate[i] = k.has_gate ? d * k.size * (e.s * e.e_h + e.h * (e.e_s + most * e.s)) : 0;
        if (dup) dup[i] = k.has_up ? d * fabs(k.g) * (e.e_s + most * e.s) : 0;
    }
    return M3_OK;
}

int m3_error_sigmoid_backward(struct m3_ctx *ctx, double *dx, const double *dy, const double *x, int64_t n,
                              const struct m3_backward_arithmetic *how)
{
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        const struct m3_slope_errors e = m3_logistic_errors(x[i], 0, how);
        dx[i] = fabs(dy[i]) * (e.s * e.e_rest + e.rest * e.e_s + 3 * how->u * e.s * e.rest);
    }
    return M3_OK;
}

/* P = (1 + erf) / 2 with the steps of the forward bound, which allows 1 + erf; x phi with the error of exp, whose
 * argument x^2 / 2 is rounded twice. */
int m3_error_gelu_backward(struct m3_ctx *ctx, double *dx, const double *dy, const double *x, int64_t n,
                           const struct m3_backward_arithmetic *how)
{
    const double density_at_0 = 0.39894228040143267794, u = how->u;
    enum { ERF = 29 };          /* as in error/gelu.c */
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) {
        const double tail = m3_tail_body(fabs(x[i])), largest = tail < 0.5 ? 1 - tail : 0.5;
        const double part = fabs(x[i]) * density_at_0 * m3_exp(-x[i] * x[i] / 2);
        const double of_part = u * (x[i] * x[i] + how->c + 6) * part;
        dx[i] = fabs(dy[i]) * (u * (ERF + how->c + 5) * largest + of_part + least_normal(u));
    }
    return M3_OK;
}
