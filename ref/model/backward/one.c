#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "model/backward/gradient.h"
#include "ops/backward.h"
#include "ops/operators.h"

/* Their ordered sums have the bits of the plain bodies. */
static const struct m3_backward_ops *const back = &m3_fast_backward_ops;
static const struct m3_ops *const ops = &m3_fast_ops;

static void clear(void *x, int64_t n)
{
    if (x) memset(x, 0, (size_t)n * sizeof(real));
}

/* Gradients of parameters are added to what is there. */
static void clear_parameters(const struct m3_derivative_request *r)
{
    switch (r->of) {
    case M3_DERIVATIVE_EMBED: clear(r->out[0], r->V * r->H); break;
    case M3_DERIVATIVE_RMS_NORM:
    case M3_DERIVATIVE_RMS_NORM_PLAIN:
    case M3_DERIVATIVE_LAYER_NORM: clear(r->out[1], r->H), clear(r->out[2], r->H); break;
    case M3_DERIVATIVE_LINEAR: clear(r->out[1], r->w->rows * r->w->cols), clear(r->out[2], r->w->rows); break;
    case M3_DERIVATIVE_EXPERTS:
        clear(r->out[1], r->T * r->K);
        for (int i = 2; i < 5; i++) clear(r->out[i], r->E * r->F * r->H);
        break;
    default: break;
    }
}

/* Attention's backward pass reads o and lse of its forward pass. */
static int attend(struct m3_ctx *ctx, const struct m3_derivative_request *r)
{
    const struct m3_attend *d = &r->attend;
    const real *q = r->in[0], *k = r->in[1], *v = r->in[2], *dy = r->dy, *dlse = r->dlse;
    size_t mark = m3_scratch_mark(ctx);
    real *o = m3_scratch_take(ctx, d->T * d->Q * d->D, sizeof *o),
         *lse = m3_scratch_take(ctx, d->T * d->Q, sizeof *lse);
    int status = o && lse ? M3_OK : M3_INTERNAL;
    if (r->of == M3_DERIVATIVE_ATTEND_FULL) {
        if (!status) status = ops->attend_full(ctx, o, lse, q, k, v, d);
        if (!status) status = back->attend_full(ctx, r->out[0], r->out[1], r->out[2], dy, dlse, q, k, v, o, lse, d);
    } else {
        if (!status) status = ops->attend_blocks(ctx, o, lse, q, k, v, r->in[3], d);
        if (!status)
            status = back->attend_blocks(ctx, r->out[0], r->out[1], r->out[2], dy, dlse, q, k, v, o, lse, r->in[3], d);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

static int experts(struct m3_ctx *ctx, const struct m3_derivative_request *r, const struct m3_activation *act)
{
    size_t mark = m3_scratch_mark(ctx);
    struct m3_expert_gradient *dw = m3_scratch_take(ctx, r->E, sizeof *dw);
    real *const *out = (real *const *)(const void *)r->out;
    const int64_t n = r->F * r->H;
    if (!dw) return M3_INTERNAL;
    for (int64_t e = 0; e < r->E; e++)
        dw[e] = (struct m3_expert_gradient){ out[2] ? out[2] + e * n : NULL, out[3] ? out[3] + e * n : NULL,
                                             out[4] ? out[4] + e * n : NULL };
    const int status = back->experts(ctx, out[0], out[1], dw, r->dy, r->in[0], r->in[1], r->in[2], r->experts, act,
                                     r->T, r->E, r->K, (real)r->factor);
    m3_scratch_release(ctx, mark);
    return status;
}

static int differentiate(struct m3_ctx *ctx, const struct m3_derivative_request *r)
{
    const struct m3_activation act = {
        .oai = r->oai, .alpha = (real)r->alpha, .limit = (real)r->limit, .clamp = r->clamp
    };
    const int64_t n = r->T * r->H;
    const real *dy = r->dy;
    const void *const *in = r->in;
    void *const *out = r->out;
    const struct m3_attend *d = &r->attend;
    switch (r->of) {
    case M3_DERIVATIVE_EMBED: return back->embed(ctx, out[0], dy, in[0], r->T, r->V, r->H);
    case M3_DERIVATIVE_RMS_NORM: return back->rms_norm(ctx, out[0], out[1], dy, in[0], in[1], r->T, r->H, (real)r->eps);
    case M3_DERIVATIVE_RMS_NORM_PLAIN:
        return back->rms_norm_plain(ctx, out[0], out[1], dy, in[0], in[1], r->T, r->H, (real)r->eps);
    case M3_DERIVATIVE_LINEAR: return back->linear(ctx, out[0], out[1], out[2], dy, in[0], r->w, r->T);
    case M3_DERIVATIVE_ROPE: return back->rope(ctx, out[0], dy, in[0], in[1], r->T, r->heads, r->H, r->R);
    case M3_DERIVATIVE_ATTEND_FULL:
    case M3_DERIVATIVE_ATTEND_BLOCKS: return attend(ctx, r);
    case M3_DERIVATIVE_ATTEND_SEGMENTS:
        return back->attend_segments(ctx, out[0], out[1], out[2], dy, in[0], in[1], in[2], in[3], r->segments, d->Q,
                                     d->D);
    case M3_DERIVATIVE_SWIGLU_OAI: return back->swiglu_oai(ctx, out[0], out[1], dy, in[0], in[1], r->T, r->H, &act);
    case M3_DERIVATIVE_SWIGLU: return back->swiglu(ctx, out[0], out[1], dy, in[0], in[1], r->T, r->H);
    case M3_DERIVATIVE_SIGMOID: return back->sigmoid(ctx, out[0], dy, in[0], n);
    case M3_DERIVATIVE_ROUTE: return back->route(ctx, out[0], dy, in[1], in[0], r->T, r->E, r->K);
    case M3_DERIVATIVE_EXPERTS: return experts(ctx, r, &act);
    case M3_DERIVATIVE_LAYER_NORM:
        return back->layer_norm(ctx, out[0], out[1], out[2], dy, in[0], in[1], r->T, r->H, (real)r->eps);
    case M3_DERIVATIVE_GELU: return back->gelu(ctx, out[0], dy, in[0], n);
    case M3_DERIVATIVE_SCATTER: return back->scatter(ctx, out[0], out[1], dy, in[0], r->id, r->T, r->M, r->H);
    default: return M3_INTERNAL;
    }
}

int m3_differentiate(const struct m3_derivative_request *r, struct m3_error *error)
{
    struct m3_ctx ctx;
    if (m3_ctx_init(&ctx, r->threads, M3_LINEAR_ORDERED)) return m3_fail_memory(error, "a context", sizeof ctx);
    clear_parameters(r);
    int status = differentiate(&ctx, r);
    if (status == M3_INTERNAL) status = m3_fail_memory(error, "a derivative", 0);
    else if (status) status = m3_fail(error, status, "%s", ctx.failure.what ? ctx.failure.what : "a derivative");
    m3_ctx_free(&ctx);
    return status;
}
