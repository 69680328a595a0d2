#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/blame/blame.h"
#include "oracle/report/private/format.h"
#include "oracle/report/report.h"

static void print_place(FILE *out, const struct m3_blamed *tap)
{
    const char *letters = m3_tap_table[tap->tap].shape;
    for (int i = 0; i < tap->rank; i++)
        fprintf(out, "%s%c=%" PRId64, i == 0 ? "[" : ", ", tolower((unsigned char)letters[i]), tap->index[i]);
    fputs("]", out);
}

static void print_choice(FILE *out, const struct m3_blamed *tap)
{
    const char *noun = tap->tap == M3_TAP_INDEX_BLOCKS ? "block" : "expert";
    fprintf(out, "  %s %.0f for %.0f: %s", noun, tap->got, tap->want, tap->note);
    if (!isnan(tap->gap)) fprintf(out, ", scores %s and %.3gx their bounds apart", tap->scores, tap->gap);
    fprintf(out, "; %" PRId64 " of %" PRId64, tap->choices[M3_CHOICE_INADMISSIBLE], tap->elements);
}

/* Prints where the tap's error is largest, and why it is too large. */
static void print_finding(FILE *out, const struct m3_blamed *tap)
{
    fprintf(out, "%s  %s  ", tap->verdict == M3_VERDICT_FAIL ? "FAIL" : "SUSPECT", tap->name);
    print_place(out, tap);
    if (tap->selection) {
        print_choice(out, tap);
    } else {
        fprintf(out, "  got %.9g  want %.9g  %.3g%% of allowed; %" PRId64 " of %" PRId64 ";", tap->got, tap->want,
                100 * tap->tiers.headroom, tap->tiers.hard, tap->elements);
        if (tap->tiers.tiers != 0) fputc(' ', out);
        m3_print_tiers(out, tap->tiers.tiers, " ");
    }
    if (tap->operators > 1)
        fprintf(out, "; with the %" PRId64 " operators from %s on that were not dumped", tap->operators - 1,
                tap->since);
    fprintf(out, "  (%s, SPEC %s)\n", tap->operator, tap->section);
}

static void print_tap(FILE *out, const struct m3_blamed *tap, int width)
{
    fprintf(out, "%-14s  %-*s  %-15s  ", m3_verdict_text(tap->verdict), width, tap->name, tap->operator);
    if (!m3_is_judged(tap->verdict)) {
        fprintf(out, "%s\n", tap->note);
        return;
    }
    fprintf(out, "%9.3g  %9.3g  ", tap->inherited, tap->created);
    if (tap->selection) {
        fprintf(out, "%9s  %s", "-", m3_choice_text(tap->choice));
    } else {
        fprintf(out, "%9.3g  %8.3g%%", tap->allowed, 100 * tap->tiers.headroom);
        if (tap->tiers.tiers != 0) fputc(' ', out);
        m3_print_tiers(out, tap->tiers.tiers, " ");
    }
    if (tap->left_out) fprintf(out, "  %" PRId64 " of %" PRId64 " rows", tap->rows, tap->rows + tap->left_out);
    fputc('\n', out);
    if (tap->verdict != M3_VERDICT_PASS) print_finding(out, tap);
}

static void print_culprit(FILE *out, const struct m3_blame *blame)
{
    if (!blame->culprit) return;
    fprintf(out, "culprit  %s  %s, SPEC %s", blame->culprit->name, blame->culprit->operator, blame->culprit->section);
    if (blame->culprit->operators > 1)
        fprintf(out, "; or one of the %" PRId64 " operators from %s on that were not dumped",
                blame->culprit->operators - 1, blame->culprit->since);
    fputc('\n', out);
}

int m3_report_blame_text(FILE *out, const struct m3_blame *blame, struct m3_error *error)
{
    int width = 3;
    for (int64_t i = 0; i < blame->count; i++) {
        int length = (int)strlen(blame->taps[i].name);
        if (length > width) width = length;
    }
    if (blame->count > 0)
        fprintf(out, "%-14s  %-*s  %-15s  %9s  %9s  %9s  %9s\n", "verdict", width, "tap", "operator", "inherited",
                "created", "allowed", "worst");
    for (int64_t i = 0; i < blame->count; i++) print_tap(out, &blame->taps[i], width);
    m3_print_notes(out, &blame->notes);
    print_culprit(out, blame);
    fprintf(out, "%s  %" PRId64 " of %" PRId64 " taps judged", m3_verdict_text(blame->verdict), blame->judged,
            blame->count);
    if (blame->failed) fprintf(out, ", %" PRId64 " fail", blame->failed);
    if (blame->suspect) fprintf(out, ", %" PRId64 " suspect", blame->suspect);
    if (blame->not_judged) fprintf(out, ", %" PRId64 " not judged", blame->not_judged);
    if (blame->not_comparable) fprintf(out, ", %" PRId64 " not comparable", blame->not_comparable);
    fputc('\n', out);
    return m3_report_end(out, "report", error);
}
