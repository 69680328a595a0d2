/* swiglu, SPEC 5.12, against the formula in long double. */
#include "op_driver.h"

#include <float.h>

#include "formula_twin.h"

static void run(real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
    struct call c = CALL(call_swiglu, (&(struct swiglu_values){ T, F }), 1, 2, OPERAND(y, T * F), OPERAND(gate, T * F),
                         OPERAND(up, T * F));
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* ---- the twin */

/* The bits of "Order" with a correctly rounded logistic function. Ours is that in float, for nearly every argument. */
static real order(real gate, real up)
{
    volatile real product = up * gate;
    return product * (real)twin_sigmoid(gate);
}

/* Within 9 u |y| (1 + |gate| (1 - sig(gate))) where sig and y are normal numbers, because u does not apply below them;
 * in float, everywhere, the bits of "Order". */
static void check_one(int64_t t, int64_t i, real got, real gate, real up)
{
    const struct twin_gates swiglu = { 0 };
    const long double s = twin_sigmoid(gate), want = twin_gated(gate, up, &swiglu);
    const long double spread = 1 + fabsl((long double)gate) * (1 - s);
    const real least_normal = sizeof(real) == 4 ? FLT_MIN : DBL_MIN;
    if (isfinite(want) && s >= least_normal && (want == 0 || fabsl(want) >= least_normal))
        twin_check("y", t, i, got, want, 9 * twin_roundoff() * fabsl(want) * spread);
    if (sizeof(real) == 4) twin_check_same("y by the order of operations", t, i, got, order(gate, up));
}

/* Goal:  no clamp, no +1, alpha 1; gate and up not exchanged; any shape, any number of threads.
 * Given: gate to 40 and up to 1000, both signs, all sizes; T and F 1, odd, prime, enough for five threads.
 * Claim: within 9 u |y| (1 + |gate| (1 - sig(gate))); in float the bits of SPEC's order of operations.
 * Seen to fail with the clamps, the +1 or the alpha of swiglu_oai, gate and up exchanged, up (g s) in another order
 * (in float), exp of a float, 20 u off, the last element left out, one too many, one bit off with five threads. */
START_TEST(shapes_and_threads)
{
    static const struct {
        int64_t T, F;
    } shapes[] = {
        { 1, 1 },    { 2, 3 },   { 1, 17 },   { 31, 127 }, { 32, 31 },
        { 33, 257 }, { 67, 33 }, { 67, 521 }, { 1, 6151 }, { 67, 3079 },
    };
    enum { MOST = 67 * 3079 };
    static real gate[MOST], up[MOST], y[MOST];
    uint64_t state = 512;
    for (int i = 0; i < MOST; i++) {
        gate[i] = (real)(ldexp(40, i % 3 ? -(int)twin_pick(&state, 20) : 0) * twin_fine(&state));
        up[i] = (real)(ldexp(1000, -(int)twin_pick(&state, 20)) * twin_fine(&state));
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t T = shapes[s].T, F = shapes[s].F;
        run(y, gate, up, T, F);
        for (int64_t i = 0; i < T * F; i++) check_one(i / F, i % F, y[i], gate[i], up[i]);
    }
}
END_TEST

/* Goal:  what is known in advance, and the ends of the range.
 * Given: zeros of both signs, large numbers of both signs, infinities, NaN; the clamps and constants of swiglu_oai
 *        would show at gate 8, up 8 and at up = -1.
 * Claim: these values. The reference numbers were computed with 40 digits (mpmath 1.3).
 * Seen to fail with exp(g) / (1 + exp(g)), NaN made 0, up (g s) in another order, gate and up exchanged, the clamps,
 * the +1 or the alpha of swiglu_oai. */
START_TEST(known_values)
{
    const real inf = INFINITY, nan = NAN, max = sizeof(real) == 4 ? FLT_MAX : DBL_MAX;
    const struct {
        real gate, up, y;
    } exact[] = {
        { 0, 5, 0 },         { -0.0, 5, -0.0 }, { 0, -5, -0.0 },  { 3, 0, 0 },        { 100, 3, 300 },
        { 1000, -7, -7000 }, { max, 1, max },   { max, 2, inf },  { -1000, 3, -0.0 }, { -1e30, 3, -0.0 },
        { inf, 2, inf },     { inf, 0, nan },   { -inf, 1, nan }, { -max, 2, nan },   { nan, 1, nan },
        { 1, nan, nan },     { 0, inf, nan },   { nan, 0, nan },  { 100, inf, inf },  { -1000, inf, nan },
    };
    const struct {
        real gate, up;
        long double y;
    } close[] = {
        { 1, 1, 0.7310585786300048792512L },    { -1, 1, -0.2689414213699951207488L },
        { 1, -1, -0.7310585786300048792512L },  { 8, 8, 63.97853759165014540135L },
        { -8, -8, 0.02146240834985459864821L },
    };
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        real y;
        run(&y, &exact[i].gate, &exact[i].up, 1, 1);
        twin_check_same("y", 0, (int64_t)i, y, exact[i].y);
    }
    for (int i = 0; i < 5; i++) {
        real y;
        run(&y, &close[i].gate, &close[i].up, 1, 1);
        twin_check("y", 1, i, y, close[i].y, 9 * twin_roundoff() * fabsl(close[i].y) * (1 + fabs(close[i].gate)));
    }
}
END_TEST

Suite *m3_suite(void);
Suite *m3_suite(void)
{
    Suite *suite = suite_create("swiglu");
    TCase *test = tcase_create("swiglu");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, shapes_and_threads);
    tcase_add_test(test, known_values);
    suite_add_tcase(suite, test);
    return suite;
}
