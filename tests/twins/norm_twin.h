/* Root-mean-square norm for the tests of rms_norm and rms_norm_plain, written from SPEC 5.2 and 5.3: the formula in
 * long double, and the loop of "Order" in real. `offset` is 1 in Gemma's form, y = x / rms * (1 + w), else 0. */
#ifndef M3_TESTS_NORM_TWIN_H
#define M3_TESTS_NORM_TWIN_H

#include "model/engine.h"
#include "ops/ops.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "guard.h"
#include "twin.h"

/* One call in guarded buffers; copies y [T,H] out. */
static inline void norm_run(real *y, const real *x, const real *w, int64_t T, int64_t H, real eps, int offset,
                            int threads, int in_place)
{
    const size_t size = (size_t)(T * H) * sizeof *y;
    struct guard y_guard, x_guard, w_guard;
    real *out = guard_output(&y_guard, size);
    const real *x_in = guard_input(&x_guard, x, size), *w_in = guard_input(&w_guard, w, (size_t)H * sizeof *w);
    if (in_place) x_in = memcpy(out, x, size);

    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, threads, M3_LINEAR_BLAS), 0);
    const struct m3_ops *ops = M3_ENGINE()->ops;
    ck_assert_int_eq((offset ? ops->rms_norm : ops->rms_norm_plain)(&ctx, out, x_in, w_in, T, H, eps), 0);
    m3_ctx_free(&ctx);

    memcpy(y, out, size);
    ck_assert(guard_intact(&y_guard));
    ck_assert(guard_intact(&x_guard));
    ck_assert(guard_intact(&w_guard));
}

/* y [H], of one row. */
static inline void norm_formula(long double *y, const real *x, const real *w, int64_t H, real eps, int offset)
{
    long double squares = 0;
    for (int64_t i = 0; i < H; i++) squares += (long double)x[i] * x[i];
    for (int64_t i = 0; i < H; i++) y[i] = x[i] / sqrtl(squares / H + eps) * ((long double)w[i] + offset);
}

static inline void norm_order(real *y, const real *x, const real *w, int64_t H, real eps, int offset)
{
    double squares = 0;
    for (int64_t i = 0; i < H; i++) squares = squares + (double)x[i] * (double)x[i];
    const real scale = (real)(1 / sqrt(squares / (double)H + (double)eps));
    for (int64_t i = 0; i < H; i++) {
        const real factor = offset ? 1 + w[i] : w[i];
        y[i] = (x[i] * scale) * factor;
    }
}

/* Every row of y within the operator's tolerance of the formula, and of the bits of "Order". In float ours is better
 * than the tolerance, because it sums in double: u each for scale, for one product, for 1 + w and for the other
 * product.
 * */
static inline void norm_check(const real *y, const real *x, const real *w, int64_t T, int64_t H, real eps, int offset)
{
    long double *want = malloc((size_t)H * sizeof *want);
    real *order = malloc((size_t)H * sizeof *order);
    if (!want || !order) abort();
    const int64_t steps = sizeof(real) == 4 ? 3 + offset : (H + 1) / 2 + 7 + offset;
    for (int64_t t = 0; t < T; t++) {
        norm_formula(want, x + t * H, w, H, eps, offset);
        norm_order(order, x + t * H, w, H, eps, offset);
        for (int64_t i = 0; i < H; i++) {
            twin_check("y", t, i, y[t * H + i], want[i], steps * twin_roundoff() * fabsl(want[i]));
            twin_check_same("y by the order of operations", t, i, y[t * H + i], order[i]);
        }
    }
    free(want);
    free(order);
}

/* Shapes 1, odd, prime, around vector widths, and enough for five threads. Neighbouring rows differ in size: mean x^2
 * runs from far below eps through eps to far above, so that eps outside the root, or a norm over several rows, shows.
 * Any number of threads, in place or not. */
static inline void norm_shapes(int offset)
{
    static const struct {
        int64_t T, H;
    } shapes[] = {
        { 1, 1 },   { 2, 1 },    { 67, 1 },   { 1, 2 },    { 3, 3 },     { 31, 17 },  { 33, 31 },
        { 2, 127 }, { 32, 128 }, { 67, 257 }, { 31, 521 }, { 331, 521 }, { 1, 6143 }, { 1601, 128 },
    };
    static const double sizes[] = { 1, 1e-3, 1e4, 1e-2, 1e-12, 1e12, 3e-4 };
    uint64_t state = 52;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t T = shapes[s].T, H = shapes[s].H;
        const size_t size = (size_t)(T * H) * sizeof(real);
        real *x = malloc(size), *w = malloc((size_t)H * sizeof *w), *y = malloc(size);
        if (!x || !w || !y) abort();
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = 0; i < H; i++) x[t * H + i] = (real)(sizes[t % 7] * twin_fine(&state));
        for (int64_t i = 0; i < H; i++) w[i] = (real)twin_fine(&state);
        for (int team = 0; team < TWIN_TEAMS; team++)
            for (int in_place = 0; in_place < 2; in_place++) {
                norm_run(y, x, w, T, H, 1e-6, offset, twin_threads[team], in_place);
                norm_check(y, x, w, T, H, 1e-6, offset);
            }
        free(x);
        free(w);
        free(y);
    }
}

/* Rows of which the norm is known: 3-4-5 triangles, |x| = sqrt(eps), zeros. Weights 0.5, -1, 0. The tolerance for
 * H = 3 is 10 u. */
static inline void norm_known(int offset)
{
    enum { H = 3 };
    const real a = 0x1p-12, eps = 0x1p-20, w[H] = { 0.5, -1, 0 };
    const struct {
        real x[H];
        long double normed[H];
    } rows[] = {
        { { 3 * a, -3 * a, 3 * a }, { 0.6L, -0.6L, 0.6L } },                    /* 9 + 16 = 25 */
        { { 12 * a, 12 * a, -12 * a }, { 12 / sqrtl(160), 12 / sqrtl(160), -12 / sqrtl(160) } },
        { { 4 * a, 4 * a, 4 * a }, { sqrtl(0.5L), sqrtl(0.5L), sqrtl(0.5L) } },    /* mean x^2 = eps */
        { { 0, 0, 0 }, { 0, 0, 0 } },
        { { 0x1p20f, 0, 0 }, { sqrtl(3), 0, 0 } },
        { { 0x1p-60f, 0, 0x1p-61f }, { 0x1p-50, 0, 0x1p-51 } },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        real y[H];
        norm_run(y, rows[r].x, w, 1, H, eps, offset, 1, 0);
        for (int i = 0; i < H; i++) {
            long double want = rows[r].normed[i] * ((long double)w[i] + offset);
            twin_check("y", (int64_t)r, i, y[i], want, 10 * twin_roundoff() * fabsl(want));
        }
    }
}

/* Infinity: NaN at its own place, zeros elsewhere. NaN: in its whole row. Rows beside them as if alone. */
static inline void norm_not_finite(int offset)
{
    enum { T = 5, H = 17 };
    real x[T * H], w[H], y[T * H], alone[T * H];
    uint64_t state = 3;
    for (int i = 0; i < T * H; i++) x[i] = (real)twin_fine(&state);
    for (int i = 0; i < H; i++) w[i] = (real)(0.25 + 0.1 * twin_fine(&state));
    x[1 * H + 4] = INFINITY;
    x[3 * H + 16] = -INFINITY;
    x[4 * H + 0] = NAN;
    norm_run(y, x, w, T, H, 1e-6, offset, 2, 0);
    for (int t = 0; t < T; t++) norm_run(alone + t * H, x + t * H, w, 1, H, 1e-6, offset, 1, 0);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < H; i++) {
            const int nan = (t == 1 && i == 4) || (t == 3 && i == 16) || t == 4;
            if (t == 1 || t == 3 || t == 4) ck_assert(nan ? isnan(y[t * H + i]) : y[t * H + i] == 0);
            else ck_assert(isfinite(y[t * H + i]) && y[t * H + i] != 0);
            twin_check_same("y against its row alone", t, i, y[t * H + i], alone[t * H + i]);
        }
}

/* The ends of the range. In float no square overflows the double sum; in double the square of 2^512 does, and the row
 * becomes 0, while 2^511 is normed. Subnormal numbers are not flushed: eps = 2^-20 makes them 2^10 times larger. */
static inline void norm_extremes(int offset)
{
    enum { H = 3 };
    const real w[H] = { 0.5, 2, -3 };
    const real large = sizeof(real) == 4 ? FLT_MAX : 0x1p511, beyond = sizeof(real) == 4 ? FLT_MAX : 0x1p512;
    const real least = (real)twin_least();
    const real x[4 * H] = { large, -large, large, beyond, beyond, -beyond, least, -3 * least, 5 * least, 1, 0, 0 };
    real y[4 * H];
    norm_run(y, x, w, 4, H, 0x1p-20, offset, 1, 0);
    for (int i = 0; i < H; i++) {
        const double factor = (double)w[i] + offset, allowed = 10 * twin_roundoff() * fabs(factor);
        const double beyond_normed = sizeof(real) == 4 ? copysign(1, x[H + i]) : 0;
        twin_check("large", 0, i, y[i], copysign(1, x[i]) * factor, allowed);
        twin_check("beyond", 1, i, y[H + i], beyond_normed * factor, beyond_normed == 0 ? 0 : allowed);
        twin_check("least", 2, i, y[2 * H + i], 1024.0L * x[2 * H + i] * factor, 0);
    }
}

/* Rows x = (a, e, e, ..) whose e^2 is lost when it is added to a^2, but not when the e^2 are added first: the squares
 * ascend. In float the double sum hides that except for one a in 10^5 or so: the first 8 that show it are taken. */
static inline void norm_ascends(int offset)
{
    enum { H = 6143, ROWS = 8 };
    static real x[H], y[H], w[H];
    const real eps = 1e-6f;
    const double e = sizeof(real) == 4 ? 0x1p-27 : 0x1p-30;
    for (int i = 0; i < H; i++) {
        x[i] = (real)e;
        w[i] = (real)(i % 7);
    }
    int rows = 0;
    for (int64_t k = 0; rows < ROWS && k < 1 << 23; k++) {
        x[0] = (real)(1 + (double)k * 0x1p-23);
        const double square = (double)x[0] * (double)x[0], other = square + (H - 1) * e * e;
        if ((real)(1 / sqrt(square / H + (double)eps)) == (real)(1 / sqrt(other / H + (double)eps))) continue;
        rows++;
        norm_run(y, x, w, 1, H, eps, offset, 1, 0);
        norm_check(y, x, w, 1, H, eps, offset);
    }
    ck_assert_int_eq(rows, ROWS);
}

#endif
