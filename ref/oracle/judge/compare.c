#include "oracle/judge/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/origin.h"
#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/judge.h"
#include "oracle/judge/ranking.h"
#include "oracle/judge/taint.h"
#include "oracle/judge/operator_check.h"

enum { NAMES_IN_A_NOTE = 8 };

/* What all stages share. */
struct comparing {
    struct m3_comparison *result;
    const struct m3_profile *profile;           /* NULL: fp32, and nothing exact */
    struct m3_coarse_table coarse;
    struct m3_selection_rules rules;
    struct m3_operator_check *weightless;           /* NULL: the reference has no companions */
    struct m3_ranking ranking;
    int64_t without_yardstick;                  /* stages judged by the default */
    const char *first_without;
    int is_weak;                                /* the last stage was found to be no garbage, and that is all */
};

static void note(struct m3_comparison *result, const char *text)
{
    m3_fail(&result->notes, M3_OK, "%s", text);
}

/* Are the two of one model and one case, as far as they say? */
static int check_origin(struct m3_comparison *result, const struct m3_safetensors *reference,
                        const struct m3_safetensors *candidate, int force, struct m3_error *error)
{
    const struct m3_origin expected = m3_origin_of_file(reference);
    const struct m3_origin_use use = { .verdict = "compared", .force = force, .status = M3_NOT_COMPARABLE };
    int status = m3_origin_check(candidate, &expected, &use, &result->notes, error);
    m3_origin_note_semantics(&result->notes, "semantics", m3_safetensors_metadata(candidate, "semantics"),
                             m3_safetensors_metadata(reference, "semantics"));
    return status;
}

static int is_companion(const char *name)
{
    static const char *const endings[] = { ".bound", ".walk", ".gain", ".inside", ".inside_walk", ".margin",
                                           ".experts.bias", ".weight", ".bias" };
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0) return 1;
    }
    return strcmp(name, "rows") == 0 || strcmp(name, "vision.rows") == 0;
}

static void note_unknown(struct m3_comparison *result, const struct m3_side *dump, const char *side)
{
    int64_t unknown = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < m3_safetensors_count(dump->file); i++) {
        const char *name = m3_safetensors_at(dump->file, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) == 0 || is_companion(name)) continue;
        if (unknown++ == 0) first = name;
    }
    if (unknown > 0)
        m3_fail(&result->notes, M3_OK, "tensors of the %s that are no taps, not compared: %" PRId64 ", first %s", side,
                unknown, first);
}

static int by_execution(const void *a, const void *b)
{
    const struct m3_matched *x = a, *y = b;
    return m3_tap_order(x->tap, x->layer, y->tap, y->layer);
}

/* The taps of `file` that match the patterns, in execution order. `taps` has room for all. */
static int64_t list_taps(struct m3_matched *taps, const struct m3_safetensors *file, const char *patterns)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(file, i);
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(tensor->name, &tap, &layer) != 0 || !m3_tap_matches(patterns, tensor->name)) continue;
        taps[count++] = (struct m3_matched){ .want = tensor, .tap = tap, .layer = layer };
    }
    qsort(taps, (size_t)count, sizeof *taps, by_execution);
    return count;
}

/* Notes the names of the taps that the candidate lacks, the first few by name. */
static void note_missing(struct m3_comparison *result, const struct m3_matched *taps, int64_t count)
{
    char names[600] = "";
    size_t length = 0;
    int64_t named = 0;
    for (int64_t i = 0; i < count && named < NAMES_IN_A_NOTE; i++) {
        if (taps[i].got != NULL) continue;
        int more = snprintf(names + length, sizeof names - length, " %s", taps[i].want->name);
        if (more < 0 || (size_t)more >= sizeof names - length) break;
        length += (size_t)more;
        named++;
    }
    m3_fail(&result->notes, M3_OK, "taps that the candidate lacks: %" PRId64 ":%s%s", result->missing, names,
            named < result->missing ? " ..." : "");
}

/* Pairs the taps of the two files. Returns how many both hold, now first in `taps`, in execution order. */
static int64_t match_taps(struct m3_comparison *result, struct m3_matched *taps, int64_t count,
                          const struct m3_side *reference, const struct m3_side *candidate, const char *patterns)
{
    for (int64_t i = 0; i < count; i++) {
        taps[i].reference = reference;
        taps[i].candidate = candidate;
        taps[i].got = m3_safetensors_find(candidate->file, taps[i].want->name);
        if (taps[i].got == NULL) result->missing++;
    }
    if (result->missing > 0) note_missing(result, taps, count);

    int64_t both = 0;
    for (int64_t i = 0; i < count; i++)
        if (taps[i].got != NULL) taps[both++] = taps[i];

    for (int64_t i = 0; i < m3_safetensors_count(candidate->file); i++) {
        const char *name = m3_safetensors_at(candidate->file, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) == 0 && m3_tap_matches(patterns, name) &&
            m3_safetensors_find(reference->file, name) == NULL) result->extra++;
    }
    if (result->extra > 0)
        m3_fail(&result->notes, M3_OK, "taps that only the candidate holds, not compared: %" PRId64, result->extra);
    return both;
}

/* What a tap is allowed, by the reference's fp32 errors. 1e-5, where it states none, shows garbage alone once it is
 * stretched for a coarser storage: beside a reference with companions, what keeps within it is not called judged. */
static int set_allowed(struct m3_stage *stage, struct comparing *all, const struct m3_matched *matched,
                       const struct m3_coarseness *coarse, int *is_judged, struct m3_error *error)
{
    int stated_l2, stated_max;
    const struct m3_safetensors *reference = matched->reference->file;
    int status = m3_tolerance(&stage->allowed_l2, &stated_l2, coarse, reference, stage->tap, "f32_rel_l2", error);
    if (status == M3_OK)
        status = m3_tolerance(&stage->allowed_max, &stated_max, coarse, reference, stage->tap, "f32_max", error);
    if (status != M3_OK) return status;
    const int is_stated = stated_l2 || stated_max;
    *is_judged = is_stated || all->weightless == NULL || fmax(coarse->before, coarse->here) <= 0x1p-24;
    if (*is_judged && !is_stated && all->without_yardstick++ == 0) all->first_without = stage->tap;
    return M3_OK;
}

static const char *const ways[] = {
    [M3_CHECK_RECOMPUTED] = "what the operator makes of the candidate's inputs",
    [M3_CHECK_DRIFT] = "bounds and measured drift",
};

/* Replaces what the whole pass says by what the operator alone says. NaN and infinities stay what they are. */
static void take_tiers(struct m3_stage *stage, const struct m3_operator_check_result *found)
{
    const struct m3_tier_result *t = &found->tiers;
    if (stage->verdict == M3_VERDICT_NOT_COMPARABLE || stage->headroom == INFINITY) return;
    if (found->how == M3_CHECK_NO_GAIN) {
        stage->verdict = M3_VERDICT_NOT_JUDGED;
        stage->note = "weights are needed, and the reference has no gain beside it";
        return;
    }
    stage->judged_by = ways[found->how];
    stage->verdict = t->verdict;
    stage->tiers = t->tiers;
    stage->grid = t->grid;
    stage->n = found->n;
    stage->f = found->f;
    stage->z2 = t->z2;
    stage->headroom = t->headroom;
    stage->violations = t->hard > 0 ? t->hard : t->suspect > t->walk ? t->suspect : t->walk;
    stage->elements = found->elements;
    stage->effective[0] = '\0';             /* those were of all that is inherited, too */
    if (found->how == M3_CHECK_RECOMPUTED) {
        memcpy(stage->quantiles, found->quantiles, sizeof stage->quantiles);
        memcpy(stage->effective, found->effective, sizeof stage->effective);
    }
    stage->allowed_l2 = found->allowed_l2;
    stage->allowed_max = stage->peak > 0 ? found->allowed_most / stage->peak : found->allowed_most;
    if (t->verdict == M3_VERDICT_NOT_JUDGED) stage->note = "values end where the format ends";
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

/* By bounds, where companions and the candidate's inputs say enough; `found` says whether they do. */
static int judge_weightless(struct m3_operator_check_result *found, const struct comparing *all,
                            const struct m3_matched *matched, struct m3_error *error)
{
    *found = (struct m3_operator_check_result){ .how = M3_CHECK_NONE };
    if (all->weightless == NULL) return M3_OK;
    return m3_operator_check_judge(found, all->weightless, matched, error);
}

/* A pass that says nothing. */
static void leave_unjudged(struct m3_stage *stage, const char *why)
{
    if (stage->verdict != M3_VERDICT_PASS) return;
    stage->verdict = M3_VERDICT_NOT_JUDGED;
    stage->note = why;
}

/* Where a profile lets zeros pass, a pass says nothing. */
static void doubt_wide_allowance(struct m3_stage *stage, const struct m3_coarseness *coarse)
{
    if (coarse->before == 0 || (stage->allowed_l2 < 1 && stage->allowed_max < 1)) return;
    leave_unjudged(stage, "the profile allows errors as large as the values");
}

/* Rows that could not be made again, for want of earlier rows, are judged as without companions. */
static int judge_rest(struct m3_stage *stage, struct comparing *all, const struct m3_matched *matched,
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
    whole.judged_by = "bounds, and for rows whose inputs are missing fp32 errors of the reference";
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

static int judge_floats(struct m3_stage *stage, struct comparing *all, struct m3_matched matched,
                        const struct m3_coarseness *coarse, struct m3_error *error)
{
    const struct m3_matched rest = matched;
    const struct m3_profile *profile = all->profile;
    struct m3_float_rules rules = { .stored = M3_F32 };
    struct m3_operator_check_result found;
    int is_judged = 1;
    if (profile != NULL) rules.stored = m3_profile_dumped(profile, stage->tap);
    if (profile != NULL) rules.exact = m3_profile_exact(profile, stage->tap);
    stage->judged_by = rules.exact ? "equality" : "fp32 errors of the reference";
    int status = judge_weightless(&found, all, &matched, error);
    if (status != M3_OK) return status;
    if (rules.exact) found.how = M3_CHECK_NONE;
    if (found.how == M3_CHECK_RECOMPUTED) matched.taint = NULL;
    matched.drift_is_judged = found.how == M3_CHECK_DRIFT;
    stage->allowed_l2 = stage->allowed_max = rules.exact ? 0 : INFINITY;
    rules.by_bounds = found.how != M3_CHECK_NONE;
    if (!rules.exact && !rules.by_bounds) status = set_allowed(stage, all, &matched, coarse, &is_judged, error);
    if (status == M3_OK) status = m3_judge_values(stage, &matched, &rules, error);
    if (status != M3_OK) return status;
    const int64_t measured = stage->elements;
    if (rules.by_bounds) take_tiers(stage, &found);
    else doubt_wide_allowance(stage, coarse);
    all->is_weak = !is_judged && stage->verdict == M3_VERDICT_PASS;
    if (all->is_weak) leave_unjudged(stage, found.why);
    if (found.how == M3_CHECK_RECOMPUTED) status = judge_rest(stage, all, &rest, &found, coarse, error);
    if (status == M3_OK && !rules.exact) m3_ranking_rank(&all->ranking, stage, &matched, measured);
    return status;
}

static int taint(struct comparing *all, const struct m3_stage *stage, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < stage->differing && stage->flips != NULL && status == M3_OK; i++) {
        const struct m3_flip *flip = &stage->flips[i];
        status = m3_taint_add(all->result->taint, flip->layer, flip->row, flip->group, error);
    }
    return status;
}

/* For the judges of selections. */
static int is_tainted(void *context, enum m3_tap tap, int64_t layer, int64_t row, int64_t group)
{
    const struct comparing *all = context;
    return m3_taint_of(all->result->taint, tap, layer, row, group) != M3_TAINT_NONE;
}

static int judge(struct m3_stage *stage, struct comparing *all, const struct m3_matched *matched,
                 struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)matched->tap;
    const enum m3_tap_kind kind = m3_tap_table[tap].kind;
    *stage = (struct m3_stage){ .tap = matched->want->name, .reference = matched->want, .candidate = matched->got,
                                .selection = kind == M3_KIND_CHOICES, .n = -1, .f = -1, .z2 = NAN, .grid = M3_DTYPES,
                                .percentile = NAN, .envelope_median = NAN, .envelope_largest = NAN };
    for (int k = 0; k < M3_QUANTILES; k++) stage->quantiles[k] = NAN;
    all->is_weak = 0;
    const struct m3_coarseness coarse = m3_coarse_of(&all->coarse, stage->tap, tap, matched->layer);
    all->rules.coarse = coarse;         /* of scores: they are stored no coarser than the places before them */
    if (kind == M3_KIND_REALS) return judge_floats(stage, all, *matched, &coarse, error);
    stage->judged_by = "equality";
    if (kind == M3_KIND_COUNTS) return m3_judge_values(stage, matched, &(struct m3_float_rules){ 0 }, error);

    stage->judged_by = "sets";
    int status = m3_judge_selection(stage, matched, &all->rules, error);
    if (status != M3_OK) return status;
    m3_ranking_choose(&all->ranking, stage);
    return taint(all, stage, error);
}

/* The worst of a stage that is judged. */
static void count_verdict(struct m3_comparison *result, const struct m3_stage *stage)
{
    if (stage->verdict == M3_VERDICT_FAIL) {
        if (result->failed++ == 0) result->divergence = stage;
    } else if (stage->verdict == M3_VERDICT_SUSPECT) {
        result->suspects++;
        if (result->divergence == NULL) result->divergence = stage;
    }
}

/* Adds one stage to the totals. */
static void count_stage(struct m3_comparison *result, const struct m3_stage *stage)
{
    result->count++;
    if (stage->verdict == M3_VERDICT_NOT_JUDGED) result->not_judged++;
    else if (stage->verdict == M3_VERDICT_NOT_COMPARABLE) result->not_comparable++;
    else result->judged++;
    count_verdict(result, stage);
    if (stage->selection || !m3_is_judged(stage->verdict)) return;
    if (result->tightest == NULL || stage->headroom > result->tightest->headroom) result->tightest = stage;
}

static int judge_one(struct comparing *all, const struct m3_matched *matched, struct m3_stage *stage,
                     struct m3_error *error)
{
    const struct m3_tensor *want = matched->want, *got = matched->got;
    m3_pages_ask(want->data, want->bytes);
    m3_pages_ask(got->data, got->bytes);
    int status = judge(stage, all, matched, error);
    if (status == M3_OK && matched->tap == M3_TAP_LOGITS)
        status = m3_judge_next_token(&all->result->next_token, matched, stage, &all->rules, error);
    m3_pages_release(want->data, want->bytes);
    m3_pages_release(got->data, got->bytes);
    return status;
}

/* Any failure, else what cannot be compared, else what is suspect. */
static enum m3_status status_of(const struct m3_comparison *result)
{
    const struct m3_stage *token = &result->next_token;
    const enum m3_verdict last = token->tap != NULL ? token->verdict : M3_VERDICT_PASS;
    if (result->failed > 0 || last == M3_VERDICT_FAIL) return M3_WRONG;
    if (result->not_comparable > 0 || result->judged == 0) return M3_NOT_COMPARABLE;
    return result->suspects > 0 || last == M3_VERDICT_SUSPECT ? M3_SUSPECT : M3_OK;
}

static int judge_all(struct comparing *all, struct m3_matched *taps, int64_t count, struct m3_error *error)
{
    struct m3_comparison *result = all->result;
    result->stages = calloc((size_t)count, sizeof *result->stages);
    if (result->stages == NULL) return m3_fail_memory(error, "stages", (size_t)count * sizeof *result->stages);
    for (int64_t i = 0; i < count; i++) {
        taps[i].taint = result->taint;
        int status = judge_one(all, &taps[i], &result->stages[i], error);
        if (status != M3_OK) return status;
        count_stage(result, &result->stages[i]);
        if (all->weightless != NULL && (m3_is_judged(result->stages[i].verdict) || all->is_weak))
            status = m3_operator_check_admit(all->weightless, (enum m3_tap)taps[i].tap, taps[i].layer, error);
        if (status != M3_OK) return status;
    }
    if (all->without_yardstick > 0)
        m3_fail(&result->notes, M3_OK, "taps whose fp32 error the reference does not state, judged at 1e-5: %" PRId64
                ", first %s", all->without_yardstick, all->first_without);
    if (result->judged == 0) note(result, "no tap could be judged");
    result->status = status_of(result);
    return m3_ranking_end(&all->ranking, result, error);
}

/* The last layer of the text model that the file shows. */
static int64_t last_layer_of(const struct m3_safetensors *file)
{
    int64_t last = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(m3_safetensors_at(file, i)->name, &tap, &layer) != 0) continue;
        if (tap > M3_TAP_FUSED && m3_mtp_module_of(layer) < 0 && layer > last) last = layer;
    }
    return last;
}

static int compare_taps(struct m3_comparison *result, struct m3_matched *taps, int64_t count,
                        const struct m3_compare_options *options, struct m3_error *error)
{
    struct comparing all = { .result = result, .profile = options->profile };
    const struct m3_safetensors *reference = taps[0].reference->file;
    struct m3_companions *companions = NULL;
    result->taint = m3_taint_new(last_layer_of(reference));
    if (result->taint == NULL) return m3_fail_memory(error, "flips", 0);
    m3_coarse_begin(&all.coarse, options->profile);
    m3_ranking_begin(&all.ranking, result, options->envelope, reference);
    all.rules.profile = options->profile;
    all.rules.companions = options->companions;
    all.rules.decisions = options->decisions;
    all.rules.tainted = is_tainted;
    all.rules.taint_context = &all;
    int status = M3_OK;
    if (options->companions != NULL || m3_companions_in(reference)) {
        status = m3_companions_load(&companions, reference, options->companions, error);
        if (status == M3_OK)
            status = m3_operator_check_new(&all.weightless, companions, options->profile, taps[0].candidate, error);
    }
    if (status == M3_OK) status = judge_all(&all, taps, count, error);
    m3_operator_check_free(all.weightless);
    m3_companions_free(companions);
    return status;
}

int m3_compare(struct m3_comparison *result, const struct m3_safetensors *reference,
               const struct m3_safetensors *candidate, const struct m3_compare_options *options,
               struct m3_error *error)
{
    *result = (struct m3_comparison){ .status = M3_NOT_COMPARABLE };
    struct m3_side want, got;
    int status = m3_side_begin(&want, reference, error);
    if (status == M3_OK) status = m3_side_begin(&got, candidate, error);
    if (status == M3_OK) status = check_origin(result, reference, candidate, options->force, error);
    if (status != M3_OK) return status;
    note_unknown(result, &want, "reference");
    note_unknown(result, &got, "candidate");

    size_t room = (size_t)m3_safetensors_count(reference) + 1;
    struct m3_matched *taps = calloc(room, sizeof *taps);
    if (taps == NULL) return m3_fail_memory(error, "list of taps", room * sizeof *taps);
    int64_t count = list_taps(taps, reference, options->taps);
    count = match_taps(result, taps, count, &want, &got, options->taps);
    if (count > 0) {
        status = compare_taps(result, taps, count, options, error);
    } else {
        note(result, "nothing matched");
        status = m3_fail(error, M3_NOT_COMPARABLE, "%s: nothing matched: got no tap that %s holds too%s%s",
                         m3_safetensors_path(candidate), m3_safetensors_path(reference),
                         options->taps != NULL ? " and that matches " : "", options->taps != NULL ? options->taps : "");
    }
    free(taps);
    return status;
}

void m3_comparison_free(struct m3_comparison *result)
{
    for (int64_t i = 0; i < result->count; i++) free(result->stages[i].flips);
    free(result->next_token.flips);
    free(result->stages);
    m3_taint_free(result->taint);
    m3_error_free(&result->notes);
    *result = (struct m3_comparison){ 0 };
}
