/* The report on a terminal: the verdict with its place and the next step, the taps in a table, those that fail first,
 * what the words mean, the notes, and the verdict again. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle/judge/check/check.h"
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

/* ---- one row of the table */

static const char *name_of(const struct m3_judgement *all, const struct m3_finding *f)
{
    return f == &all->next_token ? next_token : f->tap;
}

static void print_recomputed_numbers(FILE *out, const struct m3_finding *f)
{
    if (isnan(f->inherited)) fprintf(out, "%9s  %9.3g  ", "-", f->created);
    else fprintf(out, "%9.3g  %9.3g  ", f->inherited, f->created);
    if (f->selection) {
        fprintf(out, "%9s  %s", "-", m3_choice_text(f->choice));
    } else {
        fprintf(out, "%9.3g  ", f->allowed);
        m3_print_share(out, f->tiers.headroom, 9);
        if (f->tiers.tiers != 0) fputc(' ', out);
        m3_print_tiers(out, f->tiers.tiers, " ");
    }
    if (f->rows_left_out > 0)
        fprintf(out, "  %" PRId64 " of %" PRId64 " %s", f->rows, f->rows + f->rows_left_out,
                m3_plural(f->rows + f->rows_left_out, "rows"));
}

static void print_compared_numbers(FILE *out, const struct m3_finding *f)
{
    if (f->selection) {
        m3_print_choices(out, f);
        return;
    }
    fprintf(out, "%9.3g  %9.3g  ", f->off.rel_l2, f->off.max_rel);
    m3_print_share(out, f->tiers.headroom, 9);
    if (f->rows_left_out > 0)
        fprintf(out, "  %" PRId64 " %s not judged", f->rows_left_out, m3_plural(f->rows_left_out, "rows"));
}

/* The line that says what is wrong, and for floats that were compared how precise they look. */
static void print_wrong(FILE *out, const struct m3_finding *f, const char *name, int with_precision)
{
    fprintf(out, "%s%s%s  %s  ", colour(out, f->verdict), f->verdict == M3_VERDICT_FAIL ? "FAIL" : "SUSPECT",
            plain(out), name);
    m3_print_finding(out, f);
    fputc('\n', out);
    if (!with_precision || f->made_by != NULL || f->selection || f->off.effective[0] == '\0') return;
    fputs("      ", out);
    m3_print_precision(out, f);
    fputc('\n', out);
}

static void print_row(FILE *out, const struct m3_finding *f, const char *name, int width, int with_precision)
{
    print_verdict(out, f->verdict, 14);
    fprintf(out, "%-*s  ", width, name);
    if (f->made_by != NULL) fprintf(out, "%-15s  ", f->made_by);
    if (!m3_is_judged(f->verdict) || m3_is_without_result(f)) {
        m3_print_finding(out, f);
        fputc('\n', out);
        return;
    }
    (f->made_by != NULL ? print_recomputed_numbers : print_compared_numbers)(out, f);
    fputc('\n', out);
    if (f->verdict != M3_VERDICT_PASS) print_wrong(out, f, name, with_precision);
}

/* ---- the table */

static int severity(const struct m3_finding *f)
{
    static const int of[] = { 0, 3, 4, 1, 2 };
    return of[f->verdict];
}

/* Worst first; equals in the order of execution. */
static int by_size(const void *a, const void *b)
{
    const struct m3_finding *x = *(const struct m3_finding *const *)a, *y = *(const struct m3_finding *const *)b;
    if (severity(x) != severity(y)) return severity(y) - severity(x);
    const int measured = m3_is_judged(x->verdict) && !x->selection && !y->selection;
    if (measured && x->tiers.headroom != y->tiers.headroom) return x->tiers.headroom < y->tiers.headroom ? 1 : -1;
    return x < y ? -1 : 1;
}

/* Those that fail, those that are suspect, the others; each in the order of execution. */
static int by_verdict(const void *a, const void *b)
{
    const struct m3_finding *x = *(const struct m3_finding *const *)a, *y = *(const struct m3_finding *const *)b;
    const int first = m3_finding_is_wrong(x) ? severity(x) : 0, second = m3_finding_is_wrong(y) ? severity(y) : 0;
    if (first != second) return second - first;
    return x < y ? -1 : 1;
}

static int is_listed(const struct m3_finding *f, enum m3_report_extent extent)
{
    if (extent == M3_REPORT_SHORT) return f->verdict != M3_VERDICT_PASS;
    return extent == M3_REPORT_ALL || m3_finding_is_wrong(f);
}

/* Lists the taps of a report: all, those that fail first; or those that do not pass, worst first, the first wrong one
 * before them. Returns their number. */
static int64_t list(const struct m3_finding **listed, const struct m3_judgement *all, enum m3_report_extent extent)
{
    int64_t count = 0;
    for (int64_t i = 0; i < all->count; i++)
        if (is_listed(&all->findings[i], extent)) listed[count++] = &all->findings[i];
    qsort(listed, (size_t)count, sizeof(struct m3_finding *), extent == M3_REPORT_SHORT ? by_size : by_verdict);
    for (int64_t i = count - 1; i > 0 && extent == M3_REPORT_SHORT; i--) {
        if (listed[i] != all->first) continue;
        listed[i] = listed[i - 1];
        listed[i - 1] = all->first;
    }
    const struct m3_finding *token = &all->next_token;
    if (token->tap != NULL && (extent == M3_REPORT_ALL || m3_finding_is_wrong(token))) listed[count++] = token;
    return count;
}

static void print_head(FILE *out, const struct m3_judgement *all, int width)
{
    if (all->is_recomputed)
        fprintf(out, "%-14s  %-*s  %-15s  %9s  %9s  %9s  %9s\n", "verdict", width, "tap", "operator", "inherited",
                "created", "usual", "worst");
    else fprintf(out, "%-14s  %-*s  %9s  %9s  %9s\n", "verdict", width, "tap", "rel L2", "max", "allowed");
}

/* Those that do not fit into `room` lines are counted. Returns the tiers that are named. */
static int print_table(FILE *out, const struct m3_judgement *all, const struct m3_finding *const *listed, int64_t count,
                       int64_t room)
{
    int tiers = 0, width = all->next_token.tap != NULL ? (int)strlen(next_token) : 3;
    for (int64_t i = 0; i < count; i++) {
        const int length = (int)strlen(name_of(all, listed[i]));
        if (length > width) width = length;
    }
    if (count > 0) print_head(out, all, width);
    for (int64_t i = 0, lines = 0; i < count; i++) {
        const struct m3_finding *f = listed[i];
        const int is_wrong = m3_finding_is_wrong(f), has_precision = room == INT64_MAX || i == 0;
        lines += 1 + is_wrong + (is_wrong && has_precision && !all->is_recomputed);
        if (lines > room) {
            m3_print_more(out, count - i, m3_noun_of(all));
            break;
        }
        print_row(out, f, name_of(all, f), width, has_precision);
        tiers |= is_wrong && !f->selection ? f->tiers.tiers : 0;
    }
    return tiers;
}

/* ---- the end */

/* What is first wrong: the operator, or the tap where the candidate leaves the reference. */
static void print_first(FILE *out, const struct m3_judgement *all)
{
    if (all->is_recomputed) {
        fprintf(out, "culprit  %s  %s, SPEC %s", all->first->tap, all->first->made_by, all->first->section);
        m3_print_other_operators(out, all->first, "or the operator of", "or one of");
    } else {
        fputs("note  ", out);
        m3_print_divergence(out, all);
    }
    fputc('\n', out);
}

static void print_end(FILE *out, const struct m3_judgement *all)
{
    if (all->envelope.runs > 0) {
        fputs("envelope  ", out);
        m3_print_ranks(out, all);
        fputc('\n', out);
    }
    if (all->first != NULL) print_first(out, all);
    print_verdict(out, all->verdict, 0);
    (all->is_recomputed ? m3_print_counts : m3_print_summary)(out, all);
    if (all->verdict != M3_VERDICT_PASS) {
        fputs("; ", out);
        m3_print_place_and_next(out, all);
        m3_print_explained(out, all->explained_by);
    }
    fputc('\n', out);
}

int m3_report_text(FILE *out, const struct m3_judgement *all, enum m3_report_extent extent, struct m3_error *error)
{
    if (m3_report_whole(&all->notes, error)) return M3_INTERNAL;
    const struct m3_finding **listed = calloc((size_t)all->count + 1, sizeof *listed);
    if (listed == NULL) return m3_fail_memory(error, "report", (size_t)all->count * sizeof *listed);
    const int64_t count = list(listed, all, extent);
    if (all->rows_judged < all->rows)
        fprintf(out, "rows  %" PRId64 " of %" PRId64 " judged; --rows all judges every row\n", all->rows_judged,
                all->rows);
    print_verdict(out, all->verdict, 0);
    m3_print_headline(out, all);
    fputc('\n', out);
    /* Besides the first and the last line, the table's head, its rest and its legend. */
    int64_t room = M3_REPORT_LINES - 5 - m3_count_notes(&all->notes);
    room -= (all->envelope.runs > 0) + (all->first != NULL || all->is_recomputed);
    const int tiers = print_table(out, all, listed, count, extent == M3_REPORT_SHORT ? room : INT64_MAX);
    free(listed);
    m3_print_legend(out, tiers);
    if (extent != M3_REPORT_FAILING) m3_print_notes(out, &all->notes, extent == M3_REPORT_ALL);
    print_end(out, all);
    return m3_report_end(out, "report", error);
}

int m3_report_check_text(FILE *out, const struct m3_check *check, enum m3_report_extent extent, struct m3_error *error)
{
    const int status = m3_report_text(out, &check->blame, extent, error);
    if (status) return status;
    fprintf(out, "%s: %s\n", m3_verdict_name(check->blame.verdict), check->sentence);
    return m3_report_end(out, "report", error);
}
