/* Several sequences: each is checked alone. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"
#include "io/reading.h"
#include "oracle/judge/batch/join.h"
#include "oracle/judge/batch/several.h"
#include "oracle/judge/check/blame_honest.h"
#include "oracle/judge/check/private/check.h"
#include "oracle/judge/align.h"
#include "oracle/judge/finding/settle.h"

/* Opens the truth that was kept for these sequences, if there is one. */
static int open_kept(struct m3_safetensors **kept, struct m3_parts *parts, const struct m3_check_plan *plan,
                     const struct m3_batch *batch, struct m3_error *notes, struct m3_error *error)
{
    struct m3_layout layout = { 0 };
    int exists = 0, status = plan->truth ? m3_look_for(&exists, plan->truth, error) : M3_OK;
    if (status || !exists) return status;
    status = m3_safetensors_open(kept, plan->truth, error);
    const char *command = status ? NULL : m3_safetensors_metadata(*kept, "command");
    if (!status && !m3_truth_is_of_run(*kept) &&
        (!command || strncmp(command, "m3ref check", strlen("m3ref check")) != 0))
        status = m3_fail(error, M3_BAD_INPUT, "%s: this is not a truth that m3ref check wrote, and is not replaced",
                         plan->truth);
    int several = !status && m3_is_dump_of_several(*kept);
    if (several) status = m3_truth_check_seal(&several, *kept, notes, error);
    if (!status && several) status = m3_layout_from_dump(&layout, *kept, error);
    layout.by_slot = batch->layout.by_slot;
    if (!status && several && layout.count == batch->layout.count)
        status = m3_batch_split(parts, &layout, NULL, *kept, notes, error);
    if (!status && parts->count == 0 && m3_truth_is_of_run(*kept))
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: got another case, which m3ref run wrote, expected the truth of this check", plan->truth);
    m3_layout_free(&layout);
    return status;
}

static int keep(const struct m3_check *check, const struct m3_check_plan *plan, const struct m3_batch *batch,
                struct m3_error *error)
{
    struct m3_safetensors **files = calloc((size_t)check->part_count, sizeof *files);
    if (!files) return m3_fail_memory(error, "the truth", (size_t)check->part_count * sizeof *files);
    for (int64_t b = 0; b < check->part_count; b++)
        files[b] = (struct m3_safetensors *)(uintptr_t)m3_truth_file(&check->parts[b].truth);
    int status = m3_reading_forget(plan->truth, error);
    if (!status) status = m3_batch_join(plan->truth, batch, files, 1, error);
    free(files);
    return status;
}

static int check_each(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_batch *batch,
                      const struct m3_parts *parts, const struct m3_parts *kept, struct m3_error *notes,
                      struct m3_error *error)
{
    int64_t held = 0, reused = 0;
    int status = M3_OK;
    for (int64_t b = 0; b < parts->count; b++) held += m3_holds_taps(parts->files[b]);
    for (int64_t b = 0; !status && b < parts->count; b++) {
        struct m3_setting setting = *plan->setting;
        struct m3_check_plan own = *plan;
        setting.the_case = &batch->cases[b];
        own.setting = &setting;
        own.truth = NULL;
        own.keeps = plan->truth != NULL;
        own.sequence = b;
        own.kept = b < kept->count ? kept->files[b] : NULL;
        if (held > 0 && !m3_holds_taps(parts->files[b]) && !plan->truth) continue;
        status = m3_check(&check->parts[b], &own, parts->files[b], notes, error);
        reused += check->parts[b].truth.reused;
    }
    check->truth.reused = reused == parts->count;
    const int is_of_run = kept->count > 0 && m3_truth_is_of_run(kept->files[0]);
    return status || !plan->truth || check->truth.reused || is_of_run ? status : keep(check, plan, batch, error);
}

/* ---- one verdict */

static int put_together(struct m3_check *check, const struct m3_parts *candidate, struct m3_error *error)
{
    const int64_t count = check->part_count;
    struct m3_judgement *blames = calloc((size_t)count, sizeof *blames);
    struct m3_judgement *comparisons = calloc((size_t)count, sizeof *comparisons);
    struct m3_side *sides = calloc((size_t)count * 2, sizeof *sides);
    int status = blames && comparisons && sides ? M3_OK : m3_fail_memory(error, "sequences", 0);
    for (int64_t b = 0; !status && b < count; b++) {
        struct m3_check *part = &check->parts[b];
        const struct m3_safetensors *truth = m3_truth_file(&part->truth);
        check->double_passes += part->double_passes;
        blames[b] = part->blame;
        comparisons[b] = part->comparison;
        part->blame = (struct m3_judgement){ 0 };
        part->comparison = (struct m3_judgement){ 0 };
        if (truth) status = m3_side_begin(&sides[2 * b], truth, error);
        if (!status) status = m3_side_begin(&sides[2 * b + 1], candidate->files[b], error);
    }
    if (!status) status = m3_judgement_together(&check->comparison, comparisons, sides, count, error);
    else free(comparisons), free(sides);
    if (!status) status = m3_judgement_together(&check->blame, blames, NULL, count, error);
    else free(blames);
    return status;
}

/* The reading that explains every sequence that is wrong, if it is the same. */
static void find_reading(struct m3_check *check)
{
    for (int64_t b = 0; b < check->part_count; b++) {
        const struct m3_check *part = &check->parts[b];
        if (part->blame.verdict != M3_VERDICT_FAIL && part->blame.verdict != M3_VERDICT_SUSPECT) continue;
        const int other = check->reading[0] && strcmp(check->reading, part->reading) != 0;
        memcpy(check->reading, part->reading, sizeof check->reading);
        if (other || !part->reading[0]) {
            check->reading[0] = '\0';
            return;
        }
    }
}

/* ---- blocks anchored to slots, or to sequences if the reading says slots */

static int is_padded_before(const struct m3_layout *l)
{
    for (int64_t b = 0; b < l->count; b++)
        if (l->before[b] > 0 && l->slots > 0 && l->block > 0) return 1;
    return 0;
}

static int shows_anchor(const struct m3_finding *culprit)
{
    return culprit->operators > 1 || culprit->id == M3_TAP_INDEX_BLOCK_SCORES || culprit->id == M3_TAP_INDEX_BLOCKS ||
           culprit->id == M3_TAP_ATTN || culprit->id == M3_TAP_ATTN_LSE;
}

/* Taps that only the comparison with the truth could judge: an anchor is tried without it. */
static int64_t compared_alone(const struct m3_check *check)
{
    int64_t count = 0;
    for (int64_t i = 0; i < check->blame.count; i++) count += check->blame.findings[i].judged_by == M3_BY_COMPARISON;
    return count;
}

/* Is nothing wrong in any sequence, although as much is judged? */
static int try_anchor(int *explains, const struct m3_check *check, const struct m3_check_plan *plan,
                      const struct m3_batch *batch, const struct m3_parts *parts, const struct m3_semantics *semantics,
                      struct m3_error *error)
{
    const struct m3_blame_options options = {
        .profile = plan->profile, .force = 1, .is_alone = 1, .progress = plan->progress
    };
    struct m3_judgement all, *each = calloc((size_t)parts->count, sizeof *each);
    int status = each ? M3_OK : m3_fail_memory(error, "sequences", (size_t)parts->count * sizeof *each);
    for (int64_t b = 0; !status && b < parts->count; b++) {
        struct m3_setting setting = *plan->setting;
        setting.the_case = &batch->cases[b];
        setting.semantics = semantics;
        if (m3_holds_taps(parts->files[b]))
            status = m3_blame_honest(&each[b], &setting, parts->files[b], &options, plan->row_runs, error);
    }
    if (status) {
        for (int64_t b = 0; each && b < parts->count; b++) m3_judgement_free(&each[b]);
        free(each);
        return status;
    }
    status = m3_judgement_together(&all, each, NULL, parts->count, error);
    *explains = !status && all.failed == 0 && all.suspect == 0 && all.not_comparable == 0 &&
                all.judged + compared_alone(check) >= check->blame.judged && all.extra == check->blame.extra;
    m3_judgement_free(&all);
    return status;
}

static int try_other_anchor(struct m3_check *check, const struct m3_check_plan *plan, struct m3_batch *batch,
                            const struct m3_safetensors *candidate, struct m3_error *error)
{
    struct m3_semantics other = *plan->setting->semantics;
    const int by_slot = other.block_anchor == M3_ANCHOR_SLOT;
    struct m3_parts parts = { 0 };
    int explains = 0, status = M3_OK;
    if (!check->blame.first || check->reading[0]) return M3_OK;
    if (!is_padded_before(&batch->layout) || !shows_anchor(check->blame.first)) return M3_OK;
    other.block_anchor = by_slot ? M3_ANCHOR_SEQUENCE : M3_ANCHOR_SLOT;
    const char **hashes = calloc((size_t)batch->layout.count, sizeof *hashes);
    if (!hashes) return m3_fail_memory(error, "sequences", 0);
    for (int64_t b = 0; b < batch->layout.count; b++) hashes[b] = batch->cases[b].sha256;
    status = m3_batch_anchor(batch, other.block_anchor, error);
    if (!status) status = m3_batch_split(&parts, &batch->layout, hashes, candidate, NULL, error);
    if (!status) status = try_anchor(&explains, check, plan, batch, &parts, &other, error);
    if (explains) snprintf(check->reading, sizeof check->reading, "block_anchor=%s", by_slot ? "sequence" : "slot");
    m3_parts_free(&parts);
    free(hashes);
    const int back = m3_batch_anchor(batch, plan->setting->semantics->block_anchor, error);
    return status ? status : back;
}

static int check_several(struct m3_check *check, const struct m3_check_plan *plan, struct m3_batch *batch,
                         const struct m3_safetensors *candidate, const struct m3_parts *parts, struct m3_error *notes,
                         struct m3_error *error)
{
    struct m3_parts kept = { 0 };
    struct m3_safetensors *kept_file = NULL;
    *check = (struct m3_check){ .blame = { .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE } };
    check->parts = calloc((size_t)parts->count, sizeof *check->parts);
    if (!check->parts) return m3_fail_memory(error, "sequences", (size_t)parts->count * sizeof *check->parts);
    check->part_count = parts->count;
    int status = open_kept(&kept_file, &kept, plan, batch, notes, error);
    if (!status) status = check_each(check, plan, batch, parts, &kept, notes, error);
    check->kept_parts = kept;
    check->kept_file = kept_file;
    if (!status) status = put_together(check, parts, error);
    if (status) return status;
    m3_judgement_compare(&check->blame, &check->comparison);
    check->rows = check->rows_judged = m3_layout_rows(&batch->layout);
    find_reading(check);
    status = try_other_anchor(check, plan, batch, candidate, error);
    if (!status) status = m3_check_name_cause(check, plan, error);
    m3_check_say(check, plan);
    return status;
}

int m3_check_batch(struct m3_check *check, const struct m3_check_plan *plan, struct m3_batch *batch,
                   const struct m3_safetensors *candidate, const struct m3_parts *parts, struct m3_error *notes,
                   struct m3_error *error)
{
    if (parts->count == 0) return m3_check(check, plan, candidate, notes, error);
    return check_several(check, plan, batch, candidate, parts, notes, error);
}
