#include "oracle/operators/evaluate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/graph/evaluate.h"
#include "ops/outside.h"
#include "oracle/judge/align.h"
#include "oracle/operators/derivative.h"
#include "oracle/operators/parameters.h"

struct evaluating {
    const struct m3_fragment *f;
    const struct m3_evaluation_how *how;
    struct m3_evaluation *result;
    struct m3_evaluator taps;   /* operands, and what is computed of them */
    struct m3_request request;
    const struct m3_model *model;
    int64_t first, rows;        /* of the text: the rows that are computed together; rows 0: all of the call */
    int status;                 /* of what was given */
    struct m3_error *error;
};

/* ---- operands in the engine's precision */

static int is_aligned(const struct m3_tensor *t, size_t size) { return (uintptr_t)t->data % size == 0; }

static int take_reals(const struct evaluating *e, struct m3_tap_values *to, const struct m3_tensor *t)
{
    const size_t size = e->how->engine->real_bytes;
    if (m3_dtype_bytes(t->dtype) == size && t->dtype != M3_I64 && is_aligned(t, size)) {
        to->data = (void *)(uintptr_t)t->data;
        to->is_borrowed = 1;
        return M3_OK;
    }
    to->data = malloc((size_t)t->count * size + 1);
    if (!to->data) return m3_fail_memory(e->error, t->name, (size_t)t->count * size);
    const struct m3_weight all = { .data = t->data, .dtype = t->dtype, .rows = 1, .cols = t->count };
    if (size == sizeof(double)) m3_expand_f64(to->data, &all, 0, 0, t->count);
    else m3_expand_f32(to->data, &all, 0, 0, t->count);
    return M3_OK;
}

static int take_choices(const struct evaluating *e, struct m3_tap_values *to, const struct m3_tensor *t)
{
    const size_t bytes = (size_t)t->count * sizeof(int32_t);
    to->data = malloc(bytes + 1);
    if (!to->data) return m3_fail_memory(e->error, t->name, bytes);
    if (bytes) memcpy(to->data, t->data, bytes);
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
static int zero_position_0(const struct evaluating *e, struct m3_tap_values *to, const struct m3_tensor *t)
{
    const size_t row = (size_t)(t->count / t->shape[0]) * e->how->engine->real_bytes;
    if (!(e->f->op->kind & M3_LAYER_MODULE)) return M3_OK;
    if (e->request.semantics->mtp_zero_position0 != M3_MTP_ZERO_POSITION0) return M3_OK;
    if (to->is_borrowed) {
        void *own = malloc((size_t)t->shape[0] * row + 1);
        if (!own) return m3_fail_memory(e->error, t->name, (size_t)t->shape[0] * row);
        memcpy(own, to->data, (size_t)t->shape[0] * row);
        to->data = own;
        to->is_borrowed = 0;
    }
    for (int64_t r = 0; r < t->shape[0]; r++)
        if (e->request.positions[r] == 0) memset((char *)to->data + (size_t)r * row, 0, row);
    return M3_OK;
}

static int take_operand(const struct evaluating *e, struct m3_tap_values *values, int i)
{
    const struct m3_operand_row *row = &e->f->op->operands[i];
    const struct m3_tensor t = rows_of(e, row, &e->f->operands[i]);
    const int is_real = m3_tap_table[row->tap].kind == M3_KIND_REALS;
    const int status = is_real ? take_reals(e, values, &t) : take_choices(e, values, &t);
    return !status && row->tap == M3_TAP_EMBED ? zero_position_0(e, values, &t) : status;
}

/* ---- taps */

/* Operands are given. Where the weights of experts are drawn, those of the row are made before its experts run. */
static enum m3_given give(void *self, struct m3_tap_values *values)
{
    struct evaluating *e = self;
    for (int i = 0; i < M3_OPERATOR_OPERANDS && e->f->op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *row = &e->f->op->operands[i];
        if (row->role != M3_ROLE_TAP || row->tap != values->tap || e->f->operands[i].rank == 0) continue;
        e->status = take_operand(e, values, i);
        return e->status ? M3_LACKING : M3_GIVEN;
    }
    if (!e->f->drawn || m3_computed_with(values->tap) != M3_TAP_ROUTED) return M3_NOT_GIVEN;
    struct m3_tap_values ids;
    const int status = m3_evaluate_tap(&ids, &e->taps, M3_TAP_EXPERTS, values->layer, values->first, values->rows);
    if (!e->status) e->status = status;
    if (!e->status)
        e->status = m3_drawn_experts_need(e->f->drawn, ids.data, e->model->config.K, e->how->threads, e->error);
    return e->status ? M3_LACKING : M3_NOT_GIVEN;
}

/* Rows of a tap that are computed. */
static int64_t tap_rows(const struct evaluating *e, enum m3_tap tap)
{
    if (is_by_row(e, m3_tap_table[tap].shape) && e->rows > 0) return e->rows;
    return m3_case_rows(&e->f->the_case, &e->model->config, tap, m3_fragment_layer(e->f, tap));
}

static int compute(struct m3_tap_values *values, struct evaluating *e, enum m3_tap tap)
{
    const int status = m3_evaluate_tap(values, &e->taps, tap, m3_fragment_layer(e->f, tap), 0, tap_rows(e, tap));
    return e->status ? e->status : status;
}

/* ---- results that are no taps */

static const struct m3_tensor *operand_of_role(const struct m3_fragment *f, enum m3_role role)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++)
        if (f->op->operands[i].role == role && f->operands[i].rank > 0) return &f->operands[i];
    return NULL;
}

/* [count] numbers that are kept as if they were a tap; NULL: memory is short. */
static void *own(struct evaluating *e, enum m3_tap tap, int64_t count)
{
    struct m3_tap_values values = { .tap = tap, .layer = m3_fragment_layer(e->f, tap), .rows = 1, .width = count };
    if (m3_tap_values_room(&values, e->how->engine->real_bytes, e->error)) return NULL;
    return m3_evaluator_keep(&e->taps, &values) ? NULL : values.data;
}

static int64_t computed_rows(const struct evaluating *e) { return e->rows > 0 ? e->rows : m3_fragment_rows(e->f); }

/* An operand as the operator reads it: reals of the engine, int32_t or int64_t. */
static int take_named(struct evaluating *e, struct m3_outside_call *call, int i, struct m3_tap_values *owned)
{
    const struct m3_operand_row *row = &e->f->op->operands[i];
    const struct m3_tensor t = rows_of(e, row, &e->f->operands[i]);
    struct m3_outside_operand *o = &call->operand[call->operands++];
    const int is_id = m3_holds_ids(&t);
    int status = is_id ? M3_OK : take_reals(e, owned, &t);
    *o = (struct m3_outside_operand){ .name = row->name, .rank = t.rank };
    for (int d = 0; d < t.rank; d++) o->shape[d] = t.shape[d];
    if (is_id) owned->data = malloc((size_t)t.count * sizeof(int64_t) + 1);
    if (is_id && !owned->data) status = m3_fail_memory(e->error, row->name, (size_t)t.count * sizeof(int64_t));
    for (int64_t k = 0; is_id && !status && k < t.count; k++) {
        if (row->role == M3_ROLE_IDS) ((int32_t *)owned->data)[k] = (int32_t)m3_id_at(&t, k);
        else ((int64_t *)owned->data)[k] = m3_id_at(&t, k);
    }
    o->data = owned->data;
    return status;
}

/* Outputs are kept as if they were taps, one after the other. */
static enum m3_tap place_of(const struct evaluating *e, const struct m3_operand_row *output)
{
    return (enum m3_tap)(M3_TAP_Q_PROJ + (int)(output - e->f->op->outputs));
}

static int take_outputs(struct evaluating *e, struct m3_outside_call *call)
{
    for (int i = 0; i < m3_operator_outputs(e->f->op); i++) {
        const struct m3_operand_row *output = &e->f->op->outputs[i];
        struct m3_outside_operand *o = &call->operand[call->operands++];
        int64_t shape[M3_MAX_RANK], count = 1;
        *o = (struct m3_outside_operand){ .name = output->name, .is_output = 1 };
        o->rank = m3_fragment_shape(shape, e->f, output);
        if (e->rows > 0) shape[0] = e->rows;
        for (int d = 0; d < o->rank; d++) count *= o->shape[d] = shape[d];
        if (!(o->data = own(e, place_of(e, output), count))) return M3_INTERNAL;
    }
    return M3_OK;
}

/* A known mistake has a config and a reading of its own. */
static void take_parameters(const struct evaluating *e, struct m3_outside_call *call, char words[][M3_PARAMETER_TEXT])
{
    const struct m3_parameters in = { .config = (struct m3_config *)(uintptr_t)&e->model->config,
                                      .semantics = (struct m3_semantics *)(uintptr_t)e->request.semantics,
                                      .p0 = e->f->the_case.p0 + e->first,
                                      .id = e->model->config.vision.image_token,
                                      .in_vision = (e->f->op->kind & M3_LAYER_VISION) != 0 };
    const struct m3_call_parameter *p;
    for (int i = 0; (p = m3_parameter_in(NULL, e->f->op->parameters, i)) != NULL; i++) {
        struct m3_outside_parameter *to = &call->parameter[call->parameters++];
        *to = (struct m3_outside_parameter){ .name = p->name };
        if (p->type == M3_PARAMETER_WORD) to->word = m3_parameter_word(words[i], &in, p);
        else to->number = m3_parameter_number(&in, p);
    }
}

/* The operator alone, by the names of its operands: no model has it at a tap. */
static int call_by_name(struct evaluating *e, struct m3_outside_call *call)
{
    const struct m3_replacement *own_ops = e->how->replacement;
    struct m3_ctx ctx;
    if (m3_ctx_init(&ctx, e->how->threads, e->how->linear)) return m3_fail_memory(e->error, "a context", sizeof ctx);
    ctx.plugin = own_ops ? own_ops->state : NULL;
    int status = e->how->engine->call(&ctx, own_ops ? own_ops->ops : e->how->engine->ops, call);
    if (status == M3_INTERNAL) status = m3_fail_memory(e->error, call->op, 0);
    else if (status)
        status = m3_fail(e->error, M3_WRONG, "%s: %s", call->op,
                         ctx.failure.what ? ctx.failure.what : "got operands that the operator refuses");
    m3_ctx_free(&ctx);
    return status;
}

static int compute_by_name(struct evaluating *e)
{
    struct m3_outside_call call = { .op = e->f->op->name };
    struct m3_tap_values owned[M3_OPERATOR_OPERANDS] = { 0 };
    char words[M3_OUTSIDE_PARAMETERS][M3_PARAMETER_TEXT];
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS && e->f->op->operands[i].role != M3_ROLE_NONE; i++)
        if (e->f->operands[i].rank > 0) status = take_named(e, &call, i, &owned[i]);
    if (!status) status = take_outputs(e, &call);
    if (!status) take_parameters(e, &call, words);
    /* A mistake that turns other channels needs another table. */
    if (!status && e->f->dims['r'] && e->model->config.R != 2 * e->f->dims['r'])
        status = m3_fail(e->error, M3_WRONG, "%s: got %" PRId64 " channels, expected %" PRId64, call.op,
                         e->model->config.R, 2 * e->f->dims['r']);
    if (!status) status = call_by_name(e, &call);
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++) m3_tap_values_free(&owned[i]);
    return status;
}

static int compute_noise(struct evaluating *e)
{
    const int64_t rows = computed_rows(e);
    struct m3_tap_values x;
    const int status = compute(&x, e, M3_TAP_MLP_NORM);
    if (status) return status;
    struct m3_tap_request r = { .how = &e->request,
                                .step = M3_STEP_JITTER,
                                .tap = M3_TAP_ROUTER_LOGITS,
                                .layer = x.layer,
                                .rows = rows,
                                .p0 = e->f->the_case.p0 + e->first,
                                .in = { x.data },
                                .y = own(e, M3_TAP_ROUTER_LOGITS, rows * e->model->config.H) };
    return r.y ? e->how->engine->tap(e->model, &r, e->error) : M3_INTERNAL;
}

/* ---- outputs */

/* The table of angles that is given replaces that of the positions. */
static int rotate_by_table(struct evaluating *e)
{
    const struct m3_tensor *cos = operand_of_role(e->f, M3_ROLE_COS), *sin = operand_of_role(e->f, M3_ROLE_SIN);
    struct m3_tap_values tables[2] = { 0 }, x;
    const struct m3_operand_row by_row = { .letters = "Tr" };
    const int64_t layer = m3_fragment_layer(e->f, M3_TAP_Q_ROPE);
    const struct m3_tensor some[2] = { rows_of(e, &by_row, cos), rows_of(e, &by_row, sin) };
    /* A mistake that rotates more channels has no angles for them. */
    if (e->model->config.R > 2 * e->f->dims['r'])
        return m3_fail(e->error, M3_WRONG, "rope: got angles of %" PRId64 " channels, expected %" PRId64,
                       2 * e->f->dims['r'], e->model->config.R);
    int status = take_reals(e, &tables[0], &some[0]);
    if (!status) status = take_reals(e, &tables[1], &some[1]);
    if (!status) status = compute(&x, e, M3_TAP_Q_NORM);
    if (!status) status = m3_evaluator_announce(&e->taps, M3_TAP_Q_ROPE, layer);
    if (!status) {
        struct m3_tap_request r = { .how = &e->request,
                                    .tap = M3_TAP_Q_ROPE,
                                    .layer = layer,
                                    .rows = x.rows,
                                    .in = { x.data, tables[0].data, tables[1].data },
                                    .y = own(e, M3_TAP_Q_ROPE, x.rows * x.width) };
        status = r.y ? e->how->engine->tap(e->model, &r, e->error) : M3_INTERNAL;
    }
    m3_tap_values_free(&tables[0]);
    m3_tap_values_free(&tables[1]);
    return status;
}

/* The tap under which an output's values are kept. */
static enum m3_tap kept_as(const struct evaluating *e, const struct m3_operand_row *output)
{
    switch (output->role) {
    case M3_ROLE_COS:
    case M3_ROLE_SIN:
    case M3_ROLE_RESULT: return place_of(e, output);
    case M3_ROLE_NOISY: return M3_TAP_ROUTER_LOGITS;
    default: return output->tap;
    }
}

static int compute_output(struct evaluating *e, const struct m3_operand_row *output)
{
    if (kept_as(e, output) == place_of(e, output)) return output == e->f->op->outputs ? compute_by_name(e) : M3_OK;
    if (output->role == M3_ROLE_NOISY) return compute_noise(e);
    if (output->tap == M3_TAP_Q_ROPE && operand_of_role(e->f, M3_ROLE_COS)) return rotate_by_table(e);
    struct m3_tap_values values;
    return compute(&values, e, output->tap);
}

static void set_output(const struct evaluating *e, int i)
{
    const struct m3_operand_row *output = &e->f->op->outputs[i];
    struct m3_tensor *t = &e->result->outputs[i];
    const int choices = output->role == M3_ROLE_TAP && m3_tap_table[output->tap].kind != M3_KIND_REALS;
    const enum m3_tap tap = kept_as(e, output);
    const struct m3_tap_values *values = m3_evaluated(&e->taps, tap, m3_fragment_layer(e->f, tap));
    *t = (struct m3_tensor){ .name = output->name, .count = 1, .data = values ? values->data : NULL };
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
    e->request = (struct m3_request){ .ids = c->ids + first,
                                      .positions = c->positions + first,
                                      .T = c->T,
                                      .seen = c->seen,
                                      .pictures = &c->pictures,
                                      .end_layer = 1,
                                      .linear = how->linear,
                                      .semantics = how->semantics ? how->semantics : &f->semantics,
                                      .threads = how->threads,
                                      .replacement = how->replacement,
                                      .force = how->force };
    e->taps = (struct m3_evaluator){
        .engine = how->engine,
        .named = e->model,
        .model = e->model,
        .how = &e->request,
        .the_case = c,
        .p0 = c->p0 + e->first,
        .patches = m3_operator_by_row(f->op) ? e->rows : 0,
        .give = give,
        .self = e,
        .error = e->error,
    };
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && f->op->outputs[i].role != M3_ROLE_NONE; i++) {
        status = compute_output(e, &f->op->outputs[i]);
        if (!status) set_output(e, i);
    }
    return status;
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
    m3_evaluator_forget(&e->taps);
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
    *result = (struct m3_evaluation){ 0 };
    e.model = how->model ? how->model : &f->model;
    int status;
    if (!how->rows) status = f->drawn ? evaluate_all_by_row(&e) : evaluate_rows(&e);
    else status = needs_all_rows(f) ? evaluate_and_choose(&e) : evaluate_listed(&e);
    result->taps = e.taps.known;
    result->tap_count = e.taps.count;
    return status;
}

void m3_evaluation_free(struct m3_evaluation *result)
{
    for (int i = 0; i < result->tap_count; i++) m3_tap_values_free(&result->taps[i]);
    free(result->taps);
    for (int i = 0; i < M3_OPERATOR_OUTPUTS; i++) free(result->rows[i]);
    *result = (struct m3_evaluation){ 0 };
}
