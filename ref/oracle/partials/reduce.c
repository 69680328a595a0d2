#include "oracle/partials/reduce.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

void m3_partials_cut(int64_t *first, int64_t *end, int64_t cols, int ranks, int r, int even)
{
    const int64_t each = even ? cols / ranks : (cols + ranks - 1) / ranks, more = even ? cols % ranks : 0;
    *first = m3_min(cols, r * each + m3_min(r, more));
    *end = m3_min(cols, *first + each + (r < more));
}

/* ---- roundings */

struct format {
    int bits, least;            /* of the significand; exponent of the least subnormal number */
    double normal;              /* the least normal number */
};

static struct format format_of(enum m3_dtype dtype)
{
    switch (dtype) {
    case M3_BF16: return (struct format){ 8, -133, 0x1p-126 };
    case M3_F16: return (struct format){ 11, -24, 0x1p-14 };
    default: return (struct format){ 24, -149, 0x1p-126 };
    }
}

/* Where the number is normal, half a unit is added to the bits that are cut off: the carry finds the exponent. */
static double rounded(double x, struct format f)
{
    if (!(fabs(x) >= f.normal)) return ldexp(rint(ldexp(x, -f.least)), f.least);
    if (!isfinite(x)) return x;
    const int cut = 53 - f.bits;
    const uint64_t unit = (uint64_t)1 << cut;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits += unit / 2 - 1 + (bits >> cut & 1);
    bits &= ~(unit - 1);
    memcpy(&x, &bits, sizeof bits);
    return x;
}

double m3_rounded_to(double x, enum m3_dtype dtype) { return rounded(x, format_of(dtype)); }

double m3_partials_roundoff(enum m3_dtype dtype) { return ldexp(1, -format_of(dtype).bits); }

/* A unit in the last place. */
static double unit_of(double x, struct format f) { return fmax(ldexp(1, ilogb(x) + 1 - f.bits), ldexp(1, f.least)); }

/* ---- sums of rounded parts q. Each is monotone in every part, so both ends of a range follow from the parts' ends. */

static double ring(const double *q, int ranks, int start, struct format f)
{
    double sum = q[start];
    for (int k = 1; k < ranks; k++) {
        const int r = start + k;
        sum = rounded(sum + q[r < ranks ? r : r - ranks], f);
    }
    return sum;
}

/* The parts are multiples of the unit of the smallest one. While all sums fit into a significand of `u`, they are
 * exact; otherwise each of them is rounded. */
static double one_shot(const double *q, int ranks, double bias, struct format f, double u, int side)
{
    double sum = bias, mass = fabs(bias), least = INFINITY;
    for (int r = 0; r < ranks; r++) {
        sum += q[r];
        mass += fabs(q[r]);
        if (q[r] != 0) least = fmin(least, fabs(q[r]));
    }
    if (bias == 0 && (mass == 0 || mass * u <= unit_of(least, f))) return rounded(sum, f);
    return rounded(sum + side * u * (ranks - (bias == 0)) * mass, f);
}

struct m3_range m3_range_join(struct m3_range a, struct m3_range b)
{
    return (struct m3_range){ fmin(a.low, b.low), fmax(a.high, b.high) };
}

/* The bias is added to a sum that has not been rounded. */
static struct m3_range reduced(const double *p, const double *h, double bias, const struct m3_partials *how, double u)
{
    const struct format f = format_of(how->dtype);
    double low[M3_RANKS], high[M3_RANKS], least = bias, most = bias;
    struct m3_range all = { INFINITY, -INFINITY };
    for (int r = 0; r < how->ranks; r++) {
        least += p[r] - h[r], most += p[r] + h[r];
        low[r] = rounded(p[r] - h[r], f), high[r] = rounded(p[r] + h[r], f);
    }
    if (how->reduce == M3_REDUCE_ANY) all = (struct m3_range){ rounded(least, f), rounded(most, f) };
    if (how->reduce != M3_REDUCE_RING)
        all = m3_range_join(all, (struct m3_range){ one_shot(low, how->ranks, bias, f, u, -1),
                                                    one_shot(high, how->ranks, bias, f, u, 1) });
    for (int start = 0; start < how->ranks && bias == 0 && how->reduce != M3_REDUCE_ONE_SHOT; start++)
        all =
            m3_range_join(all, (struct m3_range){ ring(low, how->ranks, start, f), ring(high, how->ranks, start, f) });
    return all;
}

struct m3_range m3_partials_reduce(const double *p, const double *h, double bias, const struct m3_partials *how,
                                   double u)
{
    const struct format f = format_of(how->dtype);
    const struct m3_range late = reduced(p, h, 0, how, u);
    double with[M3_RANKS];
    if (bias == 0) return late;
    memcpy(with, p, (size_t)how->ranks * sizeof *with);
    with[0] += bias;
    const struct m3_range after = { rounded(late.low + bias, f), rounded(late.high + bias, f) };
    const struct m3_range early = m3_range_join(after, reduced(with, h, 0, how, u));
    return how->reduce == M3_REDUCE_RING ? early : m3_range_join(early, reduced(p, h, bias, how, u));
}

/* ---- sizes */

/* One-shot: every part and the sum are rounded. Ring: every part, and the sums of two and more; the worst start. */
double m3_partials_variance(const double *p, const struct m3_partials *how)
{
    double parts = 0, sum = 0, most = 0;
    for (int r = 0; r < how->ranks; r++) {
        parts += p[r] * p[r];
        sum += p[r];
    }
    if (how->reduce == M3_REDUCE_ONE_SHOT) return (parts + sum * sum) / 3;
    for (int start = 0; start < how->ranks; start++) {
        double running = p[start], squares = 0;
        for (int k = 1; k < how->ranks; k++) {
            running += p[(start + k) % how->ranks];
            squares += running * running;
        }
        most = fmax(most, squares);
    }
    return (parts + most) / 3;
}

/* A sum over some of the terms and that over the others make y, so neither is above (mass + |y|) / 2. In random order
 * the mean square of a sum over a share s of the terms is s squares + s^2 y^2. */
void m3_partials_estimate(double *error, double *variance, const struct m3_sum_sizes *of, const struct m3_partials *how)
{
    const double n = how->ranks, y2 = of->sum * of->sum, some = (of->mass + fabs(of->sum)) / 2;
    *error = of->mass;
    *variance = (of->squares + y2 / n) / 3;
    for (int k = 2; k < how->ranks && how->reduce != M3_REDUCE_ONE_SHOT; k++) {
        const double s = k / n;
        *error += some;
        *variance += (s * of->squares + s * s * y2) / 3;
    }
}
