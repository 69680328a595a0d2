#include "oracle/judge/companions/operator_check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/error/tiers/effective_precision.h"
#include "oracle/error/recompute.h"
#include "oracle/judge/companions/private/operator_check.h"
#include "oracle/judge/private/values.h"

int m3_operator_check_new(struct m3_operator_check **out, const struct m3_companions *companions,
                          const struct m3_profile *profile, const struct m3_side *candidate, struct m3_error *error)
{
    struct m3_operator_check *check = *out = calloc(1, sizeof *check);
    if (check == NULL) return m3_fail_memory(error, "comparison", sizeof *check);
    check->companions = companions;
    check->candidate = candidate;
    check->setting = (struct m3_setting){ .model = m3_companions_model(companions),
                                          .profile = profile,
                                          .ctx = &check->ctx,
                                          .semantics = m3_companions_semantics(companions),
                                          .the_case = m3_companions_case(companions) };
    int status = m3_ctx_init(&check->ctx, omp_get_max_threads(), M3_LINEAR_ORDERED);
    if (status != M3_OK) m3_fail_memory(error, "comparison", 0);
    if (status == M3_OK) status = m3_trace_new(&check->trace, &check->setting, error);
    if (status == M3_OK) return M3_OK;
    m3_operator_check_free(check);
    *out = NULL;
    return status;
}

void m3_operator_check_free(struct m3_operator_check *check)
{
    if (check == NULL) return;
    m3_trace_free(check->trace);
    free(check->admitted);
    m3_ctx_free(&check->ctx);
    free(check);
}

int m3_operator_check_admit(struct m3_operator_check *check, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    if (check->count == check->room) {
        const int64_t room = 2 * check->room + 64;
        struct m3_admitted *more = realloc(check->admitted, (size_t)room * sizeof *more);
        if (more == NULL) return m3_fail_memory(error, "comparison", (size_t)room * sizeof *more);
        check->admitted = more;
        check->room = room;
    }
    check->admitted[check->count++] = (struct m3_admitted){ tap, layer };
    return M3_OK;
}

int m3_operator_check_is_admitted(const struct m3_operator_check *check, enum m3_tap tap, int64_t layer)
{
    int64_t low = 0, high = check->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = m3_tap_order(check->admitted[middle].tap, check->admitted[middle].layer, tap, layer);
        if (order == 0) return 1;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static int has_extra(const struct m3_side_by_side *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (s->error[i] > 0) return 1;
    return 0;
}

static struct m3_side_by_side_rules rules_of(const struct m3_operator_check_result *found,
                                             const struct m3_operator_check *check, const struct m3_side_by_side *s,
                                             const char *name, int has_suspect)
{
    return (struct m3_side_by_side_rules){ .setting = &check->setting,
                                           .tap = name,
                                           .n = found->n,
                                           .f = found->f,
                                           .has_suspect = has_suspect,
                                           .has_extra = has_extra(s) };
}

void m3_operator_check_judge_sides(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                                   const struct m3_side_by_side *s, const char *name, int has_suspect)
{
    const struct m3_side_by_side_rules all = rules_of(found, check, s, name, has_suspect);
    found->tiers = m3_side_by_side_verdict(s, &all);
    if (found->tiers.status != M3_OK) {     /* inputs as large as floats go, or damaged companions */
        found->how = M3_CHECK_NONE;
        found->why = "a bound is no number";
        return;
    }
    found->elements = s->count;
    const double u = m3_setting_arithmetic(&check->setting, s->count).u, steps = (double)(found->n + found->f);
    double squares = 0, allowed = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double a = m3_bound_allowed(s->bound[i], steps, u) + s->error[i];
        if (!(a < INFINITY)) continue;
        found->allowed_most = fmax(found->allowed_most, a);
        allowed += a * a;
        squares += isfinite(s->want[i]) ? s->want[i] * s->want[i] : 0;
    }
    found->allowed_l2 = squares > 0 ? sqrt(allowed / squares) : INFINITY;
    const int64_t worst = found->tiers.worst;
    if (worst < 0) return;
    found->got = s->got[worst];
    found->want = s->want[worst];
}

/* ---- recomputed */

/* Measures the size of the operator's own errors, and the arithmetic that causes such errors. */
static int measure_precision(struct m3_operator_check_result *found, const struct m3_side_by_side *s, const char *name,
                             struct m3_error *error)
{
    struct measuring {
        struct m3_errors errors;
        struct m3_precision_sums sums;
    } *at = calloc(1, sizeof *at);
    if (at == NULL) return m3_fail_memory(error, name, sizeof *at);
    m3_errors_add(&at->errors, s->want, s->got, s->count);
    m3_precision_add(&at->sums, s->want, s->got, s->walk, NULL, s->count);
    for (int k = 0; k < M3_QUANTILES; k++) found->quantiles[k] = m3_errors_quantile(&at->errors, m3_quantiles[k]);
    struct m3_precision precision;
    m3_precision_of(&precision, &at->sums);
    if (precision.effective != M3_EFFECTIVE_UNKNOWN)
        snprintf(found->effective, sizeof found->effective, "%s", precision.words);
    free(at);
    return M3_OK;
}

/* What looks like another value of a parameter. */
static int test_parameters(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                           const struct m3_side_by_side *s, const struct m3_matched *m, int has_suspect,
                           struct m3_error *error)
{
    const struct m3_side_by_side_rules rules = rules_of(found, check, s, m->got->name, has_suspect);
    const struct m3_side_by_side_tap tap = { check->trace, (enum m3_tap)m->tap, m->layer };
    if (found->how != M3_CHECK_RECOMPUTED) return M3_OK;
    return m3_side_by_side_parameters(&found->tiers, s, &rules, &tap, error);
}

/* Collects the recomputed rows of the candidate. */
static int gather(struct m3_side_by_side *s, const struct m3_operator_check *check, const struct m3_matched *m,
                  const struct m3_recomputed *recomputed, struct m3_error *error)
{
    const struct m3_tensor *got = m->got, *rows = m3_side_rows(check->candidate, m->tap);
    const struct m3_weight all = { .data = got->data, .dtype = got->dtype, .rows = 1, .cols = got->count };
    const double dumped =
        check->setting.profile != NULL ? m3_profile_dump_rounding(check->setting.profile, got->name) : 0;
    int status = m3_side_by_side_room(s, got->count, got->shape[0], got->name, error);
    for (int64_t r = 0; r < got->shape[0] && status == M3_OK; r++) {
        double *row = m3_side_by_side_row(s, recomputed, m3_row_number(rows, r), dumped);
        if (row != NULL) m3_expand_f64(row, &all, 0, r * recomputed->y.width, recomputed->y.width);
    }
    return status;
}

static int judge_recomputed(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                            const struct m3_matched *m, const struct m3_recomputed *recomputed, struct m3_error *error)
{
    struct m3_side_by_side s;
    int status = gather(&s, check, m, recomputed, error);
    if (status == M3_OK && s.count > 0) {
        found->how = M3_CHECK_RECOMPUTED;
        found->rows = s.rows;
        found->n = recomputed->n;
        found->f = recomputed->f;
        m3_operator_check_judge_sides(found, check, &s, m->got->name, recomputed->suspect != NULL);
        const int64_t worst = found->tiers.worst;
        status = measure_precision(found, &s, m->got->name, error);
        if (status == M3_OK) status = test_parameters(found, check, &s, m, recomputed->suspect != NULL, error);
        found->row = worst < 0 ? -1 : s.numbers[worst / recomputed->y.width];
        found->rest = worst < 0 ? 0 : worst % recomputed->y.width;
    }
    m3_side_by_side_free(&s);
    return status;
}

/* A norm may have read its sum before it was rounded, or may have rounded 1 + w: what explains it better counts. */
static int try_as(struct m3_operator_check_result *found, const struct m3_operator_check *check,
                  const struct m3_matched *m, int hypothesis, struct m3_error *error)
{
    struct m3_operator_check_result other = *found;
    struct m3_recomputed recomputed;
    struct m3_error ignored = { 0 };
    if (found->tiers.verdict != M3_VERDICT_FAIL && found->tiers.verdict != M3_VERDICT_SUSPECT) return M3_OK;
    int status = m3_trace_recompute_as(&recomputed, check->trace, (enum m3_tap)m->tap, m->layer, hypothesis, &ignored);
    if (status == M3_OK && recomputed.missing[0] == 0) {
        status = judge_recomputed(&other, check, m, &recomputed, error);
        if (m3_verdict_is_better(&other.tiers, &found->tiers)) *found = other;
    } else if (status != M3_INTERNAL) {
        status = M3_OK;
    } else {
        m3_fail_memory(error, m->got->name, 0);
    }
    m3_recomputed_free(&recomputed);
    m3_error_free(&ignored);
    return status;
}

/* ---- both */

int m3_operator_check_judge(struct m3_operator_check_result *found, struct m3_operator_check *check,
                            const struct m3_matched *matched, struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)matched->tap;
    struct m3_error ignored = { 0 };
    struct m3_recomputed recomputed;
    *found = (struct m3_operator_check_result){ .n = -1, .f = -1, .row = -1, .why = "inputs are missing" };
    int status = m3_operator_check_put_before(check, tap, matched->layer, error);
    if (status != M3_OK) return status;
    if (m3_operator_check_fitting(check, tap, matched->layer) == NULL || m3_holds_ids(matched->got)) return M3_OK;
    status = m3_trace_recompute(&recomputed, check->trace, tap, matched->layer, &ignored);
    const int is_recomputed = status == M3_OK && recomputed.missing[0] == 0 && recomputed.y.values != NULL;
    if (is_recomputed) status = judge_recomputed(found, check, matched, &recomputed, error);
    for (int as = 1; as < M3_HYPOTHESES && is_recomputed && status == M3_OK; as++)
        status = try_as(found, check, matched, as, error);
    m3_recomputed_free(&recomputed);
    if (status == M3_INTERNAL && !is_recomputed) status = m3_fail_because(error, M3_INTERNAL, &ignored);
    m3_error_free(&ignored);
    if (status == M3_INTERNAL || is_recomputed) return status;
    return m3_operator_check_judge_drift(found, check, matched, error);
}
