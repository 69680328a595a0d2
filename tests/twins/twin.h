/* What the operator tests share: test numbers, the unit roundoff, and comparisons that NaN never passes by chance.
 * The twins themselves are in the tests: plain formulas in long double, written from SPEC.md, using nothing of ref/.
 *
 * After base/real.h (ops/ops.h has it). */
#ifndef M3_TESTS_TWIN_H
#define M3_TESTS_TWIN_H

#include <check.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Results may not depend on the number of threads. */
static const int twin_threads[] = { 1, 2, 5, 13 };

/* The reference gives the bits of SPEC's order of sums, for any number of threads, and has two bodies of linear.
 * Kernels for a device (SPEC 15) are compared with the same twins by their bounds, and give the same bits again; they
 * refuse some readings and stored types (TWIN_READINGS 0: those are left out); a CPU runs them slowly, so they get one of
 * seven of the cases that are many. */
#ifdef M3_TESTS_CUDA
enum { TWIN_TEAMS = 2, TWIN_IN_ORDER = 0, TWIN_LAST_BODY = 0, TWIN_STEP = 7, TWIN_READINGS = 0 };
#else
enum { TWIN_TEAMS = 4, TWIN_IN_ORDER = 1, TWIN_LAST_BODY = 1, TWIN_STEP = 1, TWIN_READINGS = 1 };
#endif

/* A number in [-1, 1), a multiple of 2^-31, from a 64-bit linear congruential generator (constants: Knuth, MMIX). */
static inline double twin_draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int32_t)(uint32_t)(*state >> 32) * 0x1p-31;
}

/* A number in about [-1, 1) with all 53 bits of a double. */
static inline double twin_fine(uint64_t *state)
{
    const double coarse = twin_draw(state);
    return coarse + 0x1p-31 * twin_draw(state);
}

/* An integer in [0, n), n below 2^31. */
static inline int64_t twin_pick(uint64_t *state, int64_t n)
{
    return (int64_t)((twin_draw(state) + 1) / 2 * (double)n);
}

/* u of SPEC 1. */
static inline double twin_roundoff(void) { return sizeof(real) == 4 ? 0x1p-24 : 0x1p-53; }

/* The smallest number above 0 in `real`: a result below the normal range is off by half of it, whatever u says. */
static inline double twin_least(void) { return sizeof(real) == 4 ? 0x1p-149 : 0x1p-1074; }

/* A NaN is within nothing, and nothing is within NaN. */
static inline int twin_within(real got, long double want, long double allowed)
{
    return fabsl((long double)got - want) <= allowed;
}

/* The same bits; but any NaN is as good as another (SPEC 8). */
static inline int twin_same(real got, real want)
{
    return isnan(want) ? isnan(got) : memcmp(&got, &want, sizeof got) == 0;
}

/* Fail with the place, what was got and what was wanted. (ck_assert_msg also writes a record when it passes: too slow
 * for every element.) */
static inline void twin_check(const char *what, int64_t row, int64_t i, real got, long double want, long double allowed)
{
    if (!twin_within(got, want, allowed))
        ck_abort_msg("%s [%lld,%lld]: got %.17g (%a), want %.21Lg, allowed %.3Lg", what, (long long)row, (long long)i,
                     (double)got, (double)got, want, allowed);
}

static inline void twin_check_same(const char *what, int64_t row, int64_t i, real got, real want)
{
    if (!twin_same(got, want))
        ck_abort_msg("%s [%lld,%lld]: got %.17g (%a), want %.17g (%a)", what, (long long)row, (long long)i, (double)got,
                     (double)got, (double)want, (double)want);
}

#endif
