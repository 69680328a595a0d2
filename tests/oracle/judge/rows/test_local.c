/* Mistakes of a few places (judge/rows/local.h), on made distances: eight runs, each off by 1 at every place and by 1.4
 * from the nearest other, and a candidate. */
#include "check.h"

#include <math.h>

#include "oracle/judge/rows/local.h"

enum { RUNS = 8, N = 40 };

static struct m3_error error;
static struct m3_distances d;
static unsigned char sure[N];

static void setup(void)
{
    ck_assert_int_eq(m3_distances_new(&d, RUNS, N, "a test", &error), 0);
    for (int i = 0; i < (RUNS + 1) * N; i++) d.error[i] = 1, d.nearest[i] = 1.4;
    for (int k = 0; k < N; k++) sure[k] = M3_SURE_NOT;
}

static void teardown(void) { m3_distances_free(&d); }

FIXTURE(setup, teardown);

static void put(int first, int count, double times)
{
    for (int k = first; k < first + count; k++) d.error[RUNS * N + k] = times, d.nearest[RUNS * N + k] = 1.4 * times;
}

static struct m3_local find(double resolution, double blank)
{
    struct m3_local found;
    const struct m3_local_rules rules = { .has_nearest = 1, .resolution = resolution, .sure = sure, .blank = blank };
    ck_assert_int_eq(m3_local_find(&found, &d, &rules, &error), 0);
    return found;
}

/* Claim: the more places lie side by side, and the surer their choices are, the less each must be off; the places are
 * named; the longer and surer ones fail.
 * Seen to fail with the largest of a window in place of the least, with limits of sure places for all, and with the
 * last place left out. */
static const struct {
    enum m3_sure sure;
    int first, count;
    double times;
    enum m3_verdict verdict;
} claims[] = {
    { M3_SURE_NOT, 20, 1, 50, M3_VERDICT_PASS },       { M3_SURE_NOT, 20, 2, 7.9, M3_VERDICT_PASS },
    { M3_SURE_NOT, 20, 2, 8.1, M3_VERDICT_SUSPECT },   { M3_SURE_NOT, 37, 3, 1.6, M3_VERDICT_PASS },
    { M3_SURE_NOT, 37, 3, 1.8, M3_VERDICT_SUSPECT },   { M3_SURE_NOT, 36, 4, 1.55, M3_VERDICT_SUSPECT },
    { M3_SURE_NOT, 36, 4, 3.1, M3_VERDICT_FAIL },      { M3_SURE_NOT, 0, 8, 1.45, M3_VERDICT_SUSPECT },
    { M3_SURE_NOT, 0, N, 1.1, M3_VERDICT_PASS },       { M3_SURE_LIKELY, 7, 1, 50, M3_VERDICT_PASS },
    { M3_SURE_LIKELY, 7, 2, 3.1, M3_VERDICT_SUSPECT }, { M3_SURE, 39, 1, 4.9, M3_VERDICT_PASS },
    { M3_SURE, 39, 1, 5.1, M3_VERDICT_SUSPECT },       { M3_SURE, 5, 2, 2.6, M3_VERDICT_SUSPECT },
    { M3_SURE_NO_CHOICE, 0, 1, 2.1, M3_VERDICT_PASS }, { M3_SURE_NO_CHOICE, 0, 1, 2.3, M3_VERDICT_SUSPECT },
    { M3_SURE_NO_CHOICE, 0, 1, 4.5, M3_VERDICT_FAIL }, { M3_SURE_NO_CHOICE, 9, 2, 1.85, M3_VERDICT_SUSPECT },
    { M3_SURE_NO_CHOICE, 9, 1, NAN, M3_VERDICT_FAIL },
};

LOOP_TEST(side_by_side, sizeof claims / sizeof *claims)
{
    for (int k = 0; k < N; k++) sure[k] = (unsigned char)claims[_i].sure;
    put(claims[_i].first, claims[_i].count, claims[_i].times);
    const struct m3_local found = find(0, INFINITY);
    ck_assert_int_eq(found.verdict, claims[_i].verdict);
    if (found.verdict == M3_VERDICT_PASS) return;
    ck_assert_int_eq(found.first, claims[_i].first);
    ck_assert_int_eq(found.count, claims[_i].count);
    if (!isnan(claims[_i].times)) ck_assert_double_eq_tol(found.times, claims[_i].times, 1e-9);
}

/* Claim: a place at which some run chose otherwise says nothing of its neighbours: bad places on both sides of it lie
 * side by side. But it counts where the candidate is farther off than all runs.
 * Seen to fail with wide places kept. */
TEST(wide_place)
{
    d.error[0 * N + 22] = 30;
    put(20, 4, 2);
    struct m3_local found = find(0, INFINITY);
    ck_assert(found.verdict == M3_VERDICT_SUSPECT && found.first == 20 && found.count == 4);
    put(22, 1, 60);
    found = find(0, INFINITY);
    ck_assert(found.verdict == M3_VERDICT_SUSPECT && found.count == 4);
}

/* Claim: rows after one that may have chosen otherwise inherit a part of its error, and are no run of their own.
 * Seen to fail with heirs that count in full. */
TEST(heirs)
{
    put(10, 1, 170);
    put(11, 12, 4);
    ck_assert_int_eq(find(0, INFINITY).verdict, M3_VERDICT_PASS);
    sure[10] = M3_SURE;
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
