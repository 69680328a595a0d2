#include "oracle/error/backward/derivative.h"

struct m3_backward_arithmetic m3_backward_arithmetic_of(const struct m3_profile *profile, int in_vision,
                                                        const struct m3_arithmetic *how)
{
    struct m3_backward_arithmetic a = { .u = how->u, .c = how->c };
    if (!profile) return a;
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

int m3_error_derivative(struct m3_ctx *ctx, double *const *to, const struct m3_derivative_request *r,
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
