/* The first line of a report, which is also its last: verdict, place, size and next step, or how much was judged. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "oracle/report/private/format.h"

/* What to do next: what the judge says, or otherwise blame. */
static const char *next_of(const struct m3_judgement *all)
{
    return all->next != NULL ? all->next : "m3ref blame MODEL CANDIDATE --case F";
}

const char *m3_noun_of(const struct m3_judgement *all) { return all->is_recomputed ? "taps" : "stages"; }

/* ---- what is wrong */

/* By how much a tap is wrong, in few words. */
static void print_size(FILE *out, const struct m3_finding *f)
{
    if (f->rank == 0) {
        fprintf(out, ": %s", f->note);
    } else if (f->selection) {
        fprintf(out, ", %" PRId64 " of %" PRId64 " %s inadmissible", f->choices[M3_CHOICE_INADMISSIBLE],
                m3_decisions(f), m3_plural(m3_decisions(f), "sets"));
    } else if (f->bad_rows > 0) {
        fprintf(out, ", %s", f->note);
    } else if (f->judged_by == M3_BY_ROWS && !isnan(f->row_error)) {
        char said[256] = "";
        m3_finding_say_rows(&(struct m3_text){ said, sizeof said, 0 }, f);
        fprintf(out, ", %s", said);
    } else {
        if (isnan(f->got)) fputs(", NaN", out);
        else if (!isfinite(f->tiers.headroom)) fputs(", where nothing is allowed", out);
        else fprintf(out, ", %.3g%% of what is allowed", 100 * f->tiers.headroom);
        fprintf(out, ", %" PRId64 " of %" PRId64 " %s", f->violations, f->elements, m3_plural(f->elements, "elements"));
        if (f->note[0] && f->made_by == NULL) fprintf(out, "; %s", f->note);
    }
}

static void print_named_place(FILE *out, const struct m3_finding *f)
{
    char place[128] = "";
    struct m3_text text = { place, sizeof place, 0 };
    m3_finding_say_place(&text, f);
    fputs(place, out);
}

/* Where else it is wrong, and what the wrong values are. */
static void print_pattern(FILE *out, const struct m3_judgement *all, const struct m3_finding *f)
{
    char pattern[1000] = "";
    struct m3_text text = { pattern, sizeof pattern, 0 };
    m3_judgement_say_pattern(&text, all, f);
    if (pattern[0]) fprintf(out, "; %s", pattern);
}

static void print_wrong(FILE *out, const struct m3_judgement *all)
{
    const struct m3_finding *first = all->first != NULL ? all->first : &all->next_token;
    if (all->first == NULL) fputs("next token of ", out);
    fputs(first->tap, out);
    if (first->rank > 0) fputc(' ', out);
    print_named_place(out, first);
    print_size(out, first);
    print_pattern(out, all, first);
    if (first->made_by == NULL) fprintf(out, "; next: %s", next_of(all));
    else if (first->operators > 1) fprintf(out, "; next: dump %s too, to see which operator it is", first->since);
    else fprintf(out, "; next: check the program's %s against SPEC %s", first->made_by, first->section);
}

/* ---- what could not be judged */

static const struct m3_finding *first_of(const struct m3_judgement *all, enum m3_verdict verdict)
{
    for (int64_t i = 0; i < all->count; i++)
        if (all->findings[i].verdict == verdict) return &all->findings[i];
    return NULL;
}

static void print_unjudged(FILE *out, const struct m3_judgement *all)
{
    const struct m3_finding *first = first_of(all, M3_VERDICT_NOT_JUDGED);
    const int is_named = all->not_judged > all->excused && first != NULL;
    if (all->is_recomputed && first == NULL) {
        fprintf(out,
                "%" PRId64 " %s of the candidate the model does not produce for this case; next: --taps without them",
                all->extra, m3_plural(all->extra, "taps"));
        return;
    }
    fprintf(out, "%" PRId64 " %s could not be judged", all->unjudged, m3_plural(all->unjudged, m3_noun_of(all)));
    if (!is_named)
        fputs(", which the reference does not hold; next: a reference with them, or --taps without them", out);
    else fprintf(out, ", first %s: %s", first->tap, first->note);
    if (is_named && all->is_recomputed) fputs(first->is_blind ? "" : "; next: dump what is missing", out);
    else if (is_named) fprintf(out, "; next: %s%s", next_of(all), all->next == NULL ? ", which reads the weights" : "");
}

static void print_incomparable(FILE *out, const struct m3_judgement *all)
{
    const struct m3_finding *first = first_of(all, M3_VERDICT_NOT_COMPARABLE);
    if (all->count == 0) {
        fprintf(out, "nothing was %s; next: see the message, --taps, --map or --force",
                all->is_recomputed ? "judged" : "compared");
    } else if (first != NULL) {
        /* Results of one operator have letters of their own. */
        fprintf(out, "%s: %s; next: %s", first->tap, first->note,
                all->is_recomputed       ? "dump it as m3ref run does, or leave it out with --taps"
                : first->letters != NULL ? "write results as the operands ask for them"
                                         : "dump it as the reference does, or leave it out with --taps");
    } else if (all->is_recomputed) {
        print_unjudged(out, all);
    } else {
        first = first_of(all, M3_VERDICT_NOT_JUDGED);
        fprintf(out, "no tap could be judged, first %s: %s; next: %s%s", first->tap, first->note,
                all->next == NULL ? "dump more taps, or " : "", next_of(all));
    }
}

void m3_print_place_and_next(FILE *out, const struct m3_judgement *all)
{
    switch (all->verdict) {
    case M3_VERDICT_FAIL:
    case M3_VERDICT_SUSPECT: print_wrong(out, all); break;
    case M3_VERDICT_PARTIAL: print_unjudged(out, all); break;
    case M3_VERDICT_NOT_COMPARABLE: print_incomparable(out, all); break;
    default: break;
    }
}

/* ---- how much was judged */

/* "judged end to end: logits alone": a dump of few taps among many says little. */
static void print_few(FILE *out, const struct m3_judgement *all)
{
    enum { FEW = 3 };
    if (all->judged == 0 || all->judged > FEW || all->missing <= all->judged) return;
    fputs("; judged end to end: ", out);
    int64_t printed = 0;
    for (int64_t i = 0; i < all->count; i++) {
        if (!m3_is_judged(all->findings[i].verdict)) continue;
        if (printed > 0) fputs(printed + 1 == all->judged ? " and " : ", ", out);
        fputs(all->findings[i].tap, out);
        printed++;
    }
    fputs(" alone", out);
}

void m3_print_headline(FILE *out, const struct m3_judgement *all)
{
    if (all->verdict == M3_VERDICT_PASS)
        fprintf(out, "%" PRId64 " of %" PRId64 " %s of the candidate judged", all->judged, all->count,
                m3_plural(all->count, m3_noun_of(all)));
    m3_print_place_and_next(out, all);
    m3_print_explained(out, all->explained_by);
    print_few(out, all);
    if (all->missing > 0)
        fprintf(out, "; not held by the candidate: %" PRId64 " %s, %s", all->missing,
                m3_plural(all->missing, m3_noun_of(all)), all->missing_names);
}

void m3_print_counts(FILE *out, const struct m3_judgement *all)
{
    fprintf(out, "%" PRId64 " of %" PRId64 " %s judged", all->judged, all->count,
            m3_plural(all->count, m3_noun_of(all)));
    if (all->failed > 0) fprintf(out, ", %" PRId64 " fail", all->failed);
    if (all->suspect > 0) fprintf(out, ", %" PRId64 " suspect", all->suspect);
    if (all->not_comparable > 0) fprintf(out, ", %" PRId64 " not comparable", all->not_comparable);
    if (all->not_judged > all->excused) fprintf(out, ", %" PRId64 " not judged", all->not_judged - all->excused);
    if (all->excused > 0) fprintf(out, ", %" PRId64 " left out after other choices", all->excused);
    if (all->extra > 0)
        fprintf(out, ", %" PRId64 " not in the %s", all->extra, all->is_recomputed ? "model" : "reference");
}

void m3_print_summary(FILE *out, const struct m3_judgement *all)
{
    m3_print_counts(out, all);
    if (all->missing > 0) fprintf(out, ", %" PRId64 " missing", all->missing);
    if (all->tightest != NULL) m3_print_tightest(out, all->tightest);
}

void m3_print_tightest(FILE *out, const struct m3_finding *f)
{
    if (isfinite(f->tiers.headroom))
        fprintf(out, "; the worst, %s, used %.3g%% of what is allowed", f->tap, 100 * f->tiers.headroom);
    else fprintf(out, "; the worst, %s, is wrong beyond measure", f->tap);
}

void m3_print_divergence(FILE *out, const struct m3_judgement *all)
{
    const struct m3_finding *first = all->first, *tightest = NULL;
    const int64_t before = first - all->findings;
    int64_t passed = 0;
    for (const struct m3_finding *f = all->findings; f < first; f++) {
        if (f->verdict != M3_VERDICT_PASS) continue;
        passed++;
        if (!f->selection && (tightest == NULL || f->tiers.headroom > tightest->tiers.headroom)) tightest = f;
    }
    fprintf(out, "first divergence %s", first->tap);
    if (before == 0) fputs("; no stage before it", out);
    else if (passed == before && before == 1) fputs("; the stage before it passes", out);
    else if (passed == before) fprintf(out, "; all %" PRId64 " stages before it pass", before);
    else fprintf(out, "; %" PRId64 " of %" PRId64 " stages before it pass", passed, before);
    if (tightest != NULL) m3_print_tightest(out, tightest);
}
