#include "oracle/judge/private/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/finding/settle.h"
#include "oracle/judge/hints.h"
#include "oracle/judge/logits.h"
#include "oracle/judge/choices/taint.h"

/* Sets the allowance of a tap from the reference's fp32 errors. The default of 1e-5, scaled up for coarser storage,
 * detects only garbage: beside a reference with companions, a tap within it is not called judged. */
static int set_allowed(struct m3_finding *stage, struct m3_comparing *all, const struct m3_matched *matched,
                       const struct m3_coarseness *coarse, int *is_judged, struct m3_error *error)
{
    int stated_l2, stated_max;
    const struct m3_safetensors *reference = matched->reference->file;
    int status = m3_tolerance(&stage->off.allowed_l2, &stated_l2, coarse, reference, stage->tap, "f32_rel_l2", error);
    if (status == M3_OK)
        status = m3_tolerance(&stage->off.allowed_max, &stated_max, coarse, reference, stage->tap, "f32_max", error);
    if (status != M3_OK) return status;
    const int is_stated = stated_l2 || stated_max;
    *is_judged = is_stated || all->check == NULL || fmax(coarse->before, coarse->here) <= 0x1p-24;
    if (*is_judged && !is_stated && all->without_error++ == 0) all->first_without = stage->tap;
    return M3_OK;
}

/* The verdict on the operator alone. NaN, infinities and what could not be measured stay as they are. */
static void take_tiers(struct m3_finding *stage, const struct m3_operator_check_result *found)
{
    const struct m3_tier_result *t = &found->tiers;
    if (stage->verdict != M3_VERDICT_NOT_JUDGED) return;
    if (found->how == M3_CHECK_NO_GAIN) {
        m3_finding_note(stage, "weights are needed, and the reference has no gain for this tap");
        return;
    }
    stage->judged_by = found->how == M3_CHECK_RECOMPUTED ? M3_BY_OPERATOR : M3_BY_DRIFT;
    stage->verdict = t->verdict;
    stage->tiers = *t;
    stage->n = found->n;
    stage->f = found->f;
    stage->violations = t->hard > 0 ? t->hard : t->suspect > t->walk ? t->suspect : t->walk;
    stage->elements = found->elements;
    stage->off.effective[0] = '\0';     /* it included all inherited errors */
    if (found->how == M3_CHECK_RECOMPUTED) {
        memcpy(stage->off.quantiles, found->quantiles, sizeof stage->off.quantiles);
        memcpy(stage->off.effective, found->effective, sizeof stage->off.effective);
    }
    stage->off.allowed_l2 = found->allowed_l2;
    stage->off.allowed_max = stage->off.peak > 0 ? found->allowed_most / stage->off.peak : found->allowed_most;
    if (t->verdict == M3_VERDICT_NOT_JUDGED) m3_finding_note(stage, "values reach the end of the format's range");
    if (found->row < 0) return;
    m3_finding_place(stage, stage->candidate, found->row, found->rest, stage->candidate->rank);
    stage->got = found->got;
    stage->want = found->want;
    stage->off.max_abs = found->got == found->want ? 0 : fabs(found->got - found->want);
}

/* Judges by bounds if companions and the candidate's inputs are sufficient; `found` says whether they are. */
static int judge_by_operator(struct m3_operator_check_result *found, const struct m3_comparing *all,
                             const struct m3_matched *matched, struct m3_error *error)
{
    *found = (struct m3_operator_check_result){ .how = M3_CHECK_NONE };
    if (all->check == NULL) return M3_OK;
    return m3_operator_check_judge(found, all->check, matched, error);
}

/* Pixels are the case's, not computed: a coarser profile may only round what is dumped. Returns 1 if that is so. */
static int allow_dump_rounding(struct m3_finding *stage, enum m3_tap tap, const struct m3_coarseness *coarse)
{
    if (tap != M3_TAP_VISION_PIXELS || fmax(coarse->before, coarse->here) <= 0x1p-24) return 0;
    stage->off.allowed_l2 = fmin(stage->off.allowed_l2, coarse->here + 1e-7);
    stage->off.allowed_max = fmin(stage->off.allowed_max, coarse->here + 1e-7);
    stage->judged_by = M3_BY_PIXELS;
    return 1;
}

/* Judges by what whole passes may differ: the error that the reference states. A pass is none if the profile would let
 * zeros pass, or, beside companions, if nothing is stated; `why` says what is missing then. */
static int judge_by_tolerance(struct m3_finding *stage, struct m3_comparing *all, const struct m3_matched *matched,
                              const struct m3_float_rules *rules, const struct m3_coarseness *coarse, const char *why,
                              struct m3_error *error)
{
    int is_judged = 1, status = M3_OK;
    if (rules->exact) stage->off.allowed_l2 = stage->off.allowed_max = 0;
    else status = set_allowed(stage, all, matched, coarse, &is_judged, error);
    if (allow_dump_rounding(stage, (enum m3_tap)matched->tap, coarse)) is_judged = 1;
    if (status == M3_OK) status = m3_judge_values(stage, matched, rules, error);
    if (status != M3_OK || stage->verdict != M3_VERDICT_PASS) return status;
    const int is_wide = coarse->before > 0 && (stage->off.allowed_l2 >= 1 || stage->off.allowed_max >= 1);
    if (is_judged && !is_wide) return M3_OK;
    stage->verdict = M3_VERDICT_NOT_JUDGED;
    m3_finding_note(stage, "%s", is_wide ? "the profile allows errors as large as the values" : why);
    return M3_OK;
}

/* Judges rows that could not be recomputed, because earlier rows are missing, as without companions. */
static int judge_rest(struct m3_finding *stage, struct m3_comparing *all, const struct m3_matched *matched,
                      const struct m3_operator_check_result *found, const struct m3_coarseness *coarse,
                      struct m3_error *error)
{
    const struct m3_float_rules rules = { .stored = M3_F64 };
    struct m3_row_walk walk;
    if (!m3_is_judged(stage->verdict) || m3_row_walk_begin(&walk, matched) != NULL) return M3_OK;
    const int64_t rest = m3_row_walk_count(walk) - found->rows;
    if (rest <= 0) return M3_OK;
    struct m3_finding whole = *stage;
    whole.judged_by = M3_BY_PARTLY_STATED;
    whole.tiers.tiers = 0;
    int status = judge_by_tolerance(&whole, all, matched, &rules, coarse, found->why, error);
    if (status != M3_OK) return status;
    if (whole.verdict == M3_VERDICT_NOT_JUDGED) stage->rows_left_out += rest;
    else stage->judged_by = whole.judged_by;
    if (m3_is_judged(whole.verdict) && whole.verdict > stage->verdict) *stage = whole;
    return M3_OK;
}

/* May the verdict be replaced by that among honest implementations? Not that of an operator's bounds where it is worse
 * than a pass, nor NaN, infinities and GRID. The tolerance of the whole pass is a guess under a coarse profile: honest
 * implementations may be farther off where they choose other experts. */
static int yields_to_rows(const struct m3_finding *stage, enum m3_check how)
{
    if (stage->verdict == M3_VERDICT_PASS || stage->verdict == M3_VERDICT_NOT_JUDGED) return 1;
    return stage->verdict == M3_VERDICT_FAIL && how == M3_CHECK_NONE && stage->tiers.tiers == 0 &&
           stage->tiers.headroom < INFINITY;
}

/* Asks honest implementations of the profile where the operator is not judged by the candidate's own inputs. A tap that
 * bounds and drift let pass is asked too, because a mistake can hide in the drift; but not after a failing tap, whose
 * error it inherits, nor after another choice: one row that chose otherwise moves many rows of the next layer, and few
 * of the implementations have such a row. */
static int ask_rows(struct m3_row_verdict *rows, int *is_asked, const struct m3_finding *stage,
                    const struct m3_comparing *all, struct m3_matched matched, enum m3_check how,
                    const struct m3_coarseness *coarse, struct m3_error *error)
{
    *is_asked = 0;
    if (all->rows == NULL || fmax(coarse->before, coarse->here) <= 0x1p-24 || how == M3_CHECK_RECOMPUTED) return M3_OK;
    if (!yields_to_rows(stage, how)) return M3_OK;
    if (how == M3_CHECK_DRIFT && (all->wrong > 0 || !m3_taint_is_empty(all->result->taint))) return M3_OK;
    matched.taint = NULL;
    *is_asked = 1;
    return m3_judge_rows(rows, all->rows, &matched, error);
}

/* What the values of a tap that fails look like; NULL: nothing known. */
static const char *value_hint(const struct m3_matched *m)
{
    struct m3_row_walk walk;
    struct m3_row_pair row;
    if (!m3_is_logits(m->tap) || m->want->rank != 2 || m3_row_walk_begin(&walk, m) != NULL) return NULL;
    const int64_t V = m->want->shape[1];
    double *got = calloc((size_t)V + 1, 2 * sizeof *got), *want = got + V;
    const char *hint = NULL;
    for (int rows = 0; got != NULL && rows < M3_HINT_ROWS && m3_row_walk_next(&walk, &row); rows++) {
        for (int64_t v = 0; v < V; v++) {
            got[v] = m3_decode(m->got->dtype, m->got->data, row.got * V + v);
            want[v] = m3_decode(m->want->dtype, m->want->data, row.want * V + v);
        }
        hint = m3_value_hint(got, want, 1, V);
        if (hint == NULL) break;
    }
    free(got);
    return hint;
}

/* By bounds where companions are sufficient, otherwise by the tolerance of the whole pass. */
static int judge_own(struct m3_finding *stage, struct m3_comparing *all, struct m3_matched *matched,
                     const struct m3_operator_check_result *found, struct m3_float_rules *rules,
                     const struct m3_coarseness *coarse, struct m3_error *error)
{
    stage->judged_by = rules->exact ? M3_BY_EQUALITY : M3_BY_STATED;
    if (found->how == M3_CHECK_RECOMPUTED) matched->taint = NULL;
    matched->drift_is_judged = found->how == M3_CHECK_DRIFT;
    if (found->how == M3_CHECK_NONE) return judge_by_tolerance(stage, all, matched, rules, coarse, found->why, error);
    rules->only_measures = 1;
    stage->off.allowed_l2 = stage->off.allowed_max = INFINITY;
    const int status = m3_judge_values(stage, matched, rules, error);
    if (status == M3_OK) take_tiers(stage, found);
    return status;
}

/* In the largest error that is allowed: what is beyond it is wrong (pattern/find.c). */
static const double deviations = 12;

int m3_judge_floats(struct m3_finding *stage, struct m3_comparing *all, struct m3_matched matched,
                    const struct m3_coarseness *coarse, struct m3_error *error)
{
    const struct m3_matched rest = matched;
    const struct m3_profile *profile = all->profile;
    struct m3_float_rules rules = { .stored = M3_F32 };
    struct m3_operator_check_result found;
    struct m3_row_verdict rows;
    int has_rows = 0;
    if (profile != NULL) rules.stored = m3_profile_dumped(profile, stage->tap);
    if (profile != NULL) rules.exact = m3_profile_exact(profile, stage->tap);
    int status = judge_by_operator(&found, all, &matched, error);
    if (rules.exact) found.how = M3_CHECK_NONE;
    if (status == M3_OK) status = judge_own(stage, all, &matched, &found, &rules, coarse, error);
    const int64_t measured = stage->elements;
    if (status == M3_OK && found.how == M3_CHECK_RECOMPUTED)
        status = judge_rest(stage, all, &rest, &found, coarse, error);
    if (status == M3_OK && !rules.exact)
        status = ask_rows(&rows, &has_rows, stage, all, rest, found.how, coarse, error);
    if (status != M3_OK) return status;
    const enum m3_unranked unranked =
        rules.exact ? M3_UNRANKED_REASONS : m3_ranking_rank(&all->ranking, stage, &matched, measured);
    m3_finding_settle(stage, &(struct m3_evidence){ .rows = has_rows ? &rows : NULL,
                                                    .is_bounded = found.how != M3_CHECK_NONE,
                                                    .after_failure = all->failed > 0 });
    if (m3_finding_is_wrong(stage) && stage->judged_by != M3_BY_ROWS)
        status = m3_matched_pattern(&stage->pattern, &matched, stage->off.allowed_max * stage->off.peak / deviations, 0,
                                    error);
    const char *hint = stage->verdict == M3_VERDICT_FAIL && !stage->note[0] ? value_hint(&rest) : NULL;
    if (hint == NULL && matched.logits != NULL) hint = matched.logits->note;
    if (hint == NULL && unranked == M3_UNRANKED_BLIND)
        hint = "not ranked: legitimate implementations may be as far off as zeros";
    if (hint != NULL && !stage->note[0]) m3_finding_note(stage, "%s", hint);
    return status;
}

int m3_finding_is_lax(const struct m3_finding *finding)
{
    const enum m3_basis by = finding->judged_by;
    return m3_is_judged(finding->verdict) && (by == M3_BY_STATED || by == M3_BY_PARTLY_STATED || by == M3_BY_DRIFT);
}
