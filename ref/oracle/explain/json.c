#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "oracle/explain/explain.h"
#include "oracle/explain/private/printing.h"

/* Longer arrays are left out: they are the tensors of a dump, or of the model. */
enum { MOST_NUMBERS = 65536 };

static json_t *numbers(const struct m3_explained_step *step)
{
    if (step->count > MOST_NUMBERS) return json_null();
    json_t *all = json_array();
    for (int64_t i = 0; i < step->count; i++) {
        double value = step->values ? step->values[i] : 0;
        float single;
        if (!step->values) {
            m3_expand_f32(&single, &step->matrix, i / step->matrix.cols, i % step->matrix.cols, 1);
            value = (double)single;
        }
        m3_json_append(all, step->type == M3_STEP_INT ? json_integer((json_int_t)value) : m3_json_number(value));
    }
    return all;
}

static json_t *operands(const struct m3_explained_step *step)
{
    json_t *all = json_array();
    for (int i = 0; i < M3_STEP_OPERANDS && step->of[i] >= 0; i++) m3_json_append(all, json_integer(step->of[i]));
    return all;
}

static int print_step(FILE *out, const struct m3_explained_step *step, int number, struct m3_error *error)
{
    static const char *const types[] = { "f32", "f64", "int" };
    json_t *line = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:I}", "type", "step", "step", number, "name", step->name,
                             "formula", step->formula, "by", m3_by_name(step->by), "number", types[step->type], "count",
                             (json_int_t)step->count);
    m3_json_set(line, "of", operands(step));
    if (!step->values) m3_json_set(line, "columns", json_integer(step->matrix.cols));
    m3_json_set(line, "values", numbers(step));
    return m3_json_line(out, line, error);
}

static int print_table(FILE *out, const struct m3_explained_table *table, struct m3_error *error)
{
    json_t *line = json_pack("{s:s, s:s}", "type", "table", "title", table->title);
    json_t *heads = json_array(), *rows = json_array();
    for (int c = 0; c < table->columns; c++) m3_json_append(heads, json_string(table->heads[c]));
    for (int64_t r = 0; r < table->rows; r++) {
        json_t *row = json_array();
        for (int c = 0; c < table->columns; c++) {
            const struct m3_cell *cell = &table->cells[r * table->columns + c];
            m3_json_append(row, cell->text[0]               ? json_string(cell->text)
                                : cell->type == M3_STEP_INT ? json_integer((json_int_t)cell->value)
                                                            : m3_json_number(cell->value));
        }
        m3_json_append(rows, row);
    }
    m3_json_set(line, "columns", heads);
    m3_json_set(line, "rows", rows);
    return m3_json_line(out, line, error);
}

static int print_notes(FILE *out, const struct m3_explanation *x, struct m3_error *error)
{
    const char *at = m3_error_lines(&x->notes), *line;
    size_t length;
    int status = M3_OK;
    while (!status && at && (line = m3_next_line(&at, &length)) != NULL)
        status = m3_json_line(out, json_pack("{s:s, s:s%}", "type", "note", "text", line, length), error);
    return status;
}

static json_t *equations(const struct m3_explanation *x)
{
    json_t *all = json_array();
    for (int i = 0; i < x->equation_count; i++) {
        const struct m3_equation *q = x->equations[i];
        json_t *one = json_pack("{s:s, s:s?, s:s?, s:s}", "operator", q->name, "function", q->function, "file", q->file,
                                "section", q->section);
        json_t *lines = json_array();
        for (int l = 0; q->lines[l]; l++) m3_json_append(lines, json_string(q->lines[l]));
        m3_json_set(one, "lines", lines);
        m3_json_append(all, one);
    }
    return all;
}

static json_t *summary(const struct m3_explanation *x)
{
    const struct m3_explained_step *result = &x->steps.list[x->result];
    const float single = (float)result->values[0];
    uint32_t word;
    char bits[16];
    memcpy(&word, &single, sizeof word);
    snprintf(bits, sizeof bits, "%08" PRIx32, word);
    json_t *line = json_pack("{s:s, s:s, s:I, s:s, s:s}", "type", "summary", "tap", x->name, "token",
                             (json_int_t)x->row, "what", x->words, "from", x->from);
    json_t *index = json_array();
    for (int i = 0; i < x->rank; i++) m3_json_append(index, json_integer(x->index[i]));
    m3_json_set(line, "index", index);
    m3_json_set(line, "step", json_integer(x->result));
    if (result->type == M3_STEP_INT) {
        m3_json_set(line, "ids", numbers(result));
    } else {
        m3_json_set(line, "value", m3_json_number(result->values[0]));
        m3_json_set(line, "bits", json_string(bits));
    }
    m3_json_set(line, "equations", equations(x));
    return line;
}

int m3_explanation_json(FILE *out, const struct m3_explanation *x, struct m3_error *error)
{
    int status = m3_notes_whole(&x->notes, error);
    for (int i = 0; !status && i < x->steps.count; i++) status = print_step(out, &x->steps.list[i], i, error);
    for (int i = 0; !status && i < x->table_count; i++) status = print_table(out, &x->tables[i], error);
    if (!status) status = print_notes(out, x, error);
    return status ? status : m3_json_line(out, summary(x), error);
}
