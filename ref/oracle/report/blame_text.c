#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/blame/blame.h"
#include "oracle/report/private/format.h"
#include "oracle/report/report.h"

static void print_place(FILE *out, const struct m3_blamed *tap)
{
    if (tap->rank == 0) return;
    const char *letters = m3_tap_table[tap->tap].shape;
    m3_print_sequence(out, tap->in_sequence, tap->index[0]);
    for (int i = 0; i < tap->rank; i++)
        fprintf(out, "%s%c=%" PRId64, i == 0 ? "[" : ", ", tolower((unsigned char)letters[i]), tap->index[i]);
    fputs("]", out);
}

static void print_choice(FILE *out, const struct m3_blamed *tap)
{
    const char *noun = tap->tap == M3_TAP_INDEX_BLOCKS ? "block" : "expert";
    if (tap->rank == 0) {
        fprintf(out, "  %s", tap->note);
        return;
    }
    fprintf(out, "  %s %.0f in place of %.0f: %s", noun, tap->got, tap->want, tap->note);
    if (!isnan(tap->gap)) fprintf(out, ", scores %s and %.3gx their bounds apart", tap->scores, tap->gap);
    fprintf(out, "; %" PRId64 " of %" PRId64, tap->choices[M3_CHOICE_INADMISSIBLE], tap->elements);
}

static void print_rows(FILE *out, const struct m3_blamed *tap)
{
    fputs(tap->note, out);
    if (isfinite(tap->row_nearest))
        fprintf(out, "; from the nearest of them by %.3g, they from each other by at most %.3g", tap->row_nearest,
                tap->row_nearest_largest);
}

void m3_print_blamed(FILE *out, const struct m3_blamed *tap)
{
    if (!m3_is_judged(tap->verdict)) {
        fputs(tap->note, out);
        return;
    }
    print_place(out, tap);
    if (tap->selection) {
        print_choice(out, tap);
    } else if (tap->judged_by) {
        print_rows(out, tap);
    } else {
        fprintf(out, "  got %.9g  want %.9g  ", tap->got, tap->want);
        if (isfinite(tap->tiers.headroom)) fprintf(out, "%.3g%% of allowed", 100 * tap->tiers.headroom);
        else fputs(isnan(tap->got) ? "NaN" : "nothing is allowed", out);
        fprintf(out, "; %" PRId64 " of %" PRId64 ";", tap->tiers.hard, tap->elements);
        if (tap->tiers.tiers != 0) fputc(' ', out);
        m3_print_tiers(out, tap->tiers.tiers, " ");
        m3_print_parameter(out, &tap->tiers.parameter);
        if (tap->note[0]) fprintf(out, "; %s", tap->note);
    }
    if (tap->operators == 2) fprintf(out, "; with the operator of %s, which was not dumped", tap->since);
    else if (tap->operators > 2)
        fprintf(out, "; with the %" PRId64 " operators from %s on that were not dumped", tap->operators - 1,
                tap->since);
    fprintf(out, "  (%s, SPEC %s)", tap->operator, tap->section);
}

static void print_tap(FILE *out, const struct m3_blamed *tap, int width)
{
    fprintf(out, "%-14s  %-*s  %-15s  ", m3_verdict_text(tap->verdict), width, tap->name, tap->operator);
    if (!m3_is_judged(tap->verdict)) {
        fprintf(out, "%s\n", tap->note);
        return;
    }
    if (isnan(tap->inherited)) fprintf(out, "%9s  %9.3g  ", "-", tap->created);
    else fprintf(out, "%9.3g  %9.3g  ", tap->inherited, tap->created);
    if (tap->selection) {
        fprintf(out, "%9s  %s", "-", m3_choice_text(tap->choice));
    } else {
        fprintf(out, "%9.3g  ", tap->allowed);
        m3_print_share(out, tap->tiers.headroom, 9);
        if (tap->tiers.tiers != 0) fputc(' ', out);
        m3_print_tiers(out, tap->tiers.tiers, " ");
    }
    if (tap->left_out)
        fprintf(out, "  %" PRId64 " of %" PRId64 " %s", tap->rows, tap->rows + tap->left_out,
                m3_plural(tap->rows + tap->left_out, "rows"));
    fputc('\n', out);
    if (tap->verdict == M3_VERDICT_PASS) return;
    fprintf(out, "%s  %s  ", tap->verdict == M3_VERDICT_FAIL ? "FAIL" : "SUSPECT", tap->name);
    m3_print_blamed(out, tap);
    fputc('\n', out);
}

static void print_culprit(FILE *out, const struct m3_blame *blame)
{
    const struct m3_blamed *culprit = blame->culprit;
    if (!culprit) return;
    fprintf(out, "culprit  %s  %s, SPEC %s", culprit->name, culprit->operator, culprit->section);
    if (culprit->operators == 2) fprintf(out, "; or the operator of %s, which was not dumped", culprit->since);
    else if (culprit->operators > 2)
        fprintf(out, "; or one of the %" PRId64 " operators from %s on that were not dumped", culprit->operators - 1,
                culprit->since);
    fputc('\n', out);
}

/* ---- the first and the last line */

static const struct m3_blamed *first_of(const struct m3_blame *blame, enum m3_verdict verdict)
{
    for (int64_t i = 0; i < blame->count; i++)
        if (blame->taps[i].verdict == verdict) return &blame->taps[i];
    return NULL;
}

static void print_wrong(FILE *out, const struct m3_blamed *tap)
{
    fprintf(out, "%s", tap->name);
    if (tap->rank > 0) fputc(' ', out);
    print_place(out, tap);
    if (tap->rank == 0) {
        fprintf(out, ": %s", tap->note);
    } else if (tap->selection) {
        const int64_t wrong = tap->choices[M3_CHOICE_INADMISSIBLE];
        fprintf(out, ", %" PRId64 " of %" PRId64 " %s inadmissible", wrong, tap->elements,
                m3_plural(tap->elements, "sets"));
    } else {
        if (isfinite(tap->tiers.headroom)) fprintf(out, ", %.3g%% of what is allowed", 100 * tap->tiers.headroom);
        else fputs(isnan(tap->got) ? ", NaN" : ", where nothing is allowed", out);
        fprintf(out, ", %" PRId64 " of %" PRId64 " %s", tap->tiers.hard, tap->elements,
                m3_plural(tap->elements, "elements"));
    }
    if (tap->operators > 1) fprintf(out, "; next: dump %s too, to see which operator it is", tap->since);
    else fprintf(out, "; next: check the program's %s against SPEC %s", tap->operator, tap->section);
}

static void print_place_and_next(FILE *out, const struct m3_blame *blame)
{
    const struct m3_blamed *incomparable = first_of(blame, M3_VERDICT_NOT_COMPARABLE);
    const struct m3_blamed *first = first_of(blame, M3_VERDICT_NOT_JUDGED);
    if (blame->culprit) print_wrong(out, blame->culprit);
    else if (blame->count == 0) fputs("nothing was judged; next: see the message, --taps, --map or --force", out);
    else if (incomparable)
        fprintf(out, "%s: %s; next: dump it as m3ref run does, or leave it out with --taps", incomparable->name,
                incomparable->note);
    else if (first)
        fprintf(out, "%" PRId64 " %s could not be judged, first %s: %s%s", blame->unjudged,
                m3_plural(blame->unjudged, "taps"), first->name, first->note,
                first->is_blind ? "" : "; next: dump what is missing");
    else
        fprintf(out,
                "%" PRId64 " %s of the candidate the model does not produce for this case; next: --taps without them",
                blame->extra, m3_plural(blame->extra, "taps"));
}

/* "judged end to end: logits alone": a dump of few taps among many says little. */
static void print_few(FILE *out, const struct m3_blame *blame)
{
    enum { FEW = 3 };
    if (blame->judged == 0 || blame->judged > FEW || blame->missing <= blame->judged) return;
    fputs("; judged end to end: ", out);
    int64_t printed = 0;
    for (int64_t i = 0; i < blame->count; i++) {
        if (!m3_is_judged(blame->taps[i].verdict)) continue;
        if (printed > 0) fputs(printed + 1 == blame->judged ? " and " : ", ", out);
        fputs(blame->taps[i].name, out);
        printed++;
    }
    fputs(" alone", out);
}

static void print_headline(FILE *out, const struct m3_blame *blame)
{
    fprintf(out, "%s  ", m3_verdict_text(blame->verdict));
    if (blame->verdict == M3_VERDICT_PASS)
        fprintf(out, "%" PRId64 " of %" PRId64 " %s of the candidate judged", blame->judged, blame->count,
                m3_plural(blame->count, "taps"));
    else print_place_and_next(out, blame);
    m3_print_explained(out, blame->explained_by);
    print_few(out, blame);
    if (blame->missing > 0)
        fprintf(out, "; not held by the candidate: %" PRId64 " %s, %s", blame->missing,
                m3_plural(blame->missing, "taps"), blame->missing_names);
    fputc('\n', out);
}

static void print_last(FILE *out, const struct m3_blame *blame)
{
    fprintf(out, "%s  %" PRId64 " of %" PRId64 " %s judged", m3_verdict_text(blame->verdict), blame->judged,
            blame->count, m3_plural(blame->count, "taps"));
    if (blame->failed) fprintf(out, ", %" PRId64 " fail", blame->failed);
    if (blame->suspect) fprintf(out, ", %" PRId64 " suspect", blame->suspect);
    if (blame->not_judged) fprintf(out, ", %" PRId64 " not judged", blame->not_judged);
    if (blame->extra) fprintf(out, ", %" PRId64 " not in the model", blame->extra);
    if (blame->not_comparable) fprintf(out, ", %" PRId64 " not comparable", blame->not_comparable);
    if (blame->verdict != M3_VERDICT_PASS) {
        fputs("; ", out);
        print_place_and_next(out, blame);
        m3_print_explained(out, blame->explained_by);
    }
    fputc('\n', out);
}

/* ---- the whole */

static int severity(const struct m3_blamed *tap)
{
    static const int of[] = { 0, 3, 4, 1, 2 };
    return of[tap->verdict];
}

/* Worst first; equals in the order of execution. */
static int by_size(const void *a, const void *b)
{
    const struct m3_blamed *x = *(const struct m3_blamed *const *)a, *y = *(const struct m3_blamed *const *)b;
    if (severity(x) != severity(y)) return severity(y) - severity(x);
    const int measured = m3_is_judged(x->verdict) && !x->selection && !y->selection;
    if (measured && x->tiers.headroom != y->tiers.headroom) return x->tiers.headroom < y->tiers.headroom ? 1 : -1;
    return x < y ? -1 : 1;
}

static int is_wrong(const struct m3_blamed *tap)
{
    return tap->verdict == M3_VERDICT_FAIL || tap->verdict == M3_VERDICT_SUSPECT;
}

static int is_listed(const struct m3_blamed *tap, enum m3_report_extent extent)
{
    if (extent == M3_REPORT_SHORT) return tap->verdict != M3_VERDICT_PASS;
    return extent == M3_REPORT_ALL || is_wrong(tap);
}

/* Those that fail, those that are suspect, the others; each in the order of execution. */
static int by_verdict(const void *a, const void *b)
{
    const struct m3_blamed *x = *(const struct m3_blamed *const *)a, *y = *(const struct m3_blamed *const *)b;
    const int first = is_wrong(x) ? severity(x) : 0, second = is_wrong(y) ? severity(y) : 0;
    if (first != second) return second - first;
    return x < y ? -1 : 1;
}

/* Lists the taps of a report: all, those that fail first; or those that do not pass, worst first, the culprit before
 * them. Returns their number. */
static int64_t list_taps(const struct m3_blamed **list, const struct m3_blame *blame, enum m3_report_extent extent)
{
    int64_t count = 0;
    for (int64_t i = 0; i < blame->count; i++)
        if (is_listed(&blame->taps[i], extent)) list[count++] = &blame->taps[i];
    qsort(list, (size_t)count, sizeof(struct m3_blamed *), extent == M3_REPORT_SHORT ? by_size : by_verdict);
    for (int64_t i = count - 1; i > 0 && extent == M3_REPORT_SHORT; i--) {
        if (list[i] != blame->culprit) continue;
        list[i] = list[i - 1];
        list[i - 1] = blame->culprit;
    }
    return count;
}

/* Those that do not fit into `room` lines are counted. Returns the tiers that are named. */
static int print_taps(FILE *out, const struct m3_blamed *const *list, int64_t count, int64_t room)
{
    int width = 3, tiers = 0;
    for (int64_t i = 0; i < count; i++) {
        const int length = (int)strlen(list[i]->name);
        if (length > width) width = length;
    }
    if (count > 0)
        fprintf(out, "%-14s  %-*s  %-15s  %9s  %9s  %9s  %9s\n", "verdict", width, "tap", "operator", "inherited",
                "created", "usual", "worst");
    for (int64_t i = 0, lines = 0; i < count; i++) {
        lines += 1 + (m3_is_judged(list[i]->verdict) && list[i]->verdict != M3_VERDICT_PASS);
        if (lines > room) {
            m3_print_more(out, count - i, "taps");
            break;
        }
        print_tap(out, list[i], width);
        tiers |= is_wrong(list[i]) && !list[i]->selection ? list[i]->tiers.tiers : 0;
    }
    return tiers;
}

int m3_report_blame_text(FILE *out, const struct m3_blame *blame, enum m3_report_extent extent, struct m3_error *error)
{
    if (m3_report_whole(&blame->notes, error)) return M3_INTERNAL;
    const struct m3_blamed **list = calloc((size_t)blame->count + 1, sizeof *list);
    if (!list) return m3_fail_memory(error, "report", (size_t)blame->count * sizeof *list);
    const int64_t count = list_taps(list, blame, extent);
    /* Besides the first and the last line, the table's head, its rest and its legend, and the culprit. */
    const int64_t room = M3_REPORT_LINES - 6 - m3_count_notes(&blame->notes);
    print_headline(out, blame);
    const int tiers = print_taps(out, list, count, extent == M3_REPORT_SHORT ? room : INT64_MAX);
    free(list);
    m3_print_legend(out, tiers);
    if (extent != M3_REPORT_FAILING) m3_print_notes(out, &blame->notes, extent == M3_REPORT_ALL);
    print_culprit(out, blame);
    print_last(out, blame);
    return m3_report_end(out, "report", error);
}
