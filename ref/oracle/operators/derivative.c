#include "oracle/operators/derivative.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/room.h"
#include "oracle/error/backward/backward.h"
#include "oracle/judge/align.h"

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
    /* clang-format off */
    r->attend = (struct m3_attend){ .T = d['T'], .p0 = f->the_case.p0, .Q = d['Q'], .G = d['G'], .D = d['D'],
                                    .seen = f->the_case.seen, .block = c->block, .N = d['N'],
                                    .selection = f->semantics.selection };
    if (f->op->derivative == M3_DERIVATIVE_ATTEND_SEGMENTS)
        r->attend = (struct m3_attend){ .T = d['P'], .Q = d['A'], .G = d['A'], .D = d['U'] };
    /* clang-format on */
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
            r->w = m3_graph_weight(&f->model, &f->semantics, row->tap, m3_fragment_layer(f, row->tap), row->weight);
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

static struct m3_backward_arithmetic arithmetic_of(const struct m3_operator_row *op, const struct m3_setting *setting,
                                                   const struct m3_arithmetic *how)
{
    struct m3_backward_arithmetic a = { .u = how->u, .c = how->c };
    const struct m3_profile *profile = setting->profile;
    if (!profile) return a;
    const int in_vision = (op->kind & M3_LAYER_VISION) != 0;
    a.stored = m3_profile_store(profile, in_vision ? "vision.layers.0.q_proj" : "layers.0.q_proj");
    a.unit = m3_profile_store(profile, in_vision ? "vision.layers.0.norm1" : "layers.0.attn_norm");
    a.product = m3_profile_store(profile, "layers.0.rope.product");
    a.logits = m3_profile_store(profile, in_vision ? "vision.layers.0.attn.logits" : "layers.0.attn.logits");
    a.p = m3_profile_store(profile, in_vision ? "vision.layers.0.attn.p" : "layers.0.attn.p");
    a.o = m3_profile_store(profile, in_vision ? "vision.layers.0.attn" : "layers.0.attn");
    a.act = m3_profile_store(profile, in_vision ? "vision.layers.0.act" : "layers.0.mlp.act");
    a.expert = m3_profile_store(profile, "layers.0.moe.expert_out");
    return a;
}

static int bound_attention(struct m3_ctx *ctx, double *const *to, const struct m3_derivative_request *r,
                           const struct m3_backward_arithmetic *how)
{
    struct m3_attend_operands x = { r->dy, r->dlse, r->in[0], r->in[1], r->in[2], NULL, NULL, r->attend };
    if (r->of == M3_DERIVATIVE_ATTEND_BLOCKS) x.blocks = r->in[3];
    if (r->of == M3_DERIVATIVE_ATTEND_SEGMENTS) x.ends = r->in[3];
    return m3_error_attend_backward(ctx, to[0], to[1], to[2], &x, how);
}

static int bound_experts(struct m3_ctx *ctx, double *const *to, const struct m3_derivative_request *r,
                         const struct m3_gate *gate, const struct m3_backward_arithmetic *how)
{
    const struct m3_experts_errors errors = { to[0], to[1], to[2], to[3], to[4] };
    const struct m3_experts_operands x = { .dy = r->dy,
                                           .x = r->in[0],
                                           .ids = r->in[1],
                                           .p = r->in[2],
                                           .experts = r->experts,
                                           .gate = gate,
                                           .T = r->T,
                                           .E = r->E,
                                           .K = r->K,
                                           .H = r->H,
                                           .F = r->F,
                                           .factor = r->factor };
    return m3_error_experts_backward(ctx, &errors, &x, how);
}

/* to [outputs]: NULL for those that are not wanted. */
static int bound(struct m3_ctx *ctx, double *const *to, const struct m3_derivative_request *r,
                 const struct m3_backward_arithmetic *how)
{
    const struct m3_gate gate = { .oai = r->oai, .alpha = r->alpha, .limit = r->limit, .clamp = r->clamp };
    const int64_t n = r->T * r->H;
    const double *dy = r->dy;
    const void *const *in = r->in;
    switch (r->of) {
    case M3_DERIVATIVE_EMBED: return m3_error_embed_backward(ctx, to[0], dy, in[0], r->T, r->V, r->H, how);
    case M3_DERIVATIVE_RMS_NORM:
    case M3_DERIVATIVE_RMS_NORM_PLAIN:
        return m3_error_rms_norm_backward(ctx, to[0], to[1], dy, in[0], in[1], r->T, r->H, r->eps,
                                          r->of == M3_DERIVATIVE_RMS_NORM, how);
    case M3_DERIVATIVE_LINEAR: return m3_error_linear_backward(ctx, to[0], to[1], to[2], dy, in[0], r->w, r->T, how);
    case M3_DERIVATIVE_ROPE:
        return m3_error_rope_backward(ctx, to[0], dy, in[0], in[1], r->T, r->heads, r->H, r->R, how);
    case M3_DERIVATIVE_ATTEND_FULL:
    case M3_DERIVATIVE_ATTEND_BLOCKS:
    case M3_DERIVATIVE_ATTEND_SEGMENTS: return bound_attention(ctx, to, r, how);
    case M3_DERIVATIVE_SWIGLU_OAI:
    case M3_DERIVATIVE_SWIGLU: return m3_error_gate_backward(ctx, to[0], to[1], dy, in[0], in[1], n, &gate, how);
    case M3_DERIVATIVE_SIGMOID: return m3_error_sigmoid_backward(ctx, to[0], dy, in[0], n, how);
    case M3_DERIVATIVE_ROUTE: return m3_error_route_backward(ctx, to[0], dy, in[1], in[0], r->T, r->E, r->K, how);
    case M3_DERIVATIVE_EXPERTS: return bound_experts(ctx, to, r, &gate, how);
    case M3_DERIVATIVE_LAYER_NORM:
        return m3_error_layer_norm_backward(ctx, to[0], to[1], to[2], dy, in[0], in[1], r->T, r->H, r->eps, how);
    case M3_DERIVATIVE_GELU: return m3_error_gelu_backward(ctx, to[0], dy, in[0], n, how);
    default: return M3_OK; /* copies */
    }
}

int m3_bound_derivative(double *allowed, const struct m3_fragment *f, const struct m3_operand_row *output,
                        const struct m3_setting *setting, const struct m3_arithmetic *how, struct m3_error *error)
{
    struct m3_derivative_call call;
    const struct m3_backward_arithmetic a = arithmetic_of(f->op, setting, how);
    double *to[M3_DERIVATIVE_OUTPUTS] = { 0 };
    to[output - f->op->outputs] = allowed;
    int status = m3_derivative_call_make(&call, f, m3_engine_f64(), setting->ctx->threads, error);
    if (!status && bound(setting->ctx, to, &call.request, &a))
        status = m3_fail_memory(error, output->name, (size_t)f->operands[0].count * sizeof *allowed);
    m3_derivative_call_free(&call);
    return status;
}
