#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/explain/private/printing.h"
#include "oracle/report/page.h"

static void print_equations(FILE *out, const struct m3_explanation *x)
{
    fputs("\nequation\n", out);
    for (int i = 0; i < x->equation_count; i++) {
        const struct m3_equation *q = x->equations[i];
        for (int l = 0; q->lines[l]; l++) fprintf(out, "  %s\n", q->lines[l]);
        fprintf(out, "      SPEC %s", q->section);
        if (q->function) fprintf(out, "; %s in %s", q->function, q->file);
        fputs("\n", out);
    }
}

/* The steps that were given, or those that follow; names in a column of their own. */
static void print_steps(FILE *out, const struct m3_explanation *x, int given)
{
    char values[M3_PRINTED];
    int wide = 0, formulas = 0, number = 0;
    for (int i = 0; i < x->steps.count; i++) {
        const struct m3_explained_step *step = &x->steps.list[i];
        if (!m3_is_printed(step, given)) continue;
        wide = (int)m3_max(wide, (int64_t)strlen(step->name));
        formulas = (int)m3_max(formulas, (int64_t)strlen(step->formula));
    }
    fprintf(out, "\n%s\n", given ? "numbers that went in" : "steps");
    for (int i = 0; i < x->steps.count; i++) {
        const struct m3_explained_step *step = &x->steps.list[i];
        if (!m3_is_printed(step, given)) continue;
        if (step->count == 1 && step->values) m3_print_bits(values, step->type, step->values[0]);
        else m3_print_values(values, step);
        if (given) fprintf(out, "  %-*s  %s  (%s)\n", wide, step->name, values, step->formula);
        else fprintf(out, "  %2d  %-*s  %-*s  = %s\n", ++number, wide, step->name, formulas, step->formula, values);
    }
    if (!given && number == 0) fputs("  none: the number is copied\n", out);
}

static void print_table(FILE *out, const struct m3_explained_table *table)
{
    char text[M3_PRINTED];
    int width[M3_TABLE_COLUMNS] = { 0 };
    for (int c = 0; c < table->columns; c++) {
        width[c] = (int)strlen(table->heads[c]);
        for (int64_t r = 0; r < table->rows; r++) {
            m3_print_cell(text, &table->cells[r * table->columns + c]);
            width[c] = (int)m3_max(width[c], (int64_t)strlen(text));
        }
    }
    fprintf(out, "\n%s\n", table->title);
    for (int64_t r = -1; r < table->rows; r++) {
        for (int c = 0; c < table->columns; c++) {
            if (r < 0) snprintf(text, sizeof text, "%s", table->heads[c]);
            else m3_print_cell(text, &table->cells[r * table->columns + c]);
            fprintf(out, "  %*s", width[c], text);
        }
        fputs("\n", out);
    }
}

int m3_explanation_text(FILE *out, const struct m3_explanation *x, struct m3_error *error)
{
    char element[M3_PRINTED], result[M3_PRINTED];
    const char *at = m3_error_lines(&x->notes), *line;
    size_t length;
    if (m3_notes_whole(&x->notes, error)) return M3_INTERNAL;
    m3_print_element(element, x);
    m3_print_result(result, x);
    fprintf(out, "%s %s = %s: %s\n", x->name, element, result, x->words);
    if (x->from[0]) fprintf(out, "computed from %s\n", x->from);
    print_equations(out, x);
    print_steps(out, x, 1);
    for (int i = 0; i < x->table_count; i++) print_table(out, &x->tables[i]);
    if (at) fputs("\n", out);
    while (at && (line = m3_next_line(&at, &length)) != NULL) fprintf(out, "%.*s\n", (int)length, line);
    print_steps(out, x, 0);
    fprintf(out, "\n= %s\n", result);
    return m3_report_end(out, "the explanation", error);
}
