#include "oracle/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/taps.h"
#include "oracle/align.h"
#include "oracle/judge.h"

/* Without a yardstick: loose enough for fp32 through some dozens of layers, far below a wrong operator. */
static const double default_allowance = 1e-5;

enum { NAMES_IN_A_NOTE = 8 };

struct yardsticks {
    int64_t absent;             /* stages judged by the default */
    const char *first;
};

static void note(struct m3_comparison *result, const char *text)
{
    m3_fail(&result->notes, M3_OK, "%s", text);
}

/* Are the two of one model and one case, as far as they say? */
static int check_origin(struct m3_comparison *result, const struct m3_side *reference, const struct m3_side *candidate,
                        int force, struct m3_error *error)
{
    static const char *const keys[] = { "model_sha256", "case_sha256" };
    int status = M3_OK;
    for (int i = 0; i < 2; i++) {
        const char *want = m3_safetensors_metadata(reference->file, keys[i]);
        const char *got = m3_safetensors_metadata(candidate->file, keys[i]);
        if (want == NULL || got == NULL) {
            m3_fail(&result->notes, M3_OK, "%s is absent from the %s: not checked", keys[i],
                    want != NULL ? "candidate" : got != NULL ? "reference" : "reference and the candidate");
        } else if (strcmp(want, got) != 0) {
            m3_fail(&result->notes, M3_OK, "%s differs: got %s, expected %s%s", keys[i], got, want,
                    force ? "; compared by force" : "");
            if (!force)
                status = m3_fail(error, M3_NOT_COMPARABLE, "%s: %s: got %s, expected %s",
                                 m3_safetensors_path(candidate->file), keys[i], got, want);
        }
    }
    const char *want = m3_safetensors_metadata(reference->file, "semantics");
    const char *got = m3_safetensors_metadata(candidate->file, "semantics");
    if (strcmp(want != NULL ? want : "{}", got != NULL ? got : "{}") != 0)
        m3_fail(&result->notes, M3_OK, "semantics differ: got %s, expected %s", got != NULL ? got : "{}",
                want != NULL ? want : "{}");
    return status;
}

static int is_companion(const char *name)
{
    static const char *const endings[] = { ".bound", ".walk", ".gain", ".margin", ".experts.bias" };
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

int m3_yardstick(double *allowed, int *stated, const struct m3_safetensors *reference, const char *tap,
                 const char *what, struct m3_error *error)
{
    char key[128];
    *allowed = default_allowance;
    *stated = 0;
    int length = snprintf(key, sizeof key, "%s.%s", tap, what);
    const char *text = length > 0 && (size_t)length < sizeof key ? m3_safetensors_metadata(reference, key) : NULL;
    if (text == NULL) return M3_OK;

    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0) || isinf(value))
        return m3_fail(error, M3_BAD_INPUT, "%s: metadata %s: got \"%s\", expected a finite number of at least 0",
                       m3_safetensors_path(reference), key, text);
    *allowed = 4 * value + 1e-7;
    *stated = 1;
    return M3_OK;
}

static int judge(struct m3_stage *stage, const struct m3_matched *matched, struct yardsticks *yardsticks,
                 const struct m3_selection_rules *rules, struct m3_error *error)
{
    enum m3_tap_kind kind = m3_tap_table[matched->tap].kind;
    *stage = (struct m3_stage){ .tap = matched->want->name, .reference = matched->want, .candidate = matched->got,
                                .selection = kind == M3_KIND_CHOICES };
    if (kind == M3_KIND_CHOICES) return m3_judge_selection(stage, matched, rules, error);
    if (kind == M3_KIND_COUNTS) {
        m3_judge_values(stage, matched);
        return M3_OK;
    }

    int stated_l2, stated_max;
    const struct m3_safetensors *reference = matched->reference->file;
    int status = m3_yardstick(&stage->allowed_l2, &stated_l2, reference, stage->tap, "f32_rel_l2", error);
    if (status == M3_OK)
        status = m3_yardstick(&stage->allowed_max, &stated_max, reference, stage->tap, "f32_max", error);
    if (status != M3_OK) return status;
    if (!stated_l2 && !stated_max && yardsticks->absent++ == 0) yardsticks->first = stage->tap;
    m3_judge_values(stage, matched);
    return M3_OK;
}

/* Adds one stage to the totals. */
static void count_stage(struct m3_comparison *result, const struct m3_stage *stage)
{
    result->count++;
    if (stage->verdict == M3_NOT_JUDGED) result->not_judged++;
    else if (stage->verdict == M3_VERDICT_NOT_COMPARABLE) result->not_comparable++;
    else result->judged++;
    if (stage->verdict == M3_FAIL) {
        result->failed++;
        if (result->divergence == NULL) result->divergence = stage;
    }
    if (stage->selection || (stage->verdict != M3_PASS && stage->verdict != M3_FAIL)) return;
    if (result->tightest == NULL || stage->headroom > result->tightest->headroom) result->tightest = stage;
}

static int judge_all(struct m3_comparison *result, const struct m3_matched *taps, int64_t count,
                     const struct m3_selection_rules *rules, struct m3_error *error)
{
    struct yardsticks yardsticks = { 0 };
    result->stages = calloc((size_t)count, sizeof *result->stages);
    if (result->stages == NULL) return m3_fail_memory(error, "stages", (size_t)count * sizeof *result->stages);
    for (int64_t i = 0; i < count; i++) {
        const struct m3_tensor *want = taps[i].want, *got = taps[i].got;
        m3_pages_ask(want->data, want->bytes);
        m3_pages_ask(got->data, got->bytes);
        int status = judge(&result->stages[i], &taps[i], &yardsticks, rules, error);
        if (status == M3_OK && taps[i].tap == M3_TAP_LOGITS)
            status = m3_judge_next_token(&result->next_token, &taps[i], &result->stages[i], rules, error);
        m3_pages_release(want->data, want->bytes);
        m3_pages_release(got->data, got->bytes);
        if (status != M3_OK) return status;
        count_stage(result, &result->stages[i]);
    }
    if (yardsticks.absent > 0)
        m3_fail(&result->notes, M3_OK, "taps whose fp32 error the reference does not state, judged at 1e-5: %" PRId64
                ", first %s", yardsticks.absent, yardsticks.first);
    if (result->judged == 0) note(result, "no tap could be judged");
    if (result->failed > 0 || (result->next_token.tap != NULL && result->next_token.verdict == M3_FAIL))
        result->status = M3_WRONG;
    else result->status = result->not_comparable > 0 || result->judged == 0 ? M3_NOT_COMPARABLE : M3_OK;
    return M3_OK;
}

int m3_compare(struct m3_comparison *result, const struct m3_safetensors *reference,
               const struct m3_safetensors *candidate, const struct m3_compare_options *options,
               struct m3_error *error)
{
    *result = (struct m3_comparison){ .status = M3_NOT_COMPARABLE };
    struct m3_side want, got;
    int status = m3_side_begin(&want, reference, error);
    if (status == M3_OK) status = m3_side_begin(&got, candidate, error);
    if (status == M3_OK) status = check_origin(result, &want, &got, options->force, error);
    if (status != M3_OK) return status;
    note_unknown(result, &want, "reference");
    note_unknown(result, &got, "candidate");

    size_t room = (size_t)m3_safetensors_count(reference) + 1;
    struct m3_matched *taps = calloc(room, sizeof *taps);
    if (taps == NULL) return m3_fail_memory(error, "list of taps", room * sizeof *taps);
    int64_t count = list_taps(taps, reference, options->taps);
    count = match_taps(result, taps, count, &want, &got, options->taps);
    if (count > 0) {
        const struct m3_selection_rules rules = { .ledger = options->ledger };
        status = judge_all(result, taps, count, &rules, error);
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
    m3_error_free(&result->notes);
    *result = (struct m3_comparison){ 0 };
}
