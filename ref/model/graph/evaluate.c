#include "model/graph/evaluate.h"

#include <stdlib.h>
#include <string.h>

const struct m3_tap_values *m3_evaluated(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer)
{
    for (int i = 0; i < e->count; i++)
        if (e->known[i].tap == tap && e->known[i].layer == layer) return &e->known[i];
    return NULL;
}

void m3_evaluator_forget(struct m3_evaluator *e)
{
    for (int i = 0; i < e->count; i++) m3_tap_values_free(&e->known[i]);
    free(e->known);
    e->known = NULL;
    e->count = e->room = 0;
}

int m3_evaluator_keep(struct m3_evaluator *e, struct m3_tap_values *values)
{
    if (e->count == e->room) {
        const int room = 2 * e->room + 16;
        struct m3_tap_values *known = realloc(e->known, (size_t)room * sizeof *known);
        if (!known) {
            m3_tap_values_free(values);
            return m3_fail_memory(e->error, m3_tap_table[values->tap].name, (size_t)room * sizeof *known);
        }
        e->known = known;
        e->room = room;
    }
    e->known[e->count++] = *values;
    return M3_OK;
}

int64_t m3_evaluator_layer(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer)
{
    const int is_of_text = m3_tap_is_of_layers(tap) && layer >= 0 && m3_mtp_module_of(layer) < 0;
    return is_of_text ? layer - e->dropped : layer;
}

static int64_t rows_of(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer)
{
    const char rows = m3_tap_table[tap].shape[0];
    if (rows == 'P' && e->patches > 0) return e->patches;
    return m3_case_rows(e->the_case, &e->model->config, tap, layer);
}

static struct m3_tap_values values_of(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer, int64_t first,
                                      int64_t rows)
{
    const int64_t width = m3_case_width(e->the_case, &e->model->config, tap, m3_evaluator_layer(e, tap, layer));
    return (struct m3_tap_values){ .tap = tap, .layer = layer, .first = first, .rows = rows, .width = width };
}

/* Is input i of the call not read? Without pictures nothing is scattered, and a mistake may take a layer for a full
 * one. */
static int is_left_out(const struct m3_evaluator *e, const struct m3_node *input)
{
    const struct m3_config *c = &e->model->config;
    if (!m3_case_makes(e->the_case, input->tap)) return 1;
    if (input->tap != M3_TAP_INDEX_BLOCKS) return 0;
    return !m3_config_sparse(c, m3_layer_index(c, m3_evaluator_layer(e, input->tap, input->layer)));
}

/* Rows of an input: those of the node, and of keys and values also all before them; of pictures all. */
static int read_input(const void **data, struct m3_evaluator *e, const struct m3_node *node, int i,
                      const struct m3_node *input, int64_t first, int64_t rows)
{
    const int is_key = (node->op == M3_OP_ATTEND && (i == 1 || i == 2)) || (node->op == M3_OP_BLOCK_SCORES && i == 1);
    struct m3_tap_values values;
    int status;
    if (m3_tap_table[input->tap].shape[0] != 'T')
        status = m3_evaluate_tap(&values, e, input->tap, input->layer, 0, rows_of(e, input->tap, input->layer));
    else if (is_key) status = m3_evaluate_tap(&values, e, input->tap, input->layer, 0, first + rows);
    else status = m3_evaluate_tap(&values, e, input->tap, input->layer, first, rows);
    *data = status ? NULL : values.data;
    return status;
}

int m3_evaluator_announce(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer)
{
    const struct m3_force *force = e->how->force;
    if (!force || tap == 0) return M3_OK;
    return force->replace(force->self, tap - 1, layer, NULL, 0, 0, e->error);
}

/* The same numbers in another shape, or under another name. */
static int copy(struct m3_evaluator *e, struct m3_tap_values *y, const void *x, int64_t layer)
{
    const struct m3_force *force = e->how->force;
    memcpy(y->data, x, (size_t)(y->rows * y->width) * e->engine->real_bytes);
    return force ? force->replace(force->self, y->tap, layer, y->data, 0, y->rows, e->error) : M3_OK;
}

/* Calls the operator of a node, whose inputs are known, and keeps what it makes. */
static int call(struct m3_evaluator *e, const struct m3_node *node, struct m3_tap_request *r, int64_t first)
{
    const enum m3_tap tap = node->tap, second = m3_computed_beside(tap);
    struct m3_tap_values y = values_of(e, tap, node->layer, first, r->rows), z = { .data = NULL };
    int status = m3_tap_values_room(&y, e->engine->real_bytes, e->error);
    if (!status && second < M3_TAPS) {
        z = values_of(e, second, node->layer, first, r->rows);
        status = m3_tap_values_room(&z, e->engine->real_bytes, e->error);
    }
    r->y = y.data;
    r->second = z.data;
    if (!status) status = m3_evaluator_announce(e, second < tap ? second : tap, r->layer);
    if (!status)
        status = node->op == M3_OP_COPY ? copy(e, &y, r->in[0], r->layer) : e->engine->tap(e->model, r, e->error);
    if (status) {
        m3_tap_values_free(&y);
        m3_tap_values_free(&z);
        return status;
    }
    status = m3_evaluator_keep(e, &y);
    if (!z.data) return status;
    if (!status) return m3_evaluator_keep(e, &z);
    m3_tap_values_free(&z);
    return status;
}

int m3_evaluate_call(struct m3_evaluator *e, enum m3_tap wanted, int64_t layer, int64_t first, int64_t rows)
{
    const enum m3_tap tap = m3_computed_with(wanted);
    const struct m3_node *node = m3_graph_made(e->named, e->how->semantics, tap, layer), *input;
    const int64_t places = e->the_case->p0 + m3_case_rows(e->the_case, &e->model->config, tap, layer);
    struct m3_tap_request r = { .how = e->how,
                                .tap = tap,
                                .layer = m3_evaluator_layer(e, tap, layer),
                                .p0 = e->p0 + first,
                                .rows = rows,
                                .places = places };
    int status = M3_OK;
    if (node->op == M3_OP_NONE) return M3_WRONG;
    for (int i = 0; i < M3_TAP_INPUTS && !status && (input = m3_call_input(node, i)) != NULL; i++) {
        if (is_left_out(e, input)) break;
        status = read_input(&r.in[i], e, node, i, input, first, rows);
    }
    return status ? status : call(e, node, &r, first);
}

int m3_evaluate_tap(struct m3_tap_values *values, struct m3_evaluator *e, enum m3_tap tap, int64_t layer, int64_t first,
                    int64_t rows)
{
    const struct m3_tap_values *known = m3_evaluated(e, tap, layer);
    int status = M3_OK;
    if (!known) {
        struct m3_tap_values mine = values_of(e, tap, layer, first, rows);
        switch (e->give ? e->give(e->self, &mine) : M3_NOT_GIVEN) {
        case M3_GIVEN: status = m3_evaluator_keep(e, &mine); break;
        case M3_NOT_GIVEN: status = m3_evaluate_call(e, tap, layer, first, rows); break;
        case M3_MADE: break;
        case M3_LACKING: return M3_WRONG;
        }
        known = m3_evaluated(e, tap, layer);
    }
    if (status) return status;
    if (!known || known->first != first || known->rows != rows) return M3_WRONG;
    *values = *known;
    return M3_OK;
}
