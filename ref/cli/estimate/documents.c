#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/estimate/estimate.h"

/* "1,234.50 GiB" */
struct figure {
    char text[96];
};

/* A value in the unit of the printed figure, which is "14.3 GiB", "98x" or "1.7e10"; with two more digits, but none
 * after a whole number that was printed as one, or without a unit. */
static struct figure in_unit_of(const struct m3_printed *row, const struct m3_judgement *judgement)
{
    const struct m3_printed_number *printed = &judgement->printed;
    const double value = judgement->ours / printed->scale;
    const int whole = (printed->decimals == 0 || !*printed->unit) && value == floor(value);
    const char *blank = printed->unit > row->printed && printed->unit[-1] == ' ' ? " " : "";
    struct figure f = { "-" };
    char plain[64];
    if (!isfinite(value)) return f;
    int length = snprintf(plain, sizeof plain, "%.*f", whole ? 0 : printed->decimals + 2, fabs(value));
    int digits = (int)strcspn(plain, "."), out = 0;
    if (fabs(value) >= 1e20) {
        snprintf(f.text, sizeof f.text, "%.6e%s%s", value, blank, printed->unit);
        return f;
    }
    if (value < 0) f.text[out++] = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && i < digits && (digits - i) % 3 == 0) f.text[out++] = ',';
        f.text[out++] = plain[i];
    }
    snprintf(f.text + out, sizeof f.text - (size_t)out, "%s%s", blank, printed->unit);
    return f;
}

/* The conditions of the figure, after the name of the model: " (T=1M w=fp8)". */
static struct figure condition(const struct m3_printed *row)
{
    struct figure f = { "" };
    const char *blank = strchr(row->setting, ' ');
    if (blank) snprintf(f.text, sizeof f.text, " (%s)", blank + 1);
    return f;
}

struct line {
    const struct m3_document *document;
    const struct m3_printed *row;
    struct m3_judgement judgement;
};

static void print_line(const struct line *line)
{
    const struct m3_printed *row = line->row;
    printf("| %s %s | %s%s | %s | %s | %s |\n", line->document->name, row->place, row->what, condition(row).text,
           row->printed, in_unit_of(row, &line->judgement).text, row->erratum ? row->erratum : "-");
}

static int is_about(const struct m3_printed *row, const char *model)
{
    size_t length = strlen(model);
    return strncmp(row->setting, model, length) == 0 && (row->setting[length] == '\0' || row->setting[length] == ' ');
}

/* A figure must differ if and only if it has an erratum; otherwise this is not the model of the documents. */
static int judge_line(struct line *line, const struct m3_subject *subject, struct m3_error *error)
{
    const struct m3_printed *row = line->row;
    int status = m3_printed_judge(&line->judgement, row, subject, error);
    const enum m3_reproduction expected = row->erratum ? M3_REPRODUCTION_DIFFERS : M3_REPRODUCTION_REPRODUCED;
    if (status || !row->formula || line->judgement.verdict == expected) return status;
    return m3_fail(error, M3_USAGE, "--documents: %s %s: %s: got %s, expected %s%s: a model of other sizes",
                   line->document->name, row->place, row->what, in_unit_of(row, &line->judgement).text,
                   row->erratum ? "another figure than " : "", row->printed);
}

/* Fills lines[*count], which has room for every row of every document. */
static int judge_lines(struct line *lines, int *count, const char *model, const struct m3_subject *subject,
                       struct m3_error *error)
{
    int status = M3_OK;
    *count = 0;
    for (int d = 0; d < M3_DOCUMENTS; d++)
        for (int i = 0; !status && i < m3_documents[d].count; i++) {
            if (!is_about(&m3_documents[d].rows[i], model)) continue;
            lines[*count] = (struct line){ .document = &m3_documents[d], .row = &m3_documents[d].rows[i] };
            status = judge_line(&lines[(*count)++], subject, error);
        }
    return status;
}

int m3_cli_estimate_documents(const struct m3_estimate *e, struct m3_error *error)
{
    struct m3_census room;
    const struct m3_subject subject = m3_subject_of(e, &room);
    const char *model = m3_document_model(e);
    int count = 0;
    if (!model)
        return m3_fail(error, M3_USAGE,
                       "--documents: got a model of other sizes, expected one for which documents "
                       "print figures");
    for (int d = 0; d < M3_DOCUMENTS; d++) count += m3_documents[d].count;
    struct line *lines = malloc((size_t)count * sizeof *lines);
    if (!lines) return m3_fail_memory(error, "the figures", (size_t)count * sizeof *lines);
    int status = judge_lines(lines, &count, model, &subject, error);
    if (!status) printf("| place | what | printed | ours | erratum |\n|---|---|---|---|---|\n");
    for (int i = 0; !status && i < count; i++) print_line(&lines[i]);
    free(lines);
    return status;
}

void m3_cli_estimate_errata(const struct m3_cli_marks *marks)
{
    if (marks->count) printf("\ndocuments print these figures differently (golden/documents/README.md, appendix B)\n");
    for (int i = 0; i < marks->count; i++) {
        const struct m3_mark *mark = &marks->marks[i];
        printf("  %s  %s %s: %s: printed %s, here %s\n", mark->row->erratum, mark->document, mark->row->place,
               mark->row->what, mark->row->printed, in_unit_of(mark->row, &mark->judgement).text);
    }
}
