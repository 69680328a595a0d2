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
#include "oracle/error/tiers/tiers.h"
#include "oracle/report/report.h"
#include "oracle/variants/mistakes.h"

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

/* Exactly one of the two is not NULL. */
static char *in_memory(const struct m3_finding *finding, const struct m3_judgement *ranks)
{
    struct m3_memory_stream memory;
    FILE *out = m3_memory_open(&memory);
    if (out != NULL && finding != NULL) m3_print_finding(out, finding);
    if (out != NULL && ranks != NULL) m3_print_ranks(out, ranks);
    return m3_memory_close(&memory);
}

char *m3_finding(const struct m3_finding *stage) { return in_memory(stage, NULL); }

char *m3_ranks(const struct m3_judgement *comparison) { return in_memory(NULL, comparison); }

void m3_print_ranks(FILE *out, const struct m3_judgement *comparison)
{
    const struct m3_finding *farthest = comparison->envelope.farthest;
    const int64_t ranked = comparison->envelope.ranked;
    if (ranked == 0) fputs("no tap is ranked", out);
    else
        fprintf(out, "percentile %.3g (median of %" PRId64 " %s)", comparison->envelope.percentile, ranked,
                m3_plural(ranked, "taps"));
    fprintf(out, " among %" PRId64 " legitimate %s %s", comparison->envelope.runs, comparison->envelope.profile,
            m3_plural(comparison->envelope.runs, "implementations"));
    if (farthest != NULL)
        fprintf(out, "; farthest %s: percentile %.3g, %.3g with median %.3g and largest %.3g", farthest->tap,
                farthest->percentile, farthest->off.rel_l2, farthest->envelope_median, farthest->envelope_largest);
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
    case M3_TIER_MISTAKE: return "the errors are those that a known mistake makes";
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

struct m3_report_cause m3_cause_of(const struct m3_judgement *all)
{
    const struct m3_finding *first = all->first;
    struct m3_report_cause cause = { .profile_word = all->explained_by[0] ? all->explained_by : NULL };
    if (first == NULL) return cause;
    cause.culprit = first->tap;
    cause.operator_name = first->made_by;
    cause.section = first->section;
    if (first->mistake != NULL) {
        cause.mistake = first->mistake->id;
        cause.mistake_words = first->mistake->what;
    }
    return cause;
}
