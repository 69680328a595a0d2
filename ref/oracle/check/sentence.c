/* The verdict in one plain sentence, or a few. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "oracle/check/private/check.h"

struct writer {
    char *text;
    size_t room, length;
};

__attribute__((format(printf, 2, 3))) static void say(struct writer *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(w->text + w->length, w->room - w->length, format, list);
    va_end(list);
    if (n > 0) w->length += (size_t)n < w->room - w->length ? (size_t)n : w->room - w->length - 1;
}

static void say_place(struct writer *w, const struct m3_blamed *tap)
{
    if (tap->rank > 0 && tap->in_sequence > 0)
        say(w, " in sequence %" PRId64 ", row %" PRId64 ",", tap->in_sequence - 1, tap->index[0]);
    for (int d = 0; d < tap->rank; d++) say(w, "%s%" PRId64, d ? ", " : " at [", tap->index[d]);
    if (tap->rank > 0) say(w, "]");
}

/* How wrong the tap is. */
static void say_size(struct writer *w, const struct m3_blamed *tap)
{
    const double share = tap->tiers.headroom;
    if (tap->selection) {
        say(w, ": rounding of the scores cannot explain %" PRId64 " of its %" PRId64 " choices; the first is",
            tap->choices[M3_CHOICE_INADMISSIBLE], tap->elements);
        say_place(w, tap);
    } else if (isnan(tap->got)) {
        say(w, ": it is NaN");
        say_place(w, tap);
    } else if (tap->rank > 0 && !(share <= 1)) {
        if (isfinite(share)) say(w, ": its error is %.3g times what rounding allows, the largest", share);
        else say(w, ": no error is allowed");
        say_place(w, tap);
        say(w, ", where it is %.9g and should be %.9g", tap->got, tap->want);
    } else if (tap->note[0]) {
        say(w, ": %s", tap->note);
    } else {
        say(w, ": its errors are too regular to be rounding");
    }
}

/* What explains it, the surest first. */
static void say_cause(struct writer *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_blamed *culprit = check->blame.culprit;
    if (check->reading[0])
        say(w, " The engine follows another reading of the model: with --set %s nothing is wrong.", check->reading);
    if (check->profile_word[0])
        say(w, " An engine that also rounds as +%s allows gives such results: with --profile %s+%s nothing is wrong.",
            check->profile_word, plan->profile, check->profile_word);
    if (culprit->mistake)
        say(w, " It looks like the known mistake %s: %s.", culprit->mistake->id, culprit->mistake->what);
    else if (!check->reading[0] && !check->profile_word[0] && culprit->mistakes_tried > 0)
        say(w, " No known mistake of this operator explains it (%d tried).", culprit->mistakes_tried);
    if (check->reading[0] || check->profile_word[0]) return;
    if (culprit->operators > 1) say(w, " The dump does not show which operator is wrong: dump %s too.", culprit->since);
    else say(w, " Look at the engine's %s, and compare it with SPEC %s.", culprit->operator, culprit->section);
}

/* Do all taps before the culprit pass? */
static int all_right_before(const struct m3_check *check)
{
    for (int64_t i = 0; i < check->blame.count && &check->blame.taps[i] != check->blame.culprit; i++)
        if (check->blame.taps[i].verdict != M3_VERDICT_PASS) return 0;
    return 1;
}

static void say_wrong(struct writer *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_blamed *culprit = check->blame.culprit;
    say(w, "%s %s in %s", culprit->name, culprit->verdict == M3_VERDICT_FAIL ? "is wrong" : "is suspect",
        plan->candidate_name);
    say_size(w, culprit);
    say(w, ".%s", all_right_before(check) ? " What comes before it is right." : "");
    say_cause(w, check, plan);
}

static const struct m3_blamed *first_of(const struct m3_blame *blame, enum m3_verdict verdict)
{
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->taps[i].verdict == verdict) return &blame->taps[i];
    return NULL;
}

void m3_check_say(struct m3_check *check, const struct m3_check_plan *plan)
{
    struct writer w = { check->sentence, sizeof check->sentence, 0 };
    const struct m3_blamed *unjudged = first_of(&check->blame, M3_VERDICT_NOT_JUDGED);
    const struct m3_blamed *misfit = first_of(&check->blame, M3_VERDICT_NOT_COMPARABLE);
    if (check->blame.culprit) {
        say_wrong(&w, check, plan);
    } else if (check->verdict == M3_VERDICT_PASS) {
        say(&w, "Nothing is wrong in %s: its tensors (%" PRId64 ") agree with MiniMax-M3 up to the rounding of %s.",
            plan->candidate_name, check->judged, plan->profile);
    } else {
        say(&w, "Nothing wrong was found in %s, but only %" PRId64 " of its %" PRId64 " tensors could be judged",
            plan->candidate_name, check->judged, check->stages);
        if (misfit) say(&w, "; %s could not be compared: %s", misfit->name, misfit->note);
        else if (unjudged) say(&w, "; the first that could not is %s: %s", unjudged->name, unjudged->note);
        say(&w, ".");
    }
}
