/* The verdict in one plain sentence, or a few. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"
#include "base/text.h"
#include "oracle/error/parameters/parameters.h"
#include "oracle/judge/check/private/check.h"

static void say_place(struct m3_text *w, const struct m3_finding *tap)
{
    if (tap->rank == 0) return;
    m3_text_add(w, " in ");
    m3_finding_say_place(w, tap);
}

/* How wrong the tap is. */
static void say_size(struct m3_text *w, const struct m3_finding *tap)
{
    const double share = tap->tiers.headroom;
    char parameter[M3_PARAMETER_TEXT];
    if (tap->selection) {
        m3_text_add(w, ": rounding of the scores cannot explain %" PRId64 " of its %" PRId64 " choices; the first is",
                    tap->choices[M3_CHOICE_INADMISSIBLE], tap->elements);
        say_place(w, tap);
    } else if (isnan(tap->got)) {
        m3_text_add(w, ": it is NaN");
        say_place(w, tap);
    } else if (tap->rank > 0 && !(share <= 1)) {
        if (isfinite(share)) m3_text_add(w, ": its error is %.3g times what rounding allows, the largest", share);
        else m3_text_add(w, ": no error is allowed");
        say_place(w, tap);
        m3_text_add(w, ", where it is %.9g and should be %.9g", tap->got, tap->want);
    } else if (tap->note[0]) {
        m3_text_add(w, ": %s", tap->note);
    } else {
        m3_text_add(w, ": its errors are too regular to be rounding");
    }
    if (!tap->selection && tap->rank > 0 && share <= 1) {
        m3_text_add(w, ", the largest");
        say_place(w, tap);
    }
    /* A factor of a norm has the effect of another eps. */
    const int is_factor = tap->pattern.what[0] || tap->is_in_part;
    if (!tap->tiers.parameter.name || (is_factor && strcmp(tap->tiers.parameter.name, "eps") == 0)) return;
    m3_parameter_say(parameter, sizeof parameter, &tap->tiers.parameter);
    m3_text_add(w, ": %s", parameter);
}

/* Where else, and what the wrong values are. */
static void say_pattern(struct m3_text *w, const struct m3_check *check)
{
    const struct m3_finding *culprit = check->blame.first;
    char text[1000] = "";
    struct m3_text own = { text, sizeof text, 0 };
    m3_judgement_say_pattern(&own, &check->blame, culprit);
    /* How wrong it is was said in these words. */
    if (!text[0] || strstr(w->text, text)) return;
    m3_text_add(w, " Pattern: %s.", text);
}

/* What explains it, the surest first. */
static void say_cause(struct m3_text *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_finding *culprit = check->blame.first, *named = m3_check_named(check);
    if (check->reading[0])
        m3_text_add(w, " The engine follows another reading of the model: with --set %s nothing is wrong.",
                    check->reading);
    if (check->profile_word[0])
        m3_text_add(w,
                    " An engine that also rounds as +%s allows gives such results: with --profile %s+%s nothing is "
                    "wrong.",
                    check->profile_word, plan->profile, check->profile_word);
    if (check->mistake)
        m3_text_add(w, " %s looks like the known mistake %s: %s.", named == culprit ? "It" : named->tap,
                    named->mistake->id, named->mistake->what);
    else if (!check->reading[0] && !check->profile_word[0] && culprit->mistakes_tried > 0)
        m3_text_add(w, " No known mistake of this operator explains it (%d tried).", culprit->mistakes_tried);
    if (check->reading[0]) return;
    if (culprit->operators > 1)
        m3_text_add(w, " The dump does not show which operator is wrong: dump %s too%s.", culprit->since,
                    plan->gaps ? ", or name it in the map" : "");
    else
        m3_text_add(w, " %s at the engine's %s, and compare it with SPEC %s.",
                    check->profile_word[0] ? "If yours does not, look" : "Look", culprit->made_by, culprit->section);
}

/* Do all taps before the culprit pass? */
static int all_right_before(const struct m3_check *check)
{
    for (int64_t i = 0; i < check->blame.count && &check->blame.findings[i] != check->blame.first; i++)
        if (check->blame.findings[i].verdict != M3_VERDICT_PASS) return 0;
    return 1;
}

/* A suspect tap leads, because the first error is the cause of others; what surely fails after it is named too. */
static void say_failing(struct m3_text *w, const struct m3_check *check)
{
    if (check->blame.first->verdict == M3_VERDICT_FAIL) return;
    for (int64_t i = 0; i < check->blame.count; i++) {
        if (check->blame.findings[i].verdict != M3_VERDICT_FAIL) continue;
        m3_text_add(w, " %s, after it, is wrong.", check->blame.findings[i].tap);
        return;
    }
}

static void say_wrong(struct m3_text *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_finding *culprit = check->blame.first;
    m3_text_add(w, "%s %s in %s", culprit->tap, culprit->verdict == M3_VERDICT_FAIL ? "is wrong" : "is suspect",
                plan->candidate_name);
    say_size(w, culprit);
    m3_text_add(w, ".%s", all_right_before(check) ? " What comes before it is right." : "");
    say_pattern(w, check);
    say_failing(w, check);
    say_cause(w, check, plan);
}

static const struct m3_finding *first_of(const struct m3_judgement *blame, enum m3_verdict verdict)
{
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->findings[i].verdict == verdict) return &blame->findings[i];
    return NULL;
}

static int has_judged(const struct m3_judgement *blame, enum m3_tap tap)
{
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->findings[i].id == tap) return 1;
    return 0;
}

/* What a map left out is not right: a proposed one leaves out what fits no tap because it is wrong. */
static void say_unnamed(struct m3_text *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    static const enum m3_tap last[] = { M3_TAP_FINAL_NORM, M3_TAP_LOGITS };
    const struct m3_part *part = &plan->setting->part;
    const int is_whole = part->end == 0 || part->end == plan->setting->model->config.layers;
    int64_t count = 0;
    if (!plan->gaps || plan->gaps->unknown == 0) return;
    m3_text_add(w, " For %" PRId64 " tensors of the dump the map has no name", plan->gaps->unknown);
    for (size_t i = 0; i < sizeof last / sizeof *last && is_whole; i++) {
        if (has_judged(&check->blame, last[i])) continue;
        m3_text_add(w, "%s%s", count++ ? " and " : "; ", m3_tap_table[last[i]].name);
    }
    m3_text_add(w, count == 0 ? "." : count == 1 ? " was not judged." : " were not judged.");
}

void m3_check_say(struct m3_check *check, const struct m3_check_plan *plan)
{
    struct m3_text w = { check->sentence, sizeof check->sentence, 0 };
    const struct m3_finding *unjudged = first_of(&check->blame, M3_VERDICT_NOT_JUDGED);
    const struct m3_finding *misfit = first_of(&check->blame, M3_VERDICT_NOT_COMPARABLE);
    if (check->blame.first) {
        say_wrong(&w, check, plan);
    } else if (check->blame.verdict == M3_VERDICT_PASS) {
        m3_text_add(
            &w, "Nothing is wrong in %s: its tensors (%" PRId64 ") agree with the reference up to the rounding of %s.",
            plan->candidate_name, check->blame.judged, plan->profile);
    } else {
        m3_text_add(&w,
                    "Nothing wrong was found in %s, but only %" PRId64 " of its %" PRId64 " tensors could be judged",
                    plan->candidate_name, check->blame.judged, check->blame.count + check->blame.extra);
        if (misfit) m3_text_add(&w, "; %s could not be compared: %s", misfit->tap, misfit->note);
        else if (unjudged) m3_text_add(&w, "; the first that could not is %s: %s", unjudged->tap, unjudged->note);
        m3_text_add(&w, ".");
    }
    if (!check->blame.first) say_unnamed(&w, check, plan);
    if (check->rows_judged < check->rows)
        m3_text_add(&w, " Of its %" PRId64 " rows %" PRId64 " were judged.", check->rows, check->rows_judged);
    m3_make_printable(check->sentence, strlen(check->sentence));
}
