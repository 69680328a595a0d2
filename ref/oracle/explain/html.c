#include <stdio.h>
#include <string.h>

#include "io/markup.h"
#include "oracle/explain/private/printing.h"
#include "oracle/report/page.h"

static void print_equations(FILE *out, const struct m3_explanation *x)
{
    fputs("<h2>Equation</h2>\n", out);
    for (int i = 0; i < x->equation_count; i++) {
        const struct m3_equation *q = x->equations[i];
        fputs("<pre>", out);
        for (int l = 0; q->lines[l]; l++) {
            if (l) fputs("\n", out);
            m3_print_markup(out, q->lines[l]);
        }
        fputs("</pre>\n<p class=\"quiet\">SPEC ", out);
        m3_print_markup(out, q->section);
        if (q->function) fprintf(out, "; <code>%s</code> in <code>%s</code>", q->function, q->file);
        fputs("</p>\n", out);
    }
}

static void print_steps(FILE *out, const struct m3_explanation *x, int given)
{
    char values[M3_PRINTED];
    fprintf(out, "<h2>%s</h2>\n<table>\n", given ? "Numbers that went in" : "Steps");
    for (int i = 0; i < x->steps.count; i++) {
        const struct m3_explained_step *step = &x->steps.list[i];
        if (!m3_is_printed(step, given)) continue;
        if (step->count == 1 && step->values) m3_print_bits(values, step->type, step->values[0]);
        else m3_print_values(values, step);
        fputs("<tr><td><strong>", out);
        m3_print_markup(out, step->name);
        fputs("</strong></td><td class=\"quiet\">", out);
        m3_print_markup(out, step->formula);
        fputs("</td><td class=\"bits\">", out);
        m3_print_markup(out, values);
        fputs("</td></tr>\n", out);
    }
    fputs("</table>\n", out);
}

static void print_table(FILE *out, const struct m3_explained_table *table)
{
    char text[M3_PRINTED];
    fputs("<h2>", out);
    m3_print_markup(out, table->title);
    fputs("</h2>\n<table><thead><tr>", out);
    for (int c = 0; c < table->columns; c++) {
        fputs("<th class=\"number\">", out);
        m3_print_markup(out, table->heads[c]);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int64_t r = 0; r < table->rows; r++) {
        fputs("<tr>", out);
        for (int c = 0; c < table->columns; c++) {
            m3_print_cell(text, &table->cells[r * table->columns + c]);
            fputs("<td class=\"number\">", out);
            m3_print_markup(out, text);
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table>\n", out);
}

static void print_top(FILE *out, const struct m3_explanation *x)
{
    const char *at = m3_error_lines(&x->notes), *line;
    char text[M3_PRINTED];
    size_t length;
    fputs("<div class=\"top v0\">\n<h1>", out);
    m3_print_markup(out, x->name);
    m3_print_element(text, x);
    fputs(" ", out);
    m3_print_markup(out, text);
    fputs("</h1>\n<p class=\"sentence\">", out);
    m3_print_markup(out, x->words);
    m3_print_result(text, x);
    fputs(": <span class=\"bits\">", out);
    m3_print_markup(out, text);
    fputs("</span></p>\n", out);
    if (x->from[0]) {
        fputs("<p class=\"quiet\">computed from ", out);
        m3_print_markup(out, x->from);
        fputs("</p>\n", out);
    }
    while (at && (line = m3_next_line(&at, &length)) != NULL) {
        fputs("<p>", out);
        m3_print_markup_part(out, line, length);
        fputs("</p>\n", out);
    }
    fputs("</div>\n", out);
}

int m3_explanation_html(FILE *out, const struct m3_explanation *x, const char *command, struct m3_error *error)
{
    char title[160];
    if (m3_notes_whole(&x->notes, error)) return M3_INTERNAL;
    snprintf(title, sizeof title, "m3ref explain: %s", x->name);
    m3_page_begin(out, title, "m3ref explain");
    print_top(out, x);
    print_equations(out, x);
    print_steps(out, x, 1);
    for (int i = 0; i < x->table_count; i++) print_table(out, &x->tables[i]);
    print_steps(out, x, 0);
    fputs("<h2>To repeat it</h2>\n<pre>", out);
    m3_print_markup(out, command);
    fputs("</pre>\n", out);
    m3_page_end(out);
    return m3_report_end(out, "the page", error);
}
