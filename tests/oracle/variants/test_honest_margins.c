/* How probably a program chooses otherwise (variants/honest_margins.h), by made scores of routers on golden/tiny, whose
 * layers from 2 on choose 5 of 11 experts. */
#include "check.h"

#include <math.h>
#include <string.h>

#include "oracle/variants/honest_margins.h"

enum { T = 4, E = 11, K = 5, RUNS = 8 };

static struct m3_error error, notes;
static struct m3_model *model;
static struct m3_honest_margins *margins;

static void good(int status) { ck_assert_msg(status == 0, "status %d: %s", status, error.text ? error.text : ""); }

static void setup(void)
{
    good(m3_model_open(&model, "golden/tiny/model", &notes, &error));
    good(m3_honest_margins_new(&margins, model, &model->config.semantics, T, &error));
}

static void teardown(void)
{
    m3_honest_margins_free(margins);
    m3_model_close(model);
}

FIXTURE(setup, teardown);

/* Scores whose margin, with the bias of the router, is `margin`. */
static void score(float *scores, int64_t layer, double margin)
{
    double bias[E];
    m3_expand_f64(bias, &model->layers[layer].router_bias, 0, 0, E);
    for (int e = 0; e < E; e++) scores[e] = (float)((e < K ? margin : 0) - bias[e]);
}

/* Margins are `mean` and one deviation more or less. */
static void take(int64_t layer, const double *mean, double deviation)
{
    float scores[T * E];
    for (int run = 0; run < RUNS; run++) {
        for (int t = 0; t < T; t++) score(scores + t * E, layer, mean[t] + (run % 2 ? deviation : -deviation));
        good(m3_honest_margins_take(margins, M3_TAP_ROUTER_SCORES, layer, scores, 0, T, &error));
    }
}

/* Claim: a margin of z standard deviations is crossed with the probability of a normal variable beyond z; the layers
 * before a tap add up, and those before `first` do not count; without a choice nothing is expected.
 * Expected values: tables of the normal distribution.
 * Seen to fail with the smallest margin in place of the mean, with all layers counted, and with the tap's own layer
 * left out. */
TEST(expected_choices)
{
    const double narrow[T] = { 0.1, 0.2, 0.3, 0.6 }, wide[T] = { 0.5, 0.5, 0.5, 0.1 };
    double others[T];
    m3_honest_margins_others(others, margins, M3_TAP_OUT, 3, 0);
    ck_assert_double_eq(others[0], 0);
    take(2, narrow, 0.1);
    take(3, wide, 0.1);
    m3_honest_margins_others(others, margins, M3_TAP_OUT, 2, 0);
    ck_assert_double_eq_tol(others[0], 0.158655, 1e-4);
    ck_assert_double_eq_tol(others[1], 0.0227501, 1e-5);
    ck_assert_double_eq_tol(others[2], 0.00134990, 1e-6);
    ck_assert_double_eq_tol(others[3], 9.866e-10, 1e-12);
    m3_honest_margins_others(others, margins, M3_TAP_OUT, 3, 0);
    ck_assert_double_eq_tol(others[0], 0.158655 + 2.8665e-7, 1e-4);
    ck_assert_double_eq_tol(others[3], 0.158655, 1e-4);
    m3_honest_margins_others(others, margins, M3_TAP_OUT, 3, 3);
    ck_assert_double_eq_tol(others[0], 2.8665e-7, 1e-9);
    m3_honest_margins_others(others, margins, M3_TAP_MID, 2, 0);
    ck_assert_double_eq(others[0], 0);
}
