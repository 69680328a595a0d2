/* Taps that were judged together with operators before them, or not at all, under a profile coarse enough that bounds
 * say little of them: judged among honest implementations, each of which goes on from the candidate's own layer
 * outputs. SPEC 7.10. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/finding/settle.h"
#include "oracle/judge/tolerance.h"

/* What bounds have proven wrong, or have judged alone, stays. */
static int is_open(const struct m3_finding *tap)
{
    if (tap->selection || tap->id == M3_TAP_EXPERT_OUT || tap->id == M3_TAP_EXPERT_WEIGHTS) return 0;
    if (m3_tap_table[tap->id].kind != M3_KIND_REALS || tap->candidate->count == 0) return 0;
    return tap->verdict == M3_VERDICT_NOT_JUDGED || (tap->verdict == M3_VERDICT_PASS && tap->operators > 1);
}

/* Marks such taps; *names: "layers.0.out,logits", which the caller frees. Returns their number; -1: memory is short. */
static int64_t find_open(char **names, unsigned char *open, const struct m3_judgement *result,
                         const struct m3_blaming *b)
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
        open[item->blamed - result->findings] = 1;
    }
    *names = m3_memory_close(&memory);
    return *names ? count : -1;
}

/* verdicts [count]: of the open ones. */
static int ask(struct m3_row_verdict *verdicts, const struct m3_judgement *result, const struct m3_blaming *b,
               unsigned char *open, const struct m3_safetensors *truth, const struct m3_safetensors *rows)
{
    struct m3_side reference;
    int status = m3_side_begin(&reference, truth, b->error);
    for (int64_t i = 0; i < result->count && !status; i++) {
        const struct m3_finding *tap = &result->findings[i];
        const struct m3_matched matched = { .reference = &reference,
                                            .candidate = &b->side,
                                            .want = open[i] ? m3_safetensors_find(truth, tap->tap) : NULL,
                                            .got = tap->candidate,
                                            .tap = (int)tap->id,
                                            .layer = tap->layer };
        open[i] = matched.want != NULL;
        if (open[i]) status = m3_judge_rows(&verdicts[i], rows, &matched, b->error);
    }
    return status;
}

/* Honest implementations of the profile, for the taps that are open. */
static int ask_honest(struct m3_row_verdict *verdicts, unsigned char *open, const struct m3_judgement *result,
                      const struct m3_blaming *b)
{
    const struct m3_blame_options *options = b->options;
    struct m3_safetensors *truth = NULL, *rows = NULL;
    char *names = NULL;
    int status = M3_OK;
    if (!options->honest || !b->setting->profile) return M3_OK;
    const int64_t count = find_open(&names, open, result, b);
    if (count < 0) status = m3_fail_memory(b->error, "taps", 0);
    if (count > 0)
        status = options->honest(options->honest_self, b->setting, &truth, &rows, b->side.file, names, b->error);
    if (!status && rows) status = ask(verdicts, result, b, open, truth, rows);
    else memset(open, 0, (size_t)result->count);
    m3_safetensors_close(truth);
    m3_safetensors_close(rows);
    free(names);
    return status;
}

int m3_blame_settle(struct m3_judgement *result, const struct m3_blaming *b)
{
    unsigned char *open = calloc((size_t)result->count + 1, 1);
    struct m3_row_verdict *verdicts = calloc((size_t)result->count + 1, sizeof *verdicts);
    int status = open && verdicts ? ask_honest(verdicts, open, result, b)
                                  : m3_fail_memory(b->error, "taps", (size_t)result->count * sizeof *verdicts);
    for (int64_t i = 0; i < b->count && !status; i++) {
        const struct m3_blame_item *item = &b->items[i];
        if (!item->blamed) continue;
        const int64_t at = item->blamed - result->findings;
        m3_finding_settle(item->blamed, &(struct m3_evidence){ .rows = open[at] ? &verdicts[at] : NULL,
                                                               .is_bounded = 1,
                                                               .is_sharp = !m3_blame_is_product(b, item) });
    }
    free(open);
    free(verdicts);
    return status;
}
