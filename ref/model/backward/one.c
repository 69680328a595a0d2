#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "model/backward/gradient.h"
#include "ops/backward.h"
#include "ops/operators.h"

/* Their ordered sums have the bits of the plain bodies. */
static const struct m3_backward_ops *const back = &m3_fast_backward_ops;
static const struct m3_ops *const ops = &m3_fast_ops;

/* Words of M3_BACK_name (ops/operators.def) as arguments of C. */
#define C_OUT(name, letters, i) , r->out[i]
#define C_OUT_ROW(...)
#define C_INCOMING(...) , r->dy
#define C_IN(name, letters, role, what, i) , r->in[i]
#define C_ROW(...)
#define C_EXTRA(expression) , expression

#define NONE(...)

/* The derivative of causal attention reads o and lse of its forward pass. */
static int attend(struct m3_ctx *ctx, real *o, real *lse, const struct m3_derivative_request *r)
{
    const struct m3_attend *d = &r->attend;
    return r->of == M3_DERIVATIVE_ATTEND_FULL
               ? ops->attend_full(ctx, o, lse, r->in[0], r->in[1], r->in[2], d)
               : ops->attend_blocks(ctx, o, lse, r->in[0], r->in[1], r->in[2], r->in[3], d);
}

static int differentiate(struct m3_ctx *ctx, const struct m3_derivative_request *r)
{
    const struct m3_activation act = {
        .oai = r->oai, .alpha = (real)r->alpha, .limit = (real)r->limit, .clamp = r->clamp
    };
    const int is_causal = r->of == M3_DERIVATIVE_ATTEND_FULL || r->of == M3_DERIVATIVE_ATTEND_BLOCKS;
    const int64_t heads = is_causal ? r->attend.T * r->attend.Q : 0, E = r->of == M3_DERIVATIVE_EXPERTS ? r->E : 0;
    real *o = m3_scratch_take(ctx, heads * r->attend.D, sizeof *o), *lse = m3_scratch_take(ctx, heads, sizeof *lse);
    struct m3_expert_gradient *of_experts = m3_scratch_take(ctx, E, sizeof *of_experts);
    if (!o || !lse || !of_experts) return M3_INTERNAL;
    for (int64_t e = 0; e < E; e++) {
        real *dw[3];
        for (int i = 0; i < 3; i++) dw[i] = r->out[2 + i] ? (real *)r->out[2 + i] + e * r->F * r->H : NULL;
        of_experts[e] = (struct m3_expert_gradient){ dw[0], dw[1], dw[2] };
    }
    const int status = is_causal ? attend(ctx, o, lse, r) : M3_OK;
    if (status) return status;
    switch (r->of) {
#define CASE(name, NAME, ...)                                                                                          \
    case M3_DERIVATIVE_##NAME: return back->name(ctx M3_BACK_##name(C_));
        M3_DERIVATIVES(CASE, NONE, NONE)
#undef CASE
    default: return M3_INTERNAL;
    }
}

int m3_differentiate(const struct m3_derivative_request *r, struct m3_error *error)
{
    struct m3_ctx ctx;
    if (m3_ctx_init(&ctx, r->threads, M3_LINEAR_ORDERED)) return m3_fail_memory(error, "a context", sizeof ctx);
    /* Gradients of parameters are added to what is there. */
    for (int i = 0; i < M3_DERIVATIVE_OUTPUTS; i++)
        if (r->out[i]) memset(r->out[i], 0, (size_t)r->counts[i] * sizeof(real));
    int status = differentiate(&ctx, r);
    if (status == M3_INTERNAL) status = m3_fail_memory(error, "a derivative", 0);
    else if (status) status = m3_fail(error, status, "%s", ctx.failure.what ? ctx.failure.what : "a derivative");
    m3_ctx_free(&ctx);
    return status;
}
