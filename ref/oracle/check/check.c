#include "oracle/check/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "model/files/origin.h"
#include "oracle/check/blame_honest.h"
#include "oracle/check/private/check.h"
#include "oracle/judge/judge.h"
#include "oracle/variants/honest_rows.h"

/* Honest implementations cannot be drawn for every profile; then the truth has none. */
static int64_t rows_of_truth(const struct m3_check_plan *plan)
{
    if (plan->setting->part.first > 0) return 0;     /* implementations differ from layer 0 on */
    if (plan->row_runs >= 0) return plan->row_runs;
    return m3_honest_can_run(plan->setting) ? m3_honest_rows_needed(plan->setting->profile) : 0;
}

static int make_truth(struct m3_check *check, const struct m3_check_plan *plan, struct m3_error *notes,
                      struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    const struct m3_envelope_plan truth = {
        .model = s->model,
        .c = s->the_case,
        .semantics = s->semantics,
        .profile = s->profile,
        .linear = s->ctx->linear,
        .threads = s->ctx->threads,
        .row_runs = rows_of_truth(plan),
        .seed = 1,
        .command = "m3ref check",
        .first_layer = s->part.first,
        .end_layer = s->part.end,
        .hidden = s->part.hidden,
        .progress = plan->progress,
    };
    int fits = 0;
    const int status = plan->kept ? m3_truth_fits(&fits, plan->kept, &truth, error) : M3_OK;
    if (status || !fits) return status ? status : m3_truth_open(&check->truth, &truth, plan->truth, notes, error);
    check->truth = (struct m3_truth){ .kept = plan->kept, .reused = 1 };
    return M3_OK;
}

/* ---- one verdict of the two */

/* blame judges a tap by its own inputs, and so decides; the comparison decides where blame has no verdict. */
static void fill_in(struct m3_check *check, struct m3_blamed *tap)
{
    struct m3_blame *blame = &check->blame;
    if (tap->verdict != M3_VERDICT_NOT_JUDGED || tap->is_blind) return;
    for (int64_t i = 0; i < check->comparison.count; i++) {
        const struct m3_stage *stage = &check->comparison.stages[i];
        if (strcmp(stage->tap, tap->name) != 0 || !m3_is_judged(stage->verdict)) continue;
        tap->verdict = stage->verdict;
        tap->tiers.headroom = stage->headroom;
        tap->got = stage->got, tap->want = stage->want;
        tap->rank = stage->rank;
        memcpy(tap->index, stage->index, sizeof tap->index);
        snprintf(tap->note, sizeof tap->note, "judged by the comparison with the truth");
        blame->not_judged--, blame->unjudged--, blame->judged++;
        check->by_comparison++;
        blame->failed += stage->verdict == M3_VERDICT_FAIL;
        blame->suspect += stage->verdict == M3_VERDICT_SUSPECT;
    }
}

/* The first tap that fails, otherwise the first suspect. */
static const struct m3_blamed *first_wrong(const struct m3_blame *blame)
{
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->taps[i].verdict == M3_VERDICT_FAIL) return &blame->taps[i];
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->taps[i].verdict == M3_VERDICT_SUSPECT) return &blame->taps[i];
    return NULL;
}

void m3_check_settle(struct m3_check *check)
{
    struct m3_blame *blame = &check->blame;
    for (int64_t i = 0; i < blame->count && !check->parts; i++) fill_in(check, &blame->taps[i]);
    blame->culprit = first_wrong(blame);
    const struct m3_tally tally = { .judged = blame->judged,
                                    .failed = blame->failed,
                                    .suspect = blame->suspect,
                                    .not_comparable = blame->not_comparable,
                                    .unjudged = blame->unjudged };
    blame->verdict = m3_run_verdict(&tally);
    blame->status = m3_run_status(blame->verdict);
    check->judged = blame->judged;
    check->failed = blame->failed;
    check->suspect = blame->suspect;
    check->stages = blame->count + blame->extra;
    check->verdict = blame->verdict;
    check->status = blame->status;
}

/* Is the mistake, by its own words, a part of the reading that explains all? */
static int is_of_reading(const struct m3_mistake *mistake, const struct m3_check *check, const struct m3_semantics *own)
{
    struct m3_semantics found = *own, both;
    struct m3_error ignored = { 0 };
    int status = !mistake->reading || m3_semantics_set(&found, check->reading, &ignored);
    both = found;
    if (!status) status = m3_semantics_set(&both, mistake->reading, &ignored);
    m3_error_free(&ignored);
    return !status && memcmp(&both, &found, sizeof found) == 0;
}

void m3_check_name_cause(struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_mistake *mistake = check->blame.culprit ? check->blame.culprit->mistake : NULL;
    const int has_reading = check->reading[0] != '\0';
    if (mistake && (!has_reading || is_of_reading(mistake, check, plan->setting->semantics)))
        check->mistake = mistake->id;
    if (!has_reading) snprintf(check->profile_word, sizeof check->profile_word, "%s", check->blame.explained_by);
}

/* A dump of another model or case is refused before anything is computed. */
static int check_origin(const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                        struct m3_error *error)
{
    const struct m3_origin_use use = { .verdict = "judged", .status = M3_NOT_COMPARABLE };
    struct m3_origin expected;
    struct m3_error differences = { 0 };
    int status = m3_origin_of_model(&expected, plan->setting->model, plan->setting->the_case, error);
    if (!status) status = m3_origin_check(candidate, &expected, &use, &differences, error);
    m3_error_free(&differences);
    return status;
}

/* Which part was judged, and from what it began. */
static void say_part(struct m3_check *check, const struct m3_check_plan *plan)
{
    const struct m3_part *part = &plan->setting->part;
    char from[96] = "the token ids";
    if (part->end == 0) return;
    if (part->hidden) snprintf(from, sizeof from, "the dump's layers.%" PRId64 ".out", part->first - 1);
    m3_fail(&check->blame.notes, M3_OK,
            "of the layers only %" PRId64 " to %" PRId64 " were judged; the reference ran from %s", part->judged,
            part->end - 1, from);
}

/* The comparison with the truth; one that cannot be compared with it is not a failure. */
static int compare(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                   struct m3_error *notes, struct m3_error *error)
{
    struct m3_compare_options how = { .profile = plan->setting->profile,
                                      .profile_text = plan->profile,
                                      .progress = plan->progress };
    struct m3_error compared = { 0 };
    char *taps = NULL;
    int status = make_truth(check, plan, notes, error);
    if (!status) status = m3_part_taps(&taps, plan->setting, error);
    if (status) return status;
    how.taps = taps;
    status = m3_compare(&check->comparison, m3_truth_file(&check->truth), candidate, &how, &compared);
    free(taps);
    if (status && status != M3_NOT_COMPARABLE) m3_fail_because(error, status, &compared);
    m3_error_free(&compared);
    return status == M3_NOT_COMPARABLE ? M3_OK : status;
}

int m3_check_judge(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                   const struct m3_blame_options *options, struct m3_error *notes, struct m3_error *error)
{
    *check = (struct m3_check){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    int status = notes ? compare(check, plan, candidate, notes, error) : M3_OK;
    if (!status) status = m3_blame_honest(&check->blame, plan->setting, candidate, options, plan->row_runs, error);
    if (status) return status;
    check->blamed = check->blame.culprit;
    m3_check_settle(check);
    return M3_OK;
}

int m3_check(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
             struct m3_error *notes, struct m3_error *error)
{
    const struct m3_blame_options options = { .profile = plan->profile,
                                              .names_mistakes = 1,
                                              .progress = plan->progress };
    *check = (struct m3_check){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    int status = check_origin(plan, candidate, error);
    if (!status) status = m3_check_judge(check, plan, candidate, &options, notes, error);
    if (status) return status;
    say_part(check, plan);
    status = m3_check_readings(check, plan, candidate, error);
    m3_check_name_cause(check, plan);
    m3_check_say(check, plan);
    return status;
}

void m3_check_free(struct m3_check *check)
{
    m3_truth_close(&check->truth);
    m3_comparison_free(&check->comparison);
    m3_blame_free(&check->blame);
    for (int64_t b = 0; b < check->part_count; b++) m3_check_free(&check->parts[b]);
    free(check->parts);
    m3_parts_free(&check->kept_parts);
    m3_safetensors_close(check->kept_file);
    *check = (struct m3_check){ 0 };
}
