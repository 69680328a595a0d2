/* The verdict in one plain sentence, or a few. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "oracle/check/private.h"

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
    for (int d = 0; d < tap->rank; d++) say(w, "%s%" PRId64, d ? ", " : " at [", tap->index[d]);
    if (tap->rank > 0) say(w, "]");
}

/* How wrong the tap is. */
static void say_size(struct writer *w, const struct m3_blamed *tap)
{
    const double share = tap->tiers.headroom;
    if (tap->selection) {
        say(w, ": %" PRId64 " of its %" PRId64 " choices cannot be explained by rounding of the scores, the first",
            tap->choices[M3_CHOICE_INADMISSIBLE], tap->elements);
        say_place(w, tap);
    } else if (isfinite(share) && share > 1) {
        say(w, ": its error is %.3g times what rounding allows, the largest", share);
        say_place(w, tap);
        say(w, ", where it is %.9g and should be %.9g", tap->got, tap->want);
    } else if (isnan(tap->got)) {
        say(w, ": it is NaN");
        say_place(w, tap);
    } else if (tap->note[0]) {
        say(w, ": %s", tap->note);
    } else {
        say(w, ": its errors are too regular to be rounding");
    }
}

static const struct m3_blamed *first_unjudged(const struct m3_blame *blame)
{
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->taps[i].verdict == M3_VERDICT_NOT_JUDGED) return &blame->taps[i];
    return NULL;
}

/* What explains it, the surest first. */
static void say_cause(struct writer *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_blamed *culprit = check->blame.culprit;
    if (check->reading[0])
        say(w, " The engine follows another reading of the model: with --set %s nothing is wrong.", check->reading);
    if (check->profile_word[0])
        say(w, " It is what an engine that also rounds as +%s does: with --profile %s+%s nothing is wrong.",
            check->profile_word, plan->profile, check->profile_word);
    if (culprit->mistake)
        say(w, " It looks like the known mistake %s: %s.", culprit->mistake->id, culprit->mistake->what);
    else if (!check->reading[0] && !check->profile_word[0] && culprit->mistakes_tried > 0)
        say(w, " None of the %d known mistakes of this operator explains it.", culprit->mistakes_tried);
    if (check->reading[0] || check->profile_word[0]) return;
    if (culprit->operators > 1)
        say(w, " Which operator it is cannot be seen, because the dump does not hold what lies between: dump %s too.",
            culprit->since);
    else say(w, " Look at the engine's %s, and compare it with SPEC %s.", culprit->operator, culprit->section);
}

static void say_wrong(struct writer *w, const struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_blamed *culprit = check->blame.culprit;
    const char *how = check->verdict == M3_VERDICT_FAIL ? "is wrong" : "is suspect";
    if (!culprit) {
        const struct m3_stage *first = check->comparison.divergence;
        say(w,
            "%s %s in %s: it differs from the truth by more than rounding explains, although every operator that"
            " could be recomputed is right.",
            first ? first->tap : "The next token", how, plan->candidate_name);
        return;
    }
    say(w, "%s %s in %s", culprit->name, how, plan->candidate_name);
    say_size(w, culprit);
    say(w, ". What comes before it is right.");
    say_cause(w, check, plan);
}

void m3_check_say(struct m3_check *check, const struct m3_check_plan *plan)
{
    struct writer w = { check->sentence, sizeof check->sentence, 0 };
    const struct m3_blamed *unjudged = first_unjudged(&check->blame);
    switch (check->verdict) {
    case M3_VERDICT_FAIL:
    case M3_VERDICT_SUSPECT: say_wrong(&w, check, plan); return;
    case M3_VERDICT_PASS:
        say(&w,
            "Nothing is wrong in %s: all %" PRId64 " of its tensors agree with MiniMax-M3 up to the rounding of %s.",
            plan->candidate_name, check->judged, plan->profile);
        return;
    case M3_VERDICT_PARTIAL:
        say(&w, "Nothing wrong was found in %s, but only %" PRId64 " of its %" PRId64 " tensors could be judged",
            plan->candidate_name, check->judged, check->stages);
        if (unjudged) say(&w, "; the first that could not is %s: %s", unjudged->name, unjudged->note);
        say(&w, ".");
        return;
    default: say(&w, "%s could not be compared with the model: nothing in it was judged.", plan->candidate_name);
    }
}
