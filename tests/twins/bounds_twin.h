/* What the tests of bounds share: data of several kinds, roundings, and a verdict on arrays. The twins are in the tests,
 * in long double, and use nothing of ref/. */
#ifndef M3_TESTS_BOUNDS_TWIN_H
#define M3_TESTS_BOUNDS_TWIN_H

#include "oracle/error/bounds.h"
#include "oracle/error/tiers/tiers.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "twin.h"

static inline void *need(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory) abort();
    return memory;
}

static inline double *doubles(int64_t count) { return need(count, sizeof(double)); }
static inline float *floats(int64_t count) { return need(count, sizeof(float)); }

/* Standard normal (Box and Muller). */
static inline double normal(uint64_t *state)
{
    double a = (twin_draw(state) + 1) / 2, b = twin_draw(state);
    return sqrt(-2 * log(a + 0x1p-40)) * cos(3.14159265358979323846 * b);
}

enum kind { MIXED, POSITIVE, CANCELLING, OUTLIERS, EQUAL, KINDS };

/* n floats. CANCELLING: pairs of opposite sign and nearly equal size; meant for one factor, the other POSITIVE. */
static inline void fill(float *x, int64_t n, enum kind kind, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        double g = normal(state);
        if (kind == POSITIVE) g = fabs(g);
        if (kind == OUTLIERS && i % 97 == 5) g *= 1000;
        if (kind == EQUAL) g = 0.1;
        if (kind == CANCELLING) g = i % 2 ? -(double)x[i - 1] * (1 + 1e-4 * g) : fabs(g);
        x[i] = (float)g;
    }
}

static inline void widen(double *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = (double)x[i];
}

static inline double *widened(const float *x, int64_t n)
{
    double *out = doubles(n);
    widen(out, x, n);
    return out;
}

/* To `bits` significant bits, ties to even. bf16: 8; tf32: 11. */
static inline double to_bits(double x, int bits)
{
    int exponent;
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

/* |got - want| <= allowed |want|; NaN is nothing's equal. */
static inline void near(const char *what, int64_t i, double got, long double want, double allowed)
{
    if (!(fabsl((long double)got - want) <= allowed * fabsl(want)))
        ck_abort_msg("%s [%lld]: got %.17g, want %.21Lg", what, (long long)i, got, want);
}

/* The verdict on float results. */
static inline struct m3_tier_result judge_f32(const double *want, const double *got, const struct m3_bound *b,
                                              int64_t n)
{
    const struct m3_two_sides tap = {
        .reference = want,
        .candidate = got,
        .bound = b->bound,
        .walk = b->walk,
        .suspect = b->suspect,
        .count = n,
        .n = b->n,
        .f = b->f,
        .u = 0x1p-24,
        .stored = M3_F32,
    };
    return m3_verdict_of(&tap);
}

static inline struct m3_tier_result judge_floats(const double *want, const float *got, const struct m3_bound *b,
                                                 int64_t n)
{
    double *wide = widened(got, n);
    struct m3_tier_result result = judge_f32(want, wide, b, n);
    free(wide);
    return result;
}

/* No element beyond HARD; says where the worst is. */
static inline void no_alarm(const char *what, const struct m3_tier_result *r, int tiers)
{
    if (r->status != 0 || r->hard != 0 || (r->tiers & tiers) || r->judged == 0)
        ck_abort_msg("%s: tiers %d, hard %lld of %lld at [%lld], headroom %.3g, largest z %.3g, z2 %.3g, "
                     "variance %.3g, bias %.3g",
                     what, r->tiers, (long long)r->hard, (long long)r->judged, (long long)r->worst, r->headroom,
                     r->largest_z, r->z2, r->variance, r->bias);
}

#endif
