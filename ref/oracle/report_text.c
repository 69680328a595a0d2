#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/taps.h"
#include "oracle/report.h"

static const char *const verdict_words[] = { "pass", "suspect", "fail", "not judged", "not comparable" };
static const char *const choice_words[] = { "identical", "permuted", "tie", "admissible", "inadmissible" };

/* "[t=17, h=1021]", or plain numbers where the tensor has not the rank of its tap. */
static void print_place(FILE *out, const struct m3_stage *stage)
{
    enum m3_tap tap;
    int64_t layer;
    const char *letters = m3_tap_parse(stage->tap, &tap, &layer) == 0 ? m3_tap_table[tap].shape : "";
    int known = (int)strlen(letters) == stage->reference->rank;
    for (int i = 0; i < stage->rank; i++) {
        fputs(i == 0 ? "[" : ", ", out);
        if (known) fprintf(out, "%c=", tolower((unsigned char)letters[i]));
        fprintf(out, "%" PRId64, stage->index[i]);
    }
    fputs("]", out);
}

/* A value and its bits, as many digits as it takes to tell it from its neighbours. */
static void print_value(FILE *out, const char *side, double value, enum m3_dtype dtype)
{
    if (dtype == M3_F64) {
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        fprintf(out, "%s %.17g (%016" PRIx64 ")", side, value, bits);
        return;
    }
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    fprintf(out, "%s %.9g (%08" PRIx32 ")", side, value, bits);
}

static void print_tensor(FILE *out, const char *side, const struct m3_tensor *tensor)
{
    fprintf(out, "%s [", side);
    for (int i = 0; i < tensor->rank; i++) fprintf(out, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    fprintf(out, "] %s", m3_dtype_name(tensor->dtype));
}

static void print_values(FILE *out, const struct m3_stage *stage)
{
    print_value(out, "  got", stage->got, stage->candidate->dtype);
    print_value(out, "  want", stage->want, stage->reference->dtype);
}

/* Why a stage has no verdict: the place of it, or else the tensors. */
static void print_reason(FILE *out, const struct m3_stage *stage)
{
    fprintf(out, "%s", stage->note);
    if (stage->rank > 0) {
        fputs(" at ", out);
        print_place(out, stage);
        if (!stage->selection) print_values(out, stage);
        return;
    }
    print_tensor(out, ": got", stage->candidate);
    print_tensor(out, ", expected", stage->reference);
}

static void print_failed_values(FILE *out, const struct m3_stage *stage)
{
    print_values(out, stage);
    if (isnan(stage->got)) fputs("  NaN", out);
    else if (isinf(stage->got) || isinf(stage->want)) fputs("  infinite on one side", out);
    else fprintf(out, "  %.3g%% of allowed", 100 * stage->max_rel / stage->allowed_max);
    fprintf(out, "; %" PRId64 " of %" PRId64, stage->violations, stage->elements);
    if (!(stage->rel_l2 <= stage->allowed_l2))
        fprintf(out, "; rel L2 %.3g%% of allowed", 100 * stage->rel_l2 / stage->allowed_l2);
    fputc('\n', out);
}

static void print_failed_selection(FILE *out, const struct m3_stage *stage)
{
    const char *noun = stage->reference->rank == 3 ? "block" : "expert";
    fprintf(out, "  %s %.0f for %.0f: INADMISSIBLE, %s", noun, stage->got, stage->want, stage->note);
    if (!isnan(stage->gap)) fprintf(out, ", score gap %.3g", stage->gap);
    fprintf(out, "; %" PRId64 " of %" PRId64 "\n", stage->choices[M3_INADMISSIBLE], stage->rows);
}

static void print_stage(FILE *out, const struct m3_stage *stage, int width)
{
    fprintf(out, "%-14s  %-*s  ", verdict_words[stage->verdict], width, stage->tap);
    if (stage->verdict == M3_NOT_JUDGED || stage->verdict == M3_VERDICT_NOT_COMPARABLE) {
        print_reason(out, stage);
        fputc('\n', out);
        return;
    }
    if (stage->selection) {
        fprintf(out, "%s: %" PRId64 " of %" PRId64 " sets differ, %" PRId64 " permuted\n", choice_words[stage->choice],
                stage->differing, stage->rows, stage->choices[M3_PERMUTED]);
    } else {
        fprintf(out, "%9.3g  %9.3g  %8.3g%%\n", stage->rel_l2, stage->max_rel, 100 * stage->headroom);
    }
    if (stage->verdict != M3_FAIL) return;
    fprintf(out, "FAIL  %s  ", stage->tap);
    print_place(out, stage);
    if (stage->selection) print_failed_selection(out, stage);
    else print_failed_values(out, stage);
}

static void print_notes(FILE *out, const struct m3_error *notes)
{
    const char *end;
    for (const char *line = notes->text; line != NULL && *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        fprintf(out, "note  %.*s\n", (int)(end - line), line);
    }
}

static void print_divergence(FILE *out, const struct m3_comparison *comparison)
{
    const struct m3_stage *first = comparison->divergence, *tightest = NULL;
    int64_t before = first - comparison->stages, passed = 0;
    for (const struct m3_stage *stage = comparison->stages; stage < first; stage++) {
        if (stage->verdict != M3_PASS) continue;
        passed++;
        if (!stage->selection && (tightest == NULL || stage->headroom > tightest->headroom)) tightest = stage;
    }
    fprintf(out, "note  first divergence %s", first->tap);
    if (before == 0) fputs("; no stage before it", out);
    else if (passed == before) fprintf(out, "; all %" PRId64 " stages before it pass", before);
    else fprintf(out, "; %" PRId64 " of %" PRId64 " stages before it pass", passed, before);
    if (tightest != NULL) fprintf(out, ", worst headroom %.3g%% at %s", 100 * tightest->headroom, tightest->tap);
    fputc('\n', out);
}

static void print_summary(FILE *out, const struct m3_comparison *comparison)
{
    const char *verdict = comparison->status == M3_OK ? "pass"
                        : comparison->status == M3_WRONG ? "fail" : "not comparable";
    fprintf(out, "%s  %" PRId64 " of %" PRId64 " stages judged", verdict, comparison->judged, comparison->count);
    if (comparison->failed > 0) fprintf(out, ", %" PRId64 " fail", comparison->failed);
    if (comparison->not_comparable > 0) fprintf(out, ", %" PRId64 " not comparable", comparison->not_comparable);
    if (comparison->missing > 0) fprintf(out, ", %" PRId64 " missing", comparison->missing);
    if (comparison->tightest != NULL)
        fprintf(out, ", worst headroom %.3g%% at %s", 100 * comparison->tightest->headroom, comparison->tightest->tap);
    fputc('\n', out);
}

int m3_report_text(FILE *out, const struct m3_comparison *comparison, struct m3_error *error)
{
    int width = 3;
    for (int64_t i = 0; i < comparison->count; i++) {
        int length = (int)strlen(comparison->stages[i].tap);
        if (length > width) width = length;
    }
    if (comparison->count > 0)
        fprintf(out, "%-14s  %-*s  %9s  %9s  %9s\n", "verdict", width, "tap", "rel L2", "max", "allowed");
    for (int64_t i = 0; i < comparison->count; i++) print_stage(out, &comparison->stages[i], width);
    print_notes(out, &comparison->notes);
    if (comparison->divergence != NULL) print_divergence(out, comparison);
    print_summary(out, comparison);
    if (fflush(out) != 0 || ferror(out)) return m3_fail(error, M3_IO, "report: cannot be written: %s", strerror(errno));
    return M3_OK;
}
