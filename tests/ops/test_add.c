/* add, SPEC 5.16, against its definition and against sums known in advance. */
#include "op_driver.h"

#include <float.h>

TIMEOUT(60);

static int add_to_itself(struct m3_ctx *ctx, void *const *p, const void *n, int plain)
{
    return ops_of(plain)->add(ctx, p[0], p[1], p[1], *(const int64_t *)n);
}

static void run(real *y, const real *a, const real *b, int64_t n)
{
    struct call c = CALL(call_add, &(struct add_values){ n }, 1, 2, OPERAND(y, n), OPERAND(a, n), OPERAND(b, n));
    call_in_place(&c, 0, 0);
    call_in_place(&c, 0, 1);
    call_all(&c);
}

static void run_twice(real *y, const real *a, int64_t n)
{
    struct call c = CALL(add_to_itself, &n, 1, 1, OPERAND(y, n), OPERAND(a, n));
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* Goal:  one rounding, to nearest even; signed zeros, infinities and NaN as IEEE 754 has them; subnormals kept.
 * Given: pairs whose sums are known without adding. u is half the distance from 1 to the next number.
 * Claim: these bits, wherever y lies.
 * Seen to fail with a rounding upwards, subnormals flushed, -0 + -0 made +0, infinity clipped, NaN read as 0, y
 * written before b is read. */
TEST(known_sums)
{
    const real u = (real)twin_roundoff(), least = (real)twin_least(), inf = INFINITY;
    const real max = sizeof(real) == 4 ? FLT_MAX : DBL_MAX;
    const real small = sizeof(real) == 4 ? FLT_MIN : DBL_MIN;
    /* clang-format off */
    const struct { real a, b, y; } sums[] = {
        { 0.0, -0.0, 0.0 }, { -0.0, 0.0, 0.0 }, { -0.0, -0.0, -0.0 },
        { 1, -1, 0.0 }, { -3, 3, 0.0 },
        { 1, u, 1 }, { 1 + 2 * u, u, 1 + 4 * u }, { 1, 2 * u, 1 + 2 * u }, { 1 + 2 * u, -1, 2 * u },
        { least, least, 2 * least }, { small, -least, small - least }, { least, -least, 0.0 },
        { max, max, inf }, { max, -max, 0.0 }, { max, least, max }, { -max, -max, -inf },
        { inf, 1, inf }, { inf, -max, inf }, { inf, inf, inf }, { inf, -inf, NAN }, { -inf, inf, NAN },
        { NAN, 1, NAN }, { 1, NAN, NAN }, { NAN, -inf, NAN }, { 2, 3, 5 },
    };
    /* clang-format on */
    enum { N = sizeof sums / sizeof *sums };
    real a[N], b[N], y[N];
    for (int i = 0; i < N; i++) {
        a[i] = sums[i].a;
        b[i] = sums[i].b;
    }
    run(y, a, b, N);
    for (int i = 0; i < N; i++) twin_check_same("y", 0, i, y[i], sums[i].y);
}

/* Goal:  every element is added, to its own partner; lengths around vector widths; any number of threads.
 * Given: n = 1 .. 521 around powers of two, and enough for five threads; all ways in which y may be a or b.
 * Claim: the bits of one rounded sum, so within u (|a| + |b|).
 * Seen to fail with the last element left out, one element too many, b shifted by one, y written before b is read, one
 * bit off with five threads. */
TEST(lengths_places_and_threads)
{
    enum { MOST = 200003 };
    static real a[MOST], b[MOST], y[MOST];
    uint64_t state = 516;
    for (int i = 0; i < MOST; i++) {
        a[i] = (real)twin_fine(&state);
        b[i] = (real)ldexp(twin_fine(&state), (int)twin_pick(&state, 40) - 20);
    }
    static const int64_t lengths[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 67, 127, 257, 521, MOST };
    for (size_t length = 0; length < sizeof lengths / sizeof *lengths; length++)
        for (int twice = 0; twice < 2; twice++) {
            const int64_t n = lengths[length];
            if (twice) run_twice(y, a, n);
            else run(y, a, b, n);
            for (int64_t i = 0; i < n; i++) {
                real b_i = twice ? a[i] : b[i];
                twin_check_same("y", n, i, y[i], a[i] + b_i);
                twin_check("y", n, i, y[i], (long double)a[i] + b_i,
                           twin_roundoff() * (fabsl((long double)a[i]) + fabsl((long double)b_i)));
            }
        }
}
