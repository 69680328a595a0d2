#include "oracle/operators/check_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/align.h"
#include "oracle/operators/check.h"
#include "oracle/operators/exact.h"
#include "oracle/operators/identify.h"

struct checking {
    struct m3_file_check *check;
    const struct m3_case_file *cases;
    const struct m3_safetensors *results;
    const char *const *faults;
    const struct m3_profile *profile;
    int threads;
    int64_t taken;              /* tensors of the results that belong to a case */
    struct m3_error *error;
};

/* One case and its verdict. */
struct judged {
    struct m3_operator_case one;
    struct m3_finding stages[M3_OPERATOR_OUTPUTS];
    struct m3_results results;
    struct m3_tensor wanted[M3_OPERATOR_OUTPUTS];       /* rank and shape */
    int stage_count;
};

/* Moves the stages of one case to the end of the list, under their numbered names. */
static void keep(struct checking *c, const struct judged *j)
{
    struct m3_file_check *check = c->check;
    for (int i = 0; i < j->stage_count; i++) {
        if (!j->stages[i].candidate) continue;
        const int64_t at = check->comparison.count++;
        struct m3_finding *stage = &check->comparison.findings[at];
        *stage = j->stages[i];
        snprintf(check->names[at], sizeof check->names[at], "%" PRId64 ".%s", j->one.number, stage->tap);
        stage->tap = check->names[at];
        check->results[at] = j->results.outputs[i];
        stage->candidate = &check->results[at];
        struct m3_tensor *truth = &check->results[c->cases->count * M3_OPERATOR_OUTPUTS + at];
        *truth = j->results.outputs[i];
        if (stage->verdict == M3_VERDICT_NOT_COMPARABLE) {
            truth->rank = j->wanted[i].rank;
            memcpy(truth->shape, j->wanted[i].shape, sizeof truth->shape);
            if (stage->selection) truth->dtype = M3_I32;
            else if (!m3_holds_floats(truth)) truth->dtype = M3_F32;
        } else if (!stage->selection) {
            truth->dtype = M3_F64;
        }
        stage->reference = truth;
        c->taken += j->results.outputs[i].rank > 0;
    }
}

/* Tensors of a case without a result of their own are missing. */
static int judge_case(struct judged *j, const struct checking *c, int64_t i, struct m3_error *error)
{
    struct m3_fragment *call = NULL;
    struct m3_ctx ctx;
    *j = (struct judged){ .stage_count = 0 };
    if (m3_ctx_init(&ctx, c->threads, M3_LINEAR_BLAS)) return m3_fail_memory(error, "a context", sizeof ctx);
    int status = m3_case_file_at(&j->one, c->cases, i, error);
    if (!status) status = m3_case_file_call(&call, c->cases, &j->one, error);
    j->results.rows = j->one.rows, j->results.count = j->one.row_count;
    for (int k = 0; !status && k < M3_OPERATOR_OUTPUTS && call->op->outputs[k].role != M3_ROLE_NONE; k++) {
        m3_numbered_tensor(&j->results.outputs[k], c->results, j->one.number, call->op->outputs[k].name);
        j->wanted[k].rank = m3_fragment_shape(j->wanted[k].shape, call, &call->op->outputs[k]);
    }
    if (!status) status = m3_check_call(j->stages, &j->stage_count, call, &j->results, c->profile, &ctx, error);
    const char *fault = c->faults ? c->faults[i] : NULL;
    for (int k = 0; !status && fault && k < j->stage_count; k++)
        if (j->stages[k].candidate) j->stages[k].verdict = M3_VERDICT_FAIL, m3_finding_note(&j->stages[k], "%s", fault);
    if (!status && j->one.exact && !fault)
        status = m3_check_exact(j->stages, j->stage_count, call, &j->results, c->profile, &ctx, error);
    m3_fragment_free(call);
    m3_ctx_free(&ctx);
    return status;
}

/* Has the operator nothing to share among threads within a case: no product with a matrix, no attention? Then cases
 * are judged beside each other. */
static int is_light(const struct m3_operator_row *op)
{
    int is = m3_operator_by_row(op);
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++) {
        const char *letters = op->operands[i].letters;
        is &= letters[0] == 'T' || letters[0] == 'P' || !letters[1];
    }
    return is;
}

/* Is more than a quarter of the file one tensor? Then a few cases have most of the work, and each needs all threads. */
static int has_few_large(const struct m3_safetensors *file)
{
    uint64_t all = 0, largest = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const uint64_t bytes = m3_safetensors_at(file, i)->bytes;
        all += bytes;
        if (bytes > largest) largest = bytes;
    }
    return largest > all / 4;
}

/* Stages are in the order of the cases, and an error is that of the first case that has one. */
static int judge_cases(struct checking *c)
{
    enum { MOST = 4 };          /* cases in memory at the same time */
    const int teams = is_light(c->cases->op) && !has_few_large(c->cases->file) ? (int)m3_min(c->threads, MOST) : 1;
    int status = M3_OK;
#pragma omp parallel for ordered schedule(dynamic, 1) num_threads(teams)
    for (int64_t i = 0; i < c->cases->count; i++) {
        struct judged j;
        struct m3_error why = { 0 };
        const int failed = judge_case(&j, c, i, &why);
#pragma omp ordered
        {
            if (!status && !failed) keep(c, &j);
            if (!status && failed) status = m3_fail_because(c->error, failed, &why);
        }
        m3_error_free(&why);
        m3_operator_case_free(&j.one);
    }
    return status;
}

/* No verdict is silent about rows that it does not cover. */
static void say_left_out(struct m3_judgement *all)
{
    int64_t rows = 0, outputs = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < all->count; i++) {
        const struct m3_finding *stage = &all->findings[i];
        if (stage->rows_left_out == 0) continue;
        if (!first) first = stage->tap;
        rows += stage->rows_left_out;
        outputs++;
    }
    if (first)
        m3_fail(&all->notes, M3_OK,
                "rows left out because their operands are no numbers: %" PRId64 ", in %" PRId64 " %s, first %s", rows,
                outputs, outputs == 1 ? "output" : "outputs", first);
}

static void settle(struct checking *c)
{
    struct m3_judgement *all = &c->check->comparison;
    const int64_t others = m3_safetensors_count(c->results) - c->taken;
    m3_judgement_settle(all, 0);
    if (others > 0)
        m3_fail(&all->notes, M3_OK, "%s: tensors that are no output of a case: %" PRId64,
                m3_safetensors_path(c->results), others);
    say_left_out(all);
    if (all->verdict == M3_VERDICT_FAIL || all->verdict == M3_VERDICT_SUSPECT)
        snprintf(c->check->next, sizeof c->check->next, "compare the kernel with SPEC %s", c->cases->op->section);
    else
        snprintf(c->check->next, sizeof c->check->next, "cases that can be judged; m3ref op %s --make makes such cases",
                 c->cases->op->name);
    all->next = c->check->next;
}

/* A failure that a known mistake explains is named. */
static int name_mistake(struct checking *c, int threads)
{
    struct m3_judgement *all = &c->check->comparison;
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
            "looks like %s (%s): the results of this mistake are within %.1g of the candidate's, the right ones %.1g "
            "away%s%s",
            found.mistake->id, found.mistake->what, found.distance, found.right,
            found.others[0] ? "; the same results: " : "", found.others);
    return M3_OK;
}

/* Results that say of which cases they are, are of no others. */
static int check_cases(const struct m3_case_file *cases, const struct m3_safetensors *results, struct m3_error *error)
{
    const char *got = m3_safetensors_metadata(results, "cases_sha256"), *want = m3_safetensors_seal(cases->file);
    if (!got || !want || strcmp(got, want) == 0) return M3_OK;
    return m3_fail(error, M3_NOT_COMPARABLE, "%s: cases_sha256: got %s, expected %s, as %s has it",
                   m3_safetensors_path(results), got, want, m3_safetensors_path(cases->file));
}

int m3_file_check(struct m3_file_check *check, const struct m3_case_file *cases, const struct m3_safetensors *results,
                  const char *const *faults, const struct m3_profile *profile, int threads, struct m3_error *error)
{
    const size_t room = (size_t)cases->count * M3_OPERATOR_OUTPUTS;
    struct checking c = { .check = check,
                          .cases = cases,
                          .results = results,
                          .faults = faults,
                          .profile = profile,
                          .threads = threads,
                          .error = error };
    *check =
        (struct m3_file_check){ .comparison = { .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE } };
    check->comparison.next_token.tap = NULL;
    check->comparison.findings = calloc(room, sizeof *check->comparison.findings);
    check->names = calloc(room, sizeof *check->names);
    check->results = calloc(2 * room, sizeof *check->results);
    if (!check->comparison.findings || !check->names || !check->results)
        return m3_fail_memory(error, "stages", room * sizeof *check->comparison.findings);
    int status = check_cases(cases, results, error);
    if (!status) status = judge_cases(&c);
    if (!status) settle(&c);
    if (!status && check->comparison.verdict == M3_VERDICT_FAIL) status = name_mistake(&c, threads);
    return status;
}

void m3_file_check_free(struct m3_file_check *check)
{
    m3_judgement_free(&check->comparison);
    free(check->names);
    free(check->results);
    *check = (struct m3_file_check){ 0 };
}
