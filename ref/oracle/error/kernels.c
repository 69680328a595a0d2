#include "oracle/error/private/kernels.h"

#include <float.h>
#include <math.h>

#include "ops/erf.h"
#include "oracle/error/tiers/tiers.h"

/* z is compared with less than its limit, which leaves room for roundings. */
static int terms(struct m3_terms *to, const struct m3_two_sides *tap, const struct m3_allowing *common, int64_t first,
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

/* The mean of an honest error. Roundings of the arithmetic may all go to one side: constants, exp, a table of angles.
 * Roundings of stored values do not, but the squares of some do, where an operator is curved. */
static inline double bias_of(double most, double bound, double variance, double y)
{
    return most * bound + variance / (fabs(y) + sqrt(variance)) / 8;
}

static int filter_elements(struct m3_filter_elements *e, const struct m3_two_sides *tap, const double *by,
                           const double *shape, const struct m3_filter_rules *rules, int64_t first)
{
    static const double zeros[M3_FILTER_PIECE];
    const struct m3_filter_rules k = *rules;
    const double *c = tap->candidate + first, *r = tap->reference + first, *B = tap->bound + first, u = tap->u;
    const double *walks = tap->walk ? tap->walk + first : zeros;
    const double *extra = tap->extra_variance ? tap->extra_variance + first : zeros;
    const int64_t n = e->n;
    int64_t parts = 0;
#pragma omp simd reduction(+ : parts)
    for (int64_t i = 0; i < n; i++) {
        const double walk = u * walks[i], variance = walk * walk / 3 + extra[i];
        e->d[i] = c[i] - r[i];
        e->g[i] = by[i];
        e->v[i] = variance;
        e->b[i] = bias_of(k.most, B[i], variance, r[i]) + k.of_walk * walks[i] + k.of_y * fabs(r[i]);
        e->s[i] = k.of_shape * shape[i];
        parts += by[i] != 0;
    }
    return parts > 0;
}

static void filter_terms(struct m3_filter_terms *to, const struct m3_filter_elements *e)
{
    const double most = DBL_MAX;
    int64_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < e->n; i++) {
        const double weight = 1 / e->v[i], g = e->g[i], up = g * e->d[i] * weight, size = g * g * weight;
        const int is_finite = (fabs(up) <= most) & (fabs(size) <= most) & (fabs(e->b[i] + e->s[i]) <= most);
        const int counts = (e->v[i] > 0) & is_finite & (size != 0);
        to->lines_up[i] = m3_select(counts, up, 0);
        to->size[i] = m3_select(counts, size, 0);
        to->biased[i] = m3_select(counts, fabs(g) * e->b[i] * weight, 0);
        to->spread[i] = m3_select(counts, fabs(g) * sqrt(weight), 0);
        to->shape[i] = m3_select(counts, g * e->s[i] * weight, 0);
        to->squares[i] = m3_select(counts, e->d[i] * e->d[i] * weight, 0);
        count += counts;
    }
    to->count = count;
}

/* The power of two of |x|, normal. */
static inline double power_of(double x) { return m3_from_bits(m3_bits(x) & UINT64_C(0x7ff) << 52); }

static int grid(struct m3_grid_counts *to, const struct m3_two_sides *tap, int bits, int least, int64_t first,
                int64_t n)
{
    const double *c = tap->candidate + first, *r = tap->reference + first, *B = tap->bound + first, u = tap->u;
    const double smallest = ldexp(1, least + bits - 1), spacing = ldexp(1, 1 - bits), most = DBL_MAX;
    const uint64_t beyond = (UINT64_C(1) << (53 - bits)) - 1;
    const int is_float = tap->stored == M3_F32;
    int64_t telling = 0, off = 0, reference_off = 0, usual = 0;
#pragma omp simd reduction(+ : telling, off, reference_off, usual)
    for (int64_t i = 0; i < n; i++) {
        const double rounding = u * B[i], stored = m3_select(is_float, (double)(float)r[i], r[i]);
        const double size = fabs(c[i]), other = fabs(stored);
        const int tells = (rounding == 0) | ((size != 0) & (power_of(c[i]) * spacing >= 16 * rounding));
        telling += tells;
        off += tells & ((m3_bits(c[i]) & beyond) != 0);
        reference_off += tells & ((m3_bits(stored) & beyond) != 0);
        usual += ((size >= smallest) | (size == 0)) & ((other >= smallest) | (other == 0)) & (size <= most) &
                 (other <= most);
    }
    if (usual < n) return 0;
    to->telling += telling, to->off += off, to->reference_off += reference_off;
    return 1;
}

static void sizes(double *size, double *square, const double *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) size[i] = fabs(x[i]), square[i] = x[i] * x[i];
}

enum { SIDE_BY_SIDE = 8 };

static double dot(double *mass, const double *a, const double *b, int64_t n)
{
    double sums[SIDE_BY_SIDE] = { 0 }, sizes[SIDE_BY_SIDE] = { 0 };
    int64_t i = 0;
    for (; i + SIDE_BY_SIDE <= n; i += SIDE_BY_SIDE)
#pragma omp simd
        for (int l = 0; l < SIDE_BY_SIDE; l++) {
            const double product = a[i + l] * b[i + l];
            sums[l] += product;
            sizes[l] += fabs(product);
        }
    for (int l = 0; i < n; i++, l++) sums[l] += a[i] * b[i], sizes[l] += fabs(a[i] * b[i]);
    *mass = ((sizes[0] + sizes[1]) + (sizes[2] + sizes[3])) + ((sizes[4] + sizes[5]) + (sizes[6] + sizes[7]));
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

static void add_scaled(double *y, const double *x, double factor, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += factor * x[i];
}

static void add_value(const struct m3_weighed *to, const double *v, double p, int64_t n)
{
    double *o = to->o, *mass = to->mass, *top = to->top;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs(v[i]);
        o[i] += p * v[i];
        mass[i] += p * size;
        top[i] = m3_select(size > top[i], size, top[i]);
    }
}

static void add_moved(const struct m3_weighed *to, const double *v, double p, double eps, double walk, double probable,
                      int64_t n)
{
    double *worst = to->worst, *walk2 = to->walk2, *probable2 = to->probable2;
    const double *o = to->o;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const double moved = p * fabs(v[i] - o[i]), by_walk = moved * walk, by_probable = moved * probable;
        worst[i] += moved * eps;
        walk2[i] += by_walk * by_walk;
        probable2[i] += by_probable * by_probable;
    }
}

static void walk(double *sums, double *walked, const double *d, int64_t n, double m)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const double s = sums[i];
        walked[i] += m * s * s + (m + 1) * d[i] * (s + d[i] / 3);
        sums[i] = s + d[i];
    }
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
    if (!walk) return;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
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

static void by_beta(double *out, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g)
{
    const struct m3_gate_form form = *g;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = m3_gate_by_beta_alone(gate[i], up[i], &form);
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
    .sizes = sizes,
    .walk = walk,
    .dot = dot,
    .add_scaled = add_scaled,
    .add_value = add_value,
    .add_moved = add_moved,
    .filter_elements = filter_elements,
    .filter_terms = filter_terms,
    .grid = grid,
    .by_alpha = by_alpha,
    .by_beta = by_beta,
    .by_limit_of_up = by_limit_of_up,
    .by_limit_of_gate = by_limit_of_gate,
};
