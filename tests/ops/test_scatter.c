/* scatter, SPEC 5.21: a copy, so every claim is about bits. */
#include "model/engine.h"
#include "ops/ops.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "guard.h"
#include "twin.h"

TIMEOUT(60);

enum { HERE = 200025, OTHER = 200026 };

/* Every real a number of its own, and now and then -0, an infinity, or a NaN with a payload. */
static real *new_reals(int64_t count, uint64_t *state)
{
    real *reals = malloc((size_t)count * sizeof *reals + 1);
    if (!reals) abort();
    for (int64_t i = 0; i < count; i++) {
        const int64_t kind = twin_pick(state, 40);
        reals[i] = (real)(kind == 0 ? -0.0 : kind == 1 ? -INFINITY : kind == 2 ? NAN : twin_fine(state));
        if (kind == 2) memset(&reals[i], 0x11 + (int)(i % 7), 2);
    }
    return reals;
}

struct place {
    int status;
    struct m3_failure failure;
};

/* One call in guarded buffers; copies y [T,H] out. M = 0: f is NULL, or points at nothing. */
static struct place run(real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T, int64_t M,
                        int64_t H, int threads, int in_place)
{
    const size_t size = (size_t)(T * H) * sizeof *y;
    struct guard y_guard, x_guard, ids_guard, f_guard;
    real *out = guard_output(&y_guard, size);
    const real *x_in = guard_input(&x_guard, x, size);
    const int32_t *ids_in = guard_input(&ids_guard, ids, (size_t)T * sizeof *ids);
    const real *f_in = guard_input(&f_guard, f ? (const void *)f : "", (size_t)(M * H) * sizeof *f);
    if (in_place) x_in = memcpy(out, x, size);

    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, threads, M3_LINEAR_BLAS), 0);
    struct place got = { .status = M3_ENGINE()->ops->scatter(&ctx, out, x_in, ids_in, f ? f_in : NULL, id, T, M, H) };
    got.failure = ctx.failure;
    ck_assert_uint_eq(m3_scratch_mark(&ctx), 0);
    m3_ctx_free(&ctx);

    memcpy(y, out, size);
    ck_assert(guard_intact(&y_guard));
    ck_assert(guard_intact(&x_guard));
    ck_assert(guard_intact(&ids_guard));
    ck_assert(guard_intact(&f_guard));
    return got;
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
            real *x = new_reals(T * H, &state), *f = new_reals(M * H, &state), *y = malloc((size_t)(T * H) * sizeof *y);
            if (!y) abort();
            for (int team = 0; team < TWIN_TEAMS; team++)
                for (int in_place = 0; in_place < 2; in_place++) {
                    ck_assert_int_eq(run(y, x, ids, f, id, T, M, H, twin_threads[team], in_place).status, 0);
                    check_all(y, x, ids, f, id, T, H);
                    if (M > 0) continue;
                    ck_assert_int_eq(run(y, x, ids, NULL, id, T, M, H, twin_threads[team], in_place).status, 0);
                    check_all(y, x, ids, f, id, T, H);
                }
            free(x);
            free(f);
            free(y);
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
    for (int in_place = 0; in_place < 2; in_place++) {
        ck_assert_int_eq(run(y, x, ids, f, HERE, T, 3, H, 1, in_place).status, 0);
        ck_assert_mem_eq(y, want, sizeof want);
    }
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
    real *x = new_reals(T * H, &state), *f = new_reals(here * H, &state), *g = new_reals(other * H, &state);
    real first[T * H], then[T * H], swapped[T * H];
    for (int in_place = 0; in_place < 2; in_place++) {
        ck_assert_int_eq(run(first, x, ids, f, HERE, T, here, H, 1, in_place).status, 0);
        ck_assert_int_eq(run(then, first, ids, g, OTHER, T, other, H, 1, in_place).status, 0);
        ck_assert_int_eq(run(first, x, ids, g, OTHER, T, other, H, 1, in_place).status, 0);
        ck_assert_int_eq(run(swapped, first, ids, f, HERE, T, here, H, 1, in_place).status, 0);
        ck_assert_mem_eq(then, swapped, sizeof then);
        for (int t = 0; t < T; t++) {
            const real *want = ids[t] == HERE    ? f + count(ids, HERE, t) * H
                               : ids[t] == OTHER ? g + count(ids, OTHER, t) * H
                                                 : x + t * H;
            ck_assert_mem_eq(then + t * H, want, H * sizeof *want);
        }
    }
    free(x);
    free(f);
    free(g);
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
        for (int64_t off = -SPARE; off <= SPARE; off++)
            for (int in_place = 0; in_place < 2; in_place++) {
                int32_t ids[T];
                for (int t = 0; t < T; t++) ids[t] = placed(pattern, t, T, &state) ? HERE : OTHER;
                const int64_t M = count(ids, HERE, T) + off;
                if (off == 0 || M < 0) continue;
                real *x = new_reals(T * H, &state), *f = new_reals(M * H, &state), y[T * H];
                const struct place got = run(y, x, ids, f, HERE, T, M, H, 1 + in_place, in_place);
                ck_assert_msg(got.status == M3_BAD_INPUT || got.status == M3_USAGE, "status %d", got.status);
                ck_assert_ptr_nonnull(got.failure.what);
                if (in_place) ck_assert_mem_eq(y, x, sizeof y);
                for (size_t i = 0; !in_place && i < sizeof y; i++)
                    if (((unsigned char *)y)[i] != GUARD_POISON) ck_abort_msg("byte %zu was written", i);
                free(x);
                free(f);
            }
}
