/* sigmoid, SPEC 5.13, against the formula in long double. */
#include "op_driver.h"

#include <float.h>

#include "formula_twin.h"

TIMEOUT(60);

static void run(real *y, const real *x, int64_t n)
{
    struct call c = CALL(call_sigmoid, &(struct sigmoid_values){ n }, 1, 1, OPERAND(y, n), OPERAND(x, n));
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* In float the correctly rounded value; in double within 6 u y, or half of the smallest number. */
static void check_one(const char *what, int64_t i, real got, real x)
{
    const long double want = twin_sigmoid(x);
    twin_check(what, 0, i, got, want, 6 * twin_roundoff() * want + twin_least() / 2);
    if (sizeof(real) == 4) twin_check_same(what, 0, i, got, (real)want);
}

/* Goal:  the ends of the range, and what is known in advance.
 * Given: 0, infinities, NaN, the largest numbers; where float reaches 0 and 1, as SPEC says, and where double does.
 * Claim: these values. In double they follow from the order of operations: exp(-x) overflows below -709.79, so that
 * the        result is 0; and 1 + exp(-36.7) is rounded to 1 + 2u before the quotient is.
 * Seen to fail with exp(x) / (1 + exp(x)), exp of a float, x clamped to -88 and 30, subnormal results flushed (in
 * float), NaN made 1/2, router.softmax. */
TEST(known_values)
{
    const real max = sizeof(real) == 4 ? FLT_MAX : DBL_MAX, inf = INFINITY;
    const real below_1 = 1 - (real)twin_roundoff();
    const struct {
        real x, y;
    } known[] = {
        { 0, 0.5 },   { -0.0, 0.5 }, { inf, 1 },
        { -inf, 0 },  { NAN, NAN },  { 100, 1 },
        { max, 1 },   { -max, 0 },   { (real)twin_least(), 0.5 },
        { -1000, 0 }, { 1000, 1 },
    };
    const struct {
        real x, y;
    } ends_of_float[] = {
        { -104, 0 }, { -110, 0 }, { -103.97f, (real)twin_least() }, { 17, below_1 }, { 17.32f, below_1 }, { 17.33f, 1 },
    };
    const struct {
        real x, y;
    } ends_of_double[] = {
        { -746, 0 }, { -720, 0 }, { -710, 0 }, { 36.7, 1 - 2 * (real)twin_roundoff() }, { 36.8, 1 }, { 37, 1 },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        real y;
        run(&y, &known[i].x, 1);
        twin_check_same("known", 0, (int64_t)i, y, known[i].y);
    }
    for (int i = 0; i < 6; i++) {
        real y;
        run(&y, sizeof(real) == 4 ? &ends_of_float[i].x : &ends_of_double[i].x, 1);
        twin_check_same("end", 0, i, y, sizeof(real) == 4 ? ends_of_float[i].y : ends_of_double[i].y);
    }
    const real one = 1, minus_one = -1;
    real y;
    run(&y, &one, 1);
    twin_check("sig(1)", 0, 0, y, 0.7310585786300048792512L, 6 * twin_roundoff() * 0.74);
    run(&y, &minus_one, 1);
    twin_check("sig(-1)", 0, 0, y, 0.2689414213699951207488L, 6 * twin_roundoff() * 0.27);
}

/* Goal:  every element, over the range in which the result is neither 0 nor 1; any length, any number of threads.
 * Given: x of all sizes and both signs; neighbours of the arguments where float reaches 0 and 1; n 1, odd, prime, and
 *        enough for five threads.
 * Claim: in float the correctly rounded value, in double within 6 u y (above -709, and except for half the smallest
 *        number).
 * Seen to fail with 1 - sig(-x) for x < 0, (1 + tanh(x/2)) / 2, exp of a float, x clamped, subnormal results flushed,
 * 10 u off, one element too many, one bit off with five threads. */
TEST(lengths_and_threads)
{
    enum { MOST = 200003 };
    static real x[MOST], y[MOST];
    static const int64_t lengths[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 67, 127, 257, 521, MOST };
    const double lowest = sizeof(real) == 4 ? -150 : -709;
    uint64_t state = 513;
    for (int i = 0; i < MOST; i++) {
        const double draw = twin_fine(&state);
        const double sizes[4] = { 40 * draw, draw, lowest * fabs(draw), ldexp(draw, -i % 60) };
        x[i] = (real)sizes[i % 4];
    }
    float low = -103.972077f + 50 * 0x1p-17f, high = 17.32868f - 50 * 0x1p-19f;
    for (int i = 1000; i < 1200; i += 2) {
        x[i] = low = nextafterf(low, -200);
        x[i + 1] = high = nextafterf(high, 200);
    }
    for (size_t length = 0; length < sizeof lengths / sizeof *lengths; length++) {
        const int64_t n = lengths[length], from = n < MOST ? 1000 : 0;
        run(y, x + from, n);
        for (int64_t i = 0; i < n; i++) check_one("y", i, y[i], x[from + i]);
    }
}

/* Goal:  y(x) + y(-x) = 1: the result for a negative x is not 1 minus a rounded one.
 * Given: x from 2^-30 to 60, both signs.
 * Claim: within u in float, where each is correctly rounded. In double within 6 u, the tolerance of both together.
 * Seen to fail with exp of a float, 10 u off, router.softmax. */
TEST(both_signs_sum_to_one)
{
    enum { N = 5000 };
    static real x[N], minus_x[N], y[N], minus_y[N];
    uint64_t state = 12;
    for (int i = 0; i < N; i++) {
        x[i] = (real)ldexp(fabs(twin_fine(&state)) * 60, -(int)twin_pick(&state, 30));
        minus_x[i] = -x[i];
    }
    run(y, x, N);
    run(minus_y, minus_x, N);
    const double allowed = (sizeof(real) == 4 ? 1 : 6) * twin_roundoff();
    for (int i = 0; i < N; i++) {
        const long double sum = (long double)y[i] + minus_y[i];
        if (!(fabsl(sum - 1) <= allowed)) ck_abort_msg("x = %.17g: sum is 1 + %Lg", (double)x[i], sum - 1);
    }
}
