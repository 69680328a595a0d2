/* The gradient of projector and vision tower, against the order of model/vision.c, one layer at a time. The branch that
 * a layer norm begins is read once; biases have gradients too. */
#include "model/forward/vision.h"

#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/backward/stages.h"

/* The gradients of the tower's taps. */
struct gradients {
    real *branch, *part; /* [P,W] */
    real *q, *k, *v; /* [P,A,U] */
    real *wide; /* [P, the widest of a layer and of the projector] */
    real *projected; /* [P,H] */
};

static void make(struct m3_pass *f, struct gradients *g)
{
    const struct m3_vision_config *v = &f->config->vision;
    const int64_t P = f->rows;
    real **of[] = { &g->branch, &g->part, &g->q, &g->k, &g->v };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) *of[i] = m3_pass_need(f, P, v->W, sizeof(real));
    g->wide = m3_pass_need(f, P, m3_max(v->intermediate, v->projector_hidden), sizeof(real));
    g->projected = m3_pass_need(f, P, f->config->H, sizeof(real));
}

static void release(struct gradients *g)
{
    void *all[] = { g->branch, g->part, g->q, g->k, g->v, g->wide, g->projected };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* d [P,W] := the gradient of the last hidden states. */
static void projector(struct m3_backward *b, struct gradients *g, real *d, const real *d_features, const real *hidden)
{
    struct m3_pass *f = &b->f;
    const struct m3_vision *w = &b->model->vision;
    const struct m3_kept *kept = &b->kept;
    const int64_t P = f->rows;
    f->layer = -1;
    f->rows = m3_merged(P, &f->config->vision);
    shown(b, M3_TAP_PROJECTOR_OUT, d_features);
    affine_back(b, M3_TAP_ACT_2, g->wide, d_features, kept->at[M3_TAP_ACT_2], &w->merge_linear_2,
                &w->merge_linear_2_bias);
    gelu_back(b, M3_TAP_MERGE_LINEAR_1, g->wide, g->wide, kept->at[M3_TAP_MERGE_LINEAR_1]);
    affine_back(b, M3_TAP_MERGED, g->projected, g->wide, kept->at[M3_TAP_MERGED], &w->merge_linear_1,
                &w->merge_linear_1_bias);
    f->rows = P;
    shown(b, M3_TAP_LINEAR_2, g->projected);
    affine_back(b, M3_TAP_ACT_1, g->wide, g->projected, kept->at[M3_TAP_ACT_1], &w->linear_2, &w->linear_2_bias);
    gelu_back(b, M3_TAP_LINEAR_1, g->wide, g->wide, kept->at[M3_TAP_LINEAR_1]);
    affine_back(b, prepares(M3_TAP_VISION_OUT), d, g->wide, hidden, &w->linear_1, &w->linear_1_bias);
}

static void layer(struct m3_backward *b, struct gradients *g, real *d, const real *hidden, const struct m3_tower *a,
                  const struct m3_vision_layer *w)
{
    struct m3_pass *f = &b->f;
    const struct m3_kept *kept = &b->kept;
    const real *norm1 = kept->at[M3_TAP_NORM1];
    shown(b, M3_TAP_VISION_OUT, d);
    shown(b, M3_TAP_VISION_MLP, d);
    affine_back(b, M3_TAP_VISION_ACT, g->wide, d, kept->at[M3_TAP_VISION_ACT], &w->fc2, &w->fc2_bias);
    gelu_back(b, M3_TAP_FC1, g->wide, g->wide, kept->at[M3_TAP_FC1]);
    affine_back(b, M3_TAP_NORM2, g->branch, g->wide, kept->at[M3_TAP_NORM2], &w->fc1, &w->fc1_bias);
    layer_norm_back(b, prepares(M3_TAP_VISION_MID), g->part, g->branch, kept->at[M3_TAP_VISION_MID], &w->norm2,
                    &w->norm2_bias);
    add(f, prepares(M3_TAP_VISION_MID), d, d, g->part);

    shown(b, M3_TAP_VISION_MID, d);
    shown(b, M3_TAP_VISION_ATTN_OUT, d);
    affine_back(b, M3_TAP_VISION_ATTN, g->branch, d, kept->at[M3_TAP_VISION_ATTN], &w->out_proj, &w->out_bias);
    attend_segments_back(b, g->q, g->k, g->v, g->branch, a->ends, a->segments);
    rope_back(b, M3_TAP_VISION_Q_PROJ, g->q, g->q, &a->angles);
    rope_back(b, M3_TAP_VISION_K_PROJ, g->k, g->k, &a->angles);
    affine_back(b, prepares(M3_TAP_NORM1), g->branch, g->q, norm1, &w->q_proj, &w->q_bias);
    affine_back(b, prepares(M3_TAP_NORM1), g->part, g->k, norm1, &w->k_proj, &w->k_bias);
    add(f, prepares(M3_TAP_NORM1), g->branch, g->branch, g->part);
    affine_back(b, prepares(M3_TAP_NORM1), g->part, g->v, norm1, &w->v_proj, &w->v_bias);
    add(f, prepares(M3_TAP_NORM1), g->branch, g->branch, g->part);
    shown(b, M3_TAP_NORM1, g->branch);
    layer_norm_back(b, prepares(M3_TAP_NORM1), g->part, g->branch, hidden, &w->norm1, &w->norm1_bias);
    add(f, prepares(M3_TAP_NORM1), d, d, g->part);
}

/* The input of each layer [P,W], and of the projector. */
static void forward(struct m3_backward *b, struct m3_tower *a, real **hidden)
{
    struct m3_pass *f = &b->f;
    const int64_t layers = f->config->vision.layers, W = f->config->vision.W;
    f->layer = -1;
    m3_tower_patches(f, a);
    for (int64_t v = 0; v <= layers; v++) {
        hidden[v] = m3_pass_need(f, f->rows, W, sizeof(real));
        if (f->status) return;
        memcpy(hidden[v], a->hidden, (size_t)(f->rows * W) * sizeof(real));
        f->layer = v;
        if (v < layers) m3_tower_layer(f, a, &b->model->vision.layers[v]);
    }
}

static void patches(struct m3_backward *b, struct m3_tower *a, struct gradients *g, real *d)
{
    const struct m3_vision *w = &b->model->vision;
    b->f.layer = -1;
    m3_keep_begin(b);
    m3_tower_patches(&b->f, a);
    m3_keep_end(b);
    shown(b, M3_TAP_PRE_NORM, d);
    layer_norm_back(b, M3_TAP_PATCH_EMBED, g->part, d, b->kept.at[M3_TAP_PATCH_EMBED], &w->pre_norm, &w->pre_norm_bias);
    linear_back(b, prepares(M3_TAP_VISION_PIXELS), NULL, g->part, b->kept.at[M3_TAP_VISION_PIXELS], &w->patch_embed);
}

/* Copies one of the kept hidden states to the tower's, and lets it run on. */
static void again(struct m3_backward *b, struct m3_tower *a, const real *hidden)
{
    if (b->f.status) return;
    memcpy(a->hidden, hidden, (size_t)(b->f.rows * b->f.config->vision.W) * sizeof *hidden);
    m3_keep_begin(b);
}

static void project(struct m3_backward *b, struct m3_tower *a, const real *hidden)
{
    struct m3_pass *f = &b->f;
    const int64_t P = f->rows;
    real *projected = m3_pass_need(f, P, f->config->H, sizeof *projected);
    real *features = m3_pass_need(f, P, f->config->H, sizeof *features);
    again(b, a, hidden);
    f->layer = -1;
    m3_tower_project(f, a, projected, features);
    m3_keep_end(b);
    f->rows = P;
    free(projected);
    free(features);
}

static void backward(struct m3_backward *b, struct m3_tower *a, struct gradients *g, real *d, real **hidden,
                     const real *d_features)
{
    const int64_t layers = b->f.config->vision.layers;
    forward(b, a, hidden);
    project(b, a, hidden[layers]);
    projector(b, g, d, d_features, hidden[layers]);
    m3_gradient_give(b, M3_GIVE_LAYER);
    for (int64_t v = layers - 1; !b->f.status && v >= 0; v--) {
        b->f.layer = v;
        again(b, a, hidden[v]);
        m3_tower_layer(&b->f, a, &b->model->vision.layers[v]);
        m3_keep_end(b);
        layer(b, g, d, hidden[v], a, &b->model->vision.layers[v]);
        m3_gradient_give(b, M3_GIVE_LAYER);
    }
    patches(b, a, g, d);
}

void m3_backward_tower(struct m3_backward *b, const real *d_features)
{
    struct m3_pass *f = &b->f;
    const int64_t layers = f->config->vision.layers, W = f->config->vision.W, rows = f->rows;
    struct m3_tower a = { 0 };
    struct gradients g = { 0 };
    f->rows = b->how.pictures->P;
    real **hidden = m3_pass_need(f, layers + 1, 1, sizeof *hidden), *d = m3_pass_need(f, f->rows, W, sizeof *d);
    if (hidden) memset(hidden, 0, (size_t)(layers + 1) * sizeof *hidden);
    m3_tower_make(f, &a);
    make(f, &g);
    if (!f->status) backward(b, &a, &g, d, hidden, d_features);
    for (int64_t v = 0; hidden && v <= layers; v++) free(hidden[v]);
    free(hidden);
    free(d);
    m3_tower_free(&a);
    release(&g);
    m3_keep_nothing(b);
    f->rows = rows;
    f->layer = -1;
}
