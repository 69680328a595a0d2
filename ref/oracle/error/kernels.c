#include "oracle/error/private/kernels.h"

#include <float.h>
#include <math.h>

#include "ops/erf.h"

/* z is compared with less than its limit, which leaves room for roundings. */
static int terms(struct m3_terms *to, const struct m3_tap_values *tap, const struct m3_allowing *common, int64_t first,
                 int64_t n)
{
    static const double zeros[M3_PIECE];
    const struct m3_allowing k = *common;
    const double *c = tap->candidate + first, *r = tap->reference + first, *B = tap->bound + first;
    const double *walk = tap->walk + first, *extra = tap->extra ? tap->extra + first : zeros;
    const double *variance = tap->extra_variance ? tap->extra_variance + first : zeros;
    const double most = DBL_MAX, most_z2 = 2.9 * k.lambda * k.lambda, least = 0x1p-500;
    int64_t with_bound = 0, with_sigma = 0, usual = 0;
#pragma omp simd reduction(+ : with_bound, with_sigma, usual)
    for (int64_t i = 0; i < n; i++) {
        const double rest = m3_allowed_rest(&k, B[i], extra[i]), hard = k.u_steps * B[i] + rest;
        const double probable = m3_smaller(k.u * (k.roundings * B[i]) + rest, hard);
        const double sigma2 = m3_allowed_variance(&k, B[i], walk[i], variance[i]);
        const double d = c[i] - r[i], size = fabs(d), z2 = d * d / sigma2;
        const int is_sound = (B[i] >= 0) & (hard <= most) & (probable <= most) & (sigma2 <= most);
        const int is_within = (fabs(c[i]) <= most) & (fabs(r[i]) <= most) & (size <= hard) & (size <= probable);
        const int is_usual = (size == 0) | ((size > least) & (sigma2 > 0) & (z2 < most_z2));
        to->e[i] = m3_select(B[i] > 0, d / (k.u * B[i]), 0);
        to->ratio[i] = m3_select(B[i] > 0, fabs(r[i]) / B[i], 0);
        to->z2[i] = m3_select(sigma2 > 0, z2, 0);
        to->share[i] = m3_select(size > 0, size / hard, 0);
        with_bound += B[i] > 0;
        with_sigma += sigma2 > 0;
        usual += is_sound & is_within & is_usual;
    }
    to->with_bound = with_bound, to->with_sigma = with_sigma;
    return usual == n;
}

static void scale(double *out, const double *x, int64_t n, double factor)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = factor * x[i];
}

static void add(double *bound, double *walk, const double *a, const double *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) bound[i] = fabs(a[i]) + fabs(b[i]);
    for (int64_t i = 0; i < n && walk; i++) {
        const double y = a[i] + b[i];
        walk[i] = sqrt(a[i] * a[i] + b[i] * b[i] + y * y);
    }
}

static void gelu(double *bound, const double *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        bound[i] = fabs(x[i]) * (1 - m3_tail_body(x[i]));           /* |erf(x / sqrt 2)| = 1 - 2 tail */
}

static void sigmoid(double *bound, const double *x, int64_t n, double steps, double u, int is_tanh)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const double s = m3_logistic(x[i]);
        bound[i] = m3_select(is_tanh & (s == s), 1, m3_logistic_bound(s, steps, u));
    }
}

static void gate_bound(double *bound, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g,
                       double steps, double u)
{
    const struct m3_gate_form form = *g;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) bound[i] = m3_gate_bound_of(gate[i], up[i], &form, steps, u);
}

static void by_alpha(double *out, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g)
{
    const struct m3_gate_form form = *g;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = m3_gate_by_alpha_alone(gate[i], up[i], &form);
}

static void by_limit_of_up(double *out, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g)
{
    const struct m3_gate_form form = *g;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = m3_gate_by_limit_of_up(gate[i], up[i], &form);
}

static void by_limit_of_gate(double *out, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g)
{
    const struct m3_gate_form form = *g;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = m3_gate_by_limit_of_gate(gate[i], up[i], &form);
}

extern const struct m3_error_kernels M3_KERNELS;
const struct m3_error_kernels M3_KERNELS = {
    .name = M3_KERNELS_NAME,
    .terms = terms,
    .add = add,
    .gate = gate_bound,
    .gelu = gelu,
    .sigmoid = sigmoid,
    .scale = scale,
    .by_alpha = by_alpha,
    .by_limit_of_up = by_limit_of_up,
    .by_limit_of_gate = by_limit_of_gate,
};
