#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle/report/private/format.h"
#include "oracle/report/report.h"

static const char next_token[] = "next token";

/* Colours are used only on a terminal; a verdict also has a text. */
static const char *colour(FILE *out, enum m3_verdict verdict)
{
    static const char *const codes[] = { "\033[32m", "\033[33m", "\033[31m", "\033[2m", "\033[35m", "\033[33m" };
    return isatty(fileno(out)) ? codes[verdict] : "";
}

static const char *plain(FILE *out) { return isatty(fileno(out)) ? "\033[0m" : ""; }

static void print_verdict(FILE *out, enum m3_verdict verdict, int width)
{
    fprintf(out, "%s%-*s%s  ", colour(out, verdict), width, m3_verdict_text(verdict), plain(out));
}

static const char *name_of(const struct m3_comparison *comparison, const struct m3_stage *stage)
{
    return stage == &comparison->next_token ? next_token : stage->tap;
}

static void print_stage(FILE *out, const struct m3_stage *stage, const char *name, int width, int with_precision)
{
    print_verdict(out, stage->verdict, 14);
    fprintf(out, "%-*s  ", width, name);
    if (!m3_is_judged(stage->verdict) || m3_is_without_result(stage)) {
        m3_print_finding(out, stage);
        fputc('\n', out);
        return;
    }
    if (stage->selection) {
        m3_print_choices(out, stage);
        fputc('\n', out);
    } else {
        fprintf(out, "%9.3g  %9.3g  ", stage->rel_l2, stage->max_rel);
        m3_print_share(out, stage->headroom, 9);
        if (stage->rows_left_out > 0)
            fprintf(out, "  %" PRId64 " %s not judged", stage->rows_left_out, m3_plural(stage->rows_left_out, "rows"));
        fputc('\n', out);
    }
    if (stage->verdict == M3_VERDICT_PASS) return;
    fprintf(out, "%s%s%s  %s  ", colour(out, stage->verdict), stage->verdict == M3_VERDICT_FAIL ? "FAIL" : "SUSPECT",
            plain(out), name);
    m3_print_finding(out, stage);
    fputc('\n', out);
    if (!with_precision || stage->selection || stage->effective[0] == '\0') return;
    fputs("      ", out);
    m3_print_precision(out, stage);
    fputc('\n', out);
}

/* Prints a table of the stages; those that do not fit into `room` lines are counted. Returns the tiers that are named. */
static int print_stages(FILE *out, const struct m3_comparison *comparison, const struct m3_stage *const *stages,
                        int64_t count, int64_t room)
{
    int tiers = 0;
    int width = comparison->next_token.tap != NULL ? (int)strlen(next_token) : 3;
    for (int64_t i = 0; i < count; i++) {
        const int length = (int)strlen(name_of(comparison, stages[i]));
        if (length > width) width = length;
    }
    if (count > 0) fprintf(out, "%-14s  %-*s  %9s  %9s  %9s\n", "verdict", width, "tap", "rel L2", "max", "allowed");
    for (int64_t i = 0, lines = 0; i < count; i++) {
        const int is_wrong = m3_is_judged(stages[i]->verdict) && stages[i]->verdict != M3_VERDICT_PASS;
        const int has_precision = room == INT64_MAX || i == 0;
        lines += 1 + is_wrong + (is_wrong && has_precision);
        if (lines > room) {
            m3_print_more(out, count - i, "stages");
            break;
        }
        print_stage(out, stages[i], name_of(comparison, stages[i]), width, has_precision);
        tiers |= is_wrong && !stages[i]->selection ? stages[i]->tiers : 0;
    }
    return tiers;
}

static int severity(const struct m3_stage *stage)
{
    static const int of[] = { 0, 3, 4, 1, 2 };
    return of[stage->verdict];
}

/* Worst first; equals in the order of execution. */
static int by_size(const void *a, const void *b)
{
    const struct m3_stage *x = *(const struct m3_stage *const *)a, *y = *(const struct m3_stage *const *)b;
    if (severity(x) != severity(y)) return severity(y) - severity(x);
    const int measured = m3_is_judged(x->verdict) && !x->selection && !y->selection;
    if (measured && x->headroom != y->headroom) return x->headroom < y->headroom ? 1 : -1;
    return x < y ? -1 : 1;
}

static int is_wrong(const struct m3_stage *stage)
{
    return stage->verdict == M3_VERDICT_FAIL || stage->verdict == M3_VERDICT_SUSPECT;
}

static int is_listed(const struct m3_stage *stage, enum m3_report_extent extent)
{
    if (extent == M3_REPORT_SHORT) return stage->verdict != M3_VERDICT_PASS;
    return extent == M3_REPORT_ALL || is_wrong(stage);
}

/* Those that fail, those that are suspect, the others; each in the order of execution. */
static int by_verdict(const void *a, const void *b)
{
    const struct m3_stage *x = *(const struct m3_stage *const *)a, *y = *(const struct m3_stage *const *)b;
    const int first = is_wrong(x) ? severity(x) : 0, second = is_wrong(y) ? severity(y) : 0;
    if (first != second) return second - first;
    return x < y ? -1 : 1;
}

/* Lists the stages of a report: all, those that fail first; or those that do not pass, worst first, the first
 * divergence before them. Returns their number. */
static int64_t list_stages(const struct m3_stage **list, const struct m3_comparison *comparison,
                           enum m3_report_extent extent)
{
    int64_t count = 0;
    for (int64_t i = 0; i < comparison->count; i++)
        if (is_listed(&comparison->stages[i], extent)) list[count++] = &comparison->stages[i];
    qsort(list, (size_t)count, sizeof(struct m3_stage *), extent == M3_REPORT_SHORT ? by_size : by_verdict);
    for (int64_t i = count - 1; i > 0 && extent == M3_REPORT_SHORT; i--) {
        if (list[i] != comparison->divergence) continue;
        list[i] = list[i - 1];
        list[i - 1] = comparison->divergence;
    }
    const struct m3_stage *token = &comparison->next_token;
    if (token->tap != NULL && (extent == M3_REPORT_ALL || is_wrong(token))) list[count++] = token;
    return count;
}

static void print_end(FILE *out, const struct m3_comparison *comparison)
{
    if (comparison->envelope.runs > 0) {
        fputs("envelope  ", out);
        m3_print_ranks(out, comparison);
        fputc('\n', out);
    }
    if (comparison->divergence != NULL) {
        fputs("note  ", out);
        m3_print_divergence(out, comparison);
        fputc('\n', out);
    }
    print_verdict(out, comparison->verdict, 0);
    m3_print_summary(out, comparison);
    if (comparison->verdict != M3_VERDICT_PASS) {
        fputs("; ", out);
        m3_print_place_and_next(out, comparison);
        m3_print_explained(out, comparison->explained_by);
    }
    fputc('\n', out);
}

int m3_report_text(FILE *out, const struct m3_comparison *comparison, enum m3_report_extent extent,
                   struct m3_error *error)
{
    if (m3_report_whole(&comparison->notes, error)) return M3_INTERNAL;
    const struct m3_stage **list = calloc((size_t)comparison->count + 1, sizeof *list);
    if (list == NULL) return m3_fail_memory(error, "report", (size_t)comparison->count * sizeof *list);
    const int64_t count = list_stages(list, comparison, extent);
    print_verdict(out, comparison->verdict, 0);
    m3_print_headline(out, comparison);
    fputc('\n', out);
    /* Besides the first and the last line, the table's head, its rest and its legend. */
    int64_t room = M3_REPORT_LINES - 5 - m3_count_notes(&comparison->notes);
    room -= (comparison->envelope.runs > 0) + (comparison->divergence != NULL);
    const int tiers = print_stages(out, comparison, list, count, extent == M3_REPORT_SHORT ? room : INT64_MAX);
    free(list);
    m3_print_legend(out, tiers);
    if (extent != M3_REPORT_FAILING) m3_print_notes(out, &comparison->notes, extent == M3_REPORT_ALL);
    print_end(out, comparison);
    return m3_report_end(out, "report", error);
}
