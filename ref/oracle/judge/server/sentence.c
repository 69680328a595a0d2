/* The verdict in one plain sentence, or a few. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/printable.h"
#include "base/text.h"
#include "oracle/judge/server/private/judge.h"

/* What is wrong at the first position that no honest run explains. */
static void say_place(struct m3_text *w, const struct m3_server *r)
{
    const struct m3_server_place *p = r->first;
    if (!p) return;
    if (p->deficit > p->margin && p->generated && r->generated > 0)
        m3_text_add(w,
                    " The first is token %d at position %" PRId64
                    ": its logit is %.3g below what the sampling allows, and "
                    "rounding explains %.3g.",
                    p->chosen, p->place, p->deficit, p->margin);
    else if (p->deficit > p->margin)
        m3_text_add(w,
                    " At position %" PRId64
                    " the list lacks the most likely token, whose logit is %.3g above all that are "
                    "listed.",
                    p->place, p->deficit);
    else
        m3_text_add(
            w, " The %s is position %" PRId64 ", where token %d has the log-probability %.6g and should have %.6g.",
            r->failed > 0 ? "first position that none explains" : "farthest", p->place, p->worst, p->got, p->want);
}

static void say_cause(struct m3_text *w, const struct m3_server *r)
{
    if (r->temperature > 0)
        m3_text_add(w,
                    " The log-probabilities are of logits divided by %.3g: ask the server for raw ones, or check with "
                    "--processed --temperature %.3g.",
                    r->temperature, r->temperature);
    else if (r->reading[0])
        m3_text_add(w,
                    " The server follows another reading of the model: with --set %s its answer is "
                    "explained.",
                    r->reading);
    else if (r->mistake) m3_text_add(w, " It looks like the known mistake %s: %s.", r->mistake, r->mistake_what);
    else if (r->tried > 0)
        m3_text_add(w, " No known mistake and no other reading of the model explains it (%d tried).", r->tried);
    if (r->tried > 0 && r->is_fine && !r->mistake && !r->reading[0] && r->temperature == 0)
        m3_text_add(w, " If the server rounds more coarsely than float, name its profile (--profile bf16).");
}

/* Where it is wrong, if only some positions are. */
static void say_few(struct m3_text *w, const struct m3_server *r, const struct m3_server_plan *plan, const char *sure)
{
    m3_text_add(w, "%s is %s at position%s %" PRId64, plan->name, sure, r->first_bad < r->last_bad ? "s" : "",
                r->first_bad);
    if (r->first_bad < r->last_bad) m3_text_add(w, " to %" PRId64, r->last_bad);
    m3_text_add(w, " only: %s at least %.3g times as far off as any honest %s implementation there.",
                r->first_bad < r->last_bad ? "each is" : "it is", r->quotient, plan->profile);
}

static void say_wrong(struct m3_text *w, const struct m3_server *r, const struct m3_server_plan *plan)
{
    const char *sure = r->verdict == M3_VERDICT_FAIL ? "wrong" : "suspect";
    const int far = r->by && r->distances != M3_VERDICT_PASS;
    if (far && r->last_bad > 0) say_few(w, r, plan, sure);
    else if (far)
        m3_text_add(
            w,
            "%s is %s: by %s it is %.3g times as far from the nearest honest %s implementation as honest ones are from "
            "each other.",
            plan->name, sure, r->by, r->quotient, plan->profile);
    if (r->by_tokens != M3_VERDICT_PASS)
        m3_text_add(w, "%s %s%s: the model's logits do not allow %" PRId64 " of its %" PRId64 " generated tokens.",
                    far ? " Its tokens are" : plan->name, far ? "" : "is ",
                    far                                  ? "wrong too"
                    : r->by_tokens == M3_VERDICT_SUSPECT ? "suspect"
                                                         : "wrong",
                    r->forbidden, r->generated);
    else if (!far && r->by_lists != M3_VERDICT_PASS)
        m3_text_add(w, "%s is %s: its lists lack the most likely tokens.", plan->name, sure);
    else if (!far && r->z_toward > 0)
        m3_text_add(
            w,
            "%s is %s: its log-probabilities have moved toward those of a known mistake, by %.1f standard deviations of "
            "honest %s implementations.",
            plan->name, sure, r->z_toward, plan->profile);
    else if (!far)
        m3_text_add(
            w, "%s is suspect: its tokens are %.1f standard deviations %s likely than those that the sampling draws.",
            plan->name, fabs(r->z), r->z < 0 ? "less" : "more");
    if (r->first && (r->failed > 0 || far)) say_place(w, r);
    say_cause(w, r);
}

static void say_right(struct m3_text *w, const struct m3_server *r, const struct m3_server_plan *plan)
{
    m3_text_add(w, "Nothing is wrong in %s: ", plan->name);
    if (r->by)
        m3_text_add(w,
                    "its log-probabilities (%" PRId64 " positions) are as near to an honest %s implementation as such "
                    "implementations are to each other",
                    r->judged, plan->profile);
    if (r->generated > 0 && r->forbidden > 0)
        m3_text_add(w,
                    "%sthe model's logits allow all but %" PRId64 " of its %" PRId64
                    " generated tokens, as those of an honest implementation",
                    r->by ? ", and " : "", r->forbidden, r->generated);
    else if (r->generated > 0)
        m3_text_add(w, "%sthe model's logits allow its %" PRId64 " generated tokens", r->by ? ", and " : "",
                    r->generated);
    if (!r->by) m3_text_add(w, ", up to the rounding of %s", plan->profile);
    m3_text_add(w, ".");
}

void m3_server_say(struct m3_server *r, const struct m3_server_plan *plan)
{
    struct m3_text w = { r->sentence, sizeof r->sentence, 0 };
    if (r->verdict == M3_VERDICT_FAIL || r->verdict == M3_VERDICT_SUSPECT) {
        say_wrong(&w, r, plan);
    } else if (r->verdict == M3_VERDICT_PASS) {
        say_right(&w, r, plan);
    } else if (r->judged == 0) {
        m3_text_add(
            &w,
            "%s could not be judged: honest %s implementations differ so much in these positions that an answer "
            "to other tokens would pass. Ask about tokens with wider margins (m3ref prompt).",
            plan->name, plan->profile);
    } else {
        m3_text_add(&w,
                    "Nothing wrong was found in %s, but only %" PRId64 " of its %" PRId64
                    " positions could be judged: the server gave no log-probabilities for the others.",
                    plan->name, r->judged, r->stages);
    }
    m3_make_printable(r->sentence, strlen(r->sentence));
}
