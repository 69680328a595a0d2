#include "oracle/judge/check/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/memory_stream.h"
#include "model/files/origin.h"
#include "oracle/cause/tap.h"
#include "oracle/judge/check/blame_honest.h"
#include "oracle/judge/check/private/check.h"
#include "oracle/judge/compare.h"
#include "oracle/judge/finding/kept.h"
#include "oracle/judge/finding/settle.h"
#include "oracle/variants/honest_rows.h"

/* Honest implementations cannot be drawn for every profile; then the truth has none. */
static int64_t rows_of_truth(const struct m3_check_plan *plan)
{
    if (plan->setting->part.first > 0) return 0;     /* implementations differ from layer 0 on */
    if (plan->row_runs >= 0) return plan->row_runs;
    return m3_honest_can_run(plan->setting) ? m3_honest_rows_needed(plan->setting->profile) : 0;
}

static int keeps_truth(const struct m3_check_plan *plan) { return plan->truth || plan->kept || plan->keeps; }

/* The judging of a candidate beside the pass that makes the truth. */
struct beside {
    struct m3_check *check;
    const struct m3_check_plan *plan;
    const struct m3_safetensors *candidate;
    struct m3_blame_options options;
    int is_done;
};

static int blame(struct beside *b, struct m3_error *error)
{
    const struct m3_check_plan *plan = b->plan;
    b->is_done = 1;
    const int status =
        m3_blame_honest(&b->check->blame, plan->setting, b->candidate, &b->options, plan->row_runs, error);
    b->check->double_passes += b->check->blame.double_passes;
    return status;
}

static int blame_beside(void *self, const struct m3_request *request, struct m3_error *error)
{
    struct beside *b = self;
    b->options.request = request;
    const int status = blame(b, error);
    b->options.request = NULL;
    return status;
}

/* The taps of this call that the dump holds, as patterns in memory to be freed; NULL: there are none of floats, and
 * honest implementations, which say something of floats alone, need one. */
static int list_held(char **held, const struct m3_setting *s, const struct m3_safetensors *candidate,
                     struct m3_error *error)
{
    struct m3_memory_stream memory;
    enum m3_tap tap;
    int64_t layer;
    char name[96];
    int64_t count = 0, floats = 0;
    FILE *out = m3_memory_open(&memory);
    for (int64_t i = 0; out && m3_trace_tap(s, i, &tap, &layer); i++) {
        if (m3_tap_name(name, sizeof name, tap, layer) || !m3_safetensors_find(candidate, name)) continue;
        fprintf(out, "%s%s", count++ > 0 ? "," : "", name);
        floats += m3_tap_table[tap].kind == M3_KIND_REALS;
    }
    *held = m3_memory_close(&memory);
    if (!*held) return m3_fail_memory(error, "the names of the taps", memory.length);
    if (floats > 0) return M3_OK;
    free(*held);
    *held = NULL;
    return M3_OK;
}

/* Of a truth that is not kept only what the dump holds is needed. */
static int make_truth(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                      int64_t row_runs, const struct m3_truth_pass *pass, struct m3_error *notes,
                      struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    char *held = NULL;
    int fits = 0, status = keeps_truth(plan) ? M3_OK : list_held(&held, plan->setting, candidate, error);
    const struct m3_envelope_plan truth = {
        .model = s->model,
        .c = s->the_case,
        .semantics = s->semantics,
        .profile = s->profile,
        .linear = s->ctx->linear,
        .threads = s->ctx->threads,
        .row_runs = row_runs,
        .rows_are_spare = m3_check_is_full(plan->setting, candidate),
        .seed = 1,
        .taps = held,
        .command = "m3ref check",
        .first_layer = s->part.first,
        .end_layer = s->part.end,
        .hidden = s->part.hidden,
        .progress = plan->progress,
    };
    if (!status && plan->kept) status = m3_truth_fits(&fits, plan->kept, &truth, error);
    if (!status && fits) check->truth = (struct m3_truth){ .kept = plan->kept, .reused = 1 };
    else if (!status) status = m3_truth_open(&check->truth, &truth, plan->truth, pass, notes, error);
    free(held);
    return status;
}

/* ---- what the dump holds */

/* Does the case itself give the tap? */
static int is_given(const struct m3_setting *s, enum m3_tap tap, int64_t layer)
{
    return m3_graph_node(s->model, s->semantics, tap, layer)->op <= M3_OP_INPUT;
}

int m3_check_is_full(const struct m3_setting *s, const struct m3_safetensors *candidate)
{
    enum m3_tap tap, operand;
    int64_t layer, of;
    char name[96];
    if (m3_safetensors_find(candidate, "rows") || m3_safetensors_find(candidate, "vision.rows")) return 0;
    for (int64_t i = 0; m3_trace_tap(s, i, &tap, &layer); i++) {
        if (m3_tap_name(name, sizeof name, tap, layer) || !m3_safetensors_find(candidate, name)) continue;
        for (int j = 0; j < M3_OPERANDS && m3_setting_judges(s, tap, layer); j++)
            if (!m3_setting_operand(&operand, &of, s, tap, layer, j) && !is_given(s, operand, of) &&
                (m3_tap_name(name, sizeof name, operand, of) || !m3_safetensors_find(candidate, name)))
                return 0;
    }
    return 1;
}

/* ---- what is named */

/* *is: is the mistake, by its own words, a part of the reading that explains all? */
static int is_of_reading(int *is, const struct m3_mistake *mistake, const struct m3_check *check,
                         const struct m3_semantics *own, struct m3_error *error)
{
    struct m3_semantics found = *own, both;
    *is = 0;
    if (!mistake->reading) return M3_OK;
    int status = m3_semantics_set(&found, check->reading, error);
    both = found;
    if (!status) status = m3_semantics_set(&both, mistake->reading, error);
    *is = !status && memcmp(&both, &found, sizeof found) == 0;
    return status;
}

const struct m3_finding *m3_check_named(const struct m3_check *check)
{
    const struct m3_finding *first = check->blame.first;
    if (!first || first->mistake || first->verdict == M3_VERDICT_FAIL) return first;
    for (int64_t i = 0; i < check->blame.count; i++)
        if (check->blame.findings[i].verdict == M3_VERDICT_FAIL) return &check->blame.findings[i];
    return first;
}

int m3_check_name_cause(struct m3_check *check, const struct m3_check_plan *plan, struct m3_error *error)
{
    const struct m3_finding *named = m3_check_named(check);
    const struct m3_mistake *mistake = named ? named->mistake : NULL;
    const int has_reading = check->reading[0] != '\0';
    int is_named = mistake != NULL;
    const int status =
        mistake && has_reading ? is_of_reading(&is_named, mistake, check, plan->setting->semantics, error) : M3_OK;
    if (is_named) check->mistake = mistake->id;
    if (!has_reading) snprintf(check->profile_word, sizeof check->profile_word, "%s", check->blame.explained_by);
    return status;
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
                   struct m3_error *error)
{
    struct m3_compare_options how = { .profile = plan->setting->profile,
                                      .profile_text = plan->profile,
                                      .progress = plan->progress };
    struct m3_error compared = { 0 };
    char *taps = NULL;
    int status = m3_part_taps(&taps, plan->setting, error);
    if (status) return status;
    how.taps = taps;
    status = m3_compare(&check->comparison, m3_truth_file(&check->truth), candidate, &how, &compared);
    free(taps);
    if (status && status != M3_NOT_COMPARABLE) m3_fail_because(error, status, &compared);
    m3_error_free(&compared);
    return status == M3_NOT_COMPARABLE ? M3_OK : status;
}

/* The truth that is kept, or that will be needed: the candidate is judged in the pass that makes it. */
static int judge_with_truth(struct beside *b, int64_t row_runs, struct m3_error *notes, struct m3_error *error)
{
    const struct m3_truth_pass pass = { blame_beside, b };
    int status = make_truth(b->check, b->plan, b->candidate, row_runs, &pass, notes, error);
    b->options.truth = status ? NULL : m3_truth_file(&b->check->truth);
    return status || b->is_done ? status : blame(b, error);
}

/* Is there a tap, or a row of one, that nothing could judge? In a full dump that is wrong it reads numbers that are none: there the cause
 * has been judged. So has a reading by which something is wrong. */
static int is_left(const struct m3_judgement *blame, int is_full, const struct m3_blame_options *options)
{
    int left = 0;
    for (int64_t i = 0; i < blame->count; i++) {
        const struct m3_finding *f = &blame->findings[i];
        left |= f->verdict == M3_VERDICT_NOT_JUDGED && !f->is_blind;
        left |= f->verdict == M3_VERDICT_PASS && f->rows_left_out > 0 && !f->selection;
    }
    return left && (blame->failed == 0 || (!is_full && !options->is_alone));
}

/* Of some rows of a full dump: each operator from its own inputs, without the truth, whose cost grows with the length. */
static int blame_rows(struct beside *b, struct m3_error *error)
{
    b->options.is_alone = 1;
    return m3_blame(&b->check->blame, b->plan->setting, b->candidate, &b->options, error);
}

int m3_check_judge(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                   const struct m3_blame_options *options, struct m3_error *notes, struct m3_error *error)
{
    *check = (struct m3_check){ .blame = { .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE },
                                .findings = options->kept };
    struct beside b = { .check = check, .plan = plan, .candidate = candidate, .options = *options };
    if (plan->rows_judged > 0) return blame_rows(&b, error);
    const int keeps = keeps_truth(plan);
    const int is_full = m3_check_is_full(plan->setting, candidate);
    const int64_t row_runs = keeps || !is_full ? rows_of_truth(plan) : 0;
    int has_truth = notes && (keeps || plan->compares);
    int status = has_truth ? judge_with_truth(&b, row_runs, notes, error) : blame(&b, error);
    if (!status && notes && !has_truth && is_left(&check->blame, is_full, options)) {
        check->double_passes++;
        status = make_truth(check, plan, candidate, rows_of_truth(plan), NULL, notes, error);
        has_truth = 1;
    }
    if (!status && has_truth) status = compare(check, plan, candidate, error);
    if (status) return status;
    m3_judgement_compare(&check->blame, &check->comparison);
    return M3_OK;
}

static int go_on(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                 struct m3_error *notes, struct m3_error *error)
{
    const int status = m3_kept_open(&check->findings, plan->resume, plan->sequence, plan->setting, candidate, error);
    if (!status && m3_kept_count(check->findings) > 0)
        m3_fail(notes, M3_OK, "--resume: %" PRId64 " taps had been judged before", m3_kept_count(check->findings));
    return status;
}

int m3_check(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
             struct m3_error *notes, struct m3_error *error)
{
    struct m3_blame_options options = { .profile = plan->profile, .names_mistakes = 1, .progress = plan->progress };
    *check = (struct m3_check){ .blame = { .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE } };
    int status = check_origin(plan, candidate, error);
    if (!status && plan->resume) status = go_on(check, plan, candidate, notes, error);
    options.kept = check->findings;
    if (!status) status = m3_check_judge(check, plan, candidate, &options, notes, error);
    if (status) return status;
    check->rows = plan->setting->the_case->T;
    check->rows_judged = plan->rows_judged > 0 ? plan->rows_judged : check->rows;
    if (plan->rows_judged > 0) check->blame.rows_judged = plan->rows_judged, check->blame.rows = check->rows;
    say_part(check, plan);
    status = m3_check_readings(check, plan, candidate, error);
    if (!status) status = m3_check_name_cause(check, plan, error);
    m3_check_say(check, plan);
    return status;
}

void m3_check_free(struct m3_check *check)
{
    m3_truth_close(&check->truth);
    m3_judgement_free(&check->comparison);
    m3_judgement_free(&check->blame);
    m3_kept_close(check->findings);
    for (int64_t b = 0; b < check->part_count; b++) m3_check_free(&check->parts[b]);
    free(check->parts);
    m3_parts_free(&check->kept_parts);
    m3_safetensors_close(check->kept_file);
    *check = (struct m3_check){ 0 };
}
