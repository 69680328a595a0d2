/* The derivatives of operators that work element by element, TRAINING 19.7, 19.8, 19.11 and 19.13: against formulas in
 * long double, and in double against slopes of the plain bodies. */
#include "ops/backward.h"
#include "ops/operators.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "near_twin.h"

TIMEOUT(60);

/* ---- one call in guarded buffers */

enum which { SWIGLU_OAI, SWIGLU };

struct gated {
    enum which which;
    int64_t T, F;
    struct m3_activation act;
    real *dy, *gate, *up;
};

struct halves {
    real *dgate, *dup;
};

static int call_gated(struct m3_ctx *ctx, const struct gated *c, real *dgate, real *dup, const real *dy,
                      const real *gate, const real *up)
{
    if (c->which == SWIGLU) return m3_swiglu_backward(ctx, dgate, dup, dy, gate, up, c->T, c->F);
    return m3_swiglu_oai_backward(ctx, dgate, dup, dy, gate, up, c->T, c->F, &c->act);
}

/* wanted: 1 dgate, 2 dup, 3 both; the other is NULL. */
static struct halves run_gated(const struct gated *c, int wanted, int threads)
{
    const int64_t n = c->T * c->F;
    const size_t size = (size_t)n * sizeof(real);
    struct halves got = { near_room(n, sizeof(real)), near_room(n, sizeof(real)) };
    struct guard zones[5];
    real *dgate = guard_output(&zones[0], size), *dup = guard_output(&zones[1], size);
    const real *dy = guard_input(&zones[2], c->dy, size), *gate = guard_input(&zones[3], c->gate, size),
               *up = guard_input(&zones[4], c->up, size);
    struct m3_ctx ctx = near_ctx(threads);
    near_done(&ctx, call_gated(&ctx, c, wanted & 1 ? dgate : NULL, wanted & 2 ? dup : NULL, dy, gate, up));
    memcpy(got.dgate, dgate, size);
    memcpy(got.dup, dup, size);
    for (int i = 0; i < 5; i++) ck_assert_msg(guard_intact(&zones[i]), "guard or input %d", i);
    return got;
}

static void free_halves(struct halves *h)
{
    free(h->dgate);
    free(h->dup);
}

static void free_gated(struct gated *c)
{
    free(c->dy);
    free(c->gate);
    free(c->up);
}

static struct gated draw_gated(enum which which, int64_t T, int64_t F, double limit, enum m3_gate_clamp clamp)
{
    const struct m3_activation act = { which == SWIGLU_OAI, (real)1.702, (real)limit, clamp };
    return (struct gated){ which, T, F, act, near_draw(T * F, 1), near_draw(T * F, 12), near_draw(T * F, 12) };
}

/* ---- the formulas */

/* g sig(alpha g), and its derivative by g. */
static struct near value_of(double g, double alpha)
{
    return near_times(near_of(g), near_sig(near_times(near_of(alpha), near_of(g))));
}

static struct near slope_of(double g, double alpha)
{
    const struct near a = near_times(near_of(alpha), near_of(g)), s = near_sig(a), one = near_of(1);
    return near_times(s, near_plus(one, near_times(a, near_plus(one, near_minus(s)))));
}

/* Element i. A clamp passes at its limit and not beyond it. */
static void formula(struct near *dgate, struct near *dup, const struct gated *c, int64_t i)
{
    const double dy = (double)c->dy[i], limit = (double)c->act.limit;
    double g = (double)c->gate[i], u = (double)c->up[i], plus = 0, alpha = 1;
    int gate_moves = 1, up_moves = 1;
    if (c->which == SWIGLU_OAI) {
        const int below = c->act.clamp == M3_GATE_CLAMP_BOTH && g < -limit;
        gate_moves = g <= limit && !below;
        up_moves = -limit <= u && u <= limit;
        g = g > limit ? limit : below ? -limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        plus = 1;
        alpha = (double)c->act.alpha;
    }
    *dgate = *dup = near_of(0);
    const struct near up_factor = near_plus(near_of(u), near_of(plus));
    if (gate_moves) *dgate = near_stored(near_times(near_times(near_of(dy), up_factor), slope_of(g, alpha)));
    if (up_moves) *dup = near_stored(near_times(near_of(dy), value_of(g, alpha)));
}

/* Goal:  both halves of every element; gate and up not exchanged; clamps; any shape and number of threads.
 * Given: gate and up to 12, so that limits 7 and 3 are passed; T and F 1, odd, prime, enough for four threads.
 * Claim: what rounding allows of the formula; the same bits with 4 threads, with one output only, and with dgate or dup
 *        in the place of dy.
 * Seen to fail with: alpha missing in the slope, u for u + 1, a clamp below that is always there, no clamp of up, dy
 *        read after dgate was written in its place. */
TEST(gated_formula)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 2, 3 }, { 1, 17 }, { 67, 33 }, { 67, 131 } };
    for (int k = 0; k < 5 * 2 * 3; k++) {
        const int64_t T = shapes[k % 5][0], F = shapes[k % 5][1], n = T * F;
        const enum which which = k / 10 == 2 ? SWIGLU : SWIGLU_OAI;
        struct gated c = draw_gated(which, T, F, k / 5 % 2 ? 3 : 7, k / 10 ? M3_GATE_CLAMP_BOTH : M3_GATE_CLAMP_UPPER);
        struct halves got = run_gated(&c, 3, 1), four = run_gated(&c, 3, 4), gate = run_gated(&c, 1, 1),
                      up = run_gated(&c, 2, 1);
        for (int64_t i = 0; i < n; i++) {
            struct near dgate, dup;
            formula(&dgate, &dup, &c, i);
            near_check("dgate", i / F, i % F, got.dgate[i], dgate);
            near_check("dup", i / F, i % F, got.dup[i], dup);
        }
        ck_assert(near_same(got.dgate, four.dgate, n) && near_same(got.dup, four.dup, n));
        ck_assert(near_same(got.dgate, gate.dgate, n) && near_same(got.dup, up.dup, n));

        real *first = near_draw(n, 1), *second = near_draw(n, 1);
        struct m3_ctx ctx = near_ctx(4);
        memcpy(first, c.dy, (size_t)n * sizeof *first);
        ck_assert_int_eq(call_gated(&ctx, &c, first, second, first, c.gate, c.up), M3_OK);
        ck_assert(near_same(got.dgate, first, n) && near_same(got.dup, second, n));
        memcpy(first, c.dy, (size_t)n * sizeof *first);
        near_done(&ctx, call_gated(&ctx, &c, second, first, first, c.gate, c.up));
        ck_assert(near_same(got.dgate, second, n) && near_same(got.dup, first, n));

        struct halves *all[] = { &got, &four, &gate, &up };
        for (int i = 0; i < 4; i++) free_halves(all[i]);
        free(first);
        free(second);
        free_gated(&c);
    }
}

/* Goal:  the edges of the clamps.
 * Given: dy = 1; gate and up at +-7, one number inside and one beyond, at 0, infinite and NaN, in every combination.
 * Claim: at a limit the gradient passes, as in torch.clamp; beyond it is exactly 0; a gate of -inf gives 0, not NaN;
 *        with gate_clamp both, a gate below -7 gives dgate 0 and the dup of -7; NaN in a value that takes part shows.
 * Seen to fail with: < for <= at the limit of gate and at each of up, <= for < at the lower one of gate, -inf * 0. */
TEST(gated_edges)
{
    const real inf = INFINITY, step = 8 * (real)twin_roundoff();
    const real edges[] = { 0,    7, -7,  7 + step, -7 - step, 7 - step,          -7 + step,
                           -1e3, 8, inf, -inf,     NAN,       (real)twin_least() };
    enum { N = sizeof edges / sizeof *edges };
    for (enum m3_gate_clamp clamp = M3_GATE_CLAMP_UPPER; clamp <= M3_GATE_CLAMP_BOTH; clamp++) {
        struct gated c = draw_gated(SWIGLU_OAI, N, N, 7, clamp);
        for (int i = 0; i < N * N; i++) c.dy[i] = 1, c.gate[i] = edges[i / N], c.up[i] = edges[i % N];
        struct halves got = run_gated(&c, 3, 1);
        for (int i = 0; i < N * N; i++) {
            const real gate = c.gate[i], up = c.up[i];
            const int low = clamp == M3_GATE_CLAMP_UPPER && gate == -inf, unknown = isnan(gate) || isnan(up);
            struct near dgate = near_of(0), dup = near_of(0);
            if (!low && !unknown) formula(&dgate, &dup, &c, i);
            if (!isnan(up)) near_check("dgate", i / N, i % N, got.dgate[i], dgate);
            else if (dgate.v == 0 && !(gate <= 7)) near_check("dgate", i / N, i % N, got.dgate[i], near_of(0));
            else if (clamp == M3_GATE_CLAMP_UPPER && gate >= -7) ck_assert(isnan(got.dgate[i]));
            if (!isnan(gate)) near_check("dup", i / N, i % N, got.dup[i], isnan(up) ? near_of(0) : dup);
            else ck_assert(up <= 7 && up >= -7 ? isnan(got.dup[i]) : got.dup[i] == 0);
        }
        free_halves(&got);
        free_gated(&c);
    }
}

/* ---- slopes */

static long double gated_loss(void *self)
{
    const struct gated *c = self;
    const int64_t n = c->T * c->F;
    real *y = near_room(n, sizeof *y);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, c->which == SWIGLU ? m3_swiglu(&ctx, y, c->gate, c->up, c->T, c->F)
                                       : m3_swiglu_oai(&ctx, y, c->gate, c->up, c->T, c->F, &c->act));
    for (int64_t i = 0; i < n; i++) sum += (long double)c->dy[i] * y[i];
    free(y);
    return sum;
}

/* Steps of 1/64 must not cross a clamp. */
static void leave_limits(real *x, int64_t n, double limit)
{
    for (int64_t i = 0; i < n; i++)
        if (fabs(fabs((double)x[i]) - limit) < 0.05) x[i] = (real)(0.9 * (double)x[i]);
}

/* Claim: along random directions the plain bodies have the slope that the gradient promises.
 * Seen to fail with: as gated_formula, the last excepted. */
TEST_IF(gated_slopes, sizeof(real) == sizeof(double))
{
    for (int k = 0; k < 6; k++) {
        struct gated c = draw_gated(k < 4 ? SWIGLU_OAI : SWIGLU, 5, 7, k % 2 ? 3 : 7,
                                    k / 2 ? M3_GATE_CLAMP_BOTH : M3_GATE_CLAMP_UPPER);
        leave_limits(c.gate, 35, (double)c.act.limit);
        leave_limits(c.up, 35, (double)c.act.limit);
        struct halves got = run_gated(&c, 3, 1);
        near_check_slopes("dgate", c.gate, got.dgate, 35, gated_loss, &c);
        near_check_slopes("dup", c.up, got.dup, 35, gated_loss, &c);
        free_halves(&got);
        free_gated(&c);
    }
    printf("  gated: slopes within %.1Le\n", near_worst_slope);
}

/* ---- sigmoid and gelu */

typedef int backward_of_one(struct m3_ctx *, real *dx, const real *dy, const real *x, int64_t n);
typedef int forward_of_one(struct m3_ctx *, real *y, const real *x, int64_t n);

struct one {
    backward_of_one *backward;
    forward_of_one *forward;
    struct near (*slope)(double x);
    int64_t n;
    real *dy, *x;
};

static struct near sigmoid_slope(double x) { return near_times(near_sig(near_of(x)), near_sig(near_of(-x))); }

/* P from erfc; the tail of erfc is good to some units in the last place. */
static struct near gelu_slope(double x)
{
    const long double p = erfcl(-(long double)x / sqrtl(2)) / 2, pi = 3.14159265358979323846264338327950288L;
    const struct near below = { p, 16 * near_u * p };
    const struct near square = near_times(near_of(x), near_of(x));
    const struct near density =
        near_over(near_exp(near_times(near_of(-0.5), square)), (struct near){ sqrtl(2 * pi), 0 });
    return near_plus(below, near_times(near_of(x), density));
}

static real *run_one(const struct one *c, int threads)
{
    const size_t size = (size_t)c->n * sizeof(real);
    real *got = near_room(c->n, sizeof *got);
    struct guard zones[3];
    real *dx = guard_output(&zones[0], size);
    const real *dy = guard_input(&zones[1], c->dy, size), *x = guard_input(&zones[2], c->x, size);
    struct m3_ctx ctx = near_ctx(threads);
    near_done(&ctx, c->backward(&ctx, dx, dy, x, c->n));
    memcpy(got, dx, size);
    for (int i = 0; i < 3; i++) ck_assert_msg(guard_intact(&zones[i]), "guard or input %d", i);
    return got;
}

static long double one_loss(void *self)
{
    const struct one *c = self;
    real *y = near_room(c->n, sizeof *y);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, c->forward(&ctx, y, c->x, c->n));
    for (int64_t i = 0; i < c->n; i++) sum += (long double)c->dy[i] * y[i];
    free(y);
    return sum;
}

static struct one draw_one(int k, int64_t n, double size)
{
    struct one c = { m3_sigmoid_backward, m3_sigmoid, sigmoid_slope, n, near_draw(n, 1), near_draw(n, size) };
    if (k) c.backward = m3_gelu_backward, c.forward = m3_gelu, c.slope = gelu_slope;
    return c;
}

/* Goal:  sigmoid and gelu: every element, any number of threads, in place.
 * Given: arguments to 3, 20 and 100; n 1, 17, 10007; 0 and infinities.
 * Claim: what rounding allows of sig(x) sig(-x), and of P(x) + x density(x) with P from erfc; dy or 0 at infinities;
 *        1/4 and 1/2 of dy at 0.
 * Seen to fail with: y (1 - y) of y in real, another factor of the density. */
TEST(one_formula)
{
    static const int64_t sizes[] = { 1, 17, 10007 };
    static const double widths[] = { 3, 20, 100 };
    for (int k = 0; k < 2 * 3 * 3; k++) {
        struct one c = draw_one(k % 2, sizes[k / 2 % 3], widths[k / 6]);
        real *got = run_one(&c, 1), *four = run_one(&c, 4), *placed = near_draw(c.n, 1);
        for (int64_t i = 0; i < c.n; i++)
            near_check(k % 2 ? "gelu" : "sigmoid", 0, i, got[i],
                       near_stored(near_times(near_of((double)c.dy[i]), c.slope((double)c.x[i]))));
        ck_assert(near_same(got, four, c.n));
        memcpy(placed, c.dy, (size_t)c.n * sizeof *placed);
        struct m3_ctx ctx = near_ctx(1);
        near_done(&ctx, c.backward(&ctx, placed, placed, c.x, c.n));
        ck_assert(near_same(got, placed, c.n));
        void *all[] = { got, four, placed, c.dy, c.x };
        for (int i = 0; i < 5; i++) free(all[i]);
    }
    for (int k = 0; k < 2; k++) {
        struct one c = draw_one(k, 3, 1);
        const real x[3] = { 0, -INFINITY, INFINITY }, dy[3] = { 0.75, 0.75, 0.75 };
        memcpy(c.x, x, sizeof x);
        memcpy(c.dy, dy, sizeof dy);
        real *got = run_one(&c, 1);
        ck_assert(got[0] == (real)(k ? 0.375 : 0.1875) && got[1] == 0 && got[2] == (real)(k ? 0.75 : 0));
        free(got);
        free(c.dy);
        free(c.x);
    }
}

/* Claim: the plain bodies have the slope that the gradient promises.
 * Seen to fail with: another factor of the density. */
TEST_IF(one_slopes, sizeof(real) == sizeof(double))
{
    for (int k = 0; k < 2; k++) {
        struct one c = draw_one(k, 37, 4);
        real *got = run_one(&c, 1);
        near_check_slopes(k ? "gelu" : "sigmoid", c.x, got, c.n, one_loss, &c);
        free(got);
        free(c.dy);
        free(c.x);
    }
    printf("  sigmoid, gelu: slopes within %.1Le\n", near_worst_slope);
}

/* Claim: both addends receive the bits of dy; either may be dy or not wanted.  Seen to fail with: -dy in db. */
TEST(sum)
{
    static const int64_t sizes[] = { 1, 17, 140001 };
    for (int k = 0; k < 3; k++) {
        const int64_t n = sizes[k];
        const size_t size = (size_t)n * sizeof(real);
        real *source = near_draw(n, 1);
        for (int wanted = 0; wanted < 4 * 2; wanted++) {
            struct guard zones[3];
            real *da = guard_output(&zones[0], size), *db = guard_output(&zones[1], size);
            const real *dy = guard_input(&zones[2], source, size);
            struct m3_ctx ctx = near_ctx(wanted / 4 ? 4 : 1);
            near_done(&ctx, m3_add_backward(&ctx, wanted & 1 ? da : NULL, wanted & 2 ? db : NULL, dy, n));
            if (wanted & 1) ck_assert(near_same(da, source, n));
            if (wanted & 2) ck_assert(near_same(db, source, n));
            for (int i = 0; i < 3; i++) ck_assert(guard_intact(&zones[i]));
        }
        real *other = near_draw(n, 1), *placed = near_draw(n, 1);
        for (int swap = 0; swap < 2; swap++) {
            memcpy(placed, source, size);
            struct m3_ctx ctx = near_ctx(1);
            near_done(&ctx, m3_add_backward(&ctx, swap ? other : placed, swap ? placed : other, placed, n));
            ck_assert(near_same(placed, source, n) && near_same(other, source, n));
        }
        free(other);
        free(placed);
        free(source);
    }
}
