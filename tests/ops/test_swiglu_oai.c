/* swiglu_oai and swiglu, SPEC 5.11 and 5.12, against the formula in long double. */
#include "op_driver.h"

#include <float.h>

#include "formula_twin.h"

TIMEOUT(60);

static void run(real *y, const real *gate, const real *up, int64_t T, int64_t F, const struct m3_activation *act)
{
    const struct swiglu_oai_values d = { T, F, act };
    struct call c = CALL(call_swiglu_oai, &d, 1, 2, OPERAND(y, T * F), OPERAND(gate, T * F), OPERAND(up, T * F));
    if (!act->oai) c.body = call_swiglu, c.self = KEPT(struct swiglu_values, T, F);
    call_in_place(&c, 0, 0);
    call_all(&c);
}

static struct m3_activation activation(double alpha, double limit, enum m3_gate_clamp clamp)
{
    return (struct m3_activation){ 1, (real)alpha, (real)limit, clamp };
}

static const struct m3_activation swiglu = { .oai = 0, .alpha = 1, .limit = INFINITY };

/* ---- the twin */

static real clamped_gate(real gate, const struct m3_activation *act)
{
    return (real)twin_clamped(gate, act->clamp == M3_GATE_CLAMP_BOTH ? -act->limit : -INFINITY, act->limit);
}

/* The bits of "Order" with a correctly rounded logistic function. Ours is that in float, for nearly every argument. */
static real order(real gate, real up, const struct m3_activation *act)
{
    const real g = clamped_gate(gate, act), u = (real)twin_clamped(up, -act->limit, act->limit);
    volatile real a = act->alpha * g, linear = act->oai ? u + 1 : u, product = linear * g;
    return product * (real)twin_sigmoid(a);
}

/* Within 9 u |y| (1 + |alpha g| (1 - sig(alpha g))) where sig and y are normal numbers, because u does not apply below
 * them; in float, everywhere, the bits of "Order"; in double, where those are NaN, 0 or infinite, the same. */
static void check_one(int64_t t, int64_t i, real got, real gate, real up, const struct m3_activation *act)
{
    const real by_order = order(gate, up, act);
    if (sizeof(real) == 4) twin_check_same("y by the order of operations", t, i, got, by_order);
    const struct twin_gates gates = { act->oai, act->clamp == M3_GATE_CLAMP_BOTH, (double)act->alpha,
                                      (double)act->limit };
    const long double a = (long double)act->alpha * clamped_gate(gate, act), s = twin_sigmoid(a),
                      want = twin_gated(gate, up, &gates);
    const real least_normal = sizeof(real) == 4 ? FLT_MIN : DBL_MIN;
    if (!isfinite(by_order)) twin_check_same("not finite", t, i, got, by_order);
    else if (by_order == 0) twin_check("zero", t, i, got, 0, 0);
    else if (s >= least_normal && fabsl(want) >= least_normal)
        twin_check("y", t, i, got, want, 9 * twin_roundoff() * fabsl(want) * (1 + fabsl(a) * (1 - s)));
}

/* Goal:  the activation of every element; gate and up not exchanged; any shape, any number of threads, both clamps;
 *        swiglu has no clamp, no +1, and alpha 1.
 * Given: gate and up to 20 (swiglu: 40 and 1000), both signs, all sizes, so that both limits are passed; T and F 1, odd, prime, enough for
 *        five threads; M3's alpha and limit, and others.
 * Claim: within 9 u |y| (1 + |alpha g| (1 - sig(alpha g))); in float the bits of SPEC's order of operations.
 * Seen to fail with the clamps, the +1 or the alpha of swiglu_oai in swiglu, up (g s) in another order (in float), act.alpha, act.no_plus_one, act.no_clamp, act.gate_lower, act.up_upper, act.swap,
 * act.params_dropped (alpha, limit, clamp), exp of a float, in float (u + 1) (g s) and alpha g not rounded, 20 u off,
 * the last element left out, one too many, one bit off with five threads. */
TEST(shapes_and_threads)
{
    static const struct {
        int64_t T, F;
        double alpha, limit;
    } shapes[] = {
        { 1, 1, 1.702, 7 },    { 2, 3, 1.702, 7 },   { 1, 17, 1, 0.5 },   { 31, 127, 1.702, 7 }, { 32, 31, 3, 100 },
        { 33, 257, 1.702, 7 }, { 67, 33, 1.702, 3 }, { 67, 521, 0.5, 7 }, { 1, 6151, 1.702, 7 }, { 67, 3079, 1.702, 7 },
    };
    enum { MOST = 67 * 3079 };
    static real gate[MOST], up[MOST], y[MOST];
    uint64_t state = 511;
    for (int i = 0; i < MOST; i++) {
        gate[i] = (real)(ldexp(20, i % 3 ? -(int)twin_pick(&state, 20) : 0) * twin_fine(&state));
        up[i] = (real)(ldexp(20, i % 2 ? -(int)twin_pick(&state, 20) : 0) * twin_fine(&state));
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (enum m3_gate_clamp clamp = M3_GATE_CLAMP_UPPER; clamp <= M3_GATE_CLAMP_BOTH; clamp++) {
            const int64_t T = shapes[s].T, F = shapes[s].F;
            const struct m3_activation act = activation(shapes[s].alpha, shapes[s].limit, clamp);
            run(y, gate, up, T, F, &act);
            for (int64_t i = 0; i < T * F; i++) check_one(i / F, i % F, y[i], gate[i], up[i], &act);
        }
    for (int i = 0; i < MOST; i++) gate[i] *= 2, up[i] *= 50;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t F = shapes[s].F, n = shapes[s].T * F;
        run(y, gate, up, shapes[s].T, F, &swiglu);
        for (int64_t i = 0; i < n; i++) check_one(i / F, i % F, y[i], gate[i], up[i], &swiglu);
    }
}

/* Goal:  the edges of the clamps, in every combination of gate and up.
 * Given: both at, one number inside and one beyond +-7, far beyond, at +-0, subnormal, infinite and NaN; both clamps.
 * Claim: as above; in particular NaN stays NaN, and the gate is not clamped below unless asked for.
 * Seen to fail with fmin and fmax for the clamps, NaN made 0, act.gate_lower, act.up_upper, act.no_clamp, a gate_clamp
 * that is ignored. */
TEST(edges_of_the_clamps)
{
    const real inf = INFINITY, max = sizeof(real) == 4 ? FLT_MAX : DBL_MAX;
    const real step = 8 * (real)twin_roundoff();            /* from 7 to its neighbours */
    const real edges[] = {
        0,   -0.0, 1,     -1,  7,    -7,  7 + step, -7 - step, 7 - step,           -7 + step,           8,   -8, 100,
        -30, 1e30, -1e30, max, -max, inf, -inf,     NAN,       (real)twin_least(), -(real)twin_least(), 0.5,
    };
    enum { N = sizeof edges / sizeof *edges };
    ck_assert(7 + step > 7 && 7 - step < 7 && (real)(7 + step / 2) == 7);
    real gate[N * N], up[N * N], y[N * N];
    for (int i = 0; i < N * N; i++) {
        gate[i] = edges[i / N];
        up[i] = edges[i % N];
    }
    for (enum m3_gate_clamp clamp = M3_GATE_CLAMP_UPPER; clamp <= M3_GATE_CLAMP_BOTH; clamp++) {
        const struct m3_activation act = activation(1.702, 7, clamp);
        run(y, gate, up, N, N, &act);
        for (int i = 0; i < N * N; i++) {
            check_one(i / N, i % N, y[i], gate[i], up[i], &act);
            if (isnan(gate[i]) || isnan(up[i])) ck_assert(isnan(y[i]));
        }
    }
}

/* Goal:  what is known in advance.
 * Given: alpha 1.75, limit 7; values computed with 40 digits (mpmath 1.3); up = -1; very negative gates; an infinite
 *        gate, and (u + 1) g beyond the range of real.
 * Claim: these values: up is clamped both ways and the gate above, below only with `both`; up = -1 gives 0 with any
 *        finite gate; -1e30 gives 0; -inf * 0 gives NaN.
 * Seen to fail with act.alpha, act.params_dropped (alpha, limit, clamp), act.no_plus_one, act.no_clamp,
 * act.gate_lower, act.up_upper, act.swap, NaN made 0. */
TEST(known_values)
{
    /* clang-format off */
    static const struct { double gate, up; int both; long double y; } known[] = {
        { 8, 8, 0, 55.99973203470828615336L }, { 7, 7, 1, 55.99973203470828615336L },
        { -8, -8, 0, 0.00003991334532787834280602L }, { -8, -8, 1, 0.0002009739687853849816254L },
        { -8, 8, 0, -0.00005321779377050445707469L }, { -8, 8, 1, -0.0002679652917138466421671L },
        { 1, 1, 0, 1.703905603936621060588L }, { -1, 2, 0, -0.4441415940950684091186L },
        { 0.5, -7.5, 0, -2.117355083511033677148L }, { 0.5, -7.5, 1, -2.117355083511033677148L },
        { 3, -1, 0, 0 }, { 8, -1, 0, 0 }, { -8, -1, 1, 0 }, { -1e30, 3, 0, 0 }, { -1e30, 1e30, 0, 0 }, { 0, 5, 0, 0 },
        { -INFINITY, INFINITY, 1, -0.0002679652917138466421671L }, { INFINITY, INFINITY, 0, 55.99973203470828615336L },
    };
    /* clang-format on */
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const struct m3_activation act = activation(1.75, 7, known[k].both ? M3_GATE_CLAMP_BOTH : M3_GATE_CLAMP_UPPER);
        const real gate = (real)known[k].gate, up = (real)known[k].up;
        real y;
        run(&y, &gate, &up, 1, 1, &act);
        const long double spread = 1 + 1.75 * fmin(fabs(known[k].gate), 8);        /* |alpha g| is no larger here */
        twin_check("y", 0, (int64_t)k, y, known[k].y, 9 * twin_roundoff() * fabsl(known[k].y) * spread);
    }
    const real max = sizeof(real) == 4 ? FLT_MAX : DBL_MAX, gates[2] = { -INFINITY, -max }, up = 7;
    for (int i = 0; i < 2; i++) {
        const struct m3_activation act = activation(1.75, 7, M3_GATE_CLAMP_UPPER);
        real y;
        run(&y, &gates[i], &up, 1, 1, &act);
        ck_assert(isnan(y));
    }
}

/* Goal:  what is known in advance, and the ends of the range.
 * Given: zeros of both signs, large numbers of both signs, infinities, NaN; the clamps and constants of swiglu_oai
 *        would show at gate 8, up 8 and at up = -1.
 * Claim: these values. The reference numbers were computed with 40 digits (mpmath 1.3).
 * Seen to fail with exp(g) / (1 + exp(g)), NaN made 0, up (g s) in another order, gate and up exchanged, the clamps,
 * the +1 or the alpha of swiglu_oai. */
TEST(known_values_of_swiglu)
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
        run(&y, &exact[i].gate, &exact[i].up, 1, 1, &swiglu);
        twin_check_same("y", 0, (int64_t)i, y, exact[i].y);
    }
    for (int i = 0; i < 5; i++) {
        real y;
        run(&y, &close[i].gate, &close[i].up, 1, 1, &swiglu);
        twin_check("y", 1, i, y, close[i].y, 9 * twin_roundoff() * fabsl(close[i].y) * (1 + fabs(close[i].gate)));
    }
}
