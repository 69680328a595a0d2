#include "oracle/operators/derivative.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/room.h"
#include "oracle/error/backward/derivative.h"
#include "oracle/judge/align.h"
#include "oracle/operators/own_graph.h"

/* ---- operands */

/* Is the operand a matrix of weights, or no part of the derivative's operands? */
static int is_apart(const struct m3_operand_row *row)
{
    const int is_matrix = row->role == M3_ROLE_WEIGHT && strlen(row->letters) > 1;
    return is_matrix || row->role == M3_ROLE_EXPERTS || row->role == M3_ROLE_SEEN;
}

static int is_choice(const struct m3_operand_row *row)
{
    return row->role == M3_ROLE_TAP && m3_tap_table[row->tap].kind == M3_KIND_CHOICES;
}

/* Reals in the engine's precision, ids in int32_t, ends in int64_t. */
static void *operand(const struct m3_operand_row *row, const struct m3_tensor *t, size_t real_bytes)
{
    const int is_id = row->role == M3_ROLE_IDS || is_choice(row);
    const size_t size = is_id ? sizeof(int32_t) : row->role == M3_ROLE_ENDS ? sizeof(int64_t) : real_bytes;
    void *x = m3_room((size_t)t->count + 1, size);
    const struct m3_weight all = { .data = t->data, .dtype = t->dtype, .rows = 1, .cols = t->count };
    if (!x) return NULL;
    if (is_id)
        for (int64_t i = 0; i < t->count; i++) ((int32_t *)x)[i] = (int32_t)m3_id_at(t, i);
    else if (row->role == M3_ROLE_ENDS)
        for (int64_t i = 0; i < t->count; i++) ((int64_t *)x)[i] = m3_id_at(t, i);
    else if (real_bytes == sizeof(double)) m3_expand_f64(x, &all, 0, 0, t->count);
    else m3_expand_f32(x, &all, 0, 0, t->count);
    return x;
}

static void set_sizes(struct m3_derivative_request *r, const struct m3_fragment *f)
{
    const struct m3_config *c = &f->model.config;
    const int64_t *d = f->dims;
    const struct m3_tensor *dy = &f->operands[0];
    const int in_vision = (f->op->kind & M3_LAYER_VISION) != 0;
    r->T = dy->shape[0], r->H = dy->shape[dy->rank - 1];
    r->V = d['V'], r->E = d['E'], r->K = d['K'], r->F = d['F'], r->M = d['M'];
    r->heads = d['Q'], r->R = c->R;
    r->segments = f->the_case.pictures.images + f->the_case.pictures.videos;
    r->id = (int32_t)c->vision.image_token;
    r->eps = in_vision ? c->vision.eps : c->eps, r->factor = c->routed_scaling;
    r->alpha = c->swiglu_alpha, r->limit = c->swiglu_limit;
    r->oai = c->oai, r->clamp = f->semantics.gate_clamp;
    r->attend = (struct m3_attend){ .T = d['T'],
                                    .p0 = f->the_case.p0,
                                    .Q = d['Q'],
                                    .G = d['G'],
                                    .D = d['D'],
                                    .seen = f->the_case.seen,
                                    .block = c->block,
                                    .N = d['N'],
                                    .selection = f->semantics.selection };
    if (f->op->derivative == M3_DERIVATIVE_ATTEND_SEGMENTS)
        r->attend = (struct m3_attend){ .T = d['P'], .Q = d['A'], .G = d['A'], .D = d['U'] };
}

int m3_derivative_call_make(struct m3_derivative_call *call, const struct m3_fragment *f,
                            const struct m3_engine *engine, int threads, struct m3_error *error)
{
    struct m3_derivative_request *r = &call->request;
    int inputs = 0;
    *call = (struct m3_derivative_call){ .request = { .of = f->op->derivative, .threads = threads } };
    set_sizes(r, f);
    r->experts = f->layers[0].experts;
    for (int i = 0; i < M3_OPERATOR_OPERANDS && f->op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *row = &f->op->operands[i];
        if (row->role == M3_ROLE_WEIGHT && is_apart(row))
            r->w =
                m3_graph_made_weight(&f->model, &f->semantics, row->tap, m3_fragment_layer(f, row->tap), row->weight);
        if (is_apart(row) || f->operands[i].rank == 0) continue;
        call->owned[i] = operand(row, &f->operands[i], engine->real_bytes);
        if (!call->owned[i]) return m3_fail_memory(error, row->name, (size_t)f->operands[i].count * sizeof(double));
        if (row->role == M3_ROLE_INCOMING) *(row->optional ? &r->dlse : &r->dy) = call->owned[i];
        else r->in[inputs++] = call->owned[i];
    }
    for (int i = 0; i < m3_operator_outputs(f->op); i++) {
        int64_t shape[M3_MAX_RANK];
        const int rank = m3_fragment_shape(shape, f, &f->op->outputs[i]);
        call->counts[i] = 1;
        for (int k = 0; k < rank; k++) call->counts[i] *= shape[k];
        r->counts[i] = call->counts[i];
        r->out[i] = call->outputs[i] = m3_room((size_t)call->counts[i] + 1, engine->real_bytes);
        if (!r->out[i])
            return m3_fail_memory(error, f->op->outputs[i].name, (size_t)call->counts[i] * engine->real_bytes);
    }
    return M3_OK;
}

void m3_derivative_call_free(struct m3_derivative_call *call)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++) free(call->owned[i]);
    for (int i = 0; i < M3_OPERATOR_OUTPUTS; i++) free(call->outputs[i]);
}

/* ---- values */

void m3_derivative_give(struct m3_evaluation *result, struct m3_derivative_call *call, const struct m3_fragment *f,
                        const struct m3_engine *engine)
{
    for (int i = 0; i < m3_operator_outputs(f->op); i++) {
        struct m3_tensor *t = &result->outputs[i];
        *t = (struct m3_tensor){ .name = f->op->outputs[i].name,
                                 .data = call->outputs[i],
                                 .count = call->counts[i],
                                 .dtype = engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32 };
        t->rank = m3_fragment_shape(t->shape, f, &f->op->outputs[i]);
        t->bytes = (uint64_t)t->count * engine->real_bytes;
        result->rows[i] = call->outputs[i];
        call->outputs[i] = NULL;
    }
    /* A gradient that cancels to 0 is left with roundings of what arrives. */
    for (int64_t i = 0; i < f->operands[0].count; i++)
        result->least = fmax(result->least, 1e-6 * fabs(m3_decode(f->operands[0].dtype, f->operands[0].data, i)));
}

int m3_evaluate_derivative(struct m3_evaluation *result, const struct m3_fragment *f,
                           const struct m3_evaluation_how *how, struct m3_error *error)
{
    struct m3_derivative_call call;
    *result = (struct m3_evaluation){ 0 };
    int status = m3_derivative_call_make(&call, f, how->engine, how->threads, error);
    if (!status) status = how->engine->differentiate(&call.request, error);
    if (!status) m3_derivative_give(result, &call, f, how->engine);
    m3_derivative_call_free(&call);
    return status;
}

/* ---- bounds */

const char *m3_derivative_stored_as(const struct m3_operator_row *op, const struct m3_operand_row *output)
{
    if (op->kind & M3_LAYER_VISION) return "vision.layers.0.q_proj";
    if (op->derivative == M3_DERIVATIVE_ROUTE || op->derivative == M3_DERIVATIVE_SIGMOID)
        return "layers.0.moe.router_scores";
    return strcmp(output->name, "dp") == 0 ? "layers.0.moe.weights" : "layers.0.q_proj";
}

int m3_bound_derivative(double *allowed, const struct m3_fragment *f, const struct m3_operand_row *output,
                        const struct m3_setting *setting, const struct m3_arithmetic *how, struct m3_error *error)
{
    struct m3_derivative_call call;
    const int in_vision = (f->op->kind & M3_LAYER_VISION) != 0;
    const struct m3_backward_arithmetic a = m3_backward_arithmetic_of(setting->profile, in_vision, how);
    double *to[M3_DERIVATIVE_OUTPUTS] = { 0 };
    to[output - f->op->outputs] = allowed;
    int status = m3_derivative_call_make(&call, f, m3_engine_f64(), setting->ctx->threads, error);
    if (!status && m3_error_derivative(setting->ctx, to, &call.request, &a))
        status = m3_fail_memory(error, output->name, (size_t)f->operands[0].count * sizeof *allowed);
    m3_derivative_call_free(&call);
    return status;
}
