/* The gradient of one text layer, stage by stage against the order of model/layer.c. A gradient has the name of the tap
 * that it belongs to; d is that of the residual stream, which every branch adds to. */
#include <stdlib.h>

#include "base/minmax.h"
#include "model/backward/stages.h"
#include "model/weights/pages.h"

/* The gradients of a layer's taps. */
struct gradients {
    real *normed, *part; /* [T,H] of a norm's output: what all its readers give, and what one of them gives */
    real *q, *attn; /* [T,Q,D] */
    real *k, *v; /* [T,G,D] */
    real *gate, *up; /* [T, the largest of the widths] */
    real *p; /* [T,K] */
    real *router; /* [T,E] */
};

static void make(struct m3_pass *f, struct gradients *g)
{
    const struct m3_config *c = f->config;
    const int64_t T = f->rows, wide = m3_max(c->dense_intermediate, c->shared_intermediate);
    g->normed = m3_pass_need(f, T, c->H, sizeof(real));
    g->part = m3_pass_need(f, T, c->H, sizeof(real));
    g->q = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    g->attn = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    g->k = m3_pass_need(f, T, c->G * c->D, sizeof(real));
    g->v = m3_pass_need(f, T, c->G * c->D, sizeof(real));
    g->gate = m3_pass_need(f, T, wide, sizeof(real));
    g->up = m3_pass_need(f, T, wide, sizeof(real));
    g->p = m3_pass_need(f, T, c->K, sizeof(real));
    g->router = m3_pass_need(f, T, c->E, sizeof(real));
}

static void release(struct gradients *g)
{
    void *all[] = { g->normed, g->part, g->q, g->attn, g->k, g->v, g->gate, g->up, g->p, g->router };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* g->normed := the gradient of the MLP's input. */
static void dense_mlp(struct m3_backward *b, struct gradients *g, const struct m3_layer *w, const real *d)
{
    const struct m3_kept *kept = &b->kept;
    const int64_t I = b->model->config.dense_intermediate;
    real *act = g->gate; /* in place */
    linear_back(b, M3_TAP_MLP_ACT, act, d, kept->at[M3_TAP_MLP_ACT], &w->down);
    gated_back(b, M3_TAP_MLP_GATE, g->gate, M3_TAP_MLP_UP, g->up, act, kept->at[M3_TAP_MLP_GATE],
               kept->at[M3_TAP_MLP_UP], I);
    linear_back(b, prepares(M3_TAP_MLP_NORM), g->normed, g->gate, kept->at[M3_TAP_MLP_NORM], &w->gate);
    linear_back(b, prepares(M3_TAP_MLP_NORM), g->part, g->up, kept->at[M3_TAP_MLP_NORM], &w->up);
    add(&b->f, prepares(M3_TAP_MLP_NORM), g->normed, g->normed, g->part);
}

/* g->part := what the shared expert gives; its activations are no taps, and are computed here. */
static void shared_expert(struct m3_backward *b, struct gradients *g, const struct m3_layer *w, const real *d)
{
    struct m3_pass *f = &b->f;
    const struct m3_kept *kept = &b->kept;
    const int64_t J = f->config->shared_intermediate;
    real *gate = m3_pass_need(f, f->rows, J, sizeof *gate), *up = m3_pass_need(f, f->rows, J, sizeof *up);
    real *act = m3_pass_need(f, f->rows, J, sizeof *act), *d_act = g->gate;
    linear(f, prepares(M3_TAP_SHARED), gate, kept->at[M3_TAP_MLP_NORM], &w->gate);
    linear(f, prepares(M3_TAP_SHARED), up, kept->at[M3_TAP_MLP_NORM], &w->up);
    gated_activation(f, prepares(M3_TAP_SHARED), act, gate, up, J);

    shown(b, M3_TAP_SHARED, d);
    linear_back(b, prepares(M3_TAP_SHARED), d_act, d, act, &w->down);
    gated_back(b, prepares(M3_TAP_SHARED), g->gate, prepares(M3_TAP_SHARED), g->up, d_act, gate, up, J);
    linear_back(b, prepares(M3_TAP_MLP_NORM), g->part, g->gate, kept->at[M3_TAP_MLP_NORM], &w->gate);
    add(f, prepares(M3_TAP_MLP_NORM), g->normed, g->normed, g->part);
    linear_back(b, prepares(M3_TAP_MLP_NORM), g->part, g->up, kept->at[M3_TAP_MLP_NORM], &w->up);
    add(f, prepares(M3_TAP_MLP_NORM), g->normed, g->normed, g->part);
    free(gate);
    free(up);
    free(act);
}

/* g->normed := the gradients that experts, router and shared expert give. */
static void moe(struct m3_backward *b, struct gradients *g, const struct m3_layer *w, const real *d)
{
    struct m3_pass *f = &b->f;
    const struct m3_kept *kept = &b->kept;
    shown(b, M3_TAP_ROUTED, d);
    experts_back(b, prepares(M3_TAP_MLP_NORM), g->normed, M3_TAP_EXPERT_WEIGHTS, g->p, d, kept->at[M3_TAP_MLP_NORM],
                 kept->at[M3_TAP_EXPERTS], kept->at[M3_TAP_EXPERT_WEIGHTS], w->experts);
    route_back(b, M3_TAP_ROUTER_SCORES, g->router, g->p, kept->at[M3_TAP_EXPERTS], kept->at[M3_TAP_ROUTER_SCORES]);
    sigmoid_back(b, prepares(M3_TAP_ROUTER_LOGITS), g->router, g->router, kept->at[M3_TAP_ROUTER_LOGITS]);
    m3_backward_balance(b, g->router);
    shown(b, M3_TAP_ROUTER_LOGITS, g->router);
    linear_back(b, prepares(M3_TAP_MLP_NORM), g->part, g->router, kept->at[M3_TAP_MLP_NORM], &w->router);
    add(f, prepares(M3_TAP_MLP_NORM), g->normed, g->normed, g->part);
    if (f->config->shared_intermediate) shared_expert(b, g, w, d);
}

/* g->normed := the gradient of the attention's input, without the index branch: it is detached. */
static void attention(struct m3_backward *b, struct gradients *g, const struct m3_layer *w, const real *d)
{
    struct m3_pass *f = &b->f;
    const struct m3_kept *kept = &b->kept;
    const real *normed = kept->at[M3_TAP_ATTN_NORM];
    linear_back(b, M3_TAP_ATTN, g->attn, d, kept->at[M3_TAP_ATTN], &w->o_proj);
    attend_back(b, M3_TAP_Q_ROPE, g->q, M3_TAP_K_ROPE, g->k, M3_TAP_V_PROJ, g->v, g->attn);
    rope_back(b, M3_TAP_Q_NORM, g->q, g->q, &b->angles);
    rope_back(b, M3_TAP_K_NORM, g->k, g->k, &b->angles);
    rms_norm_back(b, M3_TAP_Q_PROJ, g->q, g->q, kept->at[M3_TAP_Q_PROJ], &w->q_norm);
    rms_norm_back(b, M3_TAP_K_PROJ, g->k, g->k, kept->at[M3_TAP_K_PROJ], &w->k_norm);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), g->normed, g->q, normed, &w->q_proj);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), g->part, g->k, normed, &w->k_proj);
    add(f, prepares(M3_TAP_ATTN_NORM), g->normed, g->normed, g->part);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), g->part, g->v, normed, &w->v_proj);
    add(f, prepares(M3_TAP_ATTN_NORM), g->normed, g->normed, g->part);
}

void m3_backward_layer(struct m3_backward *b, int64_t layer, const real *input, real *d)
{
    struct m3_pass *f = &b->f;
    const int64_t l = m3_layer_index(f->config, layer);
    const struct m3_layer *w = &b->model->layers[l];
    struct gradients g = { 0 };
    make(f, &g);

    shown(b, M3_TAP_OUT, d);
    shown(b, M3_TAP_MLP, d);
    if (m3_config_moe(f->config, l)) moe(b, &g, w, d);
    else dense_mlp(b, &g, w, d);
    shown(b, M3_TAP_MLP_NORM, g.normed);
    rms_norm_back(b, prepares(M3_TAP_MID), g.part, g.normed, b->kept.at[M3_TAP_MID], &w->mlp_norm);
    add(f, prepares(M3_TAP_MID), d, d, g.part);

    shown(b, M3_TAP_MID, d);
    shown(b, M3_TAP_ATTN_OUT, d);
    attention(b, &g, w, d);
    shown(b, M3_TAP_ATTN_NORM, g.normed);
    rms_norm_back(b, prepares(M3_TAP_ATTN_NORM), g.part, g.normed, input, &w->attn_norm);
    add(f, prepares(M3_TAP_ATTN_NORM), d, d, g.part);

    release(&g);
    m3_pass_release_layer(f, w);
    m3_pass_nan_free(f, M3_TAP_ATTN_NORM, d);
}
