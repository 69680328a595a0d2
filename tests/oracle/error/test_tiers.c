/* The tiers of section 5 of numerics.md (SPEC 7.2) on arrays: allowances, zero rule, NaN and infinities, statistics. */
#include "bounds_twin.h"

#include <float.h>

TIMEOUT(60);

enum { N = 1000 };

static double r[N], c[N], B[N], w[N];

/* N elements r = 1 .. 2, B = 100, n = 62, f = 2, candidate equal. */
static struct m3_two_sides plain_tap(void)
{
    for (int i = 0; i < N; i++) {
        r[i] = c[i] = 1 + i / (double)N + 0x1p-30;
        B[i] = 100;
        w[i] = 500;
    }
    return (struct m3_two_sides){
        .reference = r, .candidate = c, .bound = B, .count = N, .n = 62, .f = 2, .u = 0x1p-24, .stored = M3_F32
    };
}

/* Goal:  the allowance is the formula.
 * Claim: by hand, for float and double; 0 for B = 0; the subnormal step where B is tiny. lambda as in section 5.
 * Seen to fail without the eta, with it for B = 0, with 2^-149 for doubles. */
TEST(allowed)
{
    ck_assert(m3_bound_allowed(0, 10, 0x1p-24) == 0);
    ck_assert(m3_bound_allowed(1, 64, 0x1p-24) == 0x1p-18 + 0x1p-47); /* + 64 2^-149, beyond a double's end */
    ck_assert(m3_bound_allowed(0x1p-140, 4, 0x1p-24) == 4 * 0x1p-149 + 4 * 0x1p-164 + 4 * 0x1p-193);
    ck_assert(m3_bound_allowed(1, 3, 0x1p-53) == 2 * 3 * 0x1p-53);
    ck_assert(m3_bound_allowed(4 * DBL_MIN, 1, 0x1p-53) == 5 * 0x1p-1074);
    ck_assert(within(m3_lambda(1000), 6.5444, 1e-3));
    ck_assert(within(m3_lambda(400000), 7.4034, 1e-3));
}

/* Goal:  an element passes up to what is allowed, and NaN never.
 * Seen to fail with !(d > allowed), with Inf - Inf. */
TEST(elements)
{
    const double nan = NAN, inf = INFINITY;
    ck_assert(m3_element_ok(1.5, 1, 0.5) && !m3_element_ok(1.5, 1, 0.499));
    ck_assert(m3_element_ok(inf, inf, 0) && m3_element_ok(-inf, -inf, 0) && !m3_element_ok(inf, -inf, inf));
    ck_assert(!m3_element_ok(inf, 1, inf) && !m3_element_ok(1, -inf, inf));
    ck_assert(!m3_element_ok(nan, 1, inf) && !m3_element_ok(1, nan, inf) && !m3_element_ok(1, 1, nan));
    ck_assert(m3_element_ok(-0.0, 0.0, 0));
}

/* Goal:  each tier speaks at its own limit, and not before.
 * Given: one element off by shares of u B: SUSPECT from lambda sqrt(62) + 2 = 53.5 on, HARD from 64 on; then with a
 *        walk of 500, WALK from lambda 500 u on.
 * Claim: PASS, SUSPECT, FAIL, with counts and the worst element.
 * Seen to fail with lambda n; with a step more; without the minimum of both; with the worst by |d|. */
TEST(limits)
{
    struct m3_two_sides tap = plain_tap();
    struct m3_tier_result v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_PASS && v.tiers == 0 && v.judged == N && v.headroom == 0 && v.worst == 0);
    ck_assert(within(v.lambda, 6.5444, 1e-3) && isnan(v.z2) && v.variance == 0);
    const double unit = 0x1p-24 * 100;
    tap.tiers_off = M3_TIER_VARIANCE | M3_TIER_BIAS;
    c[7] = r[7] + 53.4 * unit;
    v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_PASS && v.worst == 7 && within(v.headroom, 53.4 / 64, 1e-3));
    c[7] = r[7] - 53.7 * unit;
    v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_SUSPECT && v.tiers == M3_TIER_SUSPECT && v.suspect == 1 && v.hard == 0);
    c[7] = r[7] + 63.99 * unit;
    v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_SUSPECT);
    c[7] = r[7] + 64.01 * unit;
    v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_FAIL && v.hard == 1 && v.suspect == 1 && v.worst == 7);
    B[8] = 1;
    c[8] = r[8] + 65 * 0x1p-24; /* smaller, but a larger share */
    v = m3_verdict_of(&tap);
    ck_assert(v.hard == 2 && v.worst == 8);
    tap.n = 4, tap.f = 0; /* lambda sqrt(4) is above 4 */
    c[7] = c[8] = r[8] = r[7], B[8] = 100;
    c[7] = r[7] + 5 * unit;
    v = m3_verdict_of(&tap);
    ck_assert(v.hard == 1 && v.suspect == 1);

    tap = plain_tap();
    tap.walk = w;
    tap.tiers_off = M3_TIER_VARIANCE | M3_TIER_BIAS;
    c[7] = r[7] + 0.999 * v.lambda * 500 * 0x1p-24;
    v = m3_verdict_of(&tap);
    ck_assert_msg(!(v.tiers & M3_TIER_WALK), "z %g", v.largest_z);
    ck_assert(v.verdict != M3_VERDICT_FAIL && within(v.largest_z, 0.999 * v.lambda * sqrt(3), 1e-3));
    w[7] = 490;
    v = m3_verdict_of(&tap);
    ck_assert((v.tiers & M3_TIER_WALK) && v.walk == 1);
    v.tiers = 0;
    tap.tiers_off |= M3_TIER_WALK | M3_TIER_SUSPECT;
    tap.tiers_off |= M3_TIER_HARD;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_PASS);
}

/* Goal:  the mean square of z, VARIANCE and BIAS at their limits.
 * Given: errors of +-2.01 sigma (N = 1000 and 255); of e^2 at 0.4 steps; of one sign at 2 sqrt(N steps) / N.
 * Claim: WALK by its mean from 256 elements on; VARIANCE; BIAS only where |r| / B sqrt(n) <= 3, never for
 *        truncating, nor where nothing is summed.
 * Seen to fail with 4 as a limit of z for z^2, 0.4 N, sum |e| for |sum e|, the condition on r left out. */
TEST(statistics)
{
    struct m3_two_sides tap = plain_tap();
    const double unit = 0x1p-24 * 100, sigma = 0x1p-24 * 100 / sqrt(3);
    tap.walk = w;
    for (int i = 0; i < N; i++) w[i] = 100, c[i] = r[i] + (i % 2 ? 2.01 : -2.01) * sigma;
    struct m3_tier_result v = m3_verdict_of(&tap);
    ck_assert(v.tiers == M3_TIER_WALK && v.walk == 0 && within(v.z2, 4.0401, 1e-3));
    tap.count = 255;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
    tap.count = 256;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, M3_TIER_WALK);

    tap = plain_tap();
    const double limit = sqrt(0.4 * 64) * unit;
    for (int i = 0; i < N; i++) c[i] = r[i] + (i % 2 ? 0.999 : -0.999) * limit;
    v = m3_verdict_of(&tap);
    ck_assert(v.tiers == 0 && within(v.variance, 0.998, 1e-3) && within(v.bias, 0, 1e-6));
    for (int i = 0; i < N; i++) c[i] = r[i] + (i % 2 ? 1.001 : -1.001) * limit;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, M3_TIER_VARIANCE);

    const double lean = 2 * sqrt(64.0 * N) / N * unit;
    for (int i = 0; i < N; i++) c[i] = r[i] + 0.999 * lean;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
    for (int i = 0; i < N; i++) c[i] = r[i] - 1.001 * lean;
    v = m3_verdict_of(&tap);
    ck_assert(v.tiers == M3_TIER_BIAS && v.verdict == M3_VERDICT_SUSPECT && within(v.bias, 1.001, 1e-3));
    tap.truncates = 1;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
    tap.truncates = 0;
    tap.n = 0, tap.f = 64;
    v = m3_verdict_of(&tap);
    ck_assert(v.tiers == 0 && isnan(v.bias));
    tap.n = 62, tap.f = 2;
    for (int i = 0; i < N; i++) r[i] += 100, c[i] += 100; /* |r| / B sqrt(62) = 8 */
    v = m3_verdict_of(&tap);
    ck_assert(v.tiers == 0 && isnan(v.bias));
}

/* Goal:  rows that are alike count once in sums over elements, and rows that share a rounding less than their elements.
 * Given: 50 rows of 20 errors beyond the limits of the mean square, and of the mean, in 12 rows that tell and in the
 *        others; then errors of one sign in each row, of which there are as many as of the other sign but for 12 rows.
 * Claim: of 240 elements no tier says anything, of 260 it does; a lean to one side that rows share is no BIAS.
 * Seen to fail with rows that are alike counted, with elements of a row counted as independent. */
TEST(rows_alike)
{
    enum { ROWS = 50, WIDTH = N / ROWS };
    unsigned char repeated[ROWS];
    struct m3_two_sides tap = plain_tap();
    const double limit = sqrt(0.4 * 64) * 0x1p-24 * 100;
    tap.repeated = repeated, tap.width = WIDTH;
    for (int i = 0; i < N; i++) c[i] = r[i] + (i % 2 ? 1.001 : -1.001) * limit;
    for (int telling = 12; telling <= 13; telling++) {
        for (int i = 0; i < ROWS; i++) repeated[i] = i >= telling;
        ck_assert_int_eq(m3_verdict_of(&tap).tiers, telling == 13 ? M3_TIER_VARIANCE : 0);
    }
    memset(repeated, 0, sizeof repeated);
    for (int i = 0; i < N; i++) c[i] = r[i] + (i / WIDTH % 2 || i / WIDTH >= 38 ? 0.9 : -0.9) * limit;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
    tap.width = 0, tap.repeated = NULL;
    ck_assert_int_eq(m3_verdict_of(&tap).tiers, M3_TIER_BIAS);
}

/* Goal:  tiers on drawn errors behave as section 5 says.
 * Given: 400 taps of 1000 errors, each the sum of 64 roundings uniform in +-u B, every other tap 2.2 times as large;
 *        walk = sqrt(64) B.
 * Claim: correct taps: no tier ever; mean e^2 is 64 / 3, so VARIANCE at 0.83 of its limit; mean z^2 is 1. The others:
 *        VARIANCE and WALK in each.
 * Seen to fail with 0.3 for 0.4, with sigma = u walk / 3. */
TEST(drawn)
{
    uint64_t state = 131;
    double variance = 0, z2 = 0;
    for (int t = 0; t < 400; t++) {
        struct m3_two_sides tap = plain_tap();
        const double size = t % 2 ? 2.2 : 1;
        tap.walk = w;
        for (int i = 0; i < N; i++) {
            double e = 0;
            for (int k = 0; k < 64; k++) e += twin_fine(&state);
            c[i] = r[i] + size * e * 0x1p-24 * B[i];
            w[i] = 8 * B[i];
        }
        const struct m3_tier_result v = m3_verdict_of(&tap);
        if (t % 2) {
            ck_assert((v.tiers & M3_TIER_VARIANCE) && (v.tiers & M3_TIER_WALK) && !(v.tiers & M3_TIER_HARD));
        } else {
            ck_assert_msg(v.tiers == 0, "tap %d: tiers %d, bias %g, variance %g", t, v.tiers, v.bias, v.variance);
            variance += v.variance / 200;
            z2 += v.z2 / 200;
        }
    }
    printf("drawn: variance %.3f of its limit, mean z^2 %.3f\n", variance, z2);
    ck_assert(within(variance, 1 / 1.2, 0.01) && within(z2, 1, 0.02));
}

/* Goal:  nothing that is not a number passes, or is taken for a wildcard.
 * Claim: reference NaN: not comparable. Candidate NaN: FAIL. Infinities: equal, or FAIL; but where the format ends
 *        one is not judged, and a tap of nothing else is not judged either. B below 0, NaN or infinite: our error.
 * Seen to fail with NaN in r let through, !(d > A) for d <= A, infinities subtracted, isfinite(r) left out, bounds not
 * looked at, every infinity not judged. */
TEST(not_numbers)
{
    struct m3_two_sides tap = plain_tap();
    c[3] = NAN;
    struct m3_tier_result v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_FAIL && v.hard == 1 && v.suspect == 1 && v.worst == 3 && isinf(v.headroom));
    tap = plain_tap();
    tap.walk = w;
    for (int i = 0; i < N; i++) c[i] = NAN;
    v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_FAIL && v.hard == N && v.walk == N);
    tap = plain_tap();
    r[999] = NAN;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_NOT_COMPARABLE);
    c[999] = NAN;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_NOT_COMPARABLE);

    for (int which = 0; which < 6; which++) {
        static const double want[] = { -INFINITY, INFINITY, 1, 1, -INFINITY, INFINITY };
        static const double got[] = { -INFINITY, INFINITY, INFINITY, -INFINITY, -1e30, -INFINITY };
        tap = plain_tap();
        r[5] = want[which];
        c[5] = got[which];
        B[5] = which % 2 ? INFINITY : 0; /* no bound is looked at where the reference is infinite */
        if (isfinite(r[5])) B[5] = 100;
        v = m3_verdict_of(&tap);
        ck_assert_int_eq(v.verdict, which < 2 ? M3_VERDICT_PASS : M3_VERDICT_FAIL);
        ck_assert(v.status == M3_OK && v.judged == N);
    }

    tap = plain_tap();
    r[5] = 3.40282e38, B[5] = 3.4e38, c[5] = INFINITY;
    v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_PASS && v.not_judged == 1 && v.judged == N - 1);
    c[5] = -INFINITY;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_FAIL);
    tap.stored = M3_F64;
    c[5] = INFINITY;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_FAIL);
    tap = plain_tap();
    tap.count = 1;
    r[0] = 3.40282e38, B[0] = 3.4e38, c[0] = INFINITY;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_NOT_JUDGED);
    tap.count = 0;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_NOT_JUDGED);

    for (int which = 0; which < 4; which++) {
        static const double bad[] = { NAN, INFINITY, -1, NAN };
        tap = plain_tap();
        tap.walk = w;
        if (which < 3) B[11] = bad[which];
        else w[11] = bad[which];
        v = m3_verdict_of(&tap);
        ck_assert(v.status == M3_INTERNAL && v.verdict == M3_VERDICT_NOT_COMPARABLE && v.worst == 11);
    }
}

/* Goal:  where all products are 0 the result is 0.
 * Claim: B = 0: equal or FAIL, by the smallest of differences; -0 is 0. A tap of copies: one other bit FAILs.
 * Seen to fail with eta for B = 0, with a step more than n + f. */
TEST(zero_rule)
{
    struct m3_two_sides tap = plain_tap();
    tap.walk = w;
    r[4] = 0, c[4] = -0.0, B[4] = 0, w[4] = 0;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_PASS);
    c[4] = 0x1p-149;
    struct m3_tier_result v = m3_verdict_of(&tap);
    ck_assert(v.verdict == M3_VERDICT_FAIL && v.hard == 1 && v.worst == 4);
    B[4] = 0x1p-149;
    ck_assert_int_eq(m3_verdict_of(&tap).hard, 0);
    tap = plain_tap();
    tap.n = tap.f = 0;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_PASS);
    c[9] = nextafter(c[9], 9);
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_FAIL);
}

/* Goal:  storing in a coarser format is detected on its own; results that legitimately have few bits are not.
 * Given: 64 and 63 values rounded to bf16, to f16; one value that is not; a reference on the grid too; a profile that
 *        stores bf16; results of cancellation, whose u B is as coarse as bf16.
 * Claim: FAIL by GRID alone, or nothing.
 * Seen to fail with 65, with 63; with the reference not looked at; with cancelled results counted. */
TEST(grid)
{
    for (int bits = 8; bits <= 11; bits += 3) {
        struct m3_two_sides tap = plain_tap();
        tap.tiers_off = ~M3_TIER_GRID;
        tap.count = 64;
        for (int i = 0; i < N; i++) c[i] = to_bits(r[i], bits);
        struct m3_tier_result v = m3_verdict_of(&tap);
        ck_assert(v.tiers == M3_TIER_GRID && v.verdict == M3_VERDICT_FAIL && v.grid == (bits == 8 ? M3_BF16 : M3_F16));
        tap.count = 63;
        ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
        tap.count = N;
        c[700] = r[700] + 0x1p-20;
        ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
        for (int i = 0; i < N; i++) r[i] = c[i] = to_bits(r[i], bits);
        ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
        tap = plain_tap();
        tap.tiers_off = ~M3_TIER_GRID;
        for (int i = 0; i < N; i++) c[i] = to_bits(r[i], 8), B[i] = 0x1p18;
        ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
        for (int i = 0; i < N; i++) B[i] = 100;
        tap.stored = M3_BF16;
        ck_assert_int_eq(m3_verdict_of(&tap).tiers, 0);
    }
}

/* Goal:  what the profile says widens what it should, and nothing else.
 * Claim: truncation: twice the steps. A stored reference: 2^-24 |r| more. Storage points: extra, and its variance.
 *        Flushed subnormals: steps 2^-126. An allowance of its own for SUSPECT. steps u >= 1: nothing is proven, so no
 *        difference of finite numbers FAILs.
 * Seen to fail with each of them ignored. */
TEST(profile)
{
    const double unit = 0x1p-24 * 100;
    struct m3_two_sides tap = plain_tap();
    tap.tiers_off = ~(M3_TIER_HARD | M3_TIER_SUSPECT);
    c[7] = r[7] + 100 * unit;
    ck_assert_int_eq(m3_verdict_of(&tap).hard, 1);
    tap.truncates = 1;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_PASS);

    tap = plain_tap();
    tap.tiers_off = ~M3_TIER_HARD;
    B[7] = 0x1p-30;
    c[7] = r[7] + 0x1p-24;
    ck_assert_int_eq(m3_verdict_of(&tap).hard, 1);
    tap.reference_f32 = 1;
    ck_assert_int_eq(m3_verdict_of(&tap).hard, 0);

    static double extra[N], variance[N];
    tap = plain_tap();
    tap.walk = w;
    for (int i = 0; i < N; i++) {
        extra[i] = 0x1p-9 * r[i];
        variance[i] = extra[i] * extra[i] / 3;
        c[i] = r[i] + (i % 2 ? 0.5 : -0.5) * extra[i];
    }
    struct m3_tier_result v = m3_verdict_of(&tap);
    ck_assert(v.hard == N && v.walk == N);
    tap.extra = extra;
    tap.extra_variance = variance;
    v = m3_verdict_of(&tap);
    ck_assert_msg(v.verdict == M3_VERDICT_PASS, "tiers %d, z2 %g", v.tiers, v.z2);
    ck_assert(isnan(v.variance) && v.z2 < 1);

    tap = plain_tap();
    tap.tiers_off = ~M3_TIER_HARD;
    r[2] = 0x1p-127, c[2] = 0, B[2] = 0x1p-127;
    ck_assert_int_eq(m3_verdict_of(&tap).hard, 1);
    tap.flushes = 1;
    ck_assert_int_eq(m3_verdict_of(&tap).hard, 0);

    static double suspect[N];
    tap = plain_tap();
    tap.tiers_off = ~M3_TIER_SUSPECT;
    for (int i = 0; i < N; i++) suspect[i] = 500;
    tap.suspect = suspect;
    c[7] = r[7] + 4.99 * unit;
    ck_assert_int_eq(m3_verdict_of(&tap).suspect, 0);
    c[7] = r[7] + 5.01 * unit;
    ck_assert_int_eq(m3_verdict_of(&tap).suspect, 1);

    tap = plain_tap();
    tap.u = 0x1p-6;
    c[7] = r[7] + 1e6;
    v = m3_verdict_of(&tap);
    ck_assert(v.no_hard_bound && v.hard == 0 && v.suspect == 1 && v.verdict == M3_VERDICT_SUSPECT);
    c[7] = NAN;
    ck_assert_int_eq(m3_verdict_of(&tap).verdict, M3_VERDICT_FAIL);
}
