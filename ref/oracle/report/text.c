#include <inttypes.h>
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

/* `name` may differ from the stage's. */
static void print_stage(FILE *out, const struct m3_stage *stage, const char *name, int width)
{
    fprintf(out, "%s%-14s%s  %-*s  ", colour(out, stage->verdict), m3_verdict_text(stage->verdict), plain(out), width,
            name);
    if (!m3_is_judged(stage->verdict)) {
        m3_print_finding(out, stage);
        fputc('\n', out);
        return;
    }
    if (stage->selection) {
        m3_print_choices(out, stage);
        fputc('\n', out);
    } else {
        fprintf(out, "%9.3g  %9.3g  %8.3g%%", stage->rel_l2, stage->max_rel, 100 * stage->headroom);
        if (stage->rows_left_out > 0) fprintf(out, "  %" PRId64 " rows not judged", stage->rows_left_out);
        fputc('\n', out);
    }
    if (stage->verdict == M3_VERDICT_PASS) return;
    fprintf(out, "%s%s%s  %s  ", colour(out, stage->verdict), stage->verdict == M3_VERDICT_FAIL ? "FAIL" : "SUSPECT",
            plain(out), name);
    m3_print_finding(out, stage);
    fputc('\n', out);
    if (stage->selection || stage->effective[0] == '\0') return;
    fputs("      ", out);
    m3_print_precision(out, stage);
    fputc('\n', out);
}

int m3_report_text(FILE *out, const struct m3_comparison *comparison, struct m3_error *error)
{
    int width = comparison->next_token.tap != NULL ? (int)strlen(next_token) : 3;
    for (int64_t i = 0; i < comparison->count; i++) {
        int length = (int)strlen(comparison->stages[i].tap);
        if (length > width) width = length;
    }
    if (comparison->count > 0)
        fprintf(out, "%-14s  %-*s  %9s  %9s  %9s\n", "verdict", width, "tap", "rel L2", "max", "allowed");
    for (int64_t i = 0; i < comparison->count; i++)
        print_stage(out, &comparison->stages[i], comparison->stages[i].tap, width);
    if (comparison->next_token.tap != NULL) print_stage(out, &comparison->next_token, next_token, width);
    m3_print_notes(out, &comparison->notes);
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
    fprintf(out, "%s%s%s  ", colour(out, comparison->verdict), m3_verdict_text(comparison->verdict), plain(out));
    m3_print_summary(out, comparison);
    fputc('\n', out);
    return m3_report_end(out, "report", error);
}
