#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/error/effective_precision.h"
#include "oracle/error/recompute.h"
#include "oracle/judge/private/values.h"
#include "oracle/judge/private/operator_check.h"

int m3_operator_check_new(struct m3_operator_check **out, const struct m3_companions *companions,
                      const struct m3_profile *profile, const struct m3_side *candidate, struct m3_error *error)
{
    struct m3_operator_check *w = *out = calloc(1, sizeof *w);
    if (w == NULL) return m3_fail_memory(error, "comparison", sizeof *w);
    w->companions = companions;
    w->candidate = candidate;
    w->setting = (struct m3_setting){ .model = m3_companions_model(companions), .profile = profile, .ctx = &w->ctx,
                                      .semantics = m3_companions_semantics(companions),
                                      .the_case = m3_companions_case(companions) };
    int status = m3_ctx_init(&w->ctx, omp_get_max_threads(), M3_LINEAR_ORDERED);
    if (status != M3_OK) m3_fail_memory(error, "comparison", 0);
    if (status == M3_OK) status = m3_trace_new(&w->trace, &w->setting, error);
    if (status == M3_OK) return M3_OK;
    m3_operator_check_free(w);
    *out = NULL;
    return status;
}

void m3_operator_check_free(struct m3_operator_check *w)
{
    if (w == NULL) return;
    m3_trace_free(w->trace);
    free(w->admitted);
    m3_ctx_free(&w->ctx);
    free(w);
}

int m3_operator_check_admit(struct m3_operator_check *w, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    if (w->count == w->room) {
        const int64_t room = 2 * w->room + 64;
        struct m3_admitted *more = realloc(w->admitted, (size_t)room * sizeof *more);
        if (more == NULL) return m3_fail_memory(error, "comparison", (size_t)room * sizeof *more);
        w->admitted = more;
        w->room = room;
    }
    w->admitted[w->count++] = (struct m3_admitted){ tap, layer };
    return M3_OK;
}

int m3_operator_check_is_admitted(const struct m3_operator_check *w, enum m3_tap tap, int64_t layer)
{
    int64_t low = 0, high = w->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = m3_tap_order(w->admitted[middle].tap, w->admitted[middle].layer, tap, layer);
        if (order == 0) return 1;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return 0;
}

/* ---- elements side by side */

int m3_side_by_side_room(struct m3_side_by_side *s, int64_t room, const char *tap, struct m3_error *error)
{
    const size_t n = (size_t)room + 1;
    *s = (struct m3_side_by_side){ .got = calloc(n, 7 * sizeof *s->got), .room = room };
    if (s->got == NULL) return m3_fail_memory(error, tap, n * 7 * sizeof *s->got);
    double **parts[] = { &s->want, &s->bound, &s->walk, &s->suspect, &s->error, &s->variance };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i] = s->got + (i + 1) * n;
    return M3_OK;
}

void m3_side_by_side_free(struct m3_side_by_side *s)
{
    free(s->got);
    free(s->rows);
}

void m3_side_by_side_add(struct m3_side_by_side *s, int64_t i, double error)
{
    s->error[i] += error;
    s->variance[i] += error * error / 3;
}

void m3_operator_check_judge_sides(struct m3_operator_check_result *found, const struct m3_operator_check *w,
                               const struct m3_side_by_side *s, const char *name, int has_suspect)
{
    const struct m3_profile *profile = w->setting.profile;
    int any = 0;
    for (int64_t i = 0; i < s->count && !any; i++) any = s->error[i] > 0;
    const struct m3_tap_values tap = {
        .reference = s->want, .candidate = s->got, .bound = s->bound, .walk = s->walk,
        .suspect = has_suspect ? s->suspect : NULL, .extra = any ? s->error : NULL,
        .extra_variance = any ? s->variance : NULL, .count = s->count, .n = found->n, .f = found->f,
        .u = m3_setting_arithmetic(&w->setting, s->count).u,
        .stored = profile != NULL ? m3_profile_dumped(profile, name) : M3_F32,
        .truncates = profile != NULL && m3_profile_truncates(profile),
        .flushes = profile != NULL && m3_profile_flushes(profile),
    };
    found->tiers = m3_verdict_of(&tap);
    if (found->tiers.status != M3_OK) {     /* of inputs as large as floats go, or of companions that are damaged */
        found->how = M3_CHECK_NONE;
        found->why = "a bound is no number";
        return;
    }
    found->elements = s->count;
    double squares = 0, allowed = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double a = m3_bound_allowed(s->bound[i], (double)(tap.n + tap.f), tap.u) + s->error[i];
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

/* ---- made again */

/* How large is what was created, and which arithmetic makes such errors? */
static int look(struct m3_operator_check_result *found, const struct m3_side_by_side *s, const char *name,
                struct m3_error *error)
{
    struct looking {
        struct m3_errors errors;
        struct m3_precision_sums sums;
    } *at = calloc(1, sizeof *at);
    if (at == NULL) return m3_fail_memory(error, name, sizeof *at);
    m3_errors_add(&at->errors, s->want, s->got, s->count);
    m3_precision_add(&at->sums, s->want, s->got, s->walk, NULL, s->count);
    for (int k = 0; k < M3_QUANTILES; k++) found->quantiles[k] = m3_errors_quantile(&at->errors, m3_quantiles[k]);
    struct m3_precision precision;
    m3_precision_of(&precision, &at->sums);
    if (precision.effective != M3_EFFECTIVE_UNKNOWN) snprintf(found->effective, sizeof found->effective, "%s", precision.words);
    free(at);
    return M3_OK;
}

static int has_nan(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(x[i])) return 1;
    return 0;
}

static int64_t number_of_made(const struct m3_recomputed *made, int64_t k) { return made->numbers ? made->numbers[k] : k; }

/* Rows of the candidate that were made again. */
static int gather_made(struct m3_side_by_side *s, const struct m3_operator_check *w, const struct m3_matched *m,
                       const struct m3_recomputed *made, struct m3_error *error)
{
    const struct m3_tensor *got = m->got, *rows = m3_side_rows(w->candidate, m->tap);
    const struct m3_weight all = { .data = got->data, .dtype = got->dtype, .rows = 1, .cols = got->count };
    const double dumped = w->setting.profile != NULL ? m3_profile_dump_rounding(w->setting.profile, got->name) : 0;
    const int64_t width = made->width;
    int status = m3_side_by_side_room(s, got->count, got->name, error);
    if (status != M3_OK) return status;
    s->rows = malloc(((size_t)got->shape[0] + 1) * sizeof *s->rows);
    if (s->rows == NULL) return m3_fail_memory(error, got->name, (size_t)got->shape[0] * sizeof *s->rows);
    for (int64_t r = 0, k = 0; r < got->shape[0]; r++) {
        const int64_t number = m3_row_number(rows, r), to = s->count, bytes = width * (int64_t)sizeof(double);
        while (k < made->rows && number_of_made(made, k) < number) k++;
        if (k == made->rows || number_of_made(made, k) != number || has_nan(made->y + k * width, width)) continue;
        m3_expand_f64(s->got + to, &all, 0, r * width, width);
        memcpy(s->want + to, made->y + k * width, (size_t)bytes);
        memcpy(s->bound + to, made->bound + k * width, (size_t)bytes);
        memcpy(s->walk + to, made->walk + k * width, (size_t)bytes);
        if (made->suspect != NULL) memcpy(s->suspect + to, made->suspect + k * width, (size_t)bytes);
        for (int64_t i = 0; i < width; i++) {
            if (made->extra.error != NULL) s->error[to + i] = made->extra.error[k * width + i];
            if (made->extra.error != NULL) s->variance[to + i] = made->extra.variance[k * width + i];
            if (dumped > 0 && isfinite(s->want[to + i])) m3_side_by_side_add(s, to + i, dumped * fabs(s->want[to + i]));
        }
        s->rows[to / width] = number;
        s->count += width;
    }
    return M3_OK;
}

static int judge_made(struct m3_operator_check_result *found, const struct m3_operator_check *w, const struct m3_matched *m,
                      const struct m3_recomputed *made, struct m3_error *error)
{
    struct m3_side_by_side s;
    int status = gather_made(&s, w, m, made, error);
    if (status == M3_OK && s.count > 0) {
        found->how = M3_CHECK_RECOMPUTED;
        found->rows = s.count / made->width;
        found->n = made->n;
        found->f = made->f;
        m3_operator_check_judge_sides(found, w, &s, m->got->name, made->suspect != NULL);
        const int64_t worst = found->tiers.worst;
        status = look(found, &s, m->got->name, error);
        found->row = worst < 0 ? -1 : s.rows[worst / made->width];
        found->rest = worst < 0 ? 0 : worst % made->width;
    }
    m3_side_by_side_free(&s);
    return status;
}

/* ---- both */

int m3_operator_check_judge(struct m3_operator_check_result *found, struct m3_operator_check *w, const struct m3_matched *matched,
                        struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)matched->tap;
    struct m3_error ignored = { 0 };
    struct m3_recomputed made;
    *found = (struct m3_operator_check_result){ .n = -1, .f = -1, .row = -1, .why = "inputs are missing" };
    int status = m3_operator_check_put_before(w, tap, matched->layer, error);
    if (status != M3_OK) return status;
    if (m3_operator_check_fitting(w, tap, matched->layer) == NULL || m3_holds_ids(matched->got)) return M3_OK;
    status = m3_trace_recompute(&made, w->trace, tap, matched->layer, &ignored);
    const int is_made = status == M3_OK && made.missing[0] == 0 && made.y != NULL;
    if (is_made) status = judge_made(found, w, matched, &made, error);
    m3_recomputed_free(&made);
    if (status == M3_INTERNAL && !is_made)
        status = m3_fail(error, M3_INTERNAL, "%s", ignored.text != NULL ? ignored.text : "memory is short");
    m3_error_free(&ignored);
    if (status == M3_INTERNAL || is_made) return status;
    return m3_operator_check_judge_drift(found, w, matched, error);
}
