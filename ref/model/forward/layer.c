#include "model/forward/layer.h"

#include "model/cache.h"
#include "model/divided/part.h"
#include "model/weights/pages.h"

/* The keys and values of a layer, from place 0 on. */
static struct m3_keys keys_of(const struct m3_pass *f, const struct m3_activations *a, int64_t l)
{
    if (!f->cache) return a->keys;
    const struct m3_cached *held = m3_cache_at(f->cache, l);
    return (struct m3_keys){ held->k, held->v, held->index_k };
}

/* Where those of the current rows are computed: after p0 others, or apart if several ranks have rows. */
static struct m3_keys keys_of_rows(const struct m3_pass *f, const struct m3_activations *a, const struct m3_keys *all)
{
    const struct m3_config *c = f->config;
    if (m3_share_splits(f)) return a->own;
    return (struct m3_keys){ all->k + f->p0 * c->G * c->D, all->v + f->p0 * c->G * c->D,
                             all->index_k ? all->index_k + f->p0 * c->X : NULL };
}

static void join_keys(struct m3_pass *f, const struct m3_keys *all, const struct m3_keys *own)
{
    if (m3_share_splits(f)) m3_share_keys(f, all, own);
}

static void attention(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w, int64_t l)
{
    const struct m3_keys all = keys_of(f, a, l);
    if (f->rows == 0) return;
    const struct m3_keys own = keys_of_rows(f, a, &all);

    rms_norm(f, M3_TAP_ATTN_NORM, a->normed, a->hidden, &w->attn_norm);
    linear(f, M3_TAP_Q_PROJ, a->q, a->normed, &w->q_proj);
    linear(f, M3_TAP_K_PROJ, own.k, a->normed, &w->k_proj);
    linear(f, M3_TAP_V_PROJ, own.v, a->normed, &w->v_proj);
    rms_norm(f, M3_TAP_Q_NORM, a->q, a->q, &w->q_norm);
    rms_norm(f, M3_TAP_K_NORM, own.k, own.k, &w->k_norm);
    rope(f, M3_TAP_Q_ROPE, a->q, a->q, &a->angles);
    rope(f, M3_TAP_K_ROPE, own.k, own.k, &a->angles);

    if (m3_config_sparse(f->config, l)) {
        linear(f, M3_TAP_INDEX_Q_PROJ, a->index_q, a->normed, &w->index_q_proj);
        linear(f, M3_TAP_INDEX_K_PROJ, own.index_k, a->normed, &w->index_k_proj);
        rms_norm(f, M3_TAP_INDEX_Q_NORM, a->index_q, a->index_q, &w->index_q_norm);
        rms_norm(f, M3_TAP_INDEX_K_NORM, own.index_k, own.index_k, &w->index_k_norm);
        rope(f, M3_TAP_INDEX_Q_ROPE, a->index_q, a->index_q, &a->angles);
        rope(f, M3_TAP_INDEX_K_ROPE, own.index_k, own.index_k, &a->angles);
        join_keys(f, &all, &own);
    } else {
        join_keys(f, &all, &(struct m3_keys){ own.k, own.v, NULL });
    }
    if (m3_config_sparse(f->config, l) && !f->request->attends_fully) {
        choose_blocks(f, M3_TAP_INDEX_BLOCK_SCORES, a->block_scores, M3_TAP_INDEX_BLOCKS, a->blocks, a->index_q,
                      all.index_k);
        attend_blocks(f, M3_TAP_ATTN_LSE, a->lse, M3_TAP_ATTN, a->attn, a->q, all.k, all.v, a->blocks);
    } else {
        attend_full(f, M3_TAP_ATTN_LSE, a->lse, M3_TAP_ATTN, a->attn, a->q, all.k, all.v);
    }

    linear(f, M3_TAP_ATTN_OUT, a->branch, a->attn, &w->o_proj);
    add(f, M3_TAP_MID, a->hidden, a->hidden, a->branch);
}

static void gated(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w)
{
    linear(f, M3_TAP_MLP_GATE, a->gate, a->normed, &w->gate);
    linear(f, M3_TAP_MLP_UP, a->up, a->normed, &w->up);
    gated_activation(f, M3_TAP_MLP_ACT, a->gate, a->gate, a->up, f->config->dense_intermediate);
}

static void dense_mlp(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w)
{
    gated(f, a, w);
    linear(f, M3_TAP_MLP, a->branch, a->gate, &w->down);
}

static void shared_expert(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w)
{
    linear(f, prepares(M3_TAP_SHARED), a->gate, a->normed, &w->gate);
    linear(f, prepares(M3_TAP_SHARED), a->up, a->normed, &w->up);
    gated_activation(f, prepares(M3_TAP_SHARED), a->gate, a->gate, a->up, f->config->shared_intermediate);
    linear(f, M3_TAP_SHARED, a->branch, a->gate, &w->down);
}

static void choose_experts(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w)
{
    jitter(f, prepares(M3_TAP_ROUTER_LOGITS), a->normed, a->normed);
    linear(f, M3_TAP_ROUTER_LOGITS, a->router, a->normed, &w->router);
    sigmoid(f, M3_TAP_ROUTER_SCORES, a->router, a->router);
    route(f, M3_TAP_EXPERTS, a->ids, M3_TAP_EXPERT_WEIGHTS, a->p, a->router, &w->router_bias);
    if (!f->share) m3_pass_ask_experts(f, w->experts, a->ids, f->rows * f->config->K);
}

static void moe(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w)
{
    const struct m3_config *c = f->config;
    real *routed = c->shared_intermediate ? a->routed : a->branch;
    if (m3_pass_shows(f, M3_TAP_EXPERT_OUT) && !a->expert_out)
        a->expert_out = m3_pass_need(f, f->rows, c->K * c->H, sizeof(real));

    choose_experts(f, a, w);
    experts(f, M3_TAP_EXPERT_OUT, a->expert_out, M3_TAP_ROUTED, routed, a->normed, a->ids, a->p, w->experts);
    if (c->shared_intermediate) {
        shared_expert(f, a, w);
        add(f, M3_TAP_MLP, a->branch, a->routed, a->branch);
    } else {
        show(f, M3_TAP_MLP, a->branch);
    }
}

/* Up to the input of the MLP. */
static void before_mlp(struct m3_pass *f, struct m3_activations *a, const struct m3_layer *w, int64_t l)
{
    m3_pass_ask_layer(f, w);
    attention(f, a, w, l);
    rms_norm(f, M3_TAP_MLP_NORM, a->normed, a->hidden, &w->mlp_norm);
}

void m3_layer_run(struct m3_pass *f, struct m3_activations *a)
{
    const int64_t l = m3_layer_index(f->config, f->layer);
    const struct m3_layer *w = &f->model->layers[l];
    if (f->status) return;

    before_mlp(f, a, w, l);
    if (m3_config_moe(f->config, l)) moe(f, a, w);
    else dense_mlp(f, a, w);
    add(f, M3_TAP_OUT, a->hidden, a->hidden, a->branch);
    m3_pass_nan_free(f, M3_TAP_OUT, a->hidden);
    m3_pass_release_layer(f, w);
}

void m3_layer_run_for_gradient(struct m3_pass *f, struct m3_activations *a)
{
    const int64_t l = m3_layer_index(f->config, f->layer);
    const struct m3_layer *w = &f->model->layers[l];
    if (f->status) return;

    before_mlp(f, a, w, l);
    if (m3_config_moe(f->config, l)) choose_experts(f, a, w);
    else gated(f, a, w);
}
