/* Mistakes of a few places (judge/rows/local.h), on made distances: eight runs, each off by 1 at every place and by 1.4
 * from the nearest other, and a candidate. */
#include "check.h"

#include <math.h>

#include "oracle/judge/rows/local.h"

enum { RUNS = 8, N = 40 };

static struct m3_error error;
static struct m3_distances d;
static double others[N];
static unsigned char alike[N];

static void setup(void)
{
    ck_assert_int_eq(m3_distances_new(&d, RUNS, N, "a test", &error), 0);
    for (int i = 0; i < (RUNS + 1) * N; i++) d.error[i] = 1, d.nearest[i] = 1.4;
    for (int k = 0; k < N; k++) others[k] = 1, alike[k] = 0;
}

static void teardown(void) { m3_distances_free(&d); }

FIXTURE(setup, teardown);

static void put(int first, int count, double times)
{
    for (int k = first; k < first + count; k++) d.error[RUNS * N + k] = times, d.nearest[RUNS * N + k] = 1.4 * times;
}

static struct m3_local find_by(int has_nearest, double resolution, double blank)
{
    struct m3_local found;
    const struct m3_local_rules rules = {
        .has_nearest = has_nearest, .resolution = resolution, .others = others, .alike = alike, .blank = blank
    };
    ck_assert_int_eq(m3_local_find(&found, &d, &rules, &error), 0);
    return found;
}

static struct m3_local find(double resolution, double blank) { return find_by(1, resolution, blank); }

/* Claim: the more places lie side by side, and the surer their choices are, the less each must be off; the places are
 * named; the longer and surer ones fail.
 * Seen to fail with the largest of a window in place of the least, with limits of sure places for all, and with the
 * last place left out. */
static const struct {
    double others;
    int first, count;
    double times;
    enum m3_verdict verdict;
} claims[] = {
    { 1, 20, 1, 50, M3_VERDICT_PASS },       { 1, 20, 2, 31, M3_VERDICT_PASS },
    { 1, 20, 2, 33, M3_VERDICT_SUSPECT },    { 1, 37, 3, 3.3, M3_VERDICT_PASS },
    { 1, 37, 3, 3.5, M3_VERDICT_SUSPECT },   { 1, 37, 3, 7, M3_VERDICT_FAIL },
    { 1, 36, 4, 2.3, M3_VERDICT_SUSPECT },   { 1, 36, 4, 4.5, M3_VERDICT_FAIL },
    { 1, 5, 5, 2, M3_VERDICT_SUSPECT },      { 1, 0, 8, 1.65, M3_VERDICT_SUSPECT },
    { 1, 0, 8, 1.55, M3_VERDICT_PASS },      { 0.05, 7, 1, 50, M3_VERDICT_PASS },
    { 0.05, 7, 2, 2.5, M3_VERDICT_SUSPECT }, { 0.05, 7, 3, 2.2, M3_VERDICT_SUSPECT },
    { 1e-4, 7, 1, 50, M3_VERDICT_PASS },     { 1e-4, 5, 2, 2.1, M3_VERDICT_SUSPECT },
    { 1e-4, 5, 3, 1.8, M3_VERDICT_SUSPECT }, { 1e-4, 5, 4, 1.7, M3_VERDICT_SUSPECT },
    { 1e-8, 39, 1, 3.1, M3_VERDICT_PASS },   { 1e-8, 39, 1, 3.3, M3_VERDICT_SUSPECT },
    { 1e-8, 39, 1, 50, M3_VERDICT_SUSPECT }, { 1e-6, 39, 1, 50, M3_VERDICT_PASS },
    { 0, 0, 1, 6.5, M3_VERDICT_FAIL },       { 0, 9, 1, NAN, M3_VERDICT_FAIL },
};

LOOP_TEST(side_by_side, sizeof claims / sizeof *claims)
{
    for (int k = 0; k < N; k++) others[k] = claims[_i].others;
    put(claims[_i].first, claims[_i].count, claims[_i].times);
    const struct m3_local found = find(0, INFINITY);
    ck_assert_int_eq(found.verdict, claims[_i].verdict);
    if (found.verdict == M3_VERDICT_PASS) return;
    ck_assert_int_eq(found.first, claims[_i].first);
    ck_assert_int_eq(found.count, claims[_i].count);
    if (!isnan(claims[_i].times)) ck_assert_double_eq_tol(found.times, claims[_i].times, 1e-9);
}

/* Claim: places whose choices are less sure do not count beside surer ones, and part them.
 * Seen to fail with the places between left out. */
TEST(unsure_between)
{
    for (int k = 18; k < 24; k++) others[k] = 1e-4;
    put(20, 2, 3);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_SUSPECT);
    others[20] = 1;
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_PASS);
    put(19, 1, 3);
    put(20, 1, 1);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_PASS);
}

/* Claim: places that are like one before them, as those of equal tokens, neither count nor part those that do.
 * Seen to fail with all places counted, and with such a place as an end of the run. */
TEST(alike_places)
{
    put(20, 3, 5);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_SUSPECT);
    alike[21] = 1;
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_PASS);
    put(23, 1, 5);
    const struct m3_local found = find(0, INFINITY);
    ck_assert(found.verdict == M3_VERDICT_SUSPECT && found.first == 20 && found.count == 4);
}

/* Claim: one run that chose otherwise at a place does not hide that the candidate is far from all runs there; but by
 * errors alone, which cannot tell whose choice it made, the candidate may be as far off as that run.
 * Seen to fail with the largest distance of a run in place of the usual one, and with the usual error. */
TEST(other_choice_of_a_run)
{
    for (int k = 20; k < 24; k++) d.nearest[k] = d.error[k] = 30;
    put(20, 4, 5);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_FAIL);
    ck_assert_int_eq(find_by(0, 0, INFINITY).verdict, M3_VERDICT_PASS);
}

/* Claim: a candidate that is a little farther off than the runs everywhere has no mistake in a few places: what counts
 * is how far off they are beside the others.
 * Seen to fail without the level of all places. */
TEST(everywhere)
{
    put(0, N, 2.5);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_PASS);
    put(10, 4, 2.5 * 4.5);
    const struct m3_local found = find(0, INFINITY);
    ck_assert(found.verdict == M3_VERDICT_FAIL && found.first == 10 && found.count == 4);
}

/* Claim: rows after one that may have chosen otherwise inherit a part of its error, and are no run of their own.
 * Seen to fail with heirs that count in full. */
TEST(heirs)
{
    put(10, 1, 170);
    put(11, 12, 4);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_PASS);
    others[10] = 0;
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_FAIL);
}

/* Claim: one place whose choices may differ is suspect only if it is off by as much as other values would be, and by
 * three times the most of any run anywhere; what the numbers cannot resolve counts as nothing.
 * Seen to fail without the blank, and with the runs at this place alone. */
TEST(one_place)
{
    put(20, 1, 10);
    ck_assert_int_eq(find(0, NAN).verdict, M3_VERDICT_PASS);
    ck_assert_int_eq(find(0, 14.1).verdict, M3_VERDICT_PASS);
    ck_assert_int_eq(find(12, 13.9).verdict, M3_VERDICT_PASS);
    const struct m3_local found = find(0, 13.9);
    ck_assert(found.verdict == M3_VERDICT_SUSPECT && found.first == 20 && found.count == 1);
    d.nearest[3 * N + 5] = 14 / 2.9;
    ck_assert_int_eq(find(0, 13.9).verdict, M3_VERDICT_PASS);
}
