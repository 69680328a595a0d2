/* Does another reading of the model explain a failure? Public engines follow different ones (SPEC 4).
 *
 * A reading is tried on the worst row of the first wrong tap, from the candidate's own inputs, and where it explains
 * that row on the whole dump. If there a later tap is wrong, the search goes on from that reading: engines differ in more than one
 * field. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/cause/tap.h"
#include "oracle/judge/check/blame_honest.h"
#include "oracle/judge/check/private/check.h"
#include "oracle/variants/readings.h"

enum { MOST_STEPS = 3 };

struct trying {
    struct m3_check *check;
    const struct m3_check_plan *plan;
    const struct m3_safetensors *candidate;
    struct m3_semantics semantics;      /* as far as the search has come, */
    struct m3_finding first;            /* and what is the first wrong tap by it */
    struct m3_semantics better;         /* a reading by which the first wrong tap is a later one, */
    struct m3_finding later;            /* this; tap NULL: there is none */
    int explains;                       /* by `better` nothing is wrong */
    struct m3_error *error;
};

/* Is the first wrong tap judged by what it reads? Then it can be tried alone. */
static int is_alone(const struct trying *t) { return t->first.judged_by == M3_BY_OPERATOR; }

/* What is created in the worst row of the first wrong tap by a reading; NaN: by it the model has no such tap. *passes: nothing else than
 * rounding. */
static int try_tap(int *passes, double *created, const struct trying *t, const struct m3_semantics *semantics)
{
    struct m3_setting setting = *t->plan->setting;
    struct m3_blame_options options = {
        .taps = t->first.tap, .force = 1, .is_alone = 1, .progress = t->plan->progress
    };
    struct m3_error ignored = { 0 };
    struct m3_judgement blame;
    setting.semantics = semantics;
    if (t->first.rank > 0) options.first_row = t->first.index[0], options.end_row = options.first_row + 1;
    const int status = m3_blame(&blame, &setting, t->candidate, &options, &ignored);
    *passes = status == M3_NOT_COMPARABLE || (!status && blame.failed + blame.suspect + blame.not_comparable == 0);
    *created = !status && blame.count == 1 ? blame.findings[0].created : NAN;
    m3_judgement_free(&blame);
    if (!status || status == M3_NOT_COMPARABLE) m3_error_free(&ignored);
    else m3_fail_because(t->error, status, &ignored);
    return status == M3_NOT_COMPARABLE ? M3_OK : status;
}

/* A reading explains all if by it nothing is wrong, although as much is judged as by the model's own. */
static int try_all(struct trying *t, const struct m3_semantics *semantics)
{
    const struct m3_blame_options options = { .force = 1, .is_alone = 1, .progress = t->plan->progress };
    struct m3_check_plan plan = *t->plan;
    struct m3_setting setting = *t->plan->setting;
    struct m3_error notes = { 0 };
    struct m3_check other;
    setting.semantics = semantics;
    plan.setting = &setting;
    plan.truth = NULL;
    plan.kept = NULL;
    plan.keeps = plan.compares = 0;
    const int status = m3_check_judge(&other, &plan, t->candidate, &options, &notes, t->error);
    if (!status && other.blame.not_comparable == 0 && other.blame.extra <= t->check->blame.extra) {
        const struct m3_finding *culprit = other.blame.first, *best = t->later.tap ? &t->later : &t->first;
        t->explains = other.blame.verdict == M3_VERDICT_PASS && other.blame.judged >= t->check->blame.judged;
        const int is_later = culprit && m3_tap_order(culprit->id, culprit->layer, best->id, best->layer) > 0;
        if (is_later) t->later = *culprit;
        if (t->explains || is_later) t->better = *semantics;
    }
    t->check->double_passes += other.double_passes;
    m3_check_free(&other);
    m3_error_free(&notes);
    return status;
}

/* ---- the size of the noise of jitter, which may be any number */

/* The place of the least value of the parabola through three points a distance d apart; NaN: it is above `most`. */
static double lowest(double x, double d, const double y[3], double most)
{
    const double bend = y[0] - 2 * y[1] + y[2], slope = (y[2] - y[0]) / 2;
    if (!(bend > 0) || !(y[1] - slope * slope / (2 * bend) <= most)) return NAN;
    return x - d * slope / bend;
}

/* Does a tap pass that reads the same noise? The router's logits are made of few numbers, and seldom the culprit. */
static int router_passes(const struct trying *t)
{
    const struct m3_judgement *blame = &t->check->blame;
    if (t->first.id == M3_TAP_ROUTER_LOGITS) return 0;
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->findings[i].id == M3_TAP_ROUTER_LOGITS && blame->findings[i].layer == t->first.layer)
            return blame->findings[i].verdict == M3_VERDICT_PASS;
    return 0;
}

/* The size by which what is created is least: its square is a parabola, but for what the noise adds to the values. NaN:
 * noise of any size leaves more than half of it. */
static int fit_noise(double *size, const struct trying *t, struct m3_semantics s)
{
    double middle = 0x1p-10, part = 1;
    int status = M3_OK, passes;
    for (int round = 0; round < 3 && !status && middle > 0; round++, part = 0.1 / round) {
        const double d = middle * part;
        double y[3] = { 0 };
        for (int i = 0; i < 3 && !status; i++) {
            s.jitter = middle + (i - 1) * d;
            status = try_tap(&passes, &y[i], t, &s);
            y[i] *= y[i];
        }
        middle = lowest(middle, d, y, round == 0 ? y[0] / 4 : INFINITY);
    }
    *size = middle;
    return status;
}

static int try_one(struct trying *t, const struct m3_semantics *semantics)
{
    int passes = 1, status = M3_OK;
    double created;
    if (is_alone(t)) status = try_tap(&passes, &created, t, semantics);
    return status || !passes ? status : try_all(t, semantics);
}

/* Of an unknown size, the shortest number by which the tap passes. */
static int try_noise(struct trying *t, struct m3_semantics semantics)
{
    double size = NAN;
    int status = is_alone(t) && !router_passes(t) ? fit_noise(&size, t, semantics) : M3_OK;
    for (int digits = 1; digits <= 5 && !status && !t->explains && size > 0 && size <= 1; digits++) {
        char text[32];
        snprintf(text, sizeof text, "%.*g", digits, size);
        semantics.jitter = strtod(text, NULL);
        status = try_one(t, &semantics);
    }
    return status;
}

static int try(struct trying *t, const struct m3_semantics *semantics)
{
    return isnan(semantics->jitter) ? try_noise(t, *semantics) : try_one(t, semantics);
}

/* ---- the search */

/* Looks for a reading that explains the first wrong tap. Where operators are judged together, it may show at a tap before
 * it that is not in the dump. */
static int step(struct trying *t)
{
    struct m3_semantics others[M3_MOST_READINGS];
    const int is_one = is_alone(t) && t->first.operators == 1;
    const struct m3_shows_at at = { .tap = is_one ? t->first.tap : NULL };
    const int count = m3_list_readings(others, &t->semantics, t->plan->setting, &at);
    int status = M3_OK;
    t->later.tap = NULL;
    for (int i = 0; i < count && !status && !t->explains; i++) status = try(t, &others[i]);
    return status;
}

/* m3ref states in its dumps by which reading they were made. */
static int try_stated(struct trying *t)
{
    struct m3_semantics stated;
    const char *text = m3_safetensors_metadata(t->candidate, "semantics");
    if (!text) return M3_OK;
    m3_semantics_read(&stated, text);
    return memcmp(&stated, &t->semantics, sizeof stated) == 0 ? M3_OK : try_all(t, &stated);
}

int m3_check_readings(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                      struct m3_error *error)
{
    struct trying t = { .check = check, .plan = plan, .candidate = candidate, .error = error };
    if (!check->blame.first) return M3_OK;
    t.semantics = *plan->setting->semantics;
    t.first = *check->blame.first;
    int status = try_stated(&t);
    for (int steps = 0; steps < MOST_STEPS && !status && !t.explains; steps++) {
        status = step(&t);
        if (!t.later.tap) break;
        t.semantics = t.better;
        t.first = t.later;
    }
    if (!status && t.explains) m3_semantics_changes(check->reading, plan->setting->semantics, &t.better);
    return status;
}
