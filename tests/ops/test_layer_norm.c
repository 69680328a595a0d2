/* layer_norm, SPEC 5.17: against the formula in long double, and the bits of "Order". */
#include "op_driver.h"

#include <float.h>

#include "formula_twin.h"

TIMEOUT(60);

static void run(real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H, real eps)
{
    const struct layer_norm_values d = { T, H, eps };
    struct call c = CALL(call_layer_norm, &d, 1, 3, OPERAND(y, T * H), OPERAND(x, T * H), OPERAND(w, H), OPERAND(b, H));
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* ---- the twin */

/* One row against the formula. In double SPEC's tolerance: (H + 8) u B and the variance's part. In float ours is
 * better, because only three roundings are in float: n, n w, and the sum; the rest is the same tolerance with the u of
 * double. An n or a product below the normal range is off by half of the smallest number. */
static void check_formula(int64_t t, const real *y, const real *x, const real *w, const real *b, int64_t H, real eps)
{
    long double *want = room(H, sizeof *want);
    const struct twin_moments m = twin_layer_norm(want, widened(x, H), widened(w, H), widened(b, H), H, (double)eps);
    const long double r = m.scale, u = twin_roundoff(), wide = 0x1p-53L, shift = H * wide * r * m.size;
    for (int64_t i = 0; i < H; i++) {
        const long double d = fabsl(x[i] - m.mean), n = (x[i] - m.mean) * r;
        long double allowed = (H + 8) * wide * (fabsl(w[i]) * r * (m.size + d) + fabsl(b[i]));
        allowed += shift * shift * fabsl(w[i]) * r * d / 2 + twin_least() * (fabsl(w[i]) + 1) / 2;
        if (sizeof(real) == 4) allowed += (2 * u + u * u) * fabsl(w[i] * n) + u * fabsl(want[i]);
        twin_check("y", t, i, y[i], want[i], allowed);
    }
}

static void order_row(real *y, const real *x, const real *w, const real *b, int64_t H, real eps)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < H; i++) sum = sum + (double)x[i];
    const double mean = sum / (double)H;
    for (int64_t i = 0; i < H; i++) squares = squares + ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1 / sqrt(squares / (double)H + (double)eps);
    for (int64_t i = 0; i < H; i++) {
        volatile real n = (real)(((double)x[i] - mean) * scale), product = n * w[i];
        y[i] = product + b[i];
    }
}

static void check_order(const real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H, real eps)
{
    real *order = reals(H);
    for (int64_t t = 0; t < T; t++) {
        order_row(order, x + t * H, w, b, H, eps);
        for (int64_t i = 0; i < H; i++) twin_check_same("y by the order of operations", t, i, y[t * H + i], order[i]);
    }
}

/* Goal:  the norm of every row by its own mean and variance, weight and bias by channel.
 * Given: rows 1 .. 857 of 1, odd, prime and released widths; means and spreads of all sizes, spreads around sqrt(eps),
 *        neighbouring rows far apart; 1, 2 and 13 threads (the last shape is enough for all), in place and not.
 * Claim: within SPEC's tolerance in double, within 2 u |w n| + u |y| and what double leaves in float; the bits of
 *        SPEC's order in both engines.
 * Seen to fail with 1 + w, a mean of 0 (RMSNorm), one mean for all rows, a variance in one pass, an unbiased one, eps
 * of 1e-6, left out or outside the root, no bias, twice the bias, mean, scale or either sum rounded to real, n not
 * rounded, a fused multiply-add, a division by the root (double), x overwritten before it is summed, another row's x,
 * one bit off with 13 threads, one element too many. */
TEST(shapes_and_threads)
{
    static const struct {
        int64_t T, H;
    } shapes[] = {
        { 1, 1 },   { 67, 1 },   { 1, 2 },    { 3, 3 },    { 31, 17 },  { 33, 31 },
        { 2, 127 }, { 32, 128 }, { 67, 257 }, { 3, 1280 }, { 1, 6143 }, { 857, 521 },
    };
    static const double spreads[] = { 1, 1e-3, 1e4, 1e-2, 1e-12, 1e12, 3e-3 }, means[] = { 0, 1, -1e4, 10, -1 };
    uint64_t state = 517;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t T = shapes[s].T, H = shapes[s].H;
        real *x = reals(T * H), *w = drawn(H, 4, &state), *b = reals(H), *y = reals(T * H);
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = 0; i < H; i++) x[t * H + i] = (real)(means[t % 5] + spreads[t % 7] * twin_fine(&state));
        for (int64_t i = 0; i < H; i++) b[i] = (real)ldexp(twin_fine(&state), -(int)(i % 12));
        run(y, x, w, b, T, H, 1e-5);
        check_order(y, x, w, b, T, H, 1e-5);
        for (int64_t t = 0; t < T; t++) check_formula(t, y + t * H, x + t * H, w, b, H, 1e-5);
        rooms_free(0);
    }
}

/* Goal:  values known without the formula.
 * Given: roots that are powers of two (var 3 + eps 1, var 9 + eps 7, eps/3 + eps); means of 2^23 (double: 2^51) against
 *        differences of 4; weights 1, -2, 0, 1/2.
 * Claim: exact; var = eps within 4 u |w| + 8 u.
 * Seen to fail with 1 + w, a mean of 0, a variance in one pass (double), an unbiased one, eps of 1e-6, left out or
 * outside the root, no bias, twice the bias. */
TEST(known_norms)
{
    enum { H = 4 };
    const double large = sizeof(real) == 4 ? 0x1p23 : 0x1p51;
    const real w[H] = { 1, -2, 0, 0.5 }, b[H] = { 0, 0.25, -3, 8 };
    const struct {
        double x[H];
        real eps;
        double n[H];
    } rows[] = {
        { { 0, 0, 0, 4 }, 1, { -0.5, -0.5, -0.5, 1.5 } },                       /* mean 1, var 3; unbiased: 4 */
        { { 4, 0, 0, 0 }, 1, { 1.5, -0.5, -0.5, -0.5 } },
        { { large, large, large + 4, large }, 1, { -0.5, -0.5, 1.5, -0.5 } },   /* in one pass var is noise */
        { { -large, -large - 4, -large, -large }, 1, { 0.5, -1.5, 0.5, 0.5 } },
        { { 3, -3, 3, -3 }, 7, { 0.75, -0.75, 0.75, -0.75 } },                  /* 9 + 7 = 16 */
        { { 1000003, 999997, 1000003, 999997 }, 7, { 0.75, -0.75, 0.75, -0.75 } },
        { { 0x3p-20, 0x1p-20, 0x1p-20, 0x3p-20 }, 0x3p-40, { 0.5, -0.5, -0.5, 0.5 } },     /* var = eps / 3 */
        { { 0x1p30, -0x1p30, 0x1p30, -0x1p30 }, 0x1p-20, { 1, -1, 1, -1 } },    /* eps is lost */
        { { 0, 0, 0, 0 }, 0x1p-20, { 0, 0, 0, 0 } },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        real x[H], y[H];
        for (int i = 0; i < H; i++) x[i] = (real)rows[r].x[i];
        run(y, x, w, b, 1, H, rows[r].eps);
        for (int i = 0; i < H; i++) twin_check("y", (int64_t)r, i, y[i], rows[r].n[i] * w[i] + b[i], 0);
    }
    const real x[H] = { 1, -1, 1, -1 };     /* var = eps = 1 */
    real y[H];
    run(y, x, w, b, 1, H, 1);
    for (int i = 0; i < H; i++)
        twin_check("var = eps", 0, i, y[i], x[i] * sqrtl(0.5L) * w[i] + b[i],
                   twin_roundoff() * (4 * fabs((double)w[i]) + 8));
}

/* Goal:  a row of equal numbers, and H = 1, give the bias.
 * Given: H 1 .. 6143, numbers from 0 over subnormal ones to 3.4e38, weights up to 100.
 * Claim: b exactly in float and for H = 1; in double within H u |x w| / sqrt(eps), and the rounding of that and of b.
 * Seen to fail with a mean of 0, a sum in float, no bias, twice the bias, no eps; in double with a variance in one
 * pass, 1 + w, eps of 1e-6 or outside the root. */
TEST(equal_numbers)
{
    static const int64_t widths[] = { 1, 2, 3, 7, 17, 127, 1280, 6143 };
    static const double values[] = { 0, 1, -3, 0.1, 1e-30, -1e-40, 12345.678, 1e30, -3.4e38 };
    const real eps = (real)1e-5;
    uint64_t state = 18;
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            const int64_t H = widths[k];
            real *x = reals(H), *w = drawn(H, 100, &state), *b = reals(H), *y = reals(H);
            for (int64_t i = 0; i < H; i++) {
                x[i] = (real)values[v];
                b[i] = (real)(1 + fabs(twin_fine(&state)));
            }
            run(y, x, w, b, 1, H, eps);
            for (int64_t i = 0; i < H; i++) {
                long double off = H * twin_roundoff() * fabsl(x[i]) / sqrtl(eps) * fabsl(w[i]);
                off += twin_roundoff() * (fabsl(b[i]) + off);
                twin_check("y", (int64_t)v, i, y[i], b[i], sizeof(real) == 4 || H == 1 ? 0 : off);
            }
            rooms_free(0);
        }
}

/* Goal:  both sums go up in i, one by one.
 * Given: ones among 2^54 and -2^54: how many of them the mean keeps depends on the order. 4094 numbers of 1 after two
 *        of 2^27, whose squares swallow theirs one by one but not together (seen in double only).
 * Claim: the bits of SPEC's order.
 * Seen to fail with a descending mean, a mean rounded to real; in double with descending squares. */
TEST(sums_ascend)
{
    enum { H = 7, LAYOUTS = 4 };
    static const double layouts[LAYOUTS][H] = {
        { 0x1p54, -0x1p54, 1, 1, 1, 1, 1 },     /* the five are kept; backwards they lose one */
        { 0x1p54, 1, 1, 1, 1, 1, -0x1p54 },     /* all are lost; in pairs or lanes some are kept */
        { 1, 1, 1, 1, 1, 0x1p54, -0x1p54 },     /* one is lost; backwards none */
        { 1, 0x1p54, 1, -0x1p54, 1, 1, 1 },
    };
    const real w[H] = { 1, 1, 1, 1, 1, 1, 1 }, b[H] = { 0 };
    for (int l = 0; l < LAYOUTS; l++) {
        real x[H], y[H];
        for (int i = 0; i < H; i++) x[i] = (real)layouts[l][i];
        run(y, x, w, b, 1, H, 1);
        check_order(y, x, w, b, 1, H, 1);
    }
    /* 2^27 squared swallows 1 squared and its neighbours one by one, not together. In float only the mean shows. */
    enum { MANY = 1 << 12 };
    static real x[MANY], ones[MANY], zeros[MANY], y[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = i == 0 ? (real)0x1p27 : i == 1 ? -(real)0x1p27 : i % 2 ? -1 : 1;
        ones[i] = 1;
    }
    run(y, x, ones, zeros, 1, MANY, 1);
    check_order(y, x, ones, zeros, 1, MANY, 1);
}

/* Goal:  a NaN or an infinity makes its whole row NaN, also where w is 0, and no other row.
 * Seen to fail with a mean of 0, an infinite mean made 0, NaN left out, another row's x, x overwritten first. */
TEST(not_finite)
{
    enum { T = 3, H = 17, AT = 5 };
    const real bad[4] = { NAN, INFINITY, -INFINITY, INFINITY };
    real x[T * H], w[H], b[H], y[T * H], alone[H];
    uint64_t state = 3;
    for (int i = 0; i < T * H; i++) x[i] = (real)twin_fine(&state);
    for (int i = 0; i < H; i++) w[i] = (real)(i % 3 - 1);                   /* a weight of 0 does not hide a NaN */
    for (int i = 0; i < H; i++) b[i] = (real)twin_fine(&state);
    for (int k = 0; k < 4; k++)
        for (int t = 0; t < T; t++) {
            const real was = x[t * H + AT], other = x[t * H + H - 1];
            x[t * H + AT] = bad[k];
            if (k == 3) x[t * H + H - 1] = -INFINITY;
            run(y, x, w, b, T, H, 1e-5);
            for (int r = 0; r < T; r++) {
                run(alone, x + r * H, w, b, 1, H, 1e-5);
                for (int i = 0; i < H; i++) {
                    if (r == t) ck_assert_msg(isnan(y[r * H + i]), "bad %d, row %d, %d: %g", k, r, i, y[r * H + i]);
                    else ck_assert(isfinite(y[r * H + i]));
                    twin_check_same("y against its row alone", r, i, y[r * H + i], alone[i]);
                }
            }
            x[t * H + AT] = was;
            x[t * H + H - 1] = other;
        }
}

/* Goal:  the ends of the range: no square overflows in float; in double the square of 2^513 does, and the row becomes
 *        b; subnormal numbers count, in the mean too.
 * Claim: exact values.
 * Seen to fail with squares summed in float, an unbiased variance, eps outside the root, subnormal x flushed in the
 * mean or in the difference. */
TEST(extremes)
{
    enum { H = 4 };
    const real w[H] = { 0.5, 2, -3, 1 }, b[H] = { 1, -1, 0.25, 0 };
    const real large = sizeof(real) == 4 ? FLT_MAX : 0x1p510, beyond = sizeof(real) == 4 ? FLT_MAX : 0x1p513;
    const real least = (real)twin_least();
    const real x[3 * H] = {
        large, -large, large, -large, beyond, -beyond, beyond, -beyond, least, -3 * least, 5 * least, -7 * least,
    };
    const int normed = sizeof(real) == 4;       /* in double the square of 2^513 overflows */
    real y[3 * H];
    run(y, x, w, b, 3, H, 0x1p-20);
    for (int i = 0; i < H; i++) {
        const double sign = i % 2 ? -1 : 1;
        twin_check("large", 0, i, y[i], sign * w[i] + b[i], 0);
        twin_check("beyond", 1, i, y[H + i], normed * sign * w[i] + b[i], 0);
    }
    const real unit[H] = { 1, 1, 1, 1 }, zero[H] = { 0 };
    run(y, x + 2 * H, unit, zero, 1, H, 0x1p-20);
    for (int i = 0; i < H; i++) twin_check("least", 2, i, y[i], 1024.0L * ((long double)x[2 * H + i] + least), 0);
}
