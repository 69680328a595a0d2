/* jitter, SPEC 5.22, against its formula with the generator of SPEC 3.6 written again. */
#include "op_driver.h"

#include "formula_twin.h"

TIMEOUT(60);

static void run(real *y, const real *x, struct jitter_values d)
{
    struct call c = CALL(call_jitter, &d, 1, 1, OPERAND(y, d.T * d.H), OPERAND(x, d.T * d.H));
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* Goal:  the factor of every number, by its place and channel.
 * Given: T 1 2 7 67, H 1 3 20 128, places from 0, 5 and 2^33; eps from 0 to 1; a key with high bits.
 * Claim: the bits of x times the factor rounded once; the same on 1, 2, 5 and 13 threads, and in place.
 * Seen to fail with rows counted from 0 and not from p0, with H left out of the index, with u in (-1, 1), with eps
 *        doubled, and with the factor rounded before the 1 is added (float). */
TEST(formula)
{
    static const int64_t rows[4] = { 1, 2, 7, 67 }, widths[4] = { 1, 3, 20, 128 };
    static const int64_t firsts[3] = { 0, 5, (int64_t)1 << 33 };
    static const double amounts[4] = { 0, 0.01, 0.3, 1 };
    uint64_t state = 522;
    for (int c = 0; c < 4 * 4 * 3 * 4; c++) {
        const int64_t T = rows[c % 4], H = widths[c / 4 % 4], p0 = firsts[c / 16 % 3];
        const uint64_t key = UINT64_C(0xfedcba9876543210) + (uint64_t)c;
        const double eps = amounts[c / 48];
        real *x = drawn(T * H, 4, &state), *y = reals(T * H);
        run(y, x, (struct jitter_values){ T, H, p0, eps, key });
        for (int64_t n = 0; n < T * H; n++)
            twin_check_same("y", n / H, n % H, y[n], x[n] * (real)twin_noise(key, (uint64_t)(p0 * H + n), eps));
        rooms_free(0);
    }
}

/* Goal:  noise that is uniform, and does not lean.
 * Given: 200000 ones, eps 0.25.
 * Claim: every factor in [0.75, 1.25); the mean within 5 standard errors of 1, the mean square of the noise within 5
 *        of eps^2 / 3; each of 8 equal parts within 5 standard errors of an eighth; other keys give other noise.
 * Seen to fail with u in [0, 2^-1), with the sign of every second number fixed, and with one key for all. */
TEST(uniform)
{
    enum { ROWS = 1000, WIDTH = 200, COUNT = ROWS * WIDTH };
    const double eps = 0.25;
    real *x = reals(COUNT), *y = reals(COUNT), *other = reals(COUNT);
    double mean = 0, square = 0;
    int64_t parts[8] = { 0 }, same = 0;
    for (int64_t i = 0; i < COUNT; i++) x[i] = 1;
    run(y, x, (struct jitter_values){ ROWS, WIDTH, 0, eps, 1 });
    run(other, x, (struct jitter_values){ ROWS, WIDTH, 0, eps, 2 });
    for (int64_t i = 0; i < COUNT; i++) {
        const double noise = (double)y[i] - 1;
        ck_assert(noise >= -eps && noise < eps);
        mean += noise / COUNT;
        square += noise * noise / COUNT;
        parts[(int)((noise + eps) / (2 * eps) * 8)]++;
        same += y[i] == other[i];
    }
    ck_assert(fabs(mean) <= 5 * eps / sqrt(3.0 * COUNT));
    ck_assert(fabs(square - eps * eps / 3) <= 5 * eps * eps * sqrt(4.0 / 45 / COUNT));
    for (int i = 0; i < 8; i++) ck_assert(fabs(parts[i] - COUNT / 8.0) <= 5 * sqrt(COUNT * 7.0 / 64));
    ck_assert_int_le(same, COUNT / 1000);
}

/* Claim: a text cut into pieces gets the noise of the whole; eps 0 changes no bit, of NaN and infinities neither. */
TEST(pieces_and_nothing)
{
    uint64_t state = 5;
    real *x = drawn(31 * 7, 4, &state), *whole = reals(31 * 7), *piece = reals(31 * 7);
    run(whole, x, (struct jitter_values){ 31, 7, 3, 0.5, 99 });
    for (int64_t t = 0, n = 1; t < 31; t += n, n++) {
        n = n < 31 - t ? n : 31 - t;
        run(piece, x + t * 7, (struct jitter_values){ n, 7, 3 + t, 0.5, 99 });
        ck_assert_mem_eq(piece, whole + t * 7, (size_t)(n * 7) * sizeof *piece);
    }
    x[0] = NAN;
    x[1] = -INFINITY;
    x[2] = (real)-0.0;
    run(piece, x, (struct jitter_values){ 31, 7, 0, 0, 99 });
    for (int64_t i = 0; i < 31 * 7; i++) ck_assert(twin_same(piece[i], x[i]));
}
