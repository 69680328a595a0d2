#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/blame/blame.h"
#include "oracle/report/private/format.h"

static int is_judged(const struct m3_blamed *tap)
{
    return tap->verdict != M3_VERDICT_NOT_JUDGED && tap->verdict != M3_VERDICT_NOT_COMPARABLE;
}

/* The tiers that object, in capitals as SPEC 7.2 has them. */
static void print_tiers(FILE *out, const struct m3_tier_result *result)
{
    for (int i = 0; i < M3_TIERS; i++) {
        if (!(result->tiers & 1 << i)) continue;
        fputc(' ', out);
        for (const char *c = m3_tier_name((enum m3_tier)(1 << i)); *c; c++) fputc(toupper((unsigned char)*c), out);
    }
}

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

/* Where the tap is furthest off, and why that is too much. */
static void print_finding(FILE *out, const struct m3_blamed *tap)
{
    fprintf(out, "%s  %s  ", tap->verdict == M3_VERDICT_FAIL ? "FAIL" : "SUSPECT", tap->name);
    print_place(out, tap);
    if (tap->selection) {
        print_choice(out, tap);
    } else {
        fprintf(out, "  got %.9g  want %.9g  %.3g%% of allowed; %" PRId64 " of %" PRId64 ";", tap->got, tap->want,
                100 * tap->tiers.headroom, tap->tiers.hard, tap->elements);
        print_tiers(out, &tap->tiers);
    }
    if (tap->operators > 1)
        fprintf(out, "; with the %" PRId64 " operators from %s on that were not dumped", tap->operators - 1,
                tap->since);
    fprintf(out, "  (%s, SPEC %s)\n", tap->operator, tap->section);
}

static void print_tap(FILE *out, const struct m3_blamed *tap, int width)
{
    fprintf(out, "%-14s  %-*s  %-15s  ", m3_verdict_words[tap->verdict], width, tap->name, tap->operator);
    if (!is_judged(tap)) {
        fprintf(out, "%s\n", tap->note);
        return;
    }
    fprintf(out, "%9.3g  %9.3g  ", tap->inherited, tap->created);
    if (tap->selection) {
        fprintf(out, "%9s  %s", "-", m3_choice_words[tap->choice]);
    } else {
        fprintf(out, "%9.3g  %8.3g%%", tap->allowed, 100 * tap->tiers.headroom);
        print_tiers(out, &tap->tiers);
    }
    if (tap->left_out) fprintf(out, "  %" PRId64 " of %" PRId64 " rows", tap->rows, tap->rows + tap->left_out);
    fputc('\n', out);
    if (tap->verdict != M3_VERDICT_PASS) print_finding(out, tap);
}

static void print_notes(FILE *out, const struct m3_blame *blame)
{
    const char *at = blame->notes.text, *line;
    size_t length;
    while ((line = m3_next_note(&at, &length)) != NULL) fprintf(out, "note  %.*s\n", (int)length, line);
    if (!blame->culprit) return;
    fprintf(out, "culprit  %s  %s, SPEC %s", blame->culprit->name, blame->culprit->operator, blame->culprit->section);
    if (blame->culprit->operators > 1)
        fprintf(out, "; or one of the %" PRId64 " operators from %s on that were not dumped",
                blame->culprit->operators - 1, blame->culprit->since);
    fputc('\n', out);
}

int m3_blame_text(FILE *out, const struct m3_blame *blame, struct m3_error *error)
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
    print_notes(out, blame);
    fprintf(out, "%s  %" PRId64 " of %" PRId64 " taps judged", m3_status_word(blame->status), blame->judged,
            blame->count);
    if (blame->failed) fprintf(out, ", %" PRId64 " fail", blame->failed);
    if (blame->suspect) fprintf(out, ", %" PRId64 " suspect", blame->suspect);
    if (blame->not_judged) fprintf(out, ", %" PRId64 " not judged", blame->not_judged);
    if (blame->not_comparable) fprintf(out, ", %" PRId64 " not comparable", blame->not_comparable);
    fputc('\n', out);
    if (fflush(out) != 0 || ferror(out)) return m3_fail(error, M3_IO, "report: cannot be written: %s", strerror(errno));
    return M3_OK;
}
