#include "oracle/judge/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/origin.h"
#include "oracle/error/profiles/explain.h"
#include "oracle/judge/rows/envelope.h"
#include "oracle/judge/gradients.h"
#include "oracle/judge/logits.h"
#include "oracle/judge/private/floats.h"
#include "oracle/judge/private/match.h"
#include "oracle/judge/choices/taint.h"

static void note(struct m3_judgement *result, const char *text) { m3_fail(&result->notes, M3_OK, "%s", text); }

/* Checks that both dumps belong to one model and one case, as far as they state it. */
static int check_origin(struct m3_judgement *result, const struct m3_safetensors *reference,
                        const struct m3_safetensors *candidate, int force, struct m3_error *error)
{
    const struct m3_origin expected = m3_origin_of_file(reference);
    const struct m3_origin_use use = { .verdict = "compared", .force = force, .status = M3_NOT_COMPARABLE };
    int status = m3_origin_check(candidate, &expected, &use, &result->notes, error);
    m3_origin_note_semantics(&result->notes, "semantics", m3_safetensors_metadata(candidate, "semantics"),
                             m3_safetensors_metadata(reference, "semantics"));
    return status;
}

static int taint(struct m3_comparing *all, const struct m3_finding *stage, struct m3_error *error)
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
    const struct m3_comparing *all = context;
    return m3_taint_of(all->result->taint, tap, layer, row, group) != M3_TAINT_NONE;
}

static int judge(struct m3_finding *finding, struct m3_comparing *all, const struct m3_matched *matched,
                 struct m3_error *error)
{
    const enum m3_tap tap = (enum m3_tap)matched->tap;
    const enum m3_tap_kind kind = m3_tap_table[tap].kind;
    *finding = m3_finding_of(matched->want->name, tap, matched->layer, matched->want, matched->got);
    finding->logits = matched->logits;
    const struct m3_coarseness coarse = m3_coarse_of(&all->coarse, finding->tap, tap, matched->layer);
    all->rules.coarse = coarse;         /* of scores: places before them are stored no more coarsely */
    if (kind == M3_KIND_REALS) return m3_judge_floats(finding, all, *matched, &coarse, error);
    finding->judged_by = M3_BY_EQUALITY;
    finding->off.allowed_l2 = finding->off.allowed_max = 0;
    if (kind == M3_KIND_COUNTS) return m3_judge_values(finding, matched, &(struct m3_float_rules){ 0 }, error);

    finding->judged_by = M3_BY_SETS;
    int status = m3_judge_selection(finding, matched, &all->rules, error);
    if (status != M3_OK) return status;
    m3_ranking_choose(&all->ranking, finding);
    return taint(all, finding, error);
}

static int judge_one(struct m3_comparing *all, const struct m3_matched *matched, struct m3_finding *stage,
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

/* Is b of the same layer as a? Outside layers: of the same part of a pass. */
static int in_one_layer(const struct m3_finding *a, const struct m3_finding *b)
{
    return a->layer == b->layer && (a->layer >= 0 || m3_tap_table[a->id].where == m3_tap_table[b->id].where);
}

/* Nothing is left of the stage, because all its rows or slots follow from other choices. */
static int is_left_out(const struct m3_finding *stage)
{
    return stage->verdict == M3_VERDICT_NOT_JUDGED && stage->elements == 0 && (!stage->selection || stage->rows == 0);
}

/* An empty stage has nothing to judge. One that is left out is another computation than the reference's, which is no
 * gap as long as the candidate's layer shows in floats that were judged. */
static int is_excused(const struct m3_judgement *result, const struct m3_finding *stage)
{
    if (!is_left_out(stage)) return 0;
    if (stage->candidate->count == 0) return 1;
    for (int64_t i = 0; i < result->count; i++) {
        const struct m3_finding *other = &result->findings[i];
        if (!other->selection && m3_is_judged(other->verdict) && in_one_layer(stage, other)) return 1;
    }
    return 0;
}

/* A golden states the error of public fp32 code. It holds the taps that it was made for, and others are not its
 * subject; from any other reference the user expects all that the candidate holds. */
static int is_golden(const struct m3_judgement *result, const struct m3_safetensors *reference)
{
    char key[128];
    for (int64_t i = 0; i < result->count; i++) {
        snprintf(key, sizeof key, "%s.f32_rel_l2", result->findings[i].tap);
        if (m3_safetensors_metadata(reference, key) != NULL) return 1;
    }
    return 0;
}

static void settle(struct m3_judgement *result, const struct m3_safetensors *reference)
{
    for (int64_t i = 0; i < result->count; i++) result->findings[i].excused = is_excused(result, &result->findings[i]);
    m3_judgement_settle(result, is_golden(result, reference) ? 0 : result->extra);
}

/* May what was computed from this stage be judged by it? A stage that was compared, but that nothing could judge, is
 * named as such and makes the run partial: what its values excuse in later stages, it does not excuse in the run. */
static int is_admitted(const struct m3_finding *stage)
{
    if (m3_is_judged(stage->verdict)) return 1;
    return stage->verdict == M3_VERDICT_NOT_JUDGED && stage->elements > 0;
}

/* The bytes of the reference, of which so many have been compared. */
static int64_t bytes_of(const struct m3_matched *taps, int64_t count)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++) bytes += (int64_t)taps[i].want->bytes;
    return bytes;
}

static int judge_all(struct m3_comparing *all, struct m3_matched *taps, int64_t count,
                     const struct m3_progress *progress, struct m3_error *error)
{
    struct m3_judgement *result = all->result;
    const int64_t bytes = bytes_of(taps, count);
    int64_t done = 0;
    result->findings = calloc((size_t)count, sizeof *result->findings);
    if (result->findings == NULL) return m3_fail_memory(error, "stages", (size_t)count * sizeof *result->findings);
    for (int64_t i = 0; i < count; i++) {
        struct m3_finding *finding = &result->findings[result->count++];
        taps[i].taint = result->taint;
        m3_tell(progress, "bytes compared", done, bytes);
        done += (int64_t)taps[i].want->bytes;
        int status = judge_one(all, &taps[i], finding, error);
        if (status != M3_OK) return status;
        all->failed += finding->verdict == M3_VERDICT_FAIL;
        all->wrong += m3_finding_is_wrong(finding);
        if (all->stop && (all->wrong > 0 || finding->verdict == M3_VERDICT_NOT_COMPARABLE)) break;
        if (all->check != NULL && is_admitted(finding))
            status = m3_operator_check_admit(all->check, (enum m3_tap)taps[i].tap, taps[i].layer, error);
        if (status != M3_OK) return status;
    }
    if (all->without_error > 0)
        m3_fail(&result->notes, M3_OK,
                "taps whose fp32 error the reference does not state, judged at 1e-5: %" PRId64 ", first %s",
                all->without_error, all->first_without);
    settle(result, taps[0].reference->file);
    if (result->judged == 0) note(result, "no tap could be judged");
    return m3_ranking_end(&all->ranking, result, error);
}

/* The last layer of the text model in the file. */
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

/* The file with honest implementations of the profile, row by row: the envelope, or what holds the companions. NULL:
 * none, or those of another profile. */
static const struct m3_safetensors *rows_of(struct m3_judgement *result, const struct m3_compare_options *options,
                                            const struct m3_safetensors *reference)
{
    const struct m3_safetensors *file = options->companions != NULL ? options->companions : reference;
    const char *hash = m3_safetensors_metadata(file, "row_profile_sha256");
    if (options->envelope != NULL) return m3_envelope_file(options->envelope);
    if (hash == NULL || options->profile == NULL) return NULL;
    if (strcmp(hash, m3_profile_sha256(options->profile)) == 0) return file;
    const char *name = m3_safetensors_metadata(file, "row_profile");
    m3_fail(&result->notes, M3_OK, "%s: honest implementations: got those of profile %s, expected %s: not used",
            m3_safetensors_path(file), name != NULL ? name : "?", m3_profile_name(options->profile));
    return NULL;
}

static int compare_taps(struct m3_judgement *result, struct m3_matched *taps, int64_t count,
                        const struct m3_side *candidate, const struct m3_compare_options *options,
                        struct m3_error *error)
{
    struct m3_comparing all = { .result = result, .profile = options->profile };
    const struct m3_safetensors *reference = taps[0].reference->file;
    struct m3_companions *companions = NULL;
    result->taint = m3_taint_new(last_layer_of(reference));
    if (result->taint == NULL) return m3_fail_memory(error, "flips", 0);
    m3_coarse_begin(&all.coarse, options->profile);
    m3_ranking_begin(&all.ranking, result, options->envelope, reference);
    all.rows = rows_of(result, options, reference);
    all.stop = options->stop;
    all.rules.profile = options->profile;
    all.rules.companions = options->companions;
    all.rules.decisions = options->decisions;
    all.rules.tainted = is_tainted;
    all.rules.taint_context = &all;
    int status = M3_OK;
    if (options->companions != NULL || m3_companions_in(reference)) {
        status = m3_companions_load(&companions, reference, options->companions, error);
        if (status == M3_OK) status = m3_operator_check_new(&all.check, companions, options->profile, candidate, error);
    }
    if (status == M3_OK) status = judge_all(&all, taps, count, &options->progress, error);
    m3_operator_check_free(all.check);
    m3_companions_free(companions);
    return status;
}

static int compare_once(struct m3_judgement *result, const struct m3_safetensors *reference,
                        const struct m3_safetensors *candidate, const struct m3_compare_options *options,
                        struct m3_error *error)
{
    *result = (struct m3_judgement){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    struct m3_side want, got;
    int status = m3_side_begin(&want, reference, error);
    if (status == M3_OK) status = m3_side_begin(&got, candidate, error);
    if (status == M3_OK) status = check_origin(result, reference, candidate, options->force, error);
    if (status != M3_OK) return status;

    if (m3_holds_gradients(reference)) return m3_compare_gradients(result, &want, &got, options, error);
    struct m3_matched *taps;
    int64_t count = 0;
    status = m3_match_taps(&taps, &count, result, &want, &got, options->taps, error);
    if (status == M3_OK && count > 0) {
        status = compare_taps(result, taps, count, &got, options, error);
    } else if (status == M3_OK) {
        note(result, "nothing matched");
        status = m3_fail(error, M3_NOT_COMPARABLE, "%s: nothing matched: got no tap that %s also holds%s%s",
                         m3_safetensors_path(candidate), m3_safetensors_path(reference),
                         options->taps != NULL ? " and that matches " : "", options->taps != NULL ? options->taps : "");
    }
    free(taps);
    return status;
}

void m3_judgement_is_of(struct m3_judgement *result, const struct m3_safetensors *reference,
                        const struct m3_profile *profile)
{
    result->of.model_sha256 = m3_safetensors_metadata(reference, "model_sha256");
    result->of.case_sha256 = m3_safetensors_metadata(reference, "case_sha256");
    result->of.profile_sha256 = profile ? m3_profile_sha256(profile) : NULL;
}

/* ---- the word that explains what does not pass */

struct explaining {
    const struct m3_judgement *result;
    const struct m3_safetensors *reference, *candidate;
    struct m3_compare_options options;
    struct m3_error *error;
};

static int try(void *self, const struct m3_profile *profile, int *passes)
{
    const struct explaining *e = self;
    struct m3_compare_options options = e->options;
    struct m3_judgement now;
    struct m3_error ignored = { 0 };
    options.profile = profile;
    int status = compare_once(&now, e->reference, e->candidate, &options, &ignored);
    *passes = status == M3_OK && now.verdict == M3_VERDICT_PASS && now.count == e->result->count;
    m3_judgement_free(&now);
    m3_error_free(&ignored);
    return status == M3_INTERNAL ? m3_fail_memory(e->error, "comparison", 0) : M3_OK;
}

static int explain(struct m3_judgement *result, const struct m3_safetensors *reference,
                   const struct m3_safetensors *candidate, const struct m3_compare_options *options,
                   struct m3_error *error)
{
    const struct m3_finding *first = result->first;
    struct explaining e = {
        .result = result, .reference = reference, .candidate = candidate, .options = *options, .error = error
    };
    enum m3_tap tap;
    int64_t layer;
    if (first == NULL || result->not_comparable > 0 || m3_is_gradient(first->tap)) return M3_OK;
    if (options->envelope) return M3_OK;        /* it is of one profile */
    e.options.stop = 1;
    e.options.decisions = NULL;
    const int is_known = m3_tap_parse(first->tap, &tap, &layer) == 0 && !first->selection;
    return m3_explain(result->explained_by, options->profile_text, options->profile, is_known ? (int)tap : -1, layer,
                      try, &e, error);
}

int m3_compare(struct m3_judgement *result, const struct m3_safetensors *reference,
               const struct m3_safetensors *candidate, const struct m3_compare_options *options, struct m3_error *error)
{
    int status = compare_once(result, reference, candidate, options, error);
    return status == M3_OK ? explain(result, reference, candidate, options, error) : status;
}
