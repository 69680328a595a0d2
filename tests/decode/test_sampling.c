/* From logits to tokens: the random numbers, the distribution, the draw, and the test of a draft.
 *
 * Twins are in long double with the C library's functions, and find the likeliest by plain search. */
#include "base/real.h"
#include "twin.h"

#include <float.h>
#include <stdlib.h>

#include "decode/sampling.h"
#include "guard.h"

TIMEOUT(60);

enum { MOST = 64 };

/* ---- random numbers */

/* Values by another program from the formula of the specification, in whole numbers.
 * Seen to fail with: the use left out of the key, 2i and 2i + 1 exchanged, i and i + 1, the seed left out. */
TEST(uniform_values)
{
    static const struct {
        uint64_t seed;
        enum m3_draw_use use;
        int64_t place;
        double u;
    } values[] = {
        { 0, M3_DRAW_TOKEN, 0, 0x1.e95a5bf70fc34p-3 },
        { 0, M3_DRAW_TOKEN, 1, 0x1.af544be656318p-2 },
        { 0, M3_DRAW_DRAFT, 0, 0x1.e75c9dc874f62p-2 },
        { 0, M3_DRAW_ACCEPT, 0, 0x1.35e524b9d283ep-1 },
        { 0, M3_DRAW_INSTEAD, 0, 0x1.8488fa830fef4p-2 },
        { 7, M3_DRAW_TOKEN, 3, 0x1.0e93741a5c5d0p-5 },
        { 7, M3_DRAW_DRAFT, 1000003, 0x1.7ebc56a13b684p-1 },
        { 7, M3_DRAW_ACCEPT, 3, 0x1.fd35490f4c02ep-2 },
        { INT64_MAX, M3_DRAW_INSTEAD, INT64_C(1) << 31, 0x1.e27f38e063ee0p-1 },
        { 1, M3_DRAW_TOKEN, 0, 0x1.2b24ea9cda66ap-2 },
    };
    enum { N = sizeof values / sizeof *values };
    for (int i = 2 * N - 1; i >= 0; i--)        /* twice, from the last: no call leaves anything to the next */
        ck_assert_double_eq(m3_uniform(values[i % N].seed, values[i % N].use, values[i % N].place), values[i % N].u);
}

/* Chi-square of counts against probabilities; a count where the probability is 0 makes it infinite. */
static double chi_square(const int64_t *counts, const double *p, int64_t n, int64_t draws)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double want = p[i] * (double)draws, d = (double)counts[i] - want;
        if (want > 0) sum += d * d / want;
        else if (counts[i]) return INFINITY;
    }
    return sum;
}

/* In [0,1), even over 16 cells, and over the 4 x 4 cells of two uses at one place and of two places of one use.
 * 15 degrees of freedom are below 60 except for one in a million. Seen to fail with one key for all uses. */
TEST(uniform_is_even)
{
    enum { DRAWS = 200000 };
    int64_t cells[3][16] = { 0 };
    double even[16];
    for (int i = 0; i < 16; i++) even[i] = 1 / 16.0;
    for (int64_t place = 0; place < DRAWS; place++) {
        double u = m3_uniform(5, M3_DRAW_ACCEPT, place), v = m3_uniform(5, M3_DRAW_INSTEAD, place),
               w = m3_uniform(5, M3_DRAW_ACCEPT, place + 1);
        if (!(u >= 0 && u < 1)) ck_abort_msg("place %lld: got %g", (long long)place, u);
        cells[0][(int)(16 * u)]++;
        cells[1][4 * (int)(4 * u) + (int)(4 * v)]++;
        cells[2][4 * (int)(4 * u) + (int)(4 * w)]++;
    }
    for (int i = 0; i < 3; i++) {
        double chi = chi_square(cells[i], even, 16, DRAWS);
        ck_assert_msg(chi < 60, "table %d: chi-square %g", i, chi);
    }
}

/* ---- the distribution */

/* The lowest id on a tie. Seen to fail with >= in the search. */
TEST(argmax_ties)
{
    const double one[] = { -3 }, tied[] = { 1, 4, -2, 4, 4 }, same[] = { 0, 0, 0 }, rising[] = { 1, 2, 3 };
    const double low[] = { -INFINITY, -INFINITY, -7, -7 };
    ck_assert_int_eq(m3_argmax(one, 1), 0);
    ck_assert_int_eq(m3_argmax(tied, 5), 1);
    ck_assert_int_eq(m3_argmax(same, 3), 0);
    ck_assert_int_eq(m3_argmax(rising, 3), 2);
    ck_assert_int_eq(m3_argmax(low, 4), 2);
}

/* The likeliest id that is not yet taken, the lowest on a tie; -1 if all are. */
static int64_t likeliest(const long double *p, const int *taken, int64_t V)
{
    int64_t best = -1;
    for (int64_t i = 0; i < V; i++)
        if (!taken[i] && (best < 0 || p[i] > p[best])) best = i;
    return best;
}

/* SPEC 13.1 step by step: temperature, top_k, renormalise, top_p, renormalise. */
static void twin_distribution(long double *p, const double *logits, int64_t V, const struct m3_sampling *how)
{
    int taken[MOST] = { 0 };
    long double sum = 0, all = 0, best = logits[0];
    int64_t k = how->top_k > 0 && how->top_k < V ? how->top_k : V;
    for (int64_t i = 1; i < V; i++) best = logits[i] > best ? logits[i] : best;
    if (how->temperature == 0) {
        int found = 0;
        for (int64_t i = 0; i < V; i++) p[i] = !found && logits[i] == best, found |= logits[i] == best;
        return;
    }
    for (int64_t i = 0; i < V; i++) p[i] = expl((logits[i] - best) / (long double)how->temperature);
    for (int64_t n = 0; n < k; n++) {
        int64_t i = likeliest(p, taken, V);
        taken[i] = 1;
        all += p[i];
    }
    for (int64_t i = 0; i < V; i++) p[i] = taken[i] ? p[i] / all : 0;
    memset(taken, 0, sizeof taken);
    for (int64_t n = 0; n < V && (how->top_p >= 1 || n == 0 || sum < how->top_p); n++) {
        int64_t i = likeliest(p, taken, V);
        taken[i] = 1;
        sum += p[i];
    }
    for (int64_t i = 0; i < V; i++) p[i] = taken[i] ? p[i] / sum : 0;
}

/* m3_distribution between guards, with poisoned outputs and logits that must stay. */
static void distribution(double *p, const double *logits, int64_t V, const struct m3_sampling *how)
{
    struct guard out, scratch, in;
    double *guarded = guard_output(&out, (size_t)V * sizeof *guarded);
    int32_t *order = guard_output(&scratch, (size_t)V * sizeof *order);
    const double *read = guard_input(&in, logits, (size_t)V * sizeof *logits);
    m3_distribution(guarded, order, read, V, how);
    memcpy(p, guarded, (size_t)V * sizeof *p);
    ck_assert(guard_intact(&out) && guard_intact(&scratch) && guard_intact(&in));
}

/* Zero where the twin is zero, and nowhere else; a rounded exp, quotient and sum of V terms besides. */
static void check_distribution(const double *logits, int64_t V, const struct m3_sampling *how)
{
    double p[MOST];
    long double want[MOST];
    distribution(p, logits, V, how);
    twin_distribution(want, logits, V, how);
    for (int64_t i = 0; i < V; i++) {
        /* Of the argument of exp, twice rounded: its own size times that. */
        long double argument = how->temperature > 0 && want[i] > 0 ? fabsl(logl(want[i])) + logl(V) : 0;
        long double allowed = want[i] * ((long double)V + 8 + 3 * argument) * 0x1p-53L;
        int none = want[i] < (long double)DBL_TRUE_MIN / 2;
        if ((p[i] == 0) != none || !(fabsl(p[i] - want[i]) <= allowed + DBL_TRUE_MIN))
            ck_abort_msg("V %lld, temperature %g, top_k %lld, top_p %g, id %lld: got %.17g, want %.17Lg", (long long)V,
                         how->temperature, (long long)how->top_k, how->top_p, (long long)i, p[i], want[i]);
    }
}

/* Logits of few values, so that ties stand at every border, and of many; all combinations of the settings.
 * Seen to fail with: top_p before top_k, the last of the fewest left out, ties to the higher id, the temperature
 * multiplied, sums other than 1, top_k of V - 1 taken for V, and top_p = 1 that drops what rounding loses in the
 * sum. */
TEST(distribution_against_twin)
{
    static const int64_t sizes[] = { 1, 2, 3, 7, 16, 61 };
    static const double temperatures[] = { 0, 1e-3, 0.3, 1, 1.5, 40 }, top_ps[] = { 1, 0.95, 0.7, 0.31, 1e-9 };
    uint64_t state = 11;
    double logits[MOST];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < 4; kind++) {
            int64_t V = sizes[s], top_ks[] = { 0, 1, 2, V / 2, V - 1, V, V + 1, INT32_MAX };
            for (int64_t i = 0; i < V; i++)
                logits[i] = kind % 2 ? floor(3 * twin_draw(&state)) : 6 * twin_fine(&state) + 1000 * (kind == 2);
            for (int t = 0; t < 6; t++)
                for (int k = 0; k < 8; k++)
                    for (int n = 0; n < 5; n++) {
                        struct m3_sampling how = { temperatures[t], top_ks[k], top_ps[n], 0 };
                        check_distribution(logits, V, &how);
                    }
        }
}

/* Probabilities that are exact in binary, sums that meet top_p exactly, or miss it by the least.
 * Seen to fail with <= for <. */
TEST(distribution_exact)
{
    const double even[8] = { 2, 2, 2, 2, 2, 2, 2, 2 };
    const double steps[6] = { -INFINITY, 5, 5, 7, 5, -INFINITY };
    static const struct {
        double temperature;
        int64_t top_k;
        double top_p;
        int kept;
    } rows[] = {
        { 1, 0, 0.5, 4 },                       /* 4/8 is at least 0.5 */
        { 1, 0, 0.5 + 0x1p-53, 5 },
        { 1, 0, 0.125, 1 },
        { 3, 0, DBL_TRUE_MIN, 1 },              /* never none */
        { 1, 4, 0.5, 2 },                       /* half of the four, not of the eight */
        { 1, 3, 1, 3 },
        { 1, 8, 1, 8 },
        { 1, 9, 1, 8 },
        { 1, 0, 1, 8 },
        { 0, 3, 0.9, 1 },
    };
    double p[8];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct m3_sampling how = { rows[r].temperature, rows[r].top_k, rows[r].top_p, 0 };
        distribution(p, even, 8, &how);
        for (int i = 0; i < 8; i++)             /* ties: the lower ids stay */
            ck_assert_msg(p[i] == (i < rows[r].kept ? 1.0 / rows[r].kept : 0), "row %zu, id %d: got %g", r, i, p[i]);
    }
    struct m3_sampling two = { 1, 2, 1, 0 };    /* 3, and of the tied 1, 2, 4 the lowest */
    distribution(p, steps, 6, &two);
    ck_assert(p[0] == 0 && p[2] == 0 && p[4] == 0 && p[5] == 0 && p[1] > 0 && p[3] > p[1]);
    two.top_k = 0;
    distribution(p, steps, 6, &two);
    ck_assert(p[0] == 0 && p[5] == 0 && p[1] > 0 && p[1] == p[2] && p[1] == p[4]);
}

/* A temperature that no quotient survives leaves the likeliest, shared where they tie; logits of any size do.
 * Seen to fail with exp(logit / temperature), the largest not taken off. */
TEST(distribution_extremes)
{
    const double logits[5] = { 1, 3, 2.999999, 3, -INFINITY }, large[3] = { 1e300, -1e300, 1e300 };
    static const double temperatures[] = { 1e-9, 1e-300, DBL_TRUE_MIN };
    double p[5];
    for (int t = 0; t < 3; t++) {
        struct m3_sampling how = { temperatures[t], 0, 1, 0 };
        distribution(p, logits, 5, &how);
        for (int i = 0; i < 5; i++) ck_assert_double_eq(p[i], i == 1 || i == 3 ? 0.5 : 0);
        distribution(p, large, 3, &how);
        for (int i = 0; i < 3; i++) ck_assert_double_eq(p[i], i == 1 ? 0 : 0.5);
    }
    struct m3_sampling hot = { 1e6, 0, 1, 0 };
    distribution(p, logits, 4, &hot);
    for (int i = 0; i < 4; i++) ck_assert(within(p[i], 0.25, 1e-6));
}

/* ---- the draw */

/* Seen to fail with >= for >, and with the last id in place of the last possible one. */
TEST(pick)
{
    static const double gaps[] = { 0, 0.25, 0, 0.5, 0.25, 0 }, least = 0x1p-53;
    static const struct {
        double u;
        int32_t id;
    } rows[] = {
        { 0, 1 },    { 0.25 - 0x1p-54, 1 }, { 0.25, 3 }, { 0.5, 3 }, { 0.75 - 0x1p-53, 3 },
        { 0.75, 4 }, { 1 - 0x1p-53, 4 },
    };
    double tenths[13] = { 0 };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        ck_assert_msg(m3_pick(gaps, 6, rows[r].u) == rows[r].id, "u %.17g: got %d", rows[r].u,
                      m3_pick(gaps, 6, rows[r].u));
    for (int i = 1; i < 11; i++) tenths[i] = 0.1;       /* their sum is 1 - 2^-53: no more than the largest u */
    ck_assert_int_eq(m3_pick(tenths, 13, 1 - least), 10);
    ck_assert_int_eq(m3_pick(tenths, 13, 0), 1);
    const double one[] = { 1 };
    ck_assert_int_eq(m3_pick(one, 1, 0), 0);
    ck_assert_int_eq(m3_pick(one, 1, 1 - least), 0);
}

/* Seen to fail with log2, with the largest logit left out of the sum, and with the id itself as its best other. */
TEST(logprob_and_margin)
{
    uint64_t state = 3;
    double logits[MOST];
    for (int64_t V = 1; V < MOST; V++) {
        long double sum = 0;
        for (int64_t i = 0; i < V; i++) logits[i] = (V % 3 ? 8 : 300) * twin_fine(&state) - (V % 5 ? 0 : 5000);
        for (int64_t i = 0; i < V; i++) sum += expl(logits[i]);
        for (int64_t id = 0; id < V; id++) {
            long double other = -INFINITY, want = logits[id] - logl(sum);
            for (int64_t i = 0; i < V; i++) other = i != id && logits[i] > other ? logits[i] : other;
            double got = m3_logprob(logits, V, (int32_t)id), margin = m3_margin(logits, V, (int32_t)id);
            if (!(fabsl(got - want) <= ((long double)V + 8 + 2 * fabsl(want)) * 0x1p-53L))
                ck_abort_msg("V %lld, id %lld: got %.17g, want %.17Lg", (long long)V, (long long)id, got, want);
            ck_assert(V == 1 ? margin == INFINITY : margin == (double)(logits[id] - (double)other));
        }
    }
    const double tied[] = { 2, -INFINITY, 2 };
    ck_assert_double_eq(m3_margin(tied, 3, 0), 0);
    ck_assert_double_eq(m3_margin(tied, 3, 1), -INFINITY);
    ck_assert_double_eq(m3_logprob(tied, 3, 1), -INFINITY);
    ck_assert(within(m3_logprob(tied, 3, 2), -0.6931471805599453, 4e-16));
}

/* ---- the test of a draft */

/* Random probabilities, some of them 0. */
static void draw_distribution(double *p, int64_t V, uint64_t *state)
{
    double sum = 0;
    for (int64_t i = 0; i < V; i++) {
        p[i] = twin_draw(state) + 0.6;
        p[i] = p[i] > 0 ? p[i] * p[i] : 0;
        sum += p[i];
    }
    if (sum == 0) p[0] = sum = 1;
    for (int64_t i = 0; i < V; i++) p[i] /= sum;
}

static int32_t accept(int *kept, int32_t draft, const double *p, const double *q, int64_t V, uint64_t seed,
                      int64_t place)
{
    struct guard scratch, target, proposal;
    double *rest = guard_output(&scratch, (size_t)V * sizeof *rest);
    const double *p_in = guard_input(&target, p, (size_t)V * sizeof *p);
    const double *q_in = guard_input(&proposal, q, (size_t)V * sizeof *q);
    *kept = -1;
    int32_t id = m3_accept(kept, draft, p_in, q_in, rest, V, seed, place);
    if (!guard_intact(&scratch) || !guard_intact(&target) || !guard_intact(&proposal) || *kept < 0 || *kept > 1)
        ck_abort_msg("place %lld: a buffer was written, or kept is %d", (long long)place, *kept);
    return id;
}

/* The rule in long double. chance [V] := with which each draft is kept; rest [V] := what replaces one that is not. */
static void twin_rule(long double *chance, long double *rest, const double *p, const double *q, int64_t V)
{
    long double sum = 0;
    for (int64_t i = 0; i < V; i++) {
        chance[i] = q[i] <= p[i] ? 1 : (long double)p[i] / q[i];
        sum += rest[i] = p[i] > q[i] ? (long double)p[i] - q[i] : 0;
    }
    for (int64_t i = 0; i < V; i++) rest[i] = sum > 0 ? rest[i] / sum : p[i];
}

/* What m3_accept does at every place with every possible draft is what the rule says of that place's two random
 * numbers; and by the rule, summed over all drafts, every id comes out with probability p.
 * Seen to fail with: min(1, q/p), the replacement from p, accept and instead from one random number. */
TEST(accept_follows_the_rule)
{
    uint64_t state = 17;
    for (int pair = 0; pair < 60; pair++) {
        int64_t V = 1 + pair % 8;
        double p[8], q[8];
        long double chance[8], rest[8], lost = 0;
        draw_distribution(p, V, &state);
        draw_distribution(q, V, &state);
        twin_rule(chance, rest, p, q, V);
        for (int64_t d = 0; d < V; d++) lost += q[d] * (1 - chance[d]);
        for (int64_t x = 0; x < V; x++) ck_assert(fabsl(q[x] * chance[x] + lost * rest[x] - p[x]) <= 1e-15L);

        for (int64_t place = 0; place < 200; place++) {
            int32_t d = (int32_t)twin_pick(&state, V);
            int kept;
            if (q[d] == 0) continue;
            int32_t id = accept(&kept, d, p, q, V, (uint64_t)pair, place);
            ck_assert_int_eq(kept, m3_uniform((uint64_t)pair, M3_DRAW_ACCEPT, place) < chance[d]);
            long double u = m3_uniform((uint64_t)pair, M3_DRAW_INSTEAD, place), sum = 0;
            int32_t want = 0;
            while (want < V - 1 && (sum += rest[want]) <= u) want++;
            ck_assert_int_eq(id, kept ? d : want);
        }
    }
}

/* How far, in chi-square, a mistaken rule's exact distribution would be from p on average. */
static double mistaken(const long double *chance, const double *rest, const double *p, const double *q, int64_t V,
                       int64_t draws)
{
    double lost = 0, sum = 0;
    for (int64_t d = 0; d < V; d++) lost += q[d] * (double)(1 - chance[d]);
    for (int64_t x = 0; x < V; x++) {
        double d = q[x] * (double)chance[x] + lost * rest[x] - p[x];
        if (p[x] > 0) sum += d * d / p[x] * (double)draws;
        else if (d != 0) return INFINITY;
    }
    return sum;
}

/* Draft from q, test, count: p comes out. With at most 6 degrees of freedom, 60 is passed by chance once in 10^10.
 * The mistakes that are common would stand at 240 and more, which is claimed too. Seen to fail with each of them. */
LOOP_TEST(accepted_tokens_are_distributed_as_p, 9)
{
    enum { DRAWS = 150000 };
    static const long double always[7] = { 1, 1, 1, 1, 1, 1, 1 };
    uint64_t state = 23 + (uint64_t)_i;
    int64_t V = 5 + _i % 3, counts[7] = { 0 };
    double p[7], q[7], as_q[7];
    long double chance[7], reversed[7], rest[7];
    draw_distribution(p, V, &state);
    draw_distribution(q, V, &state);
    for (int64_t place = 0; place < DRAWS; place++) {
        int kept;
        double scratch[7];
        int32_t draft = m3_pick(q, V, m3_uniform((uint64_t)_i, M3_DRAW_DRAFT, place));
        counts[m3_accept(&kept, draft, p, q, scratch, V, (uint64_t)_i, place)]++;
    }
    double chi = chi_square(counts, p, V, DRAWS);
    ck_assert_msg(chi < 60, "chi-square %g", chi);

    twin_rule(chance, rest, p, q, V);
    for (int64_t i = 0; i < V; i++) {
        reversed[i] = p[i] <= q[i] ? 1 : (long double)q[i] / p[i];
        as_q[i] = (double)rest[i];
    }
    ck_assert_double_gt(mistaken(always, p, p, q, V, DRAWS), 240);      /* every draft kept */
    ck_assert_double_gt(mistaken(chance, p, p, q, V, DRAWS), 240);      /* replaced by a token from p */
    ck_assert_double_gt(mistaken(reversed, as_q, p, q, V, DRAWS), 240); /* kept with min(1, q/p) */
}

/* p = q: kept. No id in common: never kept, and replaced from p. All on one id each: kept if they agree, else the
 * target's. A draft that p does not allow: never kept. Seen to fail with every draft kept, and with min(1, q/p). */
TEST(accept_extremes)
{
    const double p[5] = { 0.25, 0.125, 0, 0.5, 0.125 }, q[5] = { 0, 0, 1, 0, 0 };
    const double two[5] = { 0, 0, 0.5, 0, 0.5 }, other[5] = { 0.5, 0, 0, 0.5, 0 };
    const double a[3] = { 0, 1, 0 }, b[3] = { 0, 0, 1 };
    int64_t counts[5] = { 0 };
    int kept;
    for (int64_t place = 0; place < 2000; place++) {
        int32_t draft = m3_pick(p, 5, m3_uniform(1, M3_DRAW_DRAFT, place));
        if (accept(&kept, draft, p, p, 5, 1, place) != draft || !kept) ck_abort_msg("place %lld", (long long)place);
        counts[accept(&kept, 2, p, q, 5, 1, place)]++;
        ck_assert_int_eq(kept, 0);
        int32_t id = accept(&kept, place % 2 ? 2 : 4, other, two, 5, 1, place);
        if (kept || (id != 0 && id != 3)) ck_abort_msg("place %lld: got %d", (long long)place, id);
        if (accept(&kept, 1, a, a, 3, 1, place) != 1 || !kept) ck_abort_msg("place %lld", (long long)place);
        if (accept(&kept, 2, a, b, 3, 1, place) != 1 || kept) ck_abort_msg("place %lld", (long long)place);
    }
    ck_assert_double_lt(chi_square(counts, p, 5, 2000), 45);
    const double nearly[2] = { 0.5, 0 }, half[2] = { 0.5, 0.5 };
    for (int64_t place = 0; place < 50; place++) ck_assert_int_eq(accept(&kept, 1, nearly, half, 2, 1, place), 0);
}

/* Goal:  logits without a distribution are told: NaN anywhere, a greatest one that is infinite, none but -inf.
 * Seen to fail with: NaN passed over; +inf allowed; -inf refused beside numbers. */
TEST(good_logits)
{
    const double good[] = { -INFINITY, 1, -3 }, nan_last[] = { 1, 2, NAN }, nan_first[] = { NAN, 2, 1 };
    const double infinite[] = { 1, INFINITY, 2 }, none[] = { -INFINITY, -INFINITY, -INFINITY };
    ck_assert(m3_logits_good(good, 3) && m3_logits_good(good + 1, 1));
    ck_assert(!m3_logits_good(nan_last, 3) && !m3_logits_good(nan_first, 3));
    ck_assert(!m3_logits_good(infinite, 3) && !m3_logits_good(none, 3));
}
