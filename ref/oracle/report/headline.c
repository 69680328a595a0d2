/* The first line of a comparison's report: verdict, place, size and next step; and what was not there to judge. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/report/private/format.h"

/* What to do next: what the comparison says, or otherwise blame. */
static const char *next_of(const struct m3_comparison *comparison)
{
    return comparison->next != NULL ? comparison->next : "m3ref blame MODEL CANDIDATE --case F";
}

const char *m3_plural(int64_t count, const char *plural)
{
    static const char *const words[][2] = {
        { "rows", "row" },         { "stages", "stage" },
        { "taps", "tap" },         { "elements", "element" },
        { "sets", "set" },         { "operators", "operator" },
        { "notes", "note" },       { "implementations", "implementation" },
        { "channels", "channel" },
    };
    for (size_t i = 0; count == 1 && i < sizeof words / sizeof *words; i++)
        if (strcmp(plural, words[i][0]) == 0) return words[i][1];
    return plural;
}

void m3_print_share(FILE *out, double share, int width)
{
    if (isfinite(share)) fprintf(out, "%*.3g%%", width > 0 ? width - 1 : 0, 100 * share);
    else fprintf(out, "%*s", width, isnan(share) ? "unknown" : "beyond");
}

void m3_print_explained(FILE *out, const char *word)
{
    if (*word) fprintf(out, "; explained by +%s, with which it passes", word);
}

void m3_print_more(FILE *out, int64_t count, const char *what)
{
    fprintf(out, "..  %" PRId64 " more %s; --all shows every one\n", count, m3_plural(count, what));
}

/* By how much a stage is wrong, in few words. */
static void print_size(FILE *out, const struct m3_stage *stage)
{
    if (stage->rank == 0) {
        fprintf(out, ": %s", stage->note != NULL ? stage->note : "");
    } else if (stage->selection) {
        const int64_t wrong = stage->choices[M3_CHOICE_INADMISSIBLE];
        fprintf(out, ", %" PRId64 " of %" PRId64 " %s inadmissible", wrong, stage->rows,
                m3_plural(stage->rows, "sets"));
    } else if (m3_is_judged_by_rows(stage) && !isnan(stage->row_error)) {
        fprintf(out, ", the 75%% quantile of the rows' errors is %.3g, in honest implementations at most %.3g",
                stage->row_error, stage->row_error_largest);
    } else {
        if (isnan(stage->got)) fputs(", NaN", out);
        else if (!isfinite(stage->headroom)) fputs(", where nothing is allowed", out);
        else fprintf(out, ", %.3g%% of what is allowed", 100 * stage->headroom);
        fprintf(out, ", %" PRId64 " of %" PRId64 " %s", stage->violations, stage->elements,
                m3_plural(stage->elements, "elements"));
        if (stage->note != NULL) fprintf(out, "; %s", stage->note);
    }
}

static void print_wrong(FILE *out, const struct m3_comparison *comparison)
{
    const struct m3_stage *first = comparison->divergence;
    if (first == NULL) {
        first = &comparison->next_token;
        fputs("next token of ", out);
    }
    fputs(first->tap, out);
    if (first->rank > 0) {
        fputc(' ', out);
        m3_print_place(out, first);
    }
    print_size(out, first);
    fprintf(out, "; next: %s", next_of(comparison));
}

static const struct m3_stage *first_of(const struct m3_comparison *comparison, enum m3_verdict verdict)
{
    for (int64_t i = 0; i < comparison->count; i++)
        if (comparison->stages[i].verdict == verdict) return &comparison->stages[i];
    return NULL;
}

static void print_unjudged(FILE *out, const struct m3_comparison *comparison)
{
    const struct m3_stage *first = first_of(comparison, M3_VERDICT_NOT_JUDGED);
    const int64_t count = comparison->unjudged;
    fprintf(out, "%" PRId64 " %s could not be judged", count, m3_plural(count, "stages"));
    if (comparison->not_judged > comparison->excused && first != NULL)
        fprintf(out, ", first %s: %s; next: %s%s", first->tap, first->note, next_of(comparison),
                comparison->next == NULL ? ", which reads the weights" : "");
    else fputs(", which the reference does not hold; next: a reference with them, or --taps without them", out);
}

static void print_incomparable(FILE *out, const struct m3_comparison *comparison)
{
    const struct m3_stage *first = first_of(comparison, M3_VERDICT_NOT_COMPARABLE);
    if (comparison->count == 0) {
        fputs("nothing was compared; next: see the message, --taps, --map or --force", out);
    } else if (first != NULL) {
        /* Results of one operator have letters of their own. */
        fprintf(out, "%s: %s; next: %s", first->tap, first->note,
                first->letters ? "write results as the operands ask for them"
                               : "dump it as the reference does, or leave it out with --taps");
    } else {
        first = first_of(comparison, M3_VERDICT_NOT_JUDGED);
        fprintf(out, "no tap could be judged, first %s: %s; next: %s%s", first->tap,
                first->note != NULL ? first->note : "", comparison->next == NULL ? "dump more taps, or " : "",
                next_of(comparison));
    }
}

void m3_print_place_and_next(FILE *out, const struct m3_comparison *comparison)
{
    switch (comparison->verdict) {
    case M3_VERDICT_FAIL:
    case M3_VERDICT_SUSPECT: print_wrong(out, comparison); break;
    case M3_VERDICT_PARTIAL: print_unjudged(out, comparison); break;
    case M3_VERDICT_NOT_COMPARABLE: print_incomparable(out, comparison); break;
    default: break;
    }
}

/* "judged end to end: logits alone": a dump of few stages among many says little. */
static void print_few(FILE *out, const struct m3_comparison *comparison)
{
    enum { FEW = 3 };
    if (comparison->judged == 0 || comparison->judged > FEW || comparison->missing <= comparison->judged) return;
    fputs("; judged end to end: ", out);
    int64_t printed = 0;
    for (int64_t i = 0; i < comparison->count; i++) {
        if (!m3_is_judged(comparison->stages[i].verdict)) continue;
        if (printed > 0) fputs(printed + 1 == comparison->judged ? " and " : ", ", out);
        fputs(comparison->stages[i].tap, out);
        printed++;
    }
    fputs(" alone", out);
}

void m3_print_headline(FILE *out, const struct m3_comparison *comparison)
{
    if (comparison->verdict == M3_VERDICT_PASS)
        fprintf(out, "%" PRId64 " of %" PRId64 " %s of the candidate judged", comparison->judged, comparison->count,
                m3_plural(comparison->count, "stages"));
    m3_print_place_and_next(out, comparison);
    m3_print_explained(out, comparison->explained_by);
    print_few(out, comparison);
    if (comparison->missing > 0)
        fprintf(out, "; not held by the candidate: %" PRId64 " %s, %s", comparison->missing,
                m3_plural(comparison->missing, "stages"), comparison->missing_names);
}
