#include "model/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/plugin.h"
#include "ops/operators.h"

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

struct pass {
    const struct m3_model *model;
    const struct m3_config *config;
    const struct m3_request *request;
    struct m3_error *error;
    struct m3_ops ops;
    int (*norm)(struct m3_ctx *, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps);
    struct m3_activation act;
    struct m3_ctx ctx;
    struct buffers b;
    int64_t T, layer;
    int status;
};

static void *need(struct pass *f, int64_t rows, int64_t width, size_t size)
{
    size_t count, bytes;
    void *memory = NULL;
    if (!__builtin_mul_overflow((size_t)rows, (size_t)width, &count) && !__builtin_mul_overflow(count, size, &bytes))
        memory = malloc(bytes ? bytes : 1);
    if (!memory)
        f->status = m3_fail(f->error, M3_INTERNAL, "out of memory: got none for %" PRId64 " x %" PRId64 " numbers",
                            rows, width);
    return memory;
}

static int shows(const struct pass *f, enum m3_tap tap)
{
    const struct m3_sink *sink = f->request->sink;
    return sink && sink->wants(sink->self, tap, f->layer);
}

static int make_buffers(struct pass *f)
{
    const struct m3_config *c = f->config;
    struct buffers *b = &f->b;
    int64_t T = f->T, wide = m3_max(c->dense_intermediate, c->shared_intermediate);
    int64_t B = c->block > 0 ? (T + c->block - 1) / c->block : 0;     /* 0: no layer is sparse */

    b->x = need(f, T, c->H, sizeof(real));
    b->h = need(f, T, c->H, sizeof(real));
    b->q = need(f, T, c->Q * c->D, sizeof(real));
    b->o = need(f, T, c->Q * c->D, sizeof(real));
    b->k = need(f, T, c->G * c->D, sizeof(real));
    b->v = need(f, T, c->G * c->D, sizeof(real));
    b->lse = need(f, T, c->Q, sizeof(real));
    b->index_q = need(f, T, c->G * c->X, sizeof(real));
    b->index_k = need(f, T, c->X, sizeof(real));
    b->scores = need(f, m3_min(T, SCORE_ROWS), c->G * B, sizeof(real));
    b->blocks = need(f, T, c->G * c->N, sizeof(int32_t));
    b->gate = need(f, T, wide, sizeof(real));
    b->up = need(f, T, wide, sizeof(real));
    b->router = need(f, T, c->E, sizeof(real));
    b->ids = need(f, T, c->K, sizeof(int32_t));
    b->p = need(f, T, c->K, sizeof(real));
    b->routed = need(f, T, c->H, sizeof(real));
    b->mlp = need(f, T, c->H, sizeof(real));
    b->logits = need(f, m3_min(T, LOGIT_ROWS), c->V, sizeof(real));
    b->cos = need(f, T, c->R / 2, sizeof(real));
    b->sin = need(f, T, c->R / 2, sizeof(real));
    b->attn_norm = need(f, 1, c->H, sizeof(real));
    b->q_norm = need(f, 1, c->D, sizeof(real));
    b->k_norm = need(f, 1, c->D, sizeof(real));
    b->index_q_norm = need(f, 1, c->X, sizeof(real));
    b->index_k_norm = need(f, 1, c->X, sizeof(real));
    b->mlp_norm = need(f, 1, c->H, sizeof(real));
    b->bias = need(f, 1, c->E, sizeof(real));
    return f->status;
}

static void free_buffers(struct buffers *b)
{
    void *all[] = { b->x, b->h, b->q, b->o, b->k, b->v, b->lse, b->index_q, b->index_k, b->scores, b->blocks, b->gate,
                    b->up, b->router, b->ids, b->p, b->routed, b->mlp, b->each, b->logits, b->cos, b->sin, b->attn_norm,
                    b->q_norm, b->k_norm, b->index_q_norm, b->index_k_norm, b->mlp_norm, b->bias };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* The line of an operator that failed: tap, then as much of the place as it gave. */
static int failed(struct pass *f, int status, enum m3_tap tap, int64_t row0)
{
    if (status < M3_WRONG || status > M3_IO) status = M3_UNAVAILABLE;      /* what a plug-in made up */
    const struct m3_failure *at = &f->ctx.failure;
    const char *folder = m3_checkpoint_config_path(f->model->checkpoint);
    const char *unit = m3_tap_table[tap].where == M3_MOE_LAYER ? "expert" : "block";
    char name[96], place[160];
    size_t n = 0;

    m3_tap_name(name, sizeof name, tap, f->layer);
    place[0] = '\0';
    if (at->row >= 0) n += (size_t)snprintf(place + n, sizeof place - n, ", token %" PRId64, row0 + at->row);
    if (at->group >= 0) n += (size_t)snprintf(place + n, sizeof place - n, ", group %" PRId64, at->group);
    if (at->block >= 0) snprintf(place + n, sizeof place - n, ", %s %" PRId64, unit, at->block);
    return m3_fail(f->error, status, "%s: %s%s: %s", folder, name, place, at->what ? at->what : "the operator failed");
}

/* The end of every step: hands rows to whoever watches. Not zero ends the pass. */
static int show(struct pass *f, enum m3_tap tap, const void *data, int64_t row, int64_t rows, int status)
{
    if (status) f->status = failed(f, status, tap, row);
    else if (shows(f, tap))
        f->status = f->request->sink->write(f->request->sink->self, tap, f->layer, data, row, rows, f->error);
    return f->status;
}

static int did(struct pass *f, enum m3_tap tap, const void *data, int status)
{
    return show(f, tap, data, 0, f->T, status);
}

/* A step without a tap of its own; `tap` is the one that it prepares. */
static int prepared(struct pass *f, enum m3_tap tap, int64_t row, int status)
{
    return status ? (f->status = failed(f, status, tap, row)) : 0;
}

static void vector(real *out, const struct m3_weight *w)
{
    if (!w->data) return;
    if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)out, w, 0, 0, w->cols);
    else m3_expand_f32((float *)(void *)out, w, 0, 0, w->cols);
}

static void layer_vectors(struct buffers *b, const struct m3_layer *w)
{
    vector(b->attn_norm, &w->attn_norm);
    vector(b->q_norm, &w->q_norm);
    vector(b->k_norm, &w->k_norm);
    vector(b->index_q_norm, &w->index_q_norm);
    vector(b->index_k_norm, &w->index_k_norm);
    vector(b->mlp_norm, &w->mlp_norm);
    vector(b->bias, &w->router_bias);
}

static void weight_pages(const struct m3_weight *w, void (*give)(const void *, uint64_t))
{
    if (w->data) give(w->data, (uint64_t)(w->rows * w->cols) * m3_dtype_bytes(w->dtype));
}

static void expert_pages(const struct m3_expert *e, void (*give)(const void *, uint64_t))
{
    weight_pages(&e->w1, give);
    weight_pages(&e->w3, give);
    weight_pages(&e->w2, give);
}

/* All matrices of a layer but the routed experts. */
static void layer_pages(const struct m3_layer *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->q_proj,       &w->k_proj, &w->v_proj, &w->o_proj, &w->index_q_proj,
                                      &w->index_k_proj, &w->gate,   &w->up,     &w->down,   &w->router };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) weight_pages(all[i], give);
}

static void release_layer(const struct m3_layer *w, int64_t experts)
{
    layer_pages(w, m3_pages_release);
    for (int64_t e = 0; w->experts && e < experts; e++) expert_pages(&w->experts[e], m3_pages_release);
}

static int projections(struct pass *f, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    struct buffers *b = &f->b;
    int64_t T = f->T;
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

static int full_attention(struct pass *f)
{
    const struct m3_config *c = f->config;
    const struct m3_attend d = { .T = f->T, .Q = c->Q, .G = c->G, .D = c->D };
    struct buffers *b = &f->b;

    return did(f, M3_TAP_ATTN_LSE, b->lse, f->ops.attend_full(&f->ctx, b->o, b->lse, b->q, b->k, b->v, &d))
        || did(f, M3_TAP_ATTN, b->o, 0);
}

/* Which blocks each row attends to; scores in pieces, for all of them together would grow with T x T. */
static int choose_blocks(struct pass *f)
{
    const struct m3_config *c = f->config;
    struct buffers *b = &f->b;
    struct m3_index d = { .G = c->G, .X = c->X, .block = c->block, .B = (f->T + c->block - 1) / c->block, .N = c->N,
                          .semantics = f->request->semantics };

    for (int64_t t0 = 0; t0 < f->T; t0 += SCORE_ROWS) {
        const real *q = b->index_q + t0 * c->G * c->X;
        d.p0 = t0;
        d.T = m3_min(SCORE_ROWS, f->T - t0);
        if (show(f, M3_TAP_INDEX_BLOCK_SCORES, b->scores, t0, d.T,
                 f->ops.block_scores(&f->ctx, b->scores, q, b->index_k, &d)) ||
            prepared(f, M3_TAP_INDEX_BLOCKS, t0,
                     f->ops.select_blocks(&f->ctx, b->blocks + t0 * c->G * c->N, b->scores, &d)))
            return f->status;
    }
    return did(f, M3_TAP_INDEX_BLOCKS, b->blocks, 0);
}

static int sparse_attention(struct pass *f, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    const struct m3_attend d = { .T = f->T, .Q = c->Q, .G = c->G, .D = c->D, .block = c->block, .N = c->N,
                                 .selection = f->request->semantics->selection };
    struct m3_ctx *ctx = &f->ctx;
    struct buffers *b = &f->b;
    int64_t T = f->T;
    real eps = (real)c->eps, *q = b->index_q, *k = b->index_k;

    return did(f, M3_TAP_INDEX_Q_PROJ, q, op->linear(ctx, q, b->h, &w->index_q_proj, NULL, T))
        || did(f, M3_TAP_INDEX_K_PROJ, k, op->linear(ctx, k, b->h, &w->index_k_proj, NULL, T))
        || did(f, M3_TAP_INDEX_Q_NORM, q, f->norm(ctx, q, q, b->index_q_norm, T * c->G, c->X, eps))
        || did(f, M3_TAP_INDEX_K_NORM, k, f->norm(ctx, k, k, b->index_k_norm, T, c->X, eps))
        || did(f, M3_TAP_INDEX_Q_ROPE, q, op->rope(ctx, q, q, b->cos, b->sin, T, c->G, c->X, c->R))
        || did(f, M3_TAP_INDEX_K_ROPE, k, op->rope(ctx, k, k, b->cos, b->sin, T, 1, c->X, c->R))
        || choose_blocks(f)
        || did(f, M3_TAP_ATTN_LSE, b->lse, op->attend_blocks(ctx, b->o, b->lse, b->q, b->k, b->v, b->blocks, &d))
        || did(f, M3_TAP_ATTN, b->o, 0);
}

static int activate(struct pass *f, int64_t F)
{
    struct buffers *b = &f->b;
    return f->act.oai ? f->ops.swiglu_oai(&f->ctx, b->gate, b->gate, b->up, f->T, F, &f->act)
                      : f->ops.swiglu(&f->ctx, b->gate, b->gate, b->up, f->T, F);
}

static int dense_mlp(struct pass *f, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    struct m3_ctx *ctx = &f->ctx;
    struct buffers *b = &f->b;

    return did(f, M3_TAP_MLP_GATE, b->gate, op->linear(ctx, b->gate, b->h, &w->gate, NULL, f->T))
        || did(f, M3_TAP_MLP_UP, b->up, op->linear(ctx, b->up, b->h, &w->up, NULL, f->T))
        || did(f, M3_TAP_MLP_ACT, b->gate, activate(f, f->config->dense_intermediate))
        || did(f, M3_TAP_MLP, b->mlp, op->linear(ctx, b->mlp, b->gate, &w->down, NULL, f->T));
}

static int is_chosen(const int32_t *ids, int64_t count, int64_t expert)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] == expert) return 1;
    return 0;
}

static int routed_experts(struct pass *f, const struct m3_layer *w)
{
    const struct m3_config *c = f->config;
    struct buffers *b = &f->b;
    for (int64_t e = 0; e < c->E; e++)
        if (is_chosen(b->ids, f->T * c->K, e)) expert_pages(&w->experts[e], m3_pages_ask);
    return f->ops.experts(&f->ctx, b->routed, b->each, b->h, b->ids, b->p, w->experts, &f->act, f->T, c->E, c->K,
                          (real)c->routed_scaling);
}

static int moe(struct pass *f, const struct m3_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    struct m3_ctx *ctx = &f->ctx;
    struct buffers *b = &f->b;
    int64_t T = f->T;
    if (shows(f, M3_TAP_EXPERT_OUT) && !b->each && !(b->each = need(f, T, c->K * c->H, sizeof(real)))) return f->status;

    return did(f, M3_TAP_ROUTER_LOGITS, b->router, op->linear(ctx, b->router, b->h, &w->router, NULL, T))
        || did(f, M3_TAP_ROUTER_SCORES, b->router, op->sigmoid(ctx, b->router, b->router, T * c->E))
        || did(f, M3_TAP_EXPERTS, b->ids, op->route(ctx, b->ids, b->p, b->router, b->bias, T, c->E, c->K))
        || did(f, M3_TAP_EXPERT_WEIGHTS, b->p, 0)
        || did(f, M3_TAP_EXPERT_OUT, b->each, routed_experts(f, w))
        || did(f, M3_TAP_ROUTED, b->routed, 0)
        || prepared(f, M3_TAP_SHARED, 0, op->linear(ctx, b->gate, b->h, &w->gate, NULL, T))
        || prepared(f, M3_TAP_SHARED, 0, op->linear(ctx, b->up, b->h, &w->up, NULL, T))
        || prepared(f, M3_TAP_SHARED, 0, activate(f, c->shared_intermediate))
        || did(f, M3_TAP_SHARED, b->mlp, op->linear(ctx, b->mlp, b->gate, &w->down, NULL, T))
        || did(f, M3_TAP_MLP, b->mlp, op->add(ctx, b->mlp, b->routed, b->mlp, T * c->H));
}

/* NaN of the model's own arithmetic is reported where it first appears, by layer and token. */
static int nan_free(struct pass *f, enum m3_tap tap, const real *x, int64_t row0, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows * width; i++)
        if (x[i] != x[i]) {
            f->ctx.failure = (struct m3_failure){ "got nan, expected a number", i / width, -1, -1 };
            return f->status = failed(f, M3_WRONG, tap, row0);
        }
    return 0;
}

static int run_layer(struct pass *f, int64_t l)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_config *c = f->config;
    const struct m3_layer *w = &f->model->layers[l];
    struct m3_ctx *ctx = &f->ctx;
    struct buffers *b = &f->b;
    int64_t T = f->T;
    f->layer = l;
    layer_vectors(b, w);

    return projections(f, w)
        || (c->sparse[l] ? sparse_attention(f, w) : full_attention(f))
        || did(f, M3_TAP_ATTN_OUT, b->h, op->linear(ctx, b->h, b->o, &w->o_proj, NULL, T))
        || did(f, M3_TAP_MID, b->x, op->add(ctx, b->x, b->x, b->h, T * c->H))
        || did(f, M3_TAP_MLP_NORM, b->h, f->norm(ctx, b->h, b->x, b->mlp_norm, T, c->H, (real)c->eps))
        || (c->moe[l] ? moe(f, w) : dense_mlp(f, w))
        || did(f, M3_TAP_OUT, b->x, op->add(ctx, b->x, b->x, b->mlp, T * c->H))
        || nan_free(f, M3_TAP_OUT, b->x, 0, T, c->H);
}

static int embed(struct pass *f)
{
    struct buffers *b = &f->b;
    return did(f, M3_TAP_EMBED, b->x, f->ops.embed(&f->ctx, b->x, f->request->ids, &f->model->embed, f->T))
        || did(f, M3_TAP_FUSED, b->x, 0);
}

/* Logits in fixed pieces of rows; pieces that nobody wants are not made, except the last row's. */
static int head(struct pass *f)
{
    const struct m3_config *c = f->config;
    struct buffers *b = &f->b;
    vector(b->attn_norm, &f->model->final_norm);
    if (did(f, M3_TAP_FINAL_NORM, b->h, f->norm(&f->ctx, b->h, b->x, b->attn_norm, f->T, c->H, (real)c->eps)))
        return f->status;

    int64_t first = shows(f, M3_TAP_LOGITS) ? 0 : (f->T - 1) / LOGIT_ROWS * LOGIT_ROWS;
    for (int64_t t0 = first; t0 < f->T; t0 += LOGIT_ROWS) {
        int64_t rows = m3_min(LOGIT_ROWS, f->T - t0);
        int status = f->ops.linear(&f->ctx, b->logits, b->h + t0 * c->H, &f->model->lm_head, NULL, rows);
        if (show(f, M3_TAP_LOGITS, b->logits, t0, rows, status) ||
            nan_free(f, M3_TAP_LOGITS, b->logits, t0, rows, c->V))
            return f->status;
    }
    const real *last = b->logits + (f->T - 1) % LOGIT_ROWS * c->V;
    for (int64_t i = 0; f->request->logits && i < c->V; i++) f->request->logits[i] = (double)last[i];
    return 0;
}

static int run_layers(struct pass *f)
{
    const struct m3_request *r = f->request;
    struct buffers *b = &f->b;
    f->layer = r->first_layer;
    if (prepared(f, M3_TAP_Q_ROPE, 0, f->ops.rope_table(&f->ctx, b->cos, b->sin, r->positions, f->T, f->config->R,
                                                     f->config->rope_theta, r->semantics->rope_angle)))
        return f->status;
    f->layer = -1;
    if (r->first_layer > 0) memcpy(b->x, r->hidden, (size_t)(f->T * f->config->H) * sizeof(real));
    else if (embed(f)) return f->status;

    for (int64_t l = r->first_layer; l < r->end_layer; l++) {
        if (r->progress) r->progress(r->progress_self, l, f->config->layers);
        layer_pages(&f->model->layers[l], m3_pages_ask);
        if (run_layer(f, l)) return f->status;
        release_layer(&f->model->layers[l], f->config->E);
    }
    f->layer = -1;
    if (r->end_layer == f->config->layers && head(f)) return f->status;
    if (r->progress) r->progress(r->progress_self, r->end_layer, f->config->layers);
    return 0;
}

static int check_request(const struct m3_config *c, const struct m3_request *r, struct m3_error *error)
{
    if (!r->ids || !r->positions || !r->semantics || r->T < 1 || r->threads < 1)
        return m3_fail(error, M3_USAGE,
                       "request: got T %" PRId64 ", %d threads, %s, expected T and threads from 1, ids, "
                       "positions and semantics",
                       r->T, r->threads, r->ids && r->positions && r->semantics ? "all pointers" : "a NULL pointer");
    if (r->first_layer < 0 || r->first_layer >= r->end_layer || r->end_layer > c->layers ||
        !r->hidden != (r->first_layer == 0))
        return m3_fail(error, M3_USAGE,
                       "request: got layers %" PRId64 " to %" PRId64 " %s hidden states, expected some of %" PRId64
                       ", with hidden states if not from 0",
                       r->first_layer, r->end_layer, r->hidden ? "with" : "without", c->layers);
    return M3_OK;
}

int m3_text_forward(const struct m3_model *model, const struct m3_request *request, struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    int wrong = check_request(c, request, error);
    if (wrong) return wrong;

    void *library = NULL;
    struct pass f = { .model = model, .config = c, .request = request, .error = error, .ops = m3_reference_ops,
                      .T = request->T, .layer = -1 };
    f.act =
        (struct m3_activation){ c->oai, (real)c->swiglu_alpha, (real)c->swiglu_limit, request->semantics->gate_clamp };

    f.status = m3_ctx_init(&f.ctx, request->threads, request->linear);
    if (f.status) return m3_fail_memory(error, "a context", sizeof f.ctx);
    if (request->plugin) f.status = m3_plugin_load(&f.ops, &library, request->plugin, error);
    f.norm = c->gemma_norm ? f.ops.rms_norm : f.ops.rms_norm_plain;
    if (!f.status) make_buffers(&f);
    if (!f.status) run_layers(&f);

    free_buffers(&f.b);
    m3_ctx_free(&f.ctx);
    m3_plugin_close(library);
    return f.status;
}
