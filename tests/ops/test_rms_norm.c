/* rms_norm and rms_norm_plain, SPEC 5.2 and 5.3: against the formula in long double, and the bits of "Order". `offset`
 * is 1 in Gemma's form, y = x / rms * (1 + w), else 0. Every test is of both. */
#include "op_driver.h"

#include <float.h>

#include "formula_twin.h"

TIMEOUT(60);

static void run(real *y, const real *x, const real *w, int64_t T, int64_t H, real eps, int offset)
{
    const struct rms_norm_values gemma = { T, H, eps };
    const struct rms_norm_plain_values plain = { T, H, eps };
    struct call c = CALL(call_rms_norm, &gemma, 1, 2, OPERAND(y, T * H), OPERAND(x, T * H), OPERAND(w, H));
    if (!offset) c.body = call_rms_norm_plain, c.self = &plain;
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* ---- the twins: formula_twin.h, and one row by the loop of "Order" */

static void order(real *y, const real *x, const real *w, int64_t H, real eps, int offset)
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
 * than the tolerance, because it sums in double: u each for scale, for one product, for 1 + w and for the other. */
static void check(const real *y, const real *x, const real *w, int64_t T, int64_t H, real eps, int offset)
{
    long double *want = room(H, sizeof *want);
    const double *wide_x = widened(x, T * H), *wide_w = widened(w, H);
    real *ordered = reals(H);
    const int64_t steps = sizeof(real) == 4 ? 3 + offset : (H + 1) / 2 + 7 + offset;
    for (int64_t t = 0; t < T; t++) {
        twin_rms(want, wide_x + t * H, wide_w, H, (double)eps, offset);
        order(ordered, x + t * H, w, H, eps, offset);
        for (int64_t i = 0; i < H; i++) {
            twin_check("y", t, i, y[t * H + i], want[i], steps * twin_roundoff() * fabsl(want[i]));
            twin_check_same("y by the order of operations", t, i, y[t * H + i], ordered[i]);
        }
    }
}

/* Goal:  the norm of every row with its weight; eps inside the root; each row alone.
 * Given: T and H 1, odd, prime, around vector widths, and enough for five threads. Neighbouring rows differ in size:
 *        mean x^2 runs from far below eps through eps to far above.
 * Claim: within 4 u |y| (plain: 3) in float, (ceil(H/2) + 8) u |y| (7) in double; the bits of SPEC's order.
 * Seen to fail with norm.no_plus_one, norm.double_plus_one, eps outside the root, no eps, one norm over all rows, the
 * sum for the mean, squares summed in float, the weight multiplied by the scale first, a scale not rounded, x
 * overwritten before it is summed, a weight changed, one bit off with five threads. */
TEST(shapes_and_threads)
{
    static const int64_t shapes[][2] = {
        { 1, 1 },   { 2, 1 },    { 67, 1 },   { 1, 2 },    { 3, 3 },     { 31, 17 },  { 33, 31 },
        { 2, 127 }, { 32, 128 }, { 67, 257 }, { 31, 521 }, { 331, 521 }, { 1, 6143 }, { 1601, 128 },
    };
    static const double sizes[] = { 1, 1e-3, 1e4, 1e-2, 1e-12, 1e12, 3e-4 };
    uint64_t state = 52;
    for (size_t s = 0; s < 2 * sizeof shapes / sizeof *shapes; s++) {
        const int64_t T = shapes[s / 2][0], H = shapes[s / 2][1];
        real *x = reals(T * H), *w = drawn(H, 1, &state), *y = reals(T * H);
        for (int64_t i = 0; i < T * H; i++) x[i] = (real)(sizes[i / H % 7] * twin_fine(&state));
        run(y, x, w, T, H, 1e-6, s % 2);
        check(y, x, w, T, H, 1e-6, s % 2);
        rooms_free(0);
    }
}

/* Goal:  values known without the formula: 3-4-5 triangles of x and eps, mean x^2 = eps, a row of zeros; w = -1 and 0.
 * Claim: 0.6 (w + offset), sqrt(1/2) (w + offset), 0; a weight of 0 altogether gives 0 exactly. For H = 3 the tolerance
 *        is 10 u.
 * Seen to fail with norm.no_plus_one, norm.double_plus_one, eps outside the root, no eps, the sum for the mean, a
 * weight changed. */
TEST(known_norms)
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
    for (size_t r = 0; r < 2 * sizeof rows / sizeof *rows; r++) {
        const int offset = r % 2;
        real y[H];
        run(y, rows[r / 2].x, w, 1, H, eps, offset);
        for (int i = 0; i < H; i++) {
            long double want = rows[r / 2].normed[i] * ((long double)w[i] + offset);
            twin_check("y", (int64_t)r, i, y[i], want, 10 * twin_roundoff() * fabsl(want));
        }
    }
}

/* Goal:  the squares are summed in ascending order, without a tree or lanes.
 * Given: rows (a, e, e, ..) whose e^2 is lost when it is added to a^2, but not when the e^2 are added first. In float
 *        the double sum hides that except for one a in 10^5 or so: the first 8 that show it are taken.
 * Claim: the bits of SPEC's order of operations.
 * Seen to fail with a descending sum. */
TEST(squares_ascend)
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
        for (int offset = 0; offset < 2; offset++) {
            run(y, x, w, 1, H, eps, offset);
            check(y, x, w, 1, H, eps, offset);
        }
    }
    ck_assert_int_eq(rows, ROWS);
}

/* Goal:  infinity gives NaN at its own place and zeros elsewhere, NaN its whole row; no other row changes.
 * Seen to fail with rows scaled by their largest |x| first, infinity kept, NaN left out of the sum, in double a sum
 * kept below infinity. */
TEST(not_finite)
{
    enum { T = 5, H = 17 };
    real x[T * H], w[H], y[T * H], alone[H];
    uint64_t state = 3;
    for (int i = 0; i < T * H; i++) x[i] = (real)twin_fine(&state);
    for (int i = 0; i < H; i++) w[i] = (real)(0.25 + 0.1 * twin_fine(&state));
    x[1 * H + 4] = INFINITY;
    x[3 * H + 16] = -INFINITY;
    x[4 * H + 0] = NAN;
    for (int offset = 0; offset < 2; offset++) {
        run(y, x, w, T, H, 1e-6, offset);
        for (int t = 0; t < T; t++) {
            run(alone, x + t * H, w, 1, H, 1e-6, offset);
            for (int i = 0; i < H; i++) {
                const int nan = (t == 1 && i == 4) || (t == 3 && i == 16) || t == 4;
                if (t == 1 || t == 3 || t == 4) ck_assert(nan ? isnan(y[t * H + i]) : y[t * H + i] == 0);
                else ck_assert(isfinite(y[t * H + i]) && y[t * H + i] != 0);
                twin_check_same("y against its row alone", t, i, y[t * H + i], alone[i]);
            }
        }
    }
}

/* Goal:  the ends of the range. In float no square overflows the double sum; in double the square of 2^512 does, and
 *        the row becomes 0, while 2^511 is normed. Subnormal numbers are not flushed: eps makes them 2^10 times larger.
 * Seen to fail with squares summed in float, subnormal x flushed, in double a sum kept below infinity. */
TEST(extremes)
{
    enum { H = 3 };
    const real w[H] = { 0.5, 2, -3 };
    const real large = sizeof(real) == 4 ? FLT_MAX : 0x1p511, beyond = sizeof(real) == 4 ? FLT_MAX : 0x1p512;
    const real least = (real)twin_least();
    const real x[4 * H] = { large, -large, large, beyond, beyond, -beyond, least, -3 * least, 5 * least, 1, 0, 0 };
    real y[4 * H];
    for (int offset = 0; offset < 2; offset++) {
        run(y, x, w, 4, H, 0x1p-20, offset);
        for (int i = 0; i < H; i++) {
            const double factor = (double)w[i] + offset, allowed = 10 * twin_roundoff() * fabs(factor);
            const double beyond_normed = sizeof(real) == 4 ? copysign(1, x[H + i]) : 0;
            twin_check("large", 0, i, y[i], copysign(1, x[i]) * factor, allowed);
            twin_check("beyond", 1, i, y[H + i], beyond_normed * factor, beyond_normed == 0 ? 0 : allowed);
            twin_check("least", 2, i, y[2 * H + i], 1024.0L * x[2 * H + i] * factor, 0);
        }
    }
}

/* Goal:  the two norms differ in the weight alone.
 * Given: weights w for rms_norm, real(1 + w) for rms_norm_plain.
 * Claim: equal bits. 1 + w is rounded once either way.
 * Seen to fail with norm.no_plus_one and norm.double_plus_one in rms_norm. */
TEST(both_agree)
{
    enum { T = 5, H = 257 };
    uint64_t state = 53;
    real *x = drawn(T * H, 4, &state), *w = drawn(H, 1, &state), *gemma = reals(T * H), *plain = reals(T * H);
    run(gemma, x, w, T, H, 1e-6, 1);
    for (int i = 0; i < H; i++) w[i] = 1 + w[i];
    run(plain, x, w, T, H, 1e-6, 0);
    for (int i = 0; i < T * H; i++) twin_check_same("plain against gemma", i / H, i % H, plain[i], gemma[i]);
}
