/* route, SPEC 5.14, against a search that takes the best expert K times, and against choices known in advance. */
#include "op_driver.h"

#include "formula_twin.h"

TIMEOUT(60);

static struct call call_of(int32_t *ids, real *p, const real *s, const real *bias, const struct route_values *d)
{
    return (struct call)CALL(call_route, d, 2, 2, OPERAND(ids, d->T * d->K), OPERAND(p, d->T * d->K),
                             OPERAND(s, d->T * d->E), OPERAND(bias, d->E));
}

/* ids equal; p within (K + 1) u p of the exact quotient, and the bits of "Order". */
static void check_row(int64_t t, const int32_t *ids, const real *p, const real *s, const real *bias, int64_t E,
                      int64_t K)
{
    int32_t *want = room(K, sizeof *want);
    double *choices = room(E, sizeof *choices);
    for (int64_t e = 0; e < E; e++) {
        volatile real choice = s[e] + bias[e];
        choices[e] = (double)choice;
    }
    twin_choose(want, choices, E, K);
    long double exact = 0;
    real sum = 0;
    for (int64_t k = 0; k < K; k++) {
        if (ids[k] != want[k])
            ck_abort_msg("row %d, slot %d: expert %d for %d", (int)t, (int)k, (int)ids[k], (int)want[k]);
        exact += s[want[k]];
        sum = sum + s[want[k]];
    }
    for (int64_t k = 0; k < K; k++) {
        const long double quotient = s[want[k]] / exact;
        twin_check("p", t, k, p[k], quotient, (long double)(K + 1) * twin_roundoff() * quotient);
        twin_check_same("p by the order of operations", t, k, p[k], s[want[k]] / sum);
    }
}

/* Goal:  the K best of every row, in order, and their weights; any shape, any number of threads.
 * Given: scores in (0, 1), every fourth row coarse so that many choices tie, bias of the size of the scores; K = 1, E
 *        and between; M3's E = 128, K = 4; the last shape enough for five threads.
 * Claim: ids equal to the twin's; p within (K + 1) u p, and in the bits of SPEC's order.
 * Seen to fail with router.bias_in_weights, router.no_bias, router.no_renorm, the higher id on a tie, ids in ascending
 * order, a sum over all experts or in descending order of slots, a product with the reciprocal, one element too many,
 * one bit off with five threads, a changed score. */
TEST(shapes_and_threads)
{
    static const struct route_values shapes[] = {
        { 1, 1, 1 },    { 2, 3, 1 },    { 3, 3, 3 },   { 31, 17, 5 },  { 32, 128, 4 },
        { 33, 127, 8 }, { 67, 257, 4 }, { 5, 31, 31 }, { 2, 521, 33 }, { 1543, 128, 4 },
    };
    uint64_t state = 514;
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
        const int64_t T = shapes[c].T, E = shapes[c].E, K = shapes[c].K;
        real *s = reals(T * E), *bias = reals(E), *p = reals(T * K);
        int32_t *ids = room(T * K, sizeof *ids);
        for (int64_t i = 0; i < T * E; i++) {
            const double draw = fabs(twin_fine(&state)) + 0x1p-40;
            s[i] = (real)(i / E % 4 == 3 ? ceil(draw * 4) / 4 : draw);
        }
        for (int64_t e = 0; e < E; e++) bias[e] = (real)(floor(twin_draw(&state) * 4) / 4);
        struct call call = call_of(ids, p, s, bias, &shapes[c]);
        call_all(&call);
        for (int64_t t = 0; t < T; t++) check_row(t, ids + t * K, p + t * K, s + t * E, bias, E, K);
        rooms_free(0);
    }
}

/* Goal:  ties, signed zeros, infinities, and a bias that chooses but does not weigh.
 * Given: rows of five experts, choices exact in binary.
 * Claim: these ids, in descending order of choice, the lower id first; weights from the scores without bias.
 * Seen to fail with router.bias_in_weights, router.no_bias, router.no_renorm, the higher id on a tie, choices compared
 * before they are rounded, +0 above -0, an infinite choice ranked last, 1e-20 added to the sum. */
TEST(known_choices)
{
    enum { E = 5 };
    const real inf = INFINITY, least = (real)twin_least(), u = (real)twin_roundoff();
    const struct {
        real s[E], bias[E];
        int K, ids[E];
        double p[E];
    } rows[] = {
        /* a tie at the edge of K: 5/8, 3/4, 3/4, 3/4, 1/8 */
        { { 0.625, 0.25, 0.5, 0.75, 0.125 }, { 0, 0.5, 0.25, 0, 0 }, 2, { 1, 2 }, { 1 / 3.0, 2 / 3.0 } },
        /* ties inside */
        { { 0.5, 0.5, 0.25, 0.5, 0.25 }, { 0 }, 5, { 0, 1, 3, 2, 4 }, { 0.25, 0.25, 0.25, 0.125, 0.125 } },
        { { 0.25, 0.25, 0.25, 0.25, 0.25 }, { 0 }, 4, { 0, 1, 2, 3 }, { 0.25, 0.25, 0.25, 0.25 } },
        { { 0.25, 0.5, 0.25, 0.25, 0.5 }, { 0 }, 3, { 1, 4, 0 }, { 0.4, 0.4, 0.2 } },
        /* a bias that reverses the order */
        { { 0.5, 0.25, 0.125, 0.0625, 0.0625 },
          { 0, 1, 2, 3, 4 },
          5,
          { 4, 3, 2, 1, 0 },
          { 0.0625, 0.0625, 0.125, 0.25, 0.5 } },
        { { 0.5, 0.25, 0.125, 0.0625, 0.0625 }, { -9, -9, -9, -9, -9 }, 2, { 0, 1 }, { 2 / 3.0, 1 / 3.0 } },
        /* K = 1: the weight is 1, whatever the score */
        { { 0.001, 0.003, 0.002, least, 0 }, { 0 }, 1, { 1 }, { 1 } },
        { { 0, 0, least, 0, 0 }, { 0 }, 1, { 2 }, { 1 } },
        /* zeros among the chosen; -0 equals +0 */
        { { 0, 0, 0.5, 0, 0 }, { 0 }, 3, { 2, 0, 1 }, { 1, 0, 0 } },
        { { -0.0, 0, -0.0, 0, 1 }, { -0.0, 0, -0.0, 0, 0 }, 4, { 4, 0, 1, 2 }, { 1, 0, 0, 0 } },
        /* infinite choices are ordinary, and tie */
        { { 0.5, 0.25, 0.25, 0.5, 0.5 },
          { -inf, inf, 0, inf, -inf },
          4,
          { 1, 3, 2, 0 },
          { 1 / 6.0, 1 / 3.0, 1 / 6.0, 1 / 3.0 } },
        /* choices are compared as rounded: 1 + u is 1, a tie */
        { { 0, 2 * u, u, 0, 0 }, { 1, 1, 1, 1 + 2 * u, 0 }, 4, { 1, 3, 0, 2 }, { 2 / 3.0, 0, 0, 1 / 3.0 } },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int32_t ids[E];
        real p[E];
        const struct route_values d = { 1, E, rows[r].K };
        struct call call = call_of(ids, p, rows[r].s, rows[r].bias, &d);
        call_all(&call);
        for (int k = 0; k < rows[r].K; k++) {
            ck_assert_msg(ids[k] == rows[r].ids[k], "row %d, slot %d: expert %d for %d", (int)r, k, (int)ids[k],
                          rows[r].ids[k]);
            twin_check("p", (int64_t)r, k, p[k], rows[r].p[k], (rows[r].K + 1) * twin_roundoff() * rows[r].p[k]);
        }
    }
}

/* Goal:  NaN in a choice, and a sum that is not above 0, are errors that name the first place at fault.
 * Given: many rows (kernels: 22 blocks of threads), good except for the faults; the NaN from a score, a bias, or
 *        infinity minus infinity, chosen or not.
 * Claim: M3_WRONG, the row, and for NaN the expert (the failure's `block`, -1 where it does not apply), whatever the
 *        number of threads.
 * Seen to fail with NaN let through, all or that of inf - inf, the last row or expert named, no expert named, the
 * first selected expert named for a sum, a sum of 0 let through, a negative or NaN sum let through. */
TEST(errors_name_their_place)
{
    enum { T = TWIN_IN_ORDER ? 1543 : 171, E = 128, K = 4 };
    static real s[T * E], p[T * K];
    static int32_t ids[T * K];
    const real nan = NAN, inf = INFINITY;
    static const struct {
        int row, expert, later;
    } places[] = {
        { 0, 0, 0 }, { 0, 127, 1 }, { 5, 3, 1 }, { T / 2, 64, T - 1 }, { T - 1, 127, T - 1 },
    };
    enum fault { SCORE, BIAS, INFINITIES, ZERO_SUM, NEGATIVE_SUM, NAN_SUM, FAULTS };
    for (enum fault fault = SCORE; fault < FAULTS; fault++)
        for (int place = 0; place < 5; place++) {
            const int row = places[place].row, expert = places[place].expert, later = places[place].later;
            const int sum = fault >= ZERO_SUM;
            const struct route_values d = { T, E, K };
            real bias[E] = { 0 };
            for (int i = 0; i < T * E; i++) s[i] = (real)((i * 37 % 101 + 1) / 128.0);
            if (later > row) s[later * E] = nan;                            /* later in the order: not named */
            if (!sum && expert < E - 1) s[row * E + E - 1] = nan;
            if (fault == SCORE) s[row * E + expert] = nan;
            if (fault == BIAS) bias[expert] = nan;
            if (fault == INFINITIES) {
                s[row * E + expert] = inf;
                bias[expert] = -inf;
            }
            for (int e = 0; sum && e < E; e++)
                s[row * E + e] = fault == ZERO_SUM ? 0 : fault == NEGATIVE_SUM ? -0.5 : -inf;
            if (fault == NAN_SUM) s[row * E + expert] = inf;                /* chosen with -inf */
            struct call call = call_of(ids, p, s, bias, &d);
            /* a bias is at fault in every row */
            call_refused(&call, M3_WRONG, fault == BIAS ? 0 : row, NOWHERE, sum ? NOWHERE : expert);
        }
}
