#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights/tensors.h"
#include "oracle/explain/private/explaining.h"

int m3_explain_failed(struct m3_explaining *e, const char *why)
{
    if (e->steps->status) return e->steps->status;
    return e->steps->status = m3_fail(e->error, M3_INTERNAL, "explain: %s: %s", e->to->name, why);
}

void m3_explain_note(struct m3_explaining *e, const char *format, ...)
{
    char line[512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    m3_fail(&e->to->notes, M3_OK, "%s", line);
}

void m3_explain_equation(struct m3_explaining *e, const char *name)
{
    const struct m3_equation *found = NULL;
    for (int i = 0; m3_equation_at(i) && !found; i++)
        if (strcmp(m3_equation_at(i)->name, name) == 0) found = m3_equation_at(i);
    if (found && e->to->equation_count < M3_EXPLAIN_EQUATIONS) e->to->equations[e->to->equation_count++] = found;
}

int64_t m3_explain_last(const struct m3_explaining *e)
{
    const char *shape = m3_tap_table[e->tap].shape;
    return m3_config_size(e->config, shape[strlen(shape) - 1]);
}

/* ---- operands */

void m3_explain_source(const struct m3_explaining *e, char *text, size_t size, enum m3_tap tap, int64_t layer,
                       int64_t row)
{
    char name[96] = "";
    m3_tap_name(name, sizeof name, tap, layer);
    snprintf(text, size, "%s, row %" PRId64 "%s", name, row, e->changed);
}

const float *m3_operand_floats(struct m3_explaining *e, int i)
{
    enum m3_tap tap;
    int64_t layer, row;
    if (!m3_explain_operand(e, i, &tap, &layer, &row)) return m3_kept_row(e, tap, layer, row);
    m3_explain_failed(e, "an operand is missing");
    return NULL;
}

int m3_given_operand(struct m3_explaining *e, const char *name, int i, int64_t at, int64_t n)
{
    char from[112] = "";
    enum m3_tap tap;
    int64_t layer, row;
    const float *x = m3_operand_floats(e, i);
    if (!m3_explain_operand(e, i, &tap, &layer, &row)) m3_explain_source(e, from, sizeof from, tap, layer, row);
    return m3_given_floats(e->steps, name, from, x ? x + at : NULL, n);
}

/* ---- weights */

const struct m3_weight *m3_explain_weight(const struct m3_explaining *e, int i)
{
    return m3_graph_weight(e->how->model, e->how->semantics, e->tap, e->layer, i);
}

struct named {
    const struct m3_model *model;
    const struct m3_weight *weight;
    const char *name;
    char *text;
    size_t size;
};

/* Where a tensor of the table is bound. */
static const void *bound(const struct m3_model *model, const struct m3_tensor_spec *spec)
{
    const char *base = NULL;
    switch (spec->row->where) {
    case M3_IN_MODEL:
    case M3_IN_LM_HEAD: base = (const char *)model; break;
    case M3_IN_EXPERT: base = (const char *)&model->layers[spec->layer].experts[spec->expert]; break;
    case M3_IN_MTP: base = (const char *)&model->mtp[spec->layer]; break;
    case M3_IN_VISION: base = (const char *)&model->vision; break;
    case M3_IN_VISION_LAYER: base = (const char *)&model->vision.layers[spec->layer]; break;
    default: base = (const char *)&model->layers[spec->layer];
    }
    return base + spec->row->field;
}

static int is_named(void *self, const struct m3_tensor_spec *spec)
{
    struct named *n = self;
    if (bound(n->model, spec) != (const void *)n->weight) return 0;
    snprintf(n->text, n->size, "%s", spec->name);
    return 1;
}

void m3_explain_weight_name(const struct m3_explaining *e, char *text, size_t size, const struct m3_weight *w)
{
    const struct m3_model *model = e->how->model;
    struct named n = { .model = model, .weight = w, .text = text, .size = size };
    text[0] = '\0';
    m3_tensors_each(&model->config, model->mtp_modules, m3_tensors_prefix(&model->config), is_named, &n);
    if (w == &model->lm_head && model->config.tied_embeddings) m3_explain_weight_name(e, text, size, &model->embed);
}

/* ---- tables */

struct m3_explained_table *m3_table(struct m3_explaining *e, int columns, const char *const heads[])
{
    if (e->steps->status || e->to->table_count == M3_EXPLAIN_TABLES) return NULL;
    struct m3_explained_table *table = &e->to->tables[e->to->table_count++];
    table->columns = columns;
    for (int i = 0; i < columns; i++) table->heads[i] = heads[i];
    return table;
}

/* The next cell, left to right; NULL after a failure. A row counts from its first cell on. */
static struct m3_cell *next(struct m3_explaining *e, struct m3_explained_table *table)
{
    if (!table || e->steps->status) return NULL;
    if (table->filled == table->room) {
        const int64_t room = table->room ? 2 * table->room : 64;
        struct m3_cell *cells = realloc(table->cells, (size_t)room * sizeof *cells);
        if (!cells) {
            e->steps->status = m3_fail_memory(e->error, "explain", (size_t)room * sizeof *cells);
            return NULL;
        }
        table->cells = cells;
        table->room = room;
    }
    table->rows = table->filled / table->columns + 1;
    table->cells[table->filled] = (struct m3_cell){ .type = M3_STEP_INT };
    return &table->cells[table->filled++];
}

void m3_cell_int(struct m3_explaining *e, struct m3_explained_table *table, int64_t value)
{
    struct m3_cell *cell = next(e, table);
    if (cell) cell->value = (double)value;
}

void m3_cell_float(struct m3_explaining *e, struct m3_explained_table *table, double value)
{
    struct m3_cell *cell = next(e, table);
    if (cell) *cell = (struct m3_cell){ .type = M3_STEP_F32, .value = value };
}

void m3_cell_text(struct m3_explaining *e, struct m3_explained_table *table, const char *format, ...)
{
    struct m3_cell *cell = next(e, table);
    va_list list;
    va_start(list, format);
    if (cell) vsnprintf(cell->text, sizeof cell->text, format, list);
    va_end(list);
}

int64_t *m3_largest(struct m3_explaining *e, int64_t *found, const double *keys, int64_t n, int64_t most)
{
    int64_t *places = m3_steps_scratch(e->steps, most + 1, sizeof *places);
    *found = 0;
    for (int64_t i = 0; places && keys && i < n; i++) {
        int64_t at = *found;
        for (; at > 0 && keys[i] > keys[places[at - 1]]; at--)
            if (at < most) places[at] = places[at - 1];
        if (at < most) places[at] = i;
        if (*found < most) ++*found;
    }
    return places;
}

void m3_table_terms(struct m3_explaining *e, int x, int y, const char *x_name, const char *y_name,
                    const struct m3_weight *w, int64_t row)
{
    const int is_coded = w && w->scaling != M3_UNSCALED;
    const char *const heads[] = { "k", x_name, y_name, "product", "code", "its number", "scale", "zero point" };
    if (e->steps->status) return;
    const double *a = e->steps->list[x].values, *b = e->steps->list[y].values;
    const int64_t n = e->steps->list[x].count;
    double *size = m3_steps_scratch(e->steps, n, sizeof *size), all = 0, shown = 0;
    for (int64_t k = 0; size && k < n; k++) all += size[k] = fabs(a[k] * b[k]);
    int64_t found;
    const int64_t *places = m3_largest(e, &found, size, n, M3_SHOWN_TERMS);
    struct m3_explained_table *table = m3_table(e, is_coded ? 8 : 4, heads);
    for (int64_t i = 0; table && i < found; i++) {
        const int64_t k = places[i];
        m3_cell_int(e, table, k);
        m3_cell_float(e, table, a[k]);
        m3_cell_float(e, table, b[k]);
        m3_cell_float(e, table, (double)((float)a[k] * (float)b[k]));
        shown += size[k];
        if (!is_coded) continue;
        const struct m3_stored stored = m3_weight_stored(w, row, k);
        m3_cell_text(e, table, "%02" PRIx64, stored.code);
        m3_cell_float(e, table, stored.number);
        m3_cell_text(e, table, "%.9g", stored.scale);
        m3_cell_float(e, table, stored.zero);
    }
    if (table)
        snprintf(table->title, sizeof table->title,
                 "the %" PRId64 " largest of the %" PRId64 " terms; they hold %.1f%% of the sum of their sizes", found,
                 n, all > 0 ? 100 * shown / all : 0.0);
}
