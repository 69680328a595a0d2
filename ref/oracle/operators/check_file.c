#include "oracle/operators/check_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/operators/check.h"
#include "oracle/operators/exact.h"
#include "oracle/operators/identify.h"

struct checking {
    struct m3_file_check *check;
    const struct m3_case_file *cases;
    const struct m3_safetensors *results;
    const char *const *faults;
    const struct m3_profile *profile;
    struct m3_ctx *ctx;
    int64_t taken;              /* tensors of the results that belong to a case */
    struct m3_error *error;
};

static void count(struct m3_comparison *c, const struct m3_stage *stage)
{
    switch (stage->verdict) {
    case M3_VERDICT_NOT_JUDGED: c->not_judged++; return;
    case M3_VERDICT_NOT_COMPARABLE: c->not_comparable++; return;
    default: c->judged++;
    }
    c->failed += stage->verdict == M3_VERDICT_FAIL;
    c->suspects += stage->verdict == M3_VERDICT_SUSPECT;
    if (stage->verdict == M3_VERDICT_FAIL && (!c->divergence || c->divergence->verdict == M3_VERDICT_SUSPECT))
        c->divergence = stage;
    if (stage->verdict == M3_VERDICT_SUSPECT && !c->divergence) c->divergence = stage;
    if (!stage->selection && stage->elements > 0 && (!c->tightest || stage->headroom > c->tightest->headroom)) c->tightest = stage;
}

/* Moves the stages of one case to the end of the list, under their numbered names. */
static void keep(struct checking *c, const struct m3_operator_case *one, const struct m3_stage *stages, int stage_count,
                 const struct m3_results *results)
{
    struct m3_file_check *check = c->check;
    for (int i = 0; i < stage_count; i++) {
        if (!stages[i].candidate) continue;
        const int64_t at = check->comparison.count++;
        struct m3_stage *stage = &check->comparison.stages[at];
        *stage = stages[i];
        snprintf(check->names[at], sizeof check->names[at], "%" PRId64 ".%s", one->number, stages[i].tap);
        stage->tap = check->names[at];
        check->results[at] = results->outputs[i];
        stage->candidate = &check->results[at];
        struct m3_tensor *truth = &check->results[c->cases->count * M3_OPERATOR_OUTPUTS + at];
        *truth = results->outputs[i];
        if (!stage->selection) truth->dtype = M3_F64;
        stage->reference = truth;
        c->taken += results->outputs[i].rank > 0;
        count(&check->comparison, stage);
    }
}

/* Tensors of a case without a result of their own are missing. */
static int check_case(struct checking *c, int64_t i)
{
    struct m3_operator_case one;
    struct m3_fragment *call = NULL;
    struct m3_stage stages[M3_OPERATOR_OUTPUTS];
    struct m3_results results = { .rows = NULL };
    int stage_count = 0;
    int status = m3_case_file_at(&one, c->cases, i, c->error);
    if (!status) status = m3_case_file_call(&call, c->cases, &one, c->error);
    results.rows = one.rows, results.count = one.row_count;
    for (int k = 0; !status && k < M3_OPERATOR_OUTPUTS && call->op->outputs[k].role != M3_ROLE_NONE; k++)
        m3_numbered_tensor(&results.outputs[k], c->results, one.number, call->op->outputs[k].name);
    if (!status) status = m3_check_call(stages, &stage_count, call, &results, c->profile, c->ctx, c->error);
    const char *fault = c->faults ? c->faults[i] : NULL;
    for (int k = 0; !status && fault && k < stage_count; k++)
        if (stages[k].candidate) stages[k].verdict = M3_VERDICT_FAIL, stages[k].note = fault;
    if (!status && one.exact && !fault)
        status = m3_check_exact(stages, stage_count, call, &results, c->profile, c->ctx, c->error);
    if (!status) keep(c, &one, stages, stage_count, &results);
    m3_fragment_free(call);
    m3_operator_case_free(&one);
    return status;
}

static void settle(struct checking *c)
{
    struct m3_comparison *all = &c->check->comparison;
    const int64_t others = m3_safetensors_count(c->results) - c->taken;
    all->unjudged = all->not_judged;
    if (others > 0)
        m3_fail(&all->notes, M3_OK, "%s: tensors that are no output of a case: %" PRId64,
                m3_safetensors_path(c->results), others);
    const struct m3_tally tally = { .judged = all->judged,
                                    .failed = all->failed,
                                    .suspect = all->suspects,
                                    .not_comparable = all->not_comparable,
                                    .unjudged = all->unjudged };
    all->verdict = m3_run_verdict(&tally);
    all->status = m3_run_status(all->verdict);
    snprintf(c->check->next, sizeof c->check->next, "compare the kernel with SPEC %s", c->cases->op->section);
    all->next = c->check->next;
}

/* A failure that a known mistake explains is named. */
static int name_mistake(struct checking *c, int threads)
{
    struct m3_comparison *all = &c->check->comparison;
    struct m3_identified found;
    int status = m3_identify(&found, c->cases, c->results, threads, c->error);
    if (status || !found.tried) return status;
    if (!found.mistake) {
        m3_fail(&all->notes, M3_OK, "none of the %d known mistakes of %s explains the results", found.tried,
                c->cases->op->name);
        return M3_OK;
    }
    all->mistake = found.mistake->id;
    m3_fail(&all->notes, M3_OK,
            "looks like %s (%s): its results are within %.1g of these, the right ones %.1g away%s%s", found.mistake->id,
            found.mistake->what, found.distance, found.right, found.others[0] ? "; the same results: " : "",
            found.others);
    return M3_OK;
}

int m3_file_check(struct m3_file_check *check, const struct m3_case_file *cases, const struct m3_safetensors *results,
                  const char *const *faults, const struct m3_profile *profile, int threads, struct m3_error *error)
{
    const size_t room = (size_t)cases->count * M3_OPERATOR_OUTPUTS;
    struct m3_ctx ctx;
    struct checking c = {
        .check = check, .cases = cases, .results = results, .faults = faults, .profile = profile, .ctx = &ctx,
        .error = error
    };
    *check =
        (struct m3_file_check){ .comparison = { .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE } };
    check->comparison.next_token.tap = NULL;
    check->comparison.stages = calloc(room, sizeof *check->comparison.stages);
    check->names = calloc(room, sizeof *check->names);
    check->results = calloc(2 * room, sizeof *check->results);
    if (!check->comparison.stages || !check->names || !check->results)
        return m3_fail_memory(error, "stages", room * sizeof *check->comparison.stages);
    int status = m3_ctx_init(&ctx, threads, M3_LINEAR_BLAS);
    if (status) return m3_fail_memory(error, "a context", sizeof ctx);
    for (int64_t i = 0; !status && i < cases->count; i++) status = check_case(&c, i);
    m3_ctx_free(&ctx);
    if (!status) settle(&c);
    if (!status && check->comparison.verdict == M3_VERDICT_FAIL) status = name_mistake(&c, threads);
    return status;
}

void m3_file_check_free(struct m3_file_check *check)
{
    m3_comparison_free(&check->comparison);
    free(check->names);
    free(check->results);
    *check = (struct m3_file_check){ 0 };
}
