#include "model/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

enum {
    SCORE_ROWS = 256,       /* rows of block scores at a time: [T,G,B] would grow with T x T */
    LOGIT_ROWS = 64,        /* rows of logits at a time: a row of the released model has 200,064 */
};

/* Activations of one layer, over all tokens. Norm and rotation work in place, after their input was shown. */
struct buffers {
    real *x;                                /* [T,H] the residual stream */
    real *h;                                /* [T,H] what a norm or the attention hands on */
    real *q, *o;                            /* [T,Q,D] */
    real *k, *v;                            /* [T,G,D] */
    real *lse;                              /* [T,Q] */
    real *index_q, *index_k;                /* [T,G,X] [T,X] */
    real *scores;                           /* [SCORE_ROWS,G,B] */
    int32_t *blocks;                        /* [T,G,N] */
    real *gate, *up;                        /* [T, widest of dense and shared intermediate] */
    real *router;                           /* [T,E] logits, then scores */
    int32_t *ids;                           /* [T,K] */
    real *p;                                /* [T,K] */
    real *routed, *mlp;                     /* [T,H] */
    real *each;                             /* [T,K,H], only when it is shown */
    real *logits;                           /* [LOGIT_ROWS,V] */
    real *cos, *sin;                        /* [T,R/2] */
    real *attn_norm, *q_norm, *k_norm, *index_q_norm, *index_k_norm, *mlp_norm, *bias;   /* a layer's vectors */
};

static int make_buffers(struct m3_pass *f, struct buffers *b)
{
    const struct m3_config *c = f->config;
    int64_t T = f->request->T, wide = m3_max(c->dense_intermediate, c->shared_intermediate);
    int64_t B = c->block > 0 ? (T + c->block - 1) / c->block : 0;     /* 0: no layer is sparse */

    b->x = m3_pass_need(f, T, c->H, sizeof(real));
    b->h = m3_pass_need(f, T, c->H, sizeof(real));
    b->q = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    b->o = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    b->k = m3_pass_need(f, T, c->G * c->D, sizeof(real));
    b->v = m3_pass_need(f, T, c->G * c->D, sizeof(real));
    b->lse = m3_pass_need(f, T, c->Q, sizeof(real));
    b->index_q = m3_pass_need(f, T, c->G * c->X, sizeof(real));
    b->index_k = m3_pass_need(f, T, c->X, sizeof(real));
    b->scores = m3_pass_need(f, m3_min(T, SCORE_ROWS), c->G * B, sizeof(real));
    b->blocks = m3_pass_need(f, T, c->G * c->N, sizeof(int32_t));
    b->gate = m3_pass_need(f, T, wide, sizeof(real));
    b->up = m3_pass_need(f, T, wide, sizeof(real));
    b->router = m3_pass_need(f, T, c->E, sizeof(real));
    b->ids = m3_pass_need(f, T, c->K, sizeof(int32_t));
    b->p = m3_pass_need(f, T, c->K, sizeof(real));
    b->routed = m3_pass_need(f, T, c->H, sizeof(real));
    b->mlp = m3_pass_need(f, T, c->H, sizeof(real));
    b->logits = m3_pass_need(f, m3_min(T, LOGIT_ROWS), c->V, sizeof(real));
    b->cos = m3_pass_need(f, T, c->R / 2, sizeof(real));
    b->sin = m3_pass_need(f, T, c->R / 2, sizeof(real));
    b->attn_norm = m3_pass_need(f, 1, c->H, sizeof(real));
    b->q_norm = m3_pass_need(f, 1, c->D, sizeof(real));
    b->k_norm = m3_pass_need(f, 1, c->D, sizeof(real));
    b->index_q_norm = m3_pass_need(f, 1, c->X, sizeof(real));
    b->index_k_norm = m3_pass_need(f, 1, c->X, sizeof(real));
    b->mlp_norm = m3_pass_need(f, 1, c->H, sizeof(real));
    b->bias = m3_pass_need(f, 1, c->E, sizeof(real));
    return f->status;
}

static void free_buffers(struct buffers *b)
{
    void *all[] = { b->x, b->h, b->q, b->o, b->k, b->v, b->lse, b->index_q, b->index_k, b->scores, b->blocks, b->gate,
                    b->up, b->router, b->ids, b->p, b->routed, b->mlp, b->each, b->logits, b->cos, b->sin, b->attn_norm,
                    b->q_norm, b->k_norm, b->index_q_norm, b->index_k_norm, b->mlp_norm, b->bias };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void layer_vectors(struct buffers *b, const struct m3_layer *w)
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

static void release_layer(const struct m3_layer *w, int64_t experts)
{
    layer_pages(w, m3_pages_release);
    for (int64_t e = 0; w->experts && e < experts; e++) expert_pages(&w->experts[e], m3_pages_release);
}

static int projections(struct m3_pass *f, struct buffers *b, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    real eps = (real)c->eps;

    return did(f, M3_TAP_ATTN_NORM, b->h, f->norm(ctx, b->h, b->x, b->attn_norm, T, c->H, eps))
        || did(f, M3_TAP_Q_PROJ, b->q, op->linear(ctx, b->q, b->h, &w->q_proj, NULL, T))
        || did(f, M3_TAP_K_PROJ, b->k, op->linear(ctx, b->k, b->h, &w->k_proj, NULL, T))
        || did(f, M3_TAP_V_PROJ, b->v, op->linear(ctx, b->v, b->h, &w->v_proj, NULL, T))
        || did(f, M3_TAP_Q_NORM, b->q, f->norm(ctx, b->q, b->q, b->q_norm, T * c->Q, c->D, eps))
        || did(f, M3_TAP_K_NORM, b->k, f->norm(ctx, b->k, b->k, b->k_norm, T * c->G, c->D, eps))
        || did(f, M3_TAP_Q_ROPE, b->q, op->rope(ctx, b->q, b->q, b->cos, b->sin, T, c->Q, c->D, c->R))
        || did(f, M3_TAP_K_ROPE, b->k, op->rope(ctx, b->k, b->k, b->cos, b->sin, T, c->G, c->D, c->R));
}

static int full_attention(struct m3_pass *f, struct buffers *b)
{
    const struct m3_config *c = f->config;
    const struct m3_attend d = { .T = f->rows, .Q = c->Q, .G = c->G, .D = c->D };

    return did(f, M3_TAP_ATTN_LSE, b->lse, f->ops.attend_full(&f->ctx, b->o, b->lse, b->q, b->k, b->v, &d))
        || did(f, M3_TAP_ATTN, b->o, 0);
}

/* Which blocks each row attends to; scores in pieces, for all of them together would grow with T x T. */
static int choose_blocks(struct m3_pass *f, struct buffers *b)
{
    const struct m3_config *c = f->config;
    struct m3_index d = { .G = c->G, .X = c->X, .block = c->block, .B = (f->rows + c->block - 1) / c->block, .N = c->N,
                          .semantics = f->request->semantics };

    for (int64_t t0 = 0; t0 < f->rows; t0 += SCORE_ROWS) {
        const real *q = b->index_q + t0 * c->G * c->X;
        d.p0 = t0;
        d.T = m3_min(SCORE_ROWS, f->rows - t0);
        if (m3_pass_show(f, M3_TAP_INDEX_BLOCK_SCORES, b->scores, t0, d.T,
                         f->ops.block_scores(&f->ctx, b->scores, q, b->index_k, &d)) ||
            m3_pass_prepared(f, M3_TAP_INDEX_BLOCKS, t0,
                             f->ops.select_blocks(&f->ctx, b->blocks + t0 * c->G * c->N, b->scores, &d)))
            return f->status;
    }
    return did(f, M3_TAP_INDEX_BLOCKS, b->blocks, 0);
}

static int sparse_attention(struct m3_pass *f, struct buffers *b, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    const struct m3_attend d = { .T = f->rows, .Q = c->Q, .G = c->G, .D = c->D, .block = c->block, .N = c->N,
                                 .selection = f->request->semantics->selection };
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    real eps = (real)c->eps, *q = b->index_q, *k = b->index_k;

    return did(f, M3_TAP_INDEX_Q_PROJ, q, op->linear(ctx, q, b->h, &w->index_q_proj, NULL, T))
        || did(f, M3_TAP_INDEX_K_PROJ, k, op->linear(ctx, k, b->h, &w->index_k_proj, NULL, T))
        || did(f, M3_TAP_INDEX_Q_NORM, q, f->norm(ctx, q, q, b->index_q_norm, T * c->G, c->X, eps))
        || did(f, M3_TAP_INDEX_K_NORM, k, f->norm(ctx, k, k, b->index_k_norm, T, c->X, eps))
        || did(f, M3_TAP_INDEX_Q_ROPE, q, op->rope(ctx, q, q, b->cos, b->sin, T, c->G, c->X, c->R))
        || did(f, M3_TAP_INDEX_K_ROPE, k, op->rope(ctx, k, k, b->cos, b->sin, T, 1, c->X, c->R))
        || choose_blocks(f, b)
        || did(f, M3_TAP_ATTN_LSE, b->lse, op->attend_blocks(ctx, b->o, b->lse, b->q, b->k, b->v, b->blocks, &d))
        || did(f, M3_TAP_ATTN, b->o, 0);
}

static int activate(struct m3_pass *f, struct buffers *b, int64_t F)
{
    return f->act.oai ? f->ops.swiglu_oai(&f->ctx, b->gate, b->gate, b->up, f->rows, F, &f->act)
                      : f->ops.swiglu(&f->ctx, b->gate, b->gate, b->up, f->rows, F);
}

static int dense_mlp(struct m3_pass *f, struct buffers *b, const struct m3_layer *w)
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

static int routed_experts(struct m3_pass *f, struct buffers *b, const struct m3_layer *w)
{
    const struct m3_config *c = f->config;
    for (int64_t e = 0; e < c->E; e++)
        if (is_chosen(b->ids, f->rows * c->K, e)) expert_pages(&w->experts[e], m3_pages_ask);
    return f->ops.experts(&f->ctx, b->routed, b->each, b->h, b->ids, b->p, w->experts, &f->act, f->rows, c->E, c->K,
                          (real)c->routed_scaling);
}

static int moe(struct m3_pass *f, struct buffers *b, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    if (m3_pass_shows(f, M3_TAP_EXPERT_OUT) && !b->each &&
        !(b->each = m3_pass_need(f, T, c->K * c->H, sizeof(real))))
        return f->status;

    return did(f, M3_TAP_ROUTER_LOGITS, b->router, op->linear(ctx, b->router, b->h, &w->router, NULL, T))
        || did(f, M3_TAP_ROUTER_SCORES, b->router, op->sigmoid(ctx, b->router, b->router, T * c->E))
        || did(f, M3_TAP_EXPERTS, b->ids, op->route(ctx, b->ids, b->p, b->router, b->bias, T, c->E, c->K))
        || did(f, M3_TAP_EXPERT_WEIGHTS, b->p, 0)
        || did(f, M3_TAP_EXPERT_OUT, b->each, routed_experts(f, b, w))
        || did(f, M3_TAP_ROUTED, b->routed, 0)
        || m3_pass_prepared(f, M3_TAP_SHARED, 0, op->linear(ctx, b->gate, b->h, &w->gate, NULL, T))
        || m3_pass_prepared(f, M3_TAP_SHARED, 0, op->linear(ctx, b->up, b->h, &w->up, NULL, T))
        || m3_pass_prepared(f, M3_TAP_SHARED, 0, activate(f, b, c->shared_intermediate))
        || did(f, M3_TAP_SHARED, b->mlp, op->linear(ctx, b->mlp, b->gate, &w->down, NULL, T))
        || did(f, M3_TAP_MLP, b->mlp, op->add(ctx, b->mlp, b->routed, b->mlp, T * c->H));
}

static int run_layer(struct m3_pass *f, struct buffers *b, int64_t l)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    const struct m3_layer *w = &f->model->layers[l];
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows;
    f->layer = l;
    layer_vectors(b, w);

    return projections(f, b, w)
        || (c->sparse[l] ? sparse_attention(f, b, w) : full_attention(f, b))
        || did(f, M3_TAP_ATTN_OUT, b->h, op->linear(ctx, b->h, b->o, &w->o_proj, NULL, T))
        || did(f, M3_TAP_MID, b->x, op->add(ctx, b->x, b->x, b->h, T * c->H))
        || did(f, M3_TAP_MLP_NORM, b->h, f->norm(ctx, b->h, b->x, b->mlp_norm, T, c->H, (real)c->eps))
        || (c->moe[l] ? moe(f, b, w) : dense_mlp(f, b, w))
        || did(f, M3_TAP_OUT, b->x, op->add(ctx, b->x, b->x, b->mlp, T * c->H))
        || m3_pass_nan_free(f, M3_TAP_OUT, b->x, 0, T, c->H);
}

/* Embedding rows; then, in the places of their ids, the features of images, and those of videos. */
static int embed(struct m3_pass *f, struct buffers *b, const real *features)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_vision_config *v = &f->config->vision;
    const int32_t *ids = f->request->ids, image = (int32_t)v->image_token, video = (int32_t)v->video_token;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows, H = f->config->H;
    real *x = b->x;
    if (did(f, M3_TAP_EMBED, x, op->embed(ctx, x, ids, &f->model->embed, T))) return f->status;
    if (!v->present) return did(f, M3_TAP_FUSED, x, 0);

    int64_t images = m3_pictures_image_tokens(f->request->pictures, v);
    int64_t videos = m3_pictures_video_tokens(f->request->pictures, v);
    const real *of_videos = features ? features + images * H : NULL;
    return m3_pass_prepared(f, M3_TAP_FUSED, 0, op->scatter(ctx, x, x, ids, features, image, T, images, H))
        || did(f, M3_TAP_FUSED, x, op->scatter(ctx, x, x, ids, of_videos, video, T, videos, H));
}

/* Logits in fixed pieces of rows; pieces that nobody wants are not made, except the last row's. */
static int head(struct m3_pass *f, struct buffers *b)
{
    const struct m3_config *c = f->config;
    m3_pass_vector(b->attn_norm, &f->model->final_norm);
    if (did(f, M3_TAP_FINAL_NORM, b->h, f->norm(&f->ctx, b->h, b->x, b->attn_norm, f->rows, c->H, (real)c->eps)))
        return f->status;

    int64_t first = m3_pass_shows(f, M3_TAP_LOGITS) ? 0 : (f->rows - 1) / LOGIT_ROWS * LOGIT_ROWS;
    for (int64_t t0 = first; t0 < f->rows; t0 += LOGIT_ROWS) {
        int64_t rows = m3_min(LOGIT_ROWS, f->rows - t0);
        int status = f->ops.linear(&f->ctx, b->logits, b->h + t0 * c->H, &f->model->lm_head, NULL, rows);
        if (m3_pass_show(f, M3_TAP_LOGITS, b->logits, t0, rows, status) ||
            m3_pass_nan_free(f, M3_TAP_LOGITS, b->logits, t0, rows, c->V))
            return f->status;
    }
    const real *last = b->logits + (f->rows - 1) % LOGIT_ROWS * c->V;
    for (int64_t i = 0; f->request->logits && i < c->V; i++) f->request->logits[i] = (double)last[i];
    return 0;
}

static int run_layers(struct m3_pass *f, struct buffers *b, const real *features)
{
    const struct m3_request *r = f->request;
    f->layer = r->first_layer;
    if (m3_pass_prepared(f, M3_TAP_Q_ROPE, 0,
                         f->ops.rope_table(&f->ctx, b->cos, b->sin, r->positions, f->rows, f->config->R,
                                           f->config->rope_theta, r->semantics->rope_angle)))
        return f->status;
    f->layer = -1;
    if (r->first_layer > 0) memcpy(b->x, r->hidden, (size_t)(f->rows * f->config->H) * sizeof(real));
    else if (embed(f, b, features)) return f->status;

    for (int64_t l = r->first_layer; l < r->end_layer; l++) {
        if (r->progress) r->progress(r->progress_self, "layer", l, f->config->layers);
        layer_pages(&f->model->layers[l], m3_pages_ask);
        if (run_layer(f, b, l)) return f->status;
        release_layer(&f->model->layers[l], f->config->E);
    }
    f->layer = -1;
    if (r->end_layer == f->config->layers && head(f, b)) return f->status;
    if (r->progress) r->progress(r->progress_self, "layer", r->end_layer, f->config->layers);
    return 0;
}

int m3_text_forward(struct m3_pass *f, const real *features)
{
    struct buffers b = { 0 };
    f->rows = f->request->T;
    if (!make_buffers(f, &b)) run_layers(f, &b, features);
    free_buffers(&b);
    return f->status;
}
