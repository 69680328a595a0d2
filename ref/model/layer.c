#include "model/layer.h"

#include <stdlib.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "model/cache.h"

enum { SCORE_ROWS = 256 };      /* rows of block scores at a time: [T,G,B] would grow with T x T */

/* Where the keys and values of a layer are, from place 0 on. */
struct keys { real *k, *v, *index_k; };

int m3_activations_make(struct m3_pass *f, struct m3_activations *b)
{
    const struct m3_config *c = f->config;
    int64_t T = f->rows, S = f->p0 + T, wide = m3_max(c->dense_intermediate, c->shared_intermediate);
    int64_t B = c->block > 0 ? (S + c->block - 1) / c->block : 0;     /* 0: no layer is sparse */

    b->x = m3_pass_need(f, T, c->H, sizeof(real));
    b->h = m3_pass_need(f, T, c->H, sizeof(real));
    b->q = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    b->o = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    b->lse = m3_pass_need(f, T, c->Q, sizeof(real));
    b->index_q = m3_pass_need(f, T, c->G * c->X, sizeof(real));
    b->scores = m3_pass_need(f, m3_min(T, SCORE_ROWS), c->G * B, sizeof(real));
    b->blocks = m3_pass_need(f, T, c->G * c->N, sizeof(int32_t));
    b->gate = m3_pass_need(f, T, wide, sizeof(real));
    b->up = m3_pass_need(f, T, wide, sizeof(real));
    b->router = m3_pass_need(f, T, c->E, sizeof(real));
    b->ids = m3_pass_need(f, T, c->K, sizeof(int32_t));
    b->p = m3_pass_need(f, T, c->K, sizeof(real));
    b->routed = m3_pass_need(f, T, c->H, sizeof(real));
    b->mlp = m3_pass_need(f, T, c->H, sizeof(real));
    b->cos = m3_pass_need(f, T, c->R / 2, sizeof(real));
    b->sin = m3_pass_need(f, T, c->R / 2, sizeof(real));
    b->attn_norm = m3_pass_need(f, 1, c->H, sizeof(real));
    b->q_norm = m3_pass_need(f, 1, m3_config_size(c, 'q'), sizeof(real));
    b->k_norm = m3_pass_need(f, 1, m3_config_size(c, 'k'), sizeof(real));
    b->index_q_norm = m3_pass_need(f, 1, c->X, sizeof(real));
    b->index_k_norm = m3_pass_need(f, 1, c->X, sizeof(real));
    b->mlp_norm = m3_pass_need(f, 1, c->H, sizeof(real));
    b->bias = m3_pass_need(f, 1, c->E, sizeof(real));
    return f->cache ? f->status : m3_activations_keys(f, b);
}

int m3_activations_keys(struct m3_pass *f, struct m3_activations *b)
{
    const struct m3_config *c = f->config;
    if (b->k) return f->status;
    b->k = m3_pass_need(f, f->rows, c->G * c->D, sizeof(real));
    b->v = m3_pass_need(f, f->rows, c->G * c->D, sizeof(real));
    b->index_k = m3_pass_need(f, f->rows, c->X, sizeof(real));
    return f->status;
}

void m3_activations_free(struct m3_activations *b)
{
    void *all[] = { b->x, b->h, b->q, b->o, b->k, b->v, b->lse, b->index_q, b->index_k, b->scores, b->blocks, b->gate,
                    b->up, b->router, b->ids, b->p, b->routed, b->mlp, b->each, b->cos, b->sin, b->attn_norm,
                    b->q_norm, b->k_norm, b->index_q_norm, b->index_k_norm, b->mlp_norm, b->bias };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void layer_vectors(struct m3_activations *b, const struct m3_layer *w)
{
    m3_pass_vector(b->attn_norm, &w->attn_norm);
    m3_pass_vector(b->q_norm, &w->q_norm);
    m3_pass_vector(b->k_norm, &w->k_norm);
    m3_pass_vector(b->index_q_norm, &w->index_q_norm);
    m3_pass_vector(b->index_k_norm, &w->index_k_norm);
    m3_pass_vector(b->mlp_norm, &w->mlp_norm);
    m3_pass_vector(b->bias, &w->router_bias);
}

static void expert_pages(const struct m3_expert *e, void (*give)(const void *, uint64_t))
{
    m3_pass_pages(&e->w1, give);
    m3_pass_pages(&e->w3, give);
    m3_pass_pages(&e->w2, give);
}

/* All matrices of a layer but the routed experts. */
static void layer_pages(const struct m3_layer *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->q_proj,       &w->k_proj, &w->v_proj, &w->o_proj, &w->index_q_proj,
                                      &w->index_k_proj, &w->gate,   &w->up,     &w->down,   &w->router };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) m3_pass_pages(all[i], give);
}

/* A short pass on a cache is one of many: its weights stay mapped. */
static int is_step(const struct m3_pass *f) { return f->cache && f->rows <= M3_ALONE_ROWS; }

static void release_layer(const struct m3_layer *w, int64_t experts)
{
    layer_pages(w, m3_pages_release);
    for (int64_t e = 0; w->experts && e < experts; e++) expert_pages(&w->experts[e], m3_pages_release);
}

static struct keys keys_of(const struct m3_pass *f, const struct m3_activations *b, int64_t l)
{
    if (!f->cache) return (struct keys){ b->k, b->v, b->index_k };
    const struct m3_cached *held = m3_cache_at(f->cache, l);
    return (struct keys){ held->k, held->v, held->index_k };
}

static int projections(struct m3_pass *f, struct m3_activations *b, const struct m3_layer *w, const struct keys *keys)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    real eps = (real)c->eps, *k = keys->k + f->p0 * c->G * c->D, *v = keys->v + f->p0 * c->G * c->D;
    int64_t q_width = m3_config_size(c, 'q'), k_width = m3_config_size(c, 'k');     /* of what is normalised together */

    return did(f, M3_TAP_ATTN_NORM, b->h, f->norm(ctx, b->h, b->x, b->attn_norm, T, c->H, eps))
        || did(f, M3_TAP_Q_PROJ, b->q, op->linear(ctx, b->q, b->h, &w->q_proj, NULL, T))
        || did(f, M3_TAP_K_PROJ, k, op->linear(ctx, k, b->h, &w->k_proj, NULL, T))
        || did(f, M3_TAP_V_PROJ, v, op->linear(ctx, v, b->h, &w->v_proj, NULL, T))
        || did(f, M3_TAP_Q_NORM, b->q, f->norm(ctx, b->q, b->q, b->q_norm, T * c->Q * c->D / q_width, q_width, eps))
        || did(f, M3_TAP_K_NORM, k, f->norm(ctx, k, k, b->k_norm, T * c->G * c->D / k_width, k_width, eps))
        || did(f, M3_TAP_Q_ROPE, b->q, op->rope(ctx, b->q, b->q, b->cos, b->sin, T, c->Q, c->D, c->R))
        || did(f, M3_TAP_K_ROPE, k, op->rope(ctx, k, k, b->cos, b->sin, T, c->G, c->D, c->R));
}

static int full_attention(struct m3_pass *f, struct m3_activations *b, const struct keys *keys)
{
    const struct m3_config *c = f->config;
    const struct m3_attend d = { .T = f->rows, .p0 = f->p0, .seen = f->request->seen, .Q = c->Q, .G = c->G, .D = c->D };

    return did(f, M3_TAP_ATTN_LSE, b->lse, f->ops.attend_full(&f->ctx, b->o, b->lse, b->q, keys->k, keys->v, &d))
        || did(f, M3_TAP_ATTN, b->o, 0);
}

/* Which blocks each row attends to; scores in pieces, for all of them together would grow with T x T. */
static int choose_blocks(struct m3_pass *f, struct m3_activations *b, const real *index_k)
{
    const struct m3_config *c = f->config;
    int64_t S = f->p0 + f->rows;
    struct m3_index d = { .G = c->G, .X = c->X, .block = c->block, .B = (S + c->block - 1) / c->block, .N = c->N,
                          .seen = f->request->seen, .semantics = f->request->semantics };

    for (int64_t t0 = 0; t0 < f->rows; t0 += SCORE_ROWS) {
        const real *q = b->index_q + t0 * c->G * c->X;
        d.p0 = f->p0 + t0;
        d.T = m3_min(SCORE_ROWS, f->rows - t0);
        if (m3_pass_show(f, M3_TAP_INDEX_BLOCK_SCORES, b->scores, t0, d.T,
                         f->ops.block_scores(&f->ctx, b->scores, q, index_k, &d)) ||
            m3_pass_prepared(f, M3_TAP_INDEX_BLOCKS, t0,
                             f->ops.select_blocks(&f->ctx, b->blocks + t0 * c->G * c->N, b->scores, &d)))
            return f->status;
    }
    return did(f, M3_TAP_INDEX_BLOCKS, b->blocks, 0);
}

static int sparse_attention(struct m3_pass *f, struct m3_activations *b, const struct m3_layer *w,
                            const struct keys *keys)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    const struct m3_attend d = { .T = f->rows, .p0 = f->p0, .seen = f->request->seen, .Q = c->Q, .G = c->G, .D = c->D,
                                 .block = c->block, .N = c->N, .selection = f->request->semantics->selection };
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    real eps = (real)c->eps, *q = b->index_q, *k = keys->index_k + f->p0 * c->X;

    return did(f, M3_TAP_INDEX_Q_PROJ, q, op->linear(ctx, q, b->h, &w->index_q_proj, NULL, T))
        || did(f, M3_TAP_INDEX_K_PROJ, k, op->linear(ctx, k, b->h, &w->index_k_proj, NULL, T))
        || did(f, M3_TAP_INDEX_Q_NORM, q, f->norm(ctx, q, q, b->index_q_norm, T * c->G, c->X, eps))
        || did(f, M3_TAP_INDEX_K_NORM, k, f->norm(ctx, k, k, b->index_k_norm, T, c->X, eps))
        || did(f, M3_TAP_INDEX_Q_ROPE, q, op->rope(ctx, q, q, b->cos, b->sin, T, c->G, c->X, c->R))
        || did(f, M3_TAP_INDEX_K_ROPE, k, op->rope(ctx, k, k, b->cos, b->sin, T, 1, c->X, c->R))
        || choose_blocks(f, b, keys->index_k)
        || did(f, M3_TAP_ATTN_LSE, b->lse, op->attend_blocks(ctx, b->o, b->lse, b->q, keys->k, keys->v, b->blocks, &d))
        || did(f, M3_TAP_ATTN, b->o, 0);
}

static int activate(struct m3_pass *f, struct m3_activations *b, int64_t F)
{
    return f->act.oai ? f->ops.swiglu_oai(&f->ctx, b->gate, b->gate, b->up, f->rows, F, &f->act)
                      : f->ops.swiglu(&f->ctx, b->gate, b->gate, b->up, f->rows, F);
}

static int dense_mlp(struct m3_pass *f, struct m3_activations *b, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    struct m3_ctx *ctx = &f->ctx;

    return did(f, M3_TAP_MLP_GATE, b->gate, op->linear(ctx, b->gate, b->h, &w->gate, NULL, f->rows))
        || did(f, M3_TAP_MLP_UP, b->up, op->linear(ctx, b->up, b->h, &w->up, NULL, f->rows))
        || did(f, M3_TAP_MLP_ACT, b->gate, activate(f, b, f->config->dense_intermediate))
        || did(f, M3_TAP_MLP, b->mlp, op->linear(ctx, b->mlp, b->gate, &w->down, NULL, f->rows));
}

static int is_chosen(const int32_t *ids, int64_t count, int64_t expert)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] == expert) return 1;
    return 0;
}

static int routed_experts(struct m3_pass *f, struct m3_activations *b, const struct m3_layer *w, real *routed)
{
    const struct m3_config *c = f->config;
    int step = is_step(f);
    for (int64_t e = 0; e < c->E; e++)
        if (!step && is_chosen(b->ids, f->rows * c->K, e)) expert_pages(&w->experts[e], m3_pages_ask);
    return f->ops.experts(&f->ctx, routed, b->each, b->h, b->ids, b->p, w->experts, &f->act, f->rows, c->E, c->K,
                          (real)c->routed_scaling);
}

/* b->mlp := shared expert + b->routed */
static int shared_expert(struct m3_pass *f, struct m3_activations *b, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;

    return m3_pass_prepared(f, M3_TAP_SHARED, 0, op->linear(ctx, b->gate, b->h, &w->gate, NULL, T))
        || m3_pass_prepared(f, M3_TAP_SHARED, 0, op->linear(ctx, b->up, b->h, &w->up, NULL, T))
        || m3_pass_prepared(f, M3_TAP_SHARED, 0, activate(f, b, c->shared_intermediate))
        || did(f, M3_TAP_SHARED, b->mlp, op->linear(ctx, b->mlp, b->gate, &w->down, NULL, T))
        || did(f, M3_TAP_MLP, b->mlp, op->add(ctx, b->mlp, b->routed, b->mlp, T * c->H));
}

/* Of training alone: on all that the layer's experts and router read. Each layer draws by the name of its norm. */
static int jitter(struct m3_pass *f, struct m3_activations *b)
{
    const struct m3_semantics *s = f->request->semantics;
    char name[96];
    if (s->jitter == 0) return 0;
    m3_tap_name(name, sizeof name, M3_TAP_MLP_NORM, f->layer);
    return m3_pass_prepared(f, M3_TAP_ROUTER_LOGITS, 0,
                            f->ops.jitter(&f->ctx, b->h, b->h, f->rows, f->config->H, f->p0, s->jitter,
                                          m3_draw_key((uint64_t)s->jitter_seed, name)));
}

static int moe(struct m3_pass *f, struct m3_activations *b, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    real *routed = c->shared_intermediate ? b->routed : b->mlp;
    if (m3_pass_shows(f, M3_TAP_EXPERT_OUT) && !b->each &&
        !(b->each = m3_pass_need(f, T, c->K * c->H, sizeof(real))))
        return f->status;

    return jitter(f, b)
        || did(f, M3_TAP_ROUTER_LOGITS, b->router, op->linear(ctx, b->router, b->h, &w->router, NULL, T))
        || did(f, M3_TAP_ROUTER_SCORES, b->router, op->sigmoid(ctx, b->router, b->router, T * c->E))
        || did(f, M3_TAP_EXPERTS, b->ids, op->route(ctx, b->ids, b->p, b->router, b->bias, T, c->E, c->K))
        || did(f, M3_TAP_EXPERT_WEIGHTS, b->p, 0)
        || did(f, M3_TAP_EXPERT_OUT, b->each, routed_experts(f, b, w, routed))
        || did(f, M3_TAP_ROUTED, routed, 0)
        || (c->shared_intermediate ? shared_expert(f, b, w) : did(f, M3_TAP_MLP, b->mlp, 0));
}

static int run(struct m3_pass *f, struct m3_activations *b, int64_t l)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    const struct m3_layer *w = &f->model->layers[l];
    const struct keys keys = keys_of(f, b, l);
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    layer_vectors(b, w);

    return projections(f, b, w, &keys)
        || (m3_config_sparse(c, l) ? sparse_attention(f, b, w, &keys) : full_attention(f, b, &keys))
        || did(f, M3_TAP_ATTN_OUT, b->h, op->linear(ctx, b->h, b->o, &w->o_proj, NULL, T))
        || did(f, M3_TAP_MID, b->x, op->add(ctx, b->x, b->x, b->h, T * c->H))
        || did(f, M3_TAP_MLP_NORM, b->h, f->norm(ctx, b->h, b->x, b->mlp_norm, T, c->H, (real)c->eps))
        || (m3_config_moe(c, l) ? moe(f, b, w) : dense_mlp(f, b, w))
        || did(f, M3_TAP_OUT, b->x, op->add(ctx, b->x, b->x, b->mlp, T * c->H))
        || m3_pass_nan_free(f, M3_TAP_OUT, b->x, 0, T, c->H);
}

int m3_layer_angles(struct m3_pass *f, struct m3_activations *b, const int64_t *positions)
{
    const struct m3_config *c = f->config;
    return m3_pass_prepared(f, M3_TAP_Q_ROPE, 0,
                            f->ops.rope_table(&f->ctx, b->cos, b->sin, positions, f->rows, c->R, c->rope_theta,
                                              f->request->semantics->rope_angle));
}

int m3_layer_run(struct m3_pass *f, struct m3_activations *b, int64_t l)
{
    int step = is_step(f);
    if (!step) layer_pages(&f->model->layers[l], m3_pages_ask);
    if (!run(f, b, l) && !step) release_layer(&f->model->layers[l], f->config->E);
    return f->status;
}
