/* scatter, SPEC 5.21: a copy, so every claim is about bits. */
#include "op_driver.h"

TIMEOUT(60);

enum { HERE = 200025, OTHER = 200026 };

/* Every real a number of its own, and now and then -0, an infinity, or a NaN with a payload. */
static real *numbers(int64_t count, uint64_t *state)
{
    real *x = reals(count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t kind = twin_pick(state, 40);
        x[i] = (real)(kind == 0 ? -0.0 : kind == 1 ? -INFINITY : kind == 2 ? NAN : twin_fine(state));
        if (kind == 2) memset(&x[i], 0x11 + (int)(i % 7), 2);
    }
    return x;
}

/* M = 0: f is NULL, or points at nothing. */
static struct call call_of(real *y, const real *x, const int32_t *ids, const real *f, const struct scatter_values *d)
{
    struct call c = CALL(call_scatter, d, 1, 3, OPERAND(y, d->T * d->H), OPERAND(x, d->T * d->H), OPERAND(ids, d->T),
                         OPERAND(f, d->M * d->H));
    call_in_place(&c, 0, 0);
    return c;
}

static void run(real *y, const real *x, const int32_t *ids, const real *f, struct scatter_values d)
{
    struct call c = call_of(y, x, ids, f, &d);
    call_all(&c);
}

/* How many of the first T ids are `id`. */
static int64_t count(const int32_t *ids, int32_t id, int64_t T)
{
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++) n += ids[t] == id;
    return n;
}

/* All of y by the definition: row t is row count(ids before t) of f, or row t of x. */
static void check_all(const real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T, int64_t H)
{
    for (int64_t t = 0; t < T; t++) {
        const real *want = ids[t] == id ? f + count(ids, id, t) * H : x + t * H;
        if (memcmp(y + t * H, want, (size_t)H * sizeof *y) != 0) ck_abort_msg("row %d", (int)t);
    }
}

/* Where the placeholders stand. */
enum pattern { NONE, ALL, FIRST, LAST, BOTH_ENDS, RUNS, DRAWN, PATTERNS };

static int placed(enum pattern pattern, int64_t t, int64_t T, uint64_t *state)
{
    switch (pattern) {
    case NONE: return 0;
    case ALL: return 1;
    case FIRST: return t == 0;
    case LAST: return t == T - 1;
    case BOTH_ENDS: return t == 0 || t == T - 1;
    case RUNS: return t % 11 < 4 || t % 11 == 7;
    default: return twin_draw(state) < 0;
    }
}

/* Goal:  row k of f where the k-th placeholder stands, and x elsewhere.
 * Given: no, all, first, last, both ends, runs and random placeholders; other ids one bit or two away; ids 0, -1 and
 *        the largest; numbers with -0, infinities and NaN of many payloads; M = 0 with f NULL too; three numbers of
 *        threads, in place and not.
 * Claim: equal bits.
 * Seen to fail with f added to x, f in reverse, from row t, one row off or row 0 always, neighbouring ids counted, x
 * not copied, the first or last row left out, a 0 added, x or f changed, one element too many, M = 0 refused. */
TEST(patterns_and_shapes)
{
    static const struct {
        int64_t T, H;
    } shapes[] = {
        { 1, 1 }, { 1, 33 }, { 2, 1 }, { 3, 17 }, { 31, 31 }, { 67, 128 }, { 131, 521 }, { 257, 2053 },
    };
    static const int32_t kinds[] = { HERE, 0, -1, INT32_MAX };
    uint64_t state = 521;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (enum pattern pattern = 0; pattern < PATTERNS; pattern++) {
            const int64_t T = shapes[s].T, H = shapes[s].H;
            const int32_t id = kinds[(s + pattern) % 4];
            int32_t ids[257];
            /* Other ids are its neighbours, and start and end marks. */
            for (int64_t t = 0; t < T; t++) ids[t] = placed(pattern, t, T, &state) ? id : (int32_t)(id ^ (1 + t % 3));
            const int64_t M = count(ids, id, T);
            real *x = numbers(T * H, &state), *f = numbers(M * H, &state), *y = reals(T * H);
            run(y, x, ids, f, (struct scatter_values){ id, T, M, H });
            check_all(y, x, ids, f, id, T, H);
            if (M == 0) run(y, x, ids, NULL, (struct scatter_values){ id, T, M, H });
            check_all(y, x, ids, f, id, T, H);
            rooms_free(0);
        }
}

/* Claim: six rows, written out.
 * Seen to fail with f added to x, in reverse, from row t, one row off or row 0 always, and x not copied. */
TEST(known_rows)
{
    enum { T = 6, H = 2 };
    const int32_t ids[T] = { 7, HERE, 9, HERE, HERE, 7 };
    const real x[T * H] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }, f[3 * H] = { -1, -2, -3, -4, -5, -6 };
    const real want[T * H] = { 1, 2, -1, -2, 5, 6, -3, -4, -5, -6, 11, 12 };
    real y[T * H];
    run(y, x, ids, f, (struct scatter_values){ HERE, T, 3, H });
    ck_assert_mem_eq(y, want, sizeof want);
}

/* Goal:  images and videos, one call each, in either order, also in place.
 * Claim: each kind takes its own rows; the order of the calls changes no bit.
 * Seen to fail with what patterns_and_shapes lists, but M = 0 refused. */
TEST(two_kinds_in_turn)
{
    enum { T = 67, H = 31 };
    uint64_t state = 2;
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = t % 9 < 3 ? HERE : t % 9 < 7 ? OTHER : 5;
    const int64_t here = count(ids, HERE, T), other = count(ids, OTHER, T);
    ck_assert(here != other);
    const struct scatter_values d = { HERE, T, here, H }, e = { OTHER, T, other, H };
    real *x = numbers(T * H, &state), *f = numbers(here * H, &state), *g = numbers(other * H, &state);
    real first[T * H], then[T * H], swapped[T * H];
    run(first, x, ids, f, d);
    run(then, first, ids, g, e);
    run(first, x, ids, g, e);
    run(swapped, first, ids, f, d);
    ck_assert_mem_eq(then, swapped, sizeof then);
    for (int t = 0; t < T; t++) {
        const real *want = ids[t] == HERE    ? f + count(ids, HERE, t) * H
                           : ids[t] == OTHER ? g + count(ids, OTHER, t) * H
                                             : x + t * H;
        ck_assert_mem_eq(then + t * H, want, H * sizeof *want);
    }
}

/* Goal:  another number of placeholders than M is an error, and nothing is written.
 * Given: one to three too many and too few, by every pattern; in place x keeps its bits.
 * Seen to fail without the count, with too many or too few let through, x copied before the count, and in place one
 * row written before it. */
TEST(counts_refused)
{
    enum { T = 67, H = 17, SPARE = 3 };
    uint64_t state = 9;
    for (enum pattern pattern = 0; pattern < PATTERNS; pattern++)
        for (int64_t off = -SPARE; off <= SPARE; off++) {
            int32_t ids[T];
            for (int t = 0; t < T; t++) ids[t] = placed(pattern, t, T, &state) ? HERE : OTHER;
            const struct scatter_values d = { HERE, T, count(ids, HERE, T) + off, H };
            if (off == 0 || d.M < 0) continue;
            struct call c = call_of(reals(T * H), numbers(T * H, &state), ids, numbers(d.M * H, &state), &d);
            c.checks_first = 1;
            call_refused(&c, M3_BAD_INPUT, NOWHERE, NOWHERE, NOWHERE);
        }
}
