/* Taps that were judged together with operators before them, or not at all, under a profile coarse enough that bounds
 * say little of them: judged among honest implementations, each of which goes on from the candidate's own layer
 * outputs. SPEC 7.10. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "oracle/blame/private/blame.h"
#include "oracle/judge/rows/rows.h"
#include "oracle/judge/tolerance.h"

/* What bounds have proven wrong, or have judged alone, stays. */
static int is_open(const struct m3_blamed *tap)
{
    if (tap->selection || tap->tap == M3_TAP_EXPERT_OUT || tap->tap == M3_TAP_EXPERT_WEIGHTS) return 0;
    if (m3_tap_table[tap->tap].kind != M3_KIND_REALS || tap->candidate->count == 0) return 0;
    return tap->verdict == M3_VERDICT_NOT_JUDGED || (tap->verdict == M3_VERDICT_PASS && tap->operators > 1);
}

/* Marks such taps; *names: "layers.0.out,logits", which the caller frees. Returns their number; -1: memory is short. */
static int64_t find_open(char **names, unsigned char *open, const struct m3_blame *result, const struct m3_blaming *b)
{
    struct m3_coarse_table coarse = b->coarse;
    struct m3_memory_stream memory;
    int64_t count = 0;
    FILE *out = m3_memory_open(&memory);
    for (int64_t i = 0; out && i < b->count; i++) {
        const struct m3_blame_item *item = &b->items[i];
        const struct m3_coarseness at = m3_coarse_of(&coarse, item->name, item->tap, item->layer);
        if (!item->blamed || !item->dumped || !is_open(item->blamed)) continue;
        if (!(fmax(at.before, at.here) > 0x1p-24) || m3_profile_exact(b->setting->profile, item->name)) continue;
        fprintf(out, "%s%s", count++ ? "," : "", item->name);
        open[item->blamed - result->taps] = 1;
    }
    *names = m3_memory_close(&memory);
    return *names ? count : -1;
}

static void take(struct m3_blamed *tap, const struct m3_row_verdict *rows)
{
    tap->row_error = rows->error;
    tap->row_error_largest = rows->error_largest;
    tap->row_nearest = rows->nearest;
    tap->row_nearest_largest = rows->nearest_largest;
    if (!m3_is_judged(rows->verdict)) return;
    if (tap->verdict == M3_VERDICT_PASS && rows->verdict == M3_VERDICT_PASS) return;
    tap->verdict = rows->verdict;
    tap->judged_by = "honest implementations of the profile";
    tap->rank = 0;
    tap->rows = rows->rows;
    tap->left_out = 0;
    tap->elements = tap->candidate->count;
    tap->inherited = NAN;
    tap->created = rows->error;
    tap->allowed = rows->error_largest;
    tap->tiers = (struct m3_tier_result){ .verdict = rows->verdict, .headroom = rows->share, .worst = -1, .z2 = NAN };
    tap->note[0] = '\0';
    if (rows->verdict == M3_VERDICT_PASS) return;
    snprintf(tap->note, sizeof tap->note,
             "the 75%% quantile of the rows' errors is %.3g, in honest implementations at most %.3g", rows->error,
             rows->error_largest);
}

static int judge(struct m3_blame *result, const struct m3_blaming *b, const unsigned char *open,
                 const struct m3_safetensors *truth, const struct m3_safetensors *rows)
{
    struct m3_side reference;
    int status = m3_side_begin(&reference, truth, b->error);
    for (int64_t i = 0; i < result->count && !status; i++) {
        struct m3_blamed *tap = &result->taps[i];
        struct m3_row_verdict verdict;
        const struct m3_matched matched = { .reference = &reference,
                                            .candidate = &b->side,
                                            .want = m3_safetensors_find(truth, tap->name),
                                            .got = tap->candidate,
                                            .tap = (int)tap->tap,
                                            .layer = tap->layer };
        if (!open[i] || !matched.want) continue;
        status = m3_judge_rows(&verdict, rows, &matched, b->error);
        if (!status) take(tap, &verdict);
    }
    return status;
}

int m3_blame_judge_rows(struct m3_blame *result, const struct m3_blaming *b)
{
    const struct m3_blame_options *options = b->options;
    struct m3_safetensors *truth = NULL, *rows = NULL;
    char *names = NULL;
    if (!options->honest || !b->setting->profile || result->count == 0) return M3_OK;
    unsigned char *open = calloc((size_t)result->count, 1);
    if (!open) return m3_fail_memory(b->error, "taps", (size_t)result->count);
    const int64_t count = find_open(&names, open, result, b);
    int status = count < 0 ? m3_fail_memory(b->error, "taps", 0) : M3_OK;
    if (count > 0) {
        status = options->honest(options->honest_self, b->setting, &truth, &rows, b->side.file, names, b->error);
        if (!status && rows) status = judge(result, b, open, truth, rows);
    }
    m3_safetensors_close(truth);
    m3_safetensors_close(rows);
    free(names);
    free(open);
    return status;
}
