#include "oracle/judge/private/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/hints.h"
#include "oracle/judge/logits.h"
#include "oracle/judge/rows/rows.h"
#include "oracle/judge/taint.h"

/* Sets the allowance of a tap from the reference's fp32 errors. The default of 1e-5, scaled up for coarser storage,
 * detects only garbage: beside a reference with companions, a tap within it is not called judged. */
static int set_allowed(struct m3_stage *stage, struct m3_comparing *all, const struct m3_matched *matched,
                       const struct m3_coarseness *coarse, int *is_judged, struct m3_error *error)
{
    int stated_l2, stated_max;
    const struct m3_safetensors *reference = matched->reference->file;
    int status = m3_tolerance(&stage->allowed_l2, &stated_l2, coarse, reference, stage->tap, "f32_rel_l2", error);
    if (status == M3_OK)
        status = m3_tolerance(&stage->allowed_max, &stated_max, coarse, reference, stage->tap, "f32_max", error);
    if (status != M3_OK) return status;
    const int is_stated = stated_l2 || stated_max;
    *is_judged = is_stated || all->check == NULL || fmax(coarse->before, coarse->here) <= 0x1p-24;
    if (*is_judged && !is_stated && all->without_error++ == 0) all->first_without = stage->tap;
    return M3_OK;
}

static const char fp32[] = "fp32 errors of the reference";
static const char partly_fp32[] = "bounds, and for rows whose inputs are missing fp32 errors of the reference";
static const char *const ways[] = {
    [M3_CHECK_RECOMPUTED] = "what the operator makes of the candidate's inputs",
    [M3_CHECK_DRIFT] = "bounds and measured drift",
};

/* Replaces the verdict on the whole pass by the verdict on the operator alone. NaN and infinities stay as they are. */
static void take_tiers(struct m3_stage *stage, const struct m3_operator_check_result *found)
{
    const struct m3_tier_result *t = &found->tiers;
    if (stage->verdict == M3_VERDICT_NOT_COMPARABLE || stage->headroom == INFINITY) return;
    if (found->how == M3_CHECK_NO_GAIN) {
        stage->verdict = M3_VERDICT_NOT_JUDGED;
        stage->note = "weights are needed, and the reference has no gain for this tap";
        return;
    }
    stage->judged_by = ways[found->how];
    stage->verdict = t->verdict;
    stage->tiers = t->tiers;
    stage->grid = t->grid;
    stage->n = found->n;
    stage->f = found->f;
    stage->z2 = t->z2;
    stage->parameter = t->parameter;
    stage->headroom = t->headroom;
    stage->violations = t->hard > 0 ? t->hard : t->suspect > t->walk ? t->suspect : t->walk;
    stage->elements = found->elements;
    stage->effective[0] = '\0';             /* it included all inherited errors */
    if (found->how == M3_CHECK_RECOMPUTED) {
        memcpy(stage->quantiles, found->quantiles, sizeof stage->quantiles);
        memcpy(stage->effective, found->effective, sizeof stage->effective);
    }
    stage->allowed_l2 = found->allowed_l2;
    stage->allowed_max = stage->peak > 0 ? found->allowed_most / stage->peak : found->allowed_most;
    if (t->verdict == M3_VERDICT_NOT_JUDGED) stage->note = "values reach the end of the format's range";
    if (found->row < 0) return;
    int64_t rest = found->rest;
    stage->rank = stage->candidate->rank;
    for (int i = stage->rank - 1; i > 0; i--) {
        stage->index[i] = rest % stage->candidate->shape[i];
        rest /= stage->candidate->shape[i];
    }
    stage->index[0] = found->row;
    stage->got = found->got;
    stage->want = found->want;
    stage->max_abs = found->got == found->want ? 0 : fabs(found->got - found->want);
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
static int allow_dump_rounding(struct m3_stage *stage, enum m3_tap tap, const struct m3_coarseness *coarse)
{
    if (tap != M3_TAP_VISION_PIXELS || fmax(coarse->before, coarse->here) <= 0x1p-24) return 0;
    stage->allowed_l2 = fmin(stage->allowed_l2, coarse->here + 1e-7);
    stage->allowed_max = fmin(stage->allowed_max, coarse->here + 1e-7);
    stage->judged_by = "the pixels of the case";
    return 1;
}

/* Marks a meaningless pass as not judged. */
static void leave_unjudged(struct m3_stage *stage, const char *why)
{
    if (stage->verdict != M3_VERDICT_PASS) return;
    stage->verdict = M3_VERDICT_NOT_JUDGED;
    stage->note = why;
}

/* A pass is meaningless if the profile would let zeros pass. */
static void doubt_wide_allowance(struct m3_stage *stage, const struct m3_coarseness *coarse)
{
    if (coarse->before == 0 || (stage->allowed_l2 < 1 && stage->allowed_max < 1)) return;
    leave_unjudged(stage, "the profile allows errors as large as the values");
}

/* Judges rows that could not be recomputed, because earlier rows are missing, as without companions. */
static int judge_rest(struct m3_stage *stage, struct m3_comparing *all, const struct m3_matched *matched,
                      const struct m3_operator_check_result *found, const struct m3_coarseness *coarse,
                      struct m3_error *error)
{
    const struct m3_float_rules rules = { .stored = M3_F64 };
    struct m3_row_walk walk;
    if (!m3_is_judged(stage->verdict) || m3_row_walk_begin(&walk, matched) != NULL) return M3_OK;
    const int64_t rest = m3_row_walk_count(walk) - found->rows;
    if (rest <= 0) return M3_OK;
    struct m3_stage whole = *stage;
    int is_judged;
    whole.judged_by = partly_fp32;
    whole.tiers = 0;
    int status = set_allowed(&whole, all, matched, coarse, &is_judged, error);
    if (status == M3_OK) status = m3_judge_values(&whole, matched, &rules, error);
    if (status != M3_OK) return status;
    doubt_wide_allowance(&whole, coarse);
    if (!is_judged) leave_unjudged(&whole, found->why);
    if (whole.verdict == M3_VERDICT_NOT_JUDGED) stage->rows_left_out += rest;
    else stage->judged_by = whole.judged_by;
    if (m3_is_judged(whole.verdict) && whole.verdict > stage->verdict) *stage = whole;
    return M3_OK;
}

/* May the verdict be replaced by that among honest implementations? Not that of an operator's bounds where it is worse
 * than a pass, nor NaN, infinities and GRID. The tolerance of the whole pass is a guess under a coarse profile: honest
 * implementations may be farther off where they choose other experts. */
static int yields_to_rows(const struct m3_stage *stage, enum m3_check how)
{
    if (stage->verdict == M3_VERDICT_PASS || stage->verdict == M3_VERDICT_NOT_JUDGED) return 1;
    return stage->verdict == M3_VERDICT_FAIL && how == M3_CHECK_NONE && stage->tiers == 0 && stage->headroom < INFINITY;
}

/* Judges a tap among honest implementations of the profile where its operator is not judged by the candidate's own
 * inputs. A tap that bounds and drift let pass is judged so too, because a mistake can hide in the drift; but not after
 * a failing tap, whose error it inherits, nor after another choice: one row that chose otherwise moves many rows of
 * the next layer, and few of the implementations have such a row. */
static int judge_by_rows(struct m3_stage *stage, const struct m3_comparing *all, struct m3_matched matched,
                         enum m3_check how, const struct m3_coarseness *coarse, struct m3_error *error)
{
    struct m3_row_verdict rows;
    if (all->rows == NULL || fmax(coarse->before, coarse->here) <= 0x1p-24 || how == M3_CHECK_RECOMPUTED) return M3_OK;
    if (!yields_to_rows(stage, how)) return M3_OK;
    if (how == M3_CHECK_DRIFT && (all->result->divergence != NULL || !m3_taint_is_empty(all->result->taint)))
        return M3_OK;
    matched.taint = NULL;
    int status = m3_judge_rows(&rows, all->rows, &matched, error);
    if (status != M3_OK) return status;
    stage->row_error = rows.error;
    stage->row_error_largest = rows.error_largest;
    stage->row_nearest = rows.nearest;
    stage->row_nearest_largest = rows.nearest_largest;
    if (!m3_is_judged(rows.verdict)) {
        if (stage->verdict == M3_VERDICT_PASS || isnan(stage->row_error)) return M3_OK;
        stage->verdict = M3_VERDICT_NOT_JUDGED;
        stage->note = rows.why;
        return M3_OK;
    }
    if (stage->verdict == M3_VERDICT_PASS && rows.verdict == M3_VERDICT_PASS && how != M3_CHECK_NONE) return M3_OK;
    if (stage->verdict == M3_VERDICT_NOT_JUDGED && rows.verdict != M3_VERDICT_PASS && all->result->failed > 0) {
        stage->note = "farther off than honest implementations, but after a tap that fails";
        return M3_OK;
    }
    stage->verdict = rows.verdict;
    stage->judged_by = "honest implementations of the profile";
    stage->note = NULL;
    stage->headroom = rows.share;
    stage->violations = 0;
    stage->rows_left_out = 0;
    return M3_OK;
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

int m3_judge_floats(struct m3_stage *stage, struct m3_comparing *all, struct m3_matched matched,
                    const struct m3_coarseness *coarse, struct m3_error *error)
{
    const struct m3_matched rest = matched;
    const struct m3_profile *profile = all->profile;
    struct m3_float_rules rules = { .stored = M3_F32 };
    struct m3_operator_check_result found;
    int is_judged = 1;
    if (profile != NULL) rules.stored = m3_profile_dumped(profile, stage->tap);
    if (profile != NULL) rules.exact = m3_profile_exact(profile, stage->tap);
    stage->judged_by = rules.exact ? "equality" : fp32;
    int status = judge_by_operator(&found, all, &matched, error);
    if (status != M3_OK) return status;
    if (rules.exact) found.how = M3_CHECK_NONE;
    if (found.how == M3_CHECK_RECOMPUTED) matched.taint = NULL;
    matched.drift_is_judged = found.how == M3_CHECK_DRIFT;
    stage->allowed_l2 = stage->allowed_max = rules.exact ? 0 : INFINITY;
    rules.by_bounds = found.how != M3_CHECK_NONE;
    if (!rules.exact && !rules.by_bounds) status = set_allowed(stage, all, &matched, coarse, &is_judged, error);
    if (allow_dump_rounding(stage, (enum m3_tap)matched.tap, coarse)) is_judged = 1;
    if (status == M3_OK) status = m3_judge_values(stage, &matched, &rules, error);
    if (status != M3_OK) return status;
    const int64_t measured = stage->elements;
    if (rules.by_bounds) take_tiers(stage, &found);
    else doubt_wide_allowance(stage, coarse);
    if (!is_judged) leave_unjudged(stage, found.why);
    if (found.how == M3_CHECK_RECOMPUTED) status = judge_rest(stage, all, &rest, &found, coarse, error);
    if (status == M3_OK && !rules.exact) status = judge_by_rows(stage, all, rest, found.how, coarse, error);
    if (stage->verdict == M3_VERDICT_FAIL && stage->note == NULL) stage->note = value_hint(&rest);
    if (stage->note == NULL && matched.logits != NULL) stage->note = matched.logits->note;
    if (status == M3_OK && !rules.exact) m3_ranking_rank(&all->ranking, stage, &matched, measured);
    return status;
}

int m3_stage_is_lax(const struct m3_stage *stage)
{
    const char *by = stage->judged_by;
    return !stage->selection && by != NULL && m3_is_judged(stage->verdict) &&
           (by == fp32 || by == partly_fp32 || by == ways[M3_CHECK_DRIFT]);
}
