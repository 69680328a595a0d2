#include "oracle/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "oracle/check/blame_honest.h"
#include "oracle/check/private.h"
#include "oracle/judge/judge.h"
#include "oracle/variants/honest_rows.h"

/* Honest implementations cannot be drawn for every profile; then the truth has none. */
static int64_t rows_of_truth(const struct m3_check_plan *plan)
{
    const struct m3_profile *profile = plan->setting->profile;
    const struct m3_arithmetic how = m3_profile_arithmetic(profile, 1);
    if (plan->row_runs >= 0) return plan->row_runs;
    if (how.u != 0x1p-24 || m3_profile_truncates(profile) || plan->setting->the_case->p0 > 0) return 0;
    return m3_honest_rows_needed(profile);
}

static int make_truth(struct m3_check *check, const struct m3_check_plan *plan, struct m3_error *notes,
                      struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    /* clang-format off */
    const struct m3_envelope_plan truth = {
        .model = s->model, .c = s->the_case, .semantics = s->semantics, .profile = s->profile, .linear = s->ctx->linear,
        .threads = s->ctx->threads, .row_runs = rows_of_truth(plan), .seed = 1, .command = "m3ref check",
    };
    /* clang-format on */
    return m3_truth_open(&check->truth, &truth, plan->truth, notes, error);
}

/* ---- one verdict of the two */

static enum m3_verdict compared(const struct m3_comparison *comparison, const char *tap)
{
    for (int64_t i = 0; i < comparison->count; i++)
        if (strcmp(comparison->stages[i].tap, tap) == 0) return comparison->stages[i].verdict;
    return M3_VERDICT_NOT_JUDGED;
}

/* blame judges a tap by its own inputs, and so decides; the comparison decides where blame has no verdict. */
static enum m3_verdict of_tap(const struct m3_check *check, const struct m3_blamed *tap)
{
    return m3_is_judged(tap->verdict) ? tap->verdict : compared(&check->comparison, tap->name);
}

static void settle(struct m3_check *check)
{
    struct m3_tally tally = { 0 };
    for (int64_t i = 0; i < check->blame.count; i++) {
        const enum m3_verdict verdict = of_tap(check, &check->blame.taps[i]);
        tally.judged += m3_is_judged(verdict);
        tally.failed += verdict == M3_VERDICT_FAIL;
        tally.suspect += verdict == M3_VERDICT_SUSPECT;
        tally.not_comparable += verdict == M3_VERDICT_NOT_COMPARABLE;
        tally.unjudged += verdict == M3_VERDICT_NOT_JUDGED;
    }
    tally.unjudged += check->blame.extra;
    const enum m3_verdict token = check->comparison.next_token.verdict;
    if (check->comparison.next_token.tap && token == M3_VERDICT_FAIL) tally.failed++;
    check->judged = tally.judged;
    check->failed = tally.failed;
    check->suspect = tally.suspect;
    check->stages = check->blame.count + check->blame.extra;
    check->verdict = m3_run_verdict(&tally);
    check->status = m3_run_status(check->verdict);
}

int m3_check(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
             struct m3_error *notes, struct m3_error *error)
{
    const struct m3_compare_options how = { .profile = plan->setting->profile, .profile_text = plan->profile };
    const struct m3_blame_options options = {
        .profile = plan->profile, .names_mistakes = 1, .progress = plan->progress, .progress_self = plan->progress_self
    };
    *check = (struct m3_check){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    int status = make_truth(check, plan, notes, error);
    if (!status) status = m3_compare(&check->comparison, check->truth.file, candidate, &how, error);
    if (!status || status == M3_NOT_COMPARABLE)
        status = m3_blame_honest(&check->blame, plan->setting, candidate, &options, plan->row_runs, error);
    if (status) return status;
    settle(check);
    check->mistake = check->blame.mistake;
    snprintf(check->profile_word, sizeof check->profile_word, "%s", check->blame.explained_by);
    const int is_wrong = check->verdict == M3_VERDICT_FAIL || check->verdict == M3_VERDICT_SUSPECT;
    if (is_wrong && !check->profile_word[0]) status = m3_check_readings(check, plan, candidate, error);
    m3_check_say(check, plan);
    return status;
}

void m3_check_free(struct m3_check *check)
{
    m3_truth_close(&check->truth);
    m3_comparison_free(&check->comparison);
    m3_blame_free(&check->blame);
    *check = (struct m3_check){ 0 };
}
