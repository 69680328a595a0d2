#include "oracle/report/private/format.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "io/json.h"
#include "model/taps.h"
#include "oracle/error/parameters/parameters.h"
#include "oracle/error/tiers.h"
#include "oracle/judge/align.h"

static const struct {
    const char *text, *name;
} verdicts[] = {
    [M3_VERDICT_PASS] = { "pass", "pass" },
    [M3_VERDICT_SUSPECT] = { "suspect", "suspect" },
    [M3_VERDICT_FAIL] = { "fail", "fail" },
    [M3_VERDICT_NOT_JUDGED] = { "not judged", "not_judged" },
    [M3_VERDICT_NOT_COMPARABLE] = { "not comparable", "not_comparable" },
    [M3_VERDICT_PARTIAL] = { "partial", "partial" },
};

int m3_report_whole(const struct m3_error *notes, struct m3_error *error)
{
    if (m3_json_failed()) return m3_fail_memory(error, "the report", 0);
    return m3_notes_whole(notes, error);
}

const char *m3_verdict_text(enum m3_verdict verdict) { return verdicts[verdict].text; }
const char *m3_verdict_name(enum m3_verdict verdict) { return verdicts[verdict].name; }

const char *m3_choice_text(enum m3_choice choice)
{
    static const char *const texts[M3_CHOICES] = { "identical", "permuted", "tie", "admissible", "inadmissible" };
    return texts[choice];
}

void m3_print_sequence(FILE *out, int64_t in_sequence, int64_t row)
{
    if (in_sequence == 0) return;
    fprintf(out, "sequence %" PRId64, in_sequence - 1);
    if (row >= 0) fprintf(out, ", row %" PRId64, row);
    fputc(' ', out);
}

void m3_print_place(FILE *out, const struct m3_stage *stage)
{
    enum m3_tap tap;
    int64_t layer;
    const char *letters = stage->letters != NULL                        ? stage->letters
                          : m3_tap_parse(stage->tap, &tap, &layer) == 0 ? m3_tap_table[tap].shape
                                                                        : "";
    int known = (int)strlen(letters) == stage->reference->rank;
    m3_print_sequence(out, stage->in_sequence, stage->rank > 0 ? stage->index[0] : -1);
    for (int i = 0; i < stage->rank; i++) {
        fputs(i == 0 ? "[" : ", ", out);
        if (known) fprintf(out, "%c=", tolower((unsigned char)letters[i]));
        fprintf(out, "%" PRId64, stage->index[i]);
    }
    fputs("]", out);
}

/* A value and its bits, with enough digits to distinguish it from its neighbours. */
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

int m3_is_without_result(const struct m3_stage *stage)
{
    return stage->verdict == M3_VERDICT_FAIL && stage->rank == 0 && stage->elements == 0 && stage->rows == 0;
}

/* Why a stage has no verdict: its place, or otherwise the tensors. */
static void print_reason(FILE *out, const struct m3_stage *stage)
{
    fprintf(out, "%s", stage->note);
    if (m3_is_without_result(stage)) return;
    if (stage->rows_left_out > 0 && stage->elements == 0) {
        if (stage->rows_left_out > 1) fprintf(out, ", all %" PRId64 " rows", stage->rows_left_out);
        return;
    }
    if (stage->rank > 0) {
        fputs(" at ", out);
        m3_print_place(out, stage);
        if (!stage->selection) print_values(out, stage);
        return;
    }
    print_tensor(out, ": got", stage->candidate);
    print_tensor(out, ", expected", stage->reference);
}

void m3_print_tiers(FILE *out, int tiers, const char *between)
{
    int printed = 0;
    for (int bit = 0; bit < M3_TIERS; bit++) {
        if (!(tiers & 1 << bit)) continue;
        if (printed++ > 0) fputs(between, out);
        for (const char *c = m3_tier_name((enum m3_tier)(1 << bit)); *c != '\0'; c++)
            fputc(toupper((unsigned char)*c), out);
    }
}

void m3_print_parameter(FILE *out, const struct m3_parameter *parameter)
{
    char text[M3_PARAMETER_TEXT];
    if (parameter->name == NULL) return;
    m3_parameter_say(text, sizeof text, parameter);
    fprintf(out, "; %s", text);
}

void m3_print_precision(FILE *out, const struct m3_stage *stage)
{
    fprintf(out, "|d| over rms, quantiles:");
    for (int k = 0; k < M3_QUANTILES; k++) fprintf(out, " %g%% %.2g", 100 * m3_quantiles[k], stage->quantiles[k]);
    if (stage->effective[0] != '\0') fprintf(out, "; looks like: %s", stage->effective);
}

int m3_is_judged_by_rows(const struct m3_stage *stage)
{
    return stage->judged_by != NULL && strcmp(stage->judged_by, "honest implementations of the profile") == 0;
}

/* By how much the operator's bound, or the tolerance of a whole pass, is exceeded. */
static void print_failed_values(FILE *out, const struct m3_stage *stage)
{
    const double share = stage->n < 0 ? stage->max_rel / stage->allowed_max : stage->headroom;
    print_values(out, stage);
    if (isnan(stage->got)) fputs("  NaN", out);
    else if (isinf(stage->got) || isinf(stage->want)) fputs("  infinite on one side", out);
    else if (!isfinite(share)) fputs("  nothing is allowed", out);
    else fprintf(out, "  %.3g%% of allowed", 100 * share);
    fprintf(out, "; %" PRId64 " of %" PRId64, stage->violations, stage->elements);
    const double l2 = stage->rel_l2 / stage->allowed_l2;
    if (stage->n < 0 && !(stage->rel_l2 <= stage->allowed_l2) && isfinite(l2))
        fprintf(out, "; rel L2 %.3g%% of allowed", 100 * l2);
    if (stage->tiers != 0) fputs("; ", out);
    m3_print_tiers(out, stage->tiers, ", ");
    if (stage->grid != M3_DTYPES) fprintf(out, ": all values are numbers of %s", m3_dtype_name(stage->grid));
    m3_print_parameter(out, &stage->parameter);
}

int64_t m3_differing(const struct m3_stage *stage)
{
    return stage->choices[M3_CHOICE_TIE] + stage->choices[M3_CHOICE_ADMISSIBLE] +
           stage->choices[M3_CHOICE_INADMISSIBLE];
}

void m3_print_choices(FILE *out, const struct m3_stage *stage)
{
    if (stage->rank == 0 && stage->choice == M3_CHOICE_INADMISSIBLE) {
        fprintf(out, "inadmissible: %s", stage->note);
        return;
    }
    fprintf(out, "%s: %" PRId64 " of %" PRId64 " %s, %" PRId64 " permuted", m3_choice_text(stage->choice),
            m3_differing(stage), stage->rows, stage->rows == 1 ? "set differs" : "sets differ",
            stage->choices[M3_CHOICE_PERMUTED]);
    if (stage->tainted > 0)
        fprintf(out, "; %" PRId64 " more follow from other choices and are not judged", stage->tainted);
    if (isfinite(stage->least_gap))
        fprintf(out, "; least gap %.3g of its bound, scores of the %s", stage->least_gap, stage->scores);
}

static const char *noun_of(const struct m3_stage *stage)
{
    if (!m3_holds_ids(stage->reference)) return "token";
    return stage->reference->rank == 3 ? "block" : "expert";
}

static void print_failed_selection(FILE *out, const struct m3_stage *stage)
{
    fprintf(out, "  %s %.0f in place of %.0f: INADMISSIBLE, %s", noun_of(stage), stage->got, stage->want, stage->note);
    if (!isnan(stage->gap))
        fprintf(out, ", gap %.3g, bound %.3g, scores of the %s", stage->gap, stage->bound, stage->scores);
    fprintf(out, "; %" PRId64 " of %" PRId64, stage->choices[M3_CHOICE_INADMISSIBLE], stage->rows);
}

/* "percentile 62 of legitimate implementations (median 1e-3, largest 2e-3)" */
static void print_rank(FILE *out, const struct m3_stage *stage)
{
    if (stage->beyond_envelope)
        fprintf(out, "rel L2 %.3g is more than twice the farthest legitimate implementation", stage->rel_l2);
    else fprintf(out, "percentile %.3g of legitimate implementations", stage->percentile);
    fprintf(out, " (median %.3g, largest %.3g)", stage->envelope_median, stage->envelope_largest);
}

/* "; the 75% quantile of the rows' errors is 0.3, in honest implementations at most 0.02" */
static void print_rows(FILE *out, const struct m3_stage *stage)
{
    fprintf(out, "; the 75%% quantile of the rows' errors is %.3g, in honest implementations at most %.3g",
            stage->row_error, stage->row_error_largest);
    if (!isnan(stage->row_nearest))
        fprintf(out, "; from the nearest of them by %.3g, they from each other by at most %.3g", stage->row_nearest,
                stage->row_nearest_largest);
}

void m3_print_finding(FILE *out, const struct m3_stage *stage)
{
    if (stage->finding != NULL) {
        fputs(stage->finding, out);
        return;
    }
    if (!m3_is_judged(stage->verdict) || m3_is_without_result(stage) || (stage->selection && stage->rank == 0)) {
        print_reason(out, stage);
        return;
    }
    m3_print_place(out, stage);
    if (stage->selection) {
        print_failed_selection(out, stage);
        return;
    }
    if (m3_is_judged_by_rows(stage)) print_values(out, stage);
    else print_failed_values(out, stage);
    if (!isnan(stage->row_error)) print_rows(out, stage);
    if (stage->note != NULL) fprintf(out, "; %s", stage->note);
    if (isnan(stage->percentile)) return;
    fputs("; ", out);
    print_rank(out, stage);
}

/* Exactly one of the two is not NULL. */
static char *in_memory(const struct m3_stage *finding, const struct m3_comparison *ranks)
{
    struct m3_memory_stream memory;
    FILE *out = m3_memory_open(&memory);
    if (out != NULL && finding != NULL) m3_print_finding(out, finding);
    if (out != NULL && ranks != NULL) m3_print_ranks(out, ranks);
    return m3_memory_close(&memory);
}

char *m3_finding(const struct m3_stage *stage) { return in_memory(stage, NULL); }

char *m3_ranks(const struct m3_comparison *comparison) { return in_memory(NULL, comparison); }

static void print_tightest(FILE *out, const struct m3_stage *stage)
{
    if (isfinite(stage->headroom))
        fprintf(out, "; the worst, %s, used %.3g%% of what is allowed", stage->tap, 100 * stage->headroom);
    else fprintf(out, "; the worst, %s, is wrong beyond measure", stage->tap);
}

void m3_print_divergence(FILE *out, const struct m3_comparison *comparison)
{
    const struct m3_stage *first = comparison->divergence, *tightest = NULL;
    int64_t before = first - comparison->stages, passed = 0;
    for (const struct m3_stage *stage = comparison->stages; stage < first; stage++) {
        if (stage->verdict != M3_VERDICT_PASS) continue;
        passed++;
        if (!stage->selection && (tightest == NULL || stage->headroom > tightest->headroom)) tightest = stage;
    }
    fprintf(out, "first divergence %s", first->tap);
    if (before == 0) fputs("; no stage before it", out);
    else if (passed == before && before == 1) fputs("; the stage before it passes", out);
    else if (passed == before) fprintf(out, "; all %" PRId64 " stages before it pass", before);
    else fprintf(out, "; %" PRId64 " of %" PRId64 " stages before it pass", passed, before);
    if (tightest != NULL) print_tightest(out, tightest);
}

void m3_print_summary(FILE *out, const struct m3_comparison *comparison)
{
    fprintf(out, "%" PRId64 " of %" PRId64 " %s judged", comparison->judged, comparison->count,
            m3_plural(comparison->count, "stages"));
    if (comparison->failed > 0) fprintf(out, ", %" PRId64 " fail", comparison->failed);
    if (comparison->suspects > 0) fprintf(out, ", %" PRId64 " suspect", comparison->suspects);
    if (comparison->not_comparable > 0) fprintf(out, ", %" PRId64 " not comparable", comparison->not_comparable);
    if (comparison->not_judged > comparison->excused)
        fprintf(out, ", %" PRId64 " not judged", comparison->not_judged - comparison->excused);
    if (comparison->excused > 0) fprintf(out, ", %" PRId64 " left out after other choices", comparison->excused);
    if (comparison->extra > 0) fprintf(out, ", %" PRId64 " not in the reference", comparison->extra);
    if (comparison->missing > 0) fprintf(out, ", %" PRId64 " missing", comparison->missing);
    if (comparison->tightest != NULL) print_tightest(out, comparison->tightest);
}

void m3_print_ranks(FILE *out, const struct m3_comparison *comparison)
{
    const struct m3_stage *farthest = comparison->envelope.farthest;
    const int64_t ranked = comparison->envelope.ranked;
    if (ranked == 0) fputs("no tap is ranked", out);
    else
        fprintf(out, "percentile %.3g (median of %" PRId64 " %s)", comparison->envelope.percentile, ranked,
                m3_plural(ranked, "taps"));
    fprintf(out, " among %" PRId64 " legitimate %s %s", comparison->envelope.runs, comparison->envelope.profile,
            m3_plural(comparison->envelope.runs, "implementations"));
    if (farthest != NULL)
        fprintf(out, "; farthest %s: percentile %.3g, %.3g with median %.3g and largest %.3g", farthest->tap,
                farthest->percentile, farthest->rel_l2, farthest->envelope_median, farthest->envelope_largest);
    if (comparison->envelope.blind > 0)
        fprintf(out, "; blind: %" PRId64 " %s", comparison->envelope.blind,
                m3_plural(comparison->envelope.blind, "taps"));
}

enum { NOTES_SHOWN = 5 };

static int notes_of(const struct m3_error *notes)
{
    const char *at = notes->text;
    size_t length;
    int count = 0;
    while (m3_next_line(&at, &length) != NULL) count++;
    return count;
}

int m3_count_notes(const struct m3_error *notes)
{
    const int count = notes_of(notes);
    return count <= NOTES_SHOWN ? count : NOTES_SHOWN + 1;
}

void m3_print_notes(FILE *out, const struct m3_error *notes, int all)
{
    const char *at = notes->text, *line;
    size_t length;
    for (int i = 0; (all || i < NOTES_SHOWN) && (line = m3_next_line(&at, &length)) != NULL; i++)
        fprintf(out, "note  %.*s\n", (int)length, line);
    const int count = notes_of(notes);
    if (!all && count > NOTES_SHOWN) m3_print_more(out, count - NOTES_SHOWN, "notes");
}

const char *m3_tier_words(enum m3_tier tier)
{
    switch (tier) {
    case M3_TIER_HARD: return "an error is larger than any correct implementation can make it";
    case M3_TIER_GRID: return "all values are numbers of a coarser format than the declared one";
    case M3_TIER_SUSPECT: return "an error is possible, but far larger than independent roundings make it";
    case M3_TIER_WALK: return "errors are many standard deviations larger than independent roundings make them";
    case M3_TIER_VARIANCE: return "the errors are too large on average, although none is by itself";
    case M3_TIER_BIAS: return "the errors are mostly on one side, which roundings are not";
    case M3_TIER_PARAMETER: return "the errors look like another value of a parameter of the model";
    }
    return "";
}

void m3_print_legend(FILE *out, int tiers)
{
    const char *between = "words  ";
    for (int bit = 0; bit < M3_TIERS; bit++) {
        if (!(tiers & 1 << bit)) continue;
        fputs(between, out);
        m3_print_tiers(out, 1 << bit, "");
        fprintf(out, ": %s", m3_tier_words((enum m3_tier)(1 << bit)));
        between = "; ";
    }
    if (tiers != 0) fputs(" (SPEC 7.2)\n", out);
}

int m3_report_end(FILE *out, const char *what, struct m3_error *error)
{
    errno = 0;
    if (fflush(out) == 0 && !ferror(out)) return M3_OK;
    return m3_fail(error, M3_IO, "%s: cannot be written%s%s", what, errno ? ": " : "", errno ? strerror(errno) : "");
}

size_t m3_group_length(const char *tap)
{
    for (size_t i = 1; tap[i] != '\0'; i++)
        if (tap[i - 1] == '.' && isdigit((unsigned char)tap[i])) return i + strspn(tap + i, "0123456789");
    return strcspn(tap, ".") < strlen(tap) ? strcspn(tap, ".") : 0;
}
