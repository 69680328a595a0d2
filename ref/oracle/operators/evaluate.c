#include "oracle/operators/evaluate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/error/recompute.h"
#include "oracle/judge/align.h"
#include "oracle/operators/derivative.h"
#include "oracle/operators/own_graph.h"

/* Values of one tap: `real` of the engine, or int32_t. */
struct m3_values_of_tap {
    const void *values;
    void *owned;                /* NULL: they are the operand's own memory */
};

struct evaluating {
    const struct m3_fragment *f;
    const struct m3_evaluation_how *how;
    struct m3_evaluation *result;
    struct m3_setting setting;
    struct m3_request request;
    const struct m3_model *model;
    int64_t first, rows;        /* of the text: the rows that are computed together; rows 0: all of the call */
    struct m3_error *error;
};

/* ---- operands in the engine's precision */

static int is_aligned(const struct m3_tensor *t, size_t size) { return (uintptr_t)t->data % size == 0; }

static int take_reals(const struct evaluating *e, struct m3_values_of_tap *to, const struct m3_tensor *t)
{
    const size_t size = e->how->engine->real_bytes;
    if (m3_dtype_bytes(t->dtype) == size && t->dtype != M3_I64 && is_aligned(t, size)) {
        to->values = t->data;
        return M3_OK;
    }
    to->values = to->owned = malloc((size_t)t->count * size + 1);
    if (!to->owned) return m3_fail_memory(e->error, t->name, (size_t)t->count * size);
    const struct m3_weight all = { .data = t->data, .dtype = t->dtype, .rows = 1, .cols = t->count };
    if (size == sizeof(double)) m3_expand_f64(to->owned, &all, 0, 0, t->count);
    else m3_expand_f32(to->owned, &all, 0, 0, t->count);
    return M3_OK;
}

static int take_choices(const struct evaluating *e, struct m3_values_of_tap *to, const struct m3_tensor *t)
{
    const size_t bytes = (size_t)t->count * sizeof(int32_t);
    to->values = to->owned = malloc(bytes + 1);
    if (!to->owned) return m3_fail_memory(e->error, t->name, bytes);
    if (bytes) memcpy(to->owned, t->data, bytes);
    return M3_OK;
}

/* Has it a row for each row of the outputs? */
static int is_by_row(const struct evaluating *e, const char *letters)
{
    return letters[0] == 'T' || (letters[0] == 'P' && m3_operator_by_row(e->f->op));
}

/* Rows [first, first + rows) of an operand that is read row by row. */
static struct m3_tensor rows_of(const struct evaluating *e, const struct m3_operand_row *row, const struct m3_tensor *t)
{
    struct m3_tensor part = *t;
    if (e->rows == 0 || !is_by_row(e, row->letters)) return part;
    const int64_t width = t->count / t->shape[0];
    part.shape[0] = e->rows;
    part.count = e->rows * width;
    if (part.count > 0) part.data = (const char *)t->data + (size_t)(e->first * width) * m3_dtype_bytes(t->dtype);
    return part;
}

/* What a module reads in place of the embedding of the row at position 0. */
static int zero_position_0(const struct evaluating *e, struct m3_values_of_tap *to, const struct m3_tensor *t)
{
    const size_t row = (size_t)(t->count / t->shape[0]) * e->how->engine->real_bytes;
    if (!(e->f->op->kind & M3_LAYER_MODULE)) return M3_OK;
    if (e->request.semantics->mtp_zero_position0 != M3_MTP_ZERO_POSITION0) return M3_OK;
    if (!to->owned) {
        to->owned = malloc((size_t)t->shape[0] * row + 1);
        if (!to->owned) return m3_fail_memory(e->error, t->name, (size_t)t->shape[0] * row);
        memcpy(to->owned, to->values, (size_t)t->shape[0] * row);
        to->values = to->owned;
    }
    for (int64_t r = 0; r < t->shape[0]; r++)
        if (e->request.positions[r] == 0) memset((char *)to->owned + (size_t)r * row, 0, row);
    return M3_OK;
}

static int take_operands(const struct evaluating *e)
{
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS; i++) {
        const struct m3_operand_row *row = &e->f->op->operands[i];
        if (row->role == M3_ROLE_NONE) break;
        if (row->role != M3_ROLE_TAP || e->f->operands[i].rank == 0) continue;
        struct m3_values_of_tap *to = &e->result->taps[row->tap];
        const struct m3_tensor t = rows_of(e, row, &e->f->operands[i]);
        status = m3_tap_table[row->tap].kind == M3_KIND_REALS ? take_reals(e, to, &t) : take_choices(e, to, &t);
        if (!status && row->tap == M3_TAP_EMBED) status = zero_position_0(e, to, &t);
    }
    return status;
}

/* ---- taps */

/* Input i of the operator of a tap: M3_TAPS if there is none. The operator of experts reads what the graph gives to the
 * outputs of experts and to their sum. */
static enum m3_tap input_of(const struct evaluating *e, enum m3_tap tap, int i)
{
    static const enum m3_tap of_experts[] = { M3_TAP_MLP_NORM, M3_TAP_EXPERTS, M3_TAP_EXPERT_WEIGHTS, M3_TAPS };
    enum m3_tap operand;
    int64_t layer;
    if (tap == M3_TAP_ROUTED) return of_experts[i];
    const int64_t own = m3_fragment_layer(e->f, tap);
    if (m3_operator_operand(&operand, &layer, e->model, &e->f->semantics, tap, own, i)) return M3_TAPS;
    if (operand == M3_TAP_PROJECTOR_OUT && e->f->the_case.pictures.P == 0) return M3_TAPS;
    /* A mistake may take the layer for a full one. */
    if (operand == M3_TAP_INDEX_BLOCKS && !m3_config_sparse(&e->model->config, 0)) return M3_TAPS;
    return operand;
}

/* Rows of a tap that are computed. */
static int64_t tap_rows(const struct evaluating *e, enum m3_tap tap)
{
    return is_by_row(e, m3_tap_table[tap].shape) && e->rows > 0
               ? e->rows
               : m3_tap_rows(&e->setting, tap, m3_fragment_layer(e->f, tap));
}

static void *room_for(const struct evaluating *e, enum m3_tap tap)
{
    const int64_t layer = m3_fragment_layer(e->f, tap);
    const size_t size = m3_tap_table[tap].kind == M3_KIND_REALS ? e->how->engine->real_bytes : sizeof(int32_t);
    const int64_t rows = tap_rows(e, tap), width = m3_tap_width(&e->setting, tap, layer);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)rows * size, (size_t)width, &bytes)) return NULL;
    struct m3_values_of_tap *to = &e->result->taps[tap];
    to->values = to->owned = malloc(bytes + 1);
    return to->owned;
}

/* Tells a known mistake which tap comes next. */
static int announce(const struct evaluating *e, enum m3_tap tap, int64_t layer)
{
    const struct m3_force *force = e->how->force;
    if (!force || tap == 0) return M3_OK;
    return force->replace(force->self, tap - 1, layer, NULL, 0, 0, e->error);
}

static int compute(const struct evaluating *e, enum m3_tap wanted)
{
    const enum m3_tap tap = m3_computed_with(wanted), second = m3_computed_beside(tap);
    /* clang-format off */
    struct m3_tap_request r = { .how = &e->request, .tap = tap, .layer = m3_fragment_layer(e->f, tap),
                                .p0 = e->f->the_case.p0 + e->first, .places = e->f->places };
    /* clang-format on */
    int status = M3_OK;
    if (e->result->taps[wanted].values) return M3_OK;
    for (int i = 0; !status && i < M3_TAP_INPUTS; i++) {
        const enum m3_tap input = input_of(e, tap, i);
        if (input == M3_TAPS) break;
        status = compute(e, input);
        r.in[i] = e->result->taps[input].values;
    }
    if (!status) status = announce(e, second < tap ? second : tap, r.layer);
    if (status) return status;
    r.rows = tap_rows(e, tap);
    r.y = room_for(e, tap);
    r.second = second < M3_TAPS ? room_for(e, second) : NULL;
    if (e->f->drawn && tap == M3_TAP_ROUTED)        /* of one row */
        status = m3_drawn_experts_need(e->f->drawn, r.in[1], e->model->config.K, e->how->threads, e->error);
    if (status) return status;
    if (!r.y || (second < M3_TAPS && !r.second)) return m3_fail_memory(e->error, m3_tap_table[tap].name, 0);
    return e->how->engine->tap(e->model, &r, e->error);
}

/* ---- results that are no taps: angles and noise */

static const struct m3_tensor *operand_of_role(const struct m3_fragment *f, enum m3_role role)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++)
        if (f->op->operands[i].role == role && f->operands[i].rank > 0) return &f->operands[i];
    return NULL;
}

static void *own(const struct evaluating *e, enum m3_tap tap, int64_t count)
{
    struct m3_values_of_tap *to = &e->result->taps[tap];
    return to->owned = malloc((size_t)count * e->how->engine->real_bytes + 1);
}

static int64_t computed_rows(const struct evaluating *e) { return e->rows > 0 ? e->rows : m3_fragment_rows(e->f); }

/* cos and sin are kept as if they were the two rotated taps. */
static int compute_angles(const struct evaluating *e, const struct m3_tensor *places)
{
    const enum m3_tap tap = places ? M3_TAP_VISION_Q_ROPE : M3_TAP_Q_ROPE;
    const int64_t rows = computed_rows(e), count = rows * e->f->dims['r'];
    int64_t *wide = places ? malloc((size_t)places->count * sizeof *wide + 1) : NULL;
    /* clang-format off */
    struct m3_tap_request r = { .how = &e->request, .step = M3_STEP_ANGLES, .tap = tap,
                                .layer = m3_fragment_layer(e->f, tap), .rows = rows, .in = { wide },
                                .y = own(e, M3_TAP_Q_ROPE, count), .second = own(e, M3_TAP_K_ROPE, count) };
    /* clang-format on */
    int status = M3_OK;
    if (!r.y || !r.second || (places && !wide)) status = m3_fail_memory(e->error, "angles", (size_t)count);
    for (int64_t i = 0; !status && places && i < places->count; i++) wide[i] = m3_id_at(places, i);
    if (!status) status = e->how->engine->tap(e->model, &r, e->error);
    free(wide);
    return status;
}

static int compute_noise(const struct evaluating *e)
{
    const int64_t rows = computed_rows(e);
    /* clang-format off */
    struct m3_tap_request r = { .how = &e->request, .step = M3_STEP_JITTER, .tap = M3_TAP_ROUTER_LOGITS,
                                .layer = e->f->layer, .rows = rows, .p0 = e->f->the_case.p0 + e->first,
                                .in = { e->result->taps[M3_TAP_MLP_NORM].values },
                                .y = own(e, M3_TAP_ROUTER_LOGITS, rows * e->model->config.H) };
    /* clang-format on */
    if (!r.y) return m3_fail_memory(e->error, "noise", (size_t)rows);
    return e->how->engine->tap(e->model, &r, e->error);
}

/* ---- outputs */

/* The table of angles that is given replaces that of the positions. */
static int rotate_by_table(const struct evaluating *e)
{
    const struct m3_tensor *cos = operand_of_role(e->f, M3_ROLE_COS), *sin = operand_of_role(e->f, M3_ROLE_SIN);
    struct m3_values_of_tap tables[2] = { 0 };
    const struct m3_operand_row by_row = { .letters = "Tr" };
    const struct m3_tensor some[2] = { rows_of(e, &by_row, cos), rows_of(e, &by_row, sin) };
    /* A mistake that rotates more channels has no angles for them. */
    if (e->model->config.R > 2 * e->f->dims['r'])
        return m3_fail(e->error, M3_WRONG, "rope: got angles of %" PRId64 " channels, expected %" PRId64,
                       2 * e->f->dims['r'], e->model->config.R);
    int status = take_reals(e, &tables[0], &some[0]);
    if (!status) status = take_reals(e, &tables[1], &some[1]);
    if (!status) status = announce(e, M3_TAP_Q_ROPE, e->f->layer);
    /* clang-format off */
    struct m3_tap_request r = { .how = &e->request, .tap = M3_TAP_Q_ROPE, .layer = e->f->layer,
                                .rows = computed_rows(e),
                                .in = { e->result->taps[M3_TAP_Q_NORM].values, tables[0].values, tables[1].values } };
    /* clang-format on */
    if (!status && !(r.y = room_for(e, M3_TAP_Q_ROPE))) status = m3_fail_memory(e->error, "y", 0);
    if (!status) status = e->how->engine->tap(e->model, &r, e->error);
    free(tables[0].owned);
    free(tables[1].owned);
    return status;
}

/* The tap under which an output's values are kept. */
static enum m3_tap kept_as(const struct m3_operand_row *output)
{
    switch (output->role) {
    case M3_ROLE_COS: return M3_TAP_Q_ROPE;
    case M3_ROLE_SIN: return M3_TAP_K_ROPE;
    case M3_ROLE_NOISY: return M3_TAP_ROUTER_LOGITS;
    default: return output->tap;
    }
}

static int compute_output(const struct evaluating *e, const struct m3_operand_row *output)
{
    if (output->role == M3_ROLE_SIN) return M3_OK;              /* with cos */
    if (output->role == M3_ROLE_COS) return compute_angles(e, operand_of_role(e->f, M3_ROLE_PLACES));
    if (output->role == M3_ROLE_NOISY) return compute_noise(e);
    if (output->tap == M3_TAP_Q_ROPE && operand_of_role(e->f, M3_ROLE_COS)) return rotate_by_table(e);
    return compute(e, output->tap);
}

static void set_output(const struct evaluating *e, int i)
{
    const struct m3_operand_row *output = &e->f->op->outputs[i];
    struct m3_tensor *t = &e->result->outputs[i];
    const int choices = output->role == M3_ROLE_TAP && m3_tap_table[output->tap].kind != M3_KIND_REALS;
    *t = (struct m3_tensor){ .name = output->name, .count = 1, .data = e->result->taps[kept_as(output)].owned };
    t->dtype = choices ? M3_I32 : e->how->engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;
    t->rank = m3_fragment_shape(t->shape, e->f, output);
    if (e->rows > 0) t->shape[0] = e->rows;
    /* A mistake may choose another number of blocks. */
    if (choices)
        t->shape[t->rank - 1] = m3_config_size(&e->model->config, m3_tap_table[output->tap].shape[t->rank - 1]);
    for (int d = 0; d < t->rank; d++) t->count *= t->shape[d];
    t->bytes = (uint64_t)t->count * m3_dtype_bytes(t->dtype);
}

/* All rows of the call, or e->rows of them from e->first on. */
static int evaluate_rows(struct evaluating *e)
{
    const struct m3_fragment *f = e->f;
    const struct m3_evaluation_how *how = e->how;
    const struct m3_case *c = &f->the_case;
    const int64_t first = f->dims['T'] ? e->first : 0;          /* patches have no ids and positions */
    /* clang-format off */
    e->request = (struct m3_request){ .ids = c->ids + first, .positions = c->positions + first, .T = c->T,
                                      .seen = c->seen, .pictures = &c->pictures, .end_layer = 1, .linear = how->linear,
                                      .semantics = how->semantics ? how->semantics : &f->semantics,
                                      .threads = how->threads, .replacement = how->replacement, .force = how->force };
    /* clang-format on */
    int status = take_operands(e);
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && f->op->outputs[i].role != M3_ROLE_NONE; i++) {
        status = compute_output(e, &f->op->outputs[i]);
        if (!status) set_output(e, i);
    }
    return status;
}

static void forget_taps(struct m3_evaluation *result)
{
    for (int i = 0; result->taps && i < M3_TAPS; i++) free(result->taps[i].owned);
    if (result->taps) memset(result->taps, 0, M3_TAPS * sizeof *result->taps);
}

/* Appends the rows that were just computed to those before. */
static int keep_rows(struct evaluating *e, int64_t before)
{
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && e->f->op->outputs[i].role != M3_ROLE_NONE; i++) {
        struct m3_tensor *t = &e->result->outputs[i];
        const size_t row = (size_t)(t->count / t->shape[0]) * m3_dtype_bytes(t->dtype);
        if (!e->result->rows[i]) e->result->rows[i] = malloc((size_t)e->how->count * row + 1);
        if (!e->result->rows[i]) return m3_fail_memory(e->error, t->name, (size_t)e->how->count * row);
        memcpy((char *)e->result->rows[i] + (size_t)before * row, t->data, (size_t)e->rows * row);
        t->count = t->count / t->shape[0] * e->how->count;
        t->shape[0] = e->how->count;
        t->bytes = (uint64_t)e->how->count * row;
        t->data = e->result->rows[i];
    }
    forget_taps(e->result);
    return M3_OK;
}

/* Does a row of the output depend on other rows of what is read row by row? */
static int needs_all_rows(const struct m3_fragment *f)
{
    const struct m3_operand_row *output = &f->op->outputs[0];
    return !m3_operator_by_row(f->op) || (output->role == M3_ROLE_TAP && output->tap == M3_TAP_FUSED);
}

/* All rows are computed; the listed ones are kept. */
static int evaluate_and_choose(struct evaluating *e)
{
    int status = evaluate_rows(e);
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && e->f->op->outputs[i].role != M3_ROLE_NONE; i++) {
        struct m3_tensor *t = &e->result->outputs[i];
        const size_t row = (size_t)(t->count / t->shape[0]) * m3_dtype_bytes(t->dtype);
        char *to = e->result->rows[i] = malloc((size_t)e->how->count * row + 1);
        if (!to) return m3_fail_memory(e->error, t->name, (size_t)e->how->count * row);
        for (int64_t r = 0; r < e->how->count; r++)
            memcpy(to + (size_t)r * row, (const char *)t->data + (size_t)e->how->rows[r] * row, row);
        t->count = t->count / t->shape[0] * e->how->count;
        t->shape[0] = e->how->count;
        t->bytes = (uint64_t)e->how->count * row;
        t->data = to;
    }
    return status;
}

/* Row by row where the weights of experts are made for a row; otherwise rows that follow each other at once. */
static int evaluate_listed(struct evaluating *e)
{
    const int64_t *rows = e->how->rows, count = e->how->count;
    int status = M3_OK;
    for (int64_t r = 0; !status && r < count; r += e->rows) {
        e->first = rows[r];
        for (e->rows = 1; !e->f->drawn && r + e->rows < count && rows[r + e->rows] == e->first + e->rows;) e->rows++;
        status = evaluate_rows(e);
        if (!status) status = keep_rows(e, r);
    }
    return status;
}

static int evaluate_all_by_row(struct evaluating *e)
{
    const struct m3_evaluation_how *given = e->how;
    struct m3_evaluation_how how = *given;
    how.count = m3_fragment_rows(e->f);
    int64_t *rows = malloc((size_t)how.count * sizeof *rows);
    if (!rows) return m3_fail_memory(e->error, e->f->op->name, (size_t)how.count * sizeof *rows);
    for (int64_t r = 0; r < how.count; r++) rows[r] = r;
    how.rows = rows;
    e->how = &how;
    const int status = evaluate_listed(e);
    e->how = given;
    free(rows);
    return status;
}

int m3_evaluate(struct m3_evaluation *result, const struct m3_fragment *f, const struct m3_evaluation_how *how,
                struct m3_error *error)
{
    struct evaluating e = { .f = f, .how = how, .result = result, .error = error };
    if (f->op->derivative) return m3_evaluate_derivative(result, f, how, error);
    *result = (struct m3_evaluation){ .taps = calloc(M3_TAPS, sizeof *result->taps) };
    if (!result->taps) return m3_fail_memory(error, f->op->name, M3_TAPS * sizeof *result->taps);
    e.model = how->model ? how->model : &f->model;
    e.setting = (struct m3_setting){ .model = e.model, .semantics = &f->semantics, .the_case = &f->the_case };
    if (!how->rows) return f->drawn ? evaluate_all_by_row(&e) : evaluate_rows(&e);
    return needs_all_rows(f) ? evaluate_and_choose(&e) : evaluate_listed(&e);
}

void m3_evaluation_free(struct m3_evaluation *result)
{
    forget_taps(result);
    free(result->taps);
    for (int i = 0; i < M3_OPERATOR_OUTPUTS; i++) free(result->rows[i]);
    *result = (struct m3_evaluation){ 0 };
}
