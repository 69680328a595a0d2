/* rope, SPEC 5.6: against the formula, and against turns known in advance. */
#include "op_driver.h"

#include "formula_twin.h"

TIMEOUT(60);

static void run(real *y, const real *x, const real *cosines, const real *sines, struct rope_values d)
{
    const int64_t n = d.T * d.heads * d.D, table = d.T * (d.R / 2);
    struct call c =
        CALL(call_rope, &d, 1, 3, OPERAND(y, n), OPERAND(x, n), OPERAND(cosines, table), OPERAND(sines, table));
    call_in_place(&c, 0, 0);
    call_all(&c);
}

/* The channel that turns with channel c. */
static int64_t partner(int64_t c, int64_t R) { return c < R / 2 ? c + R / 2 : c - R / 2; }

/* y against the formula within 3 u (|x_a cos| + |x_b sin|), and against "Order" in bits: both products rounded. */
static void check_all(const real *y, const real *x, const real *cosines, const real *sines, struct rope_values d)
{
    const int64_t table = d.T * (d.R / 2);
    const double *wide = widened(x, d.T * d.heads * d.D), *wide_cos = widened(cosines, table),
                 *wide_sin = widened(sines, table);
    for (int64_t t = 0; t < d.T; t++)
        for (int64_t h = 0; h < d.heads; h++)
            for (int64_t c = 0; c < d.D; c++) {
                const int64_t head = (t * d.heads + h) * d.D;
                const real got = y[head + c], own = x[head + c];
                if (c >= d.R) {
                    if (memcmp(&got, &own, sizeof got) != 0) ck_abort_msg("channel %d is not a copy", (int)c);
                    continue;
                }
                const real other = x[head + partner(c, d.R)];
                const real cosine = cosines[t * (d.R / 2) + c % (d.R / 2)], sine = sines[t * (d.R / 2) + c % (d.R / 2)];
                long double size;
                const long double want =
                    twin_turned(&size, wide + head, wide_cos + t * (d.R / 2), wide_sin + t * (d.R / 2), c, d.R);
                twin_check("y", t * d.heads + h, c, got, want, 3 * twin_roundoff() * size);
                volatile real a_rounded = own * cosine, b_rounded = other * sine;
                twin_check_same("y by the order of operations", t * d.heads + h, c, got,
                                c < d.R / 2 ? a_rounded - b_rounded : a_rounded + b_rounded);
            }
}

/* Goal:  every channel of every head, at its own row's angle; channels from R on copied; threads change no bit.
 * Given: random x; tables of random angles, different in every row and channel. R = 2, R = D, R < D; heads 1 and more,
 *        odd; the last shape enough for five threads; in place and not.
 * Claim: within 3 u (|x_a cos| + |x_b sin|), and the bits of SPEC's order.
 * Seen to fail with rope.last, rope.interleaved, pairs (i, i + D/2), the first row's table for all rows, a table by
 * head, a fused multiply-add, the second channel turned with the first one's new value, one element too many, one bit
 * off with five threads. */
TEST(shapes_and_threads)
{
    static const struct rope_values shapes[] = {
        { 1, 1, 2, 2 },    { 2, 3, 3, 2 },    { 31, 1, 128, 64 }, { 32, 5, 17, 6 },
        { 33, 4, 24, 24 }, { 67, 7, 31, 22 }, { 3, 64, 128, 64 }, { 67, 33, 127, 62 },
    };
    uint64_t state = 56;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const struct rope_values d = shapes[s];
        const int64_t count = d.T * d.heads * d.D, angles = d.T * (d.R / 2);
        real *x = drawn(count, 1, &state), *y = reals(count), *cosines = reals(angles), *sines = reals(angles);
        for (int64_t i = 0; i < angles; i++) {
            const double angle = 4 * twin_fine(&state);
            cosines[i] = (real)cos(angle);
            sines[i] = (real)sin(angle);
        }
        run(y, x, cosines, sines, d);
        check_all(y, x, cosines, sines, d);
        rooms_free(0);
    }
}

/* Goal:  channel i turns with i + R/2, and with no other.
 * Given: one-hot heads: head h holds 1 in channel h; every pair has an exact angle of its own, cos 3 2^-i, sin 5 2^-i.
 * Claim: channel h < R/2 gives cos at h, sin at h + R/2; channel h of the second half cos at h, -sin at h - R/2;
 * from R        on 1 at h. Zero everywhere else.
 * Seen to fail with rope.last, rope.interleaved, pairs (i, i + D/2), a sine of the wrong sign, the rest not copied, in
 * place the first channel's new value. */
TEST(one_hot_heads)
{
    enum { D = 11, R = 8 };
    const struct rope_values d = { 1, D, D, R };
    real x[D * D] = { 0 }, y[D * D], cosines[R / 2], sines[R / 2];
    for (int h = 0; h < D; h++) x[h * D + h] = 1;
    for (int i = 0; i < R / 2; i++) {
        cosines[i] = (real)ldexp(3, -i);
        sines[i] = (real)ldexp(5, -i);
    }
    run(y, x, cosines, sines, d);
    for (int h = 0; h < D; h++)
        for (int c = 0; c < D; c++) {
            double want = 0;
            if (c == h) want = h < R ? ldexp(3, -(h % 4)) : 1;
            if (h < 4 && c == h + 4) want = ldexp(5, -h);
            if (h >= 4 && h < R && c == h - 4) want = -ldexp(5, -c);
            twin_check("y", h, c, y[h * D + c], want, 0);
        }
}

/* Goal:  whole turns, quarter turns and 3-4-5 turns; each row by its own table.
 * Given: hand-made tables: 0, 90, 180, 270 degrees and (3, 4); x in integers; R = D, R = 2, one head.
 * Claim: exact values; angle 0 returns x.
 * Seen to fail with rope.last, rope.interleaved, the first row's table for all rows, a table by head, a sine of the
 * wrong sign. */
TEST(exact_turns)
{
    const struct rope_values full = { 5, 1, 4, 4 }, two = { 5, 1, 3, 2 };
    static const real turn_cos[5] = { 1, 0, -1, 0, 3 }, turn_sin[5] = { 0, 1, 0, -1, 4 };
    real x[20], y[20], cosines[10], sines[10];
    for (int t = 0; t < 5; t++) {
        for (int c = 0; c < 4; c++) x[t * 4 + c] = (real)(t + 10 * c + 1);
        for (int i = 0; i < 2; i++) {               /* the second pair is one row ahead */
            cosines[t * 2 + i] = turn_cos[(t + i) % 5];
            sines[t * 2 + i] = turn_sin[(t + i) % 5];
        }
    }
    run(y, x, cosines, sines, full);
    /* clang-format off */
    static const int want[20] = {
        1, -31, 21, 11,             /* 0 and 90 degrees */
        -22, -12, 2, -32,           /* 90 and 180 */
        -3, 33, -23, -13,           /* 180 and 270 */
        24, 3 * 14 - 4 * 34, -4, 3 * 34 + 4 * 14,
        3 * 5 - 4 * 25, 15, 3 * 25 + 4 * 5, 35,
    };
    /* clang-format on */
    for (int i = 0; i < 20; i++) twin_check("R = D", i / 4, i % 4, y[i], want[i], 0);

    run(y, x, turn_cos, turn_sin, two);       /* x read as [5,1,3] */
    for (int t = 0; t < 5; t++) {
        const real a = x[t * 3], b = x[t * 3 + 1];
        twin_check("R = 2", t, 0, y[t * 3], a * turn_cos[t] - b * turn_sin[t], 0);
        twin_check("R = 2", t, 1, y[t * 3 + 1], b * turn_cos[t] + a * turn_sin[t], 0);
        twin_check("R = 2", t, 2, y[t * 3 + 2], x[t * 3 + 2], 0);
    }
}

/* Goal:  NaN and infinity stay in their pair; channels from R on are copied bit for bit, -0 and NaN included.
 * Given: a NaN in channel 1, infinity in channel 2, R = 6, D = 9; -0, a NaN with a payload and infinity after R.
 * Claim: channels 1, 4 are NaN; 2, 5 infinite; 0, 3 as without them; the rest equal in bits.
 * Seen to fail with a 0 added to the channels after R (-0 becomes 0), NaN replaced by the usual NaN. */
TEST(not_finite_and_copied)
{
    enum { D = 9, R = 6 };
    const struct rope_values d = { 1, 1, D, R };
    const real cosines[3] = { 0.6, 0.6, 0.6 }, sines[3] = { 0.8, 0.8, 0.8 };
    real x[D] = { 1, NAN, INFINITY, 2, 3, 4, -0.0, NAN, -INFINITY }, y[D];
    unsigned char *payload = (unsigned char *)&x[7];
    payload[0] = 0x5A;
    payload[1] = 0x3C;
    run(y, x, cosines, sines, d);
    ck_assert(isnan(y[1]) && isnan(y[4]));
    twin_check_same("inf", 0, 2, y[2], INFINITY);
    twin_check_same("inf", 0, 5, y[5], INFINITY);
    twin_check("y", 0, 0, y[0], 1.0L * cosines[0] - 2.0L * sines[0], 3 * twin_roundoff() * (0.6 + 1.6));
    twin_check("y", 0, 3, y[3], 2.0L * cosines[0] + 1.0L * sines[0], 3 * twin_roundoff() * (1.2 + 0.8));
    ck_assert_mem_eq(y + R, x + R, (D - R) * sizeof *y);
}
