#include "model/vision.h"

#include <stdlib.h>

#include "base/minmax.h"

/* Activations of one layer, over the patches of all pictures. Rotation and GELU work in place, after their input was
 * shown. */
struct buffers {
    real *pixels;                           /* [P,C] */
    real *x;                                /* [P,W] the residual stream */
    real *h;                                /* [P,W] what a norm, the attention or the MLP hands on */
    real *q, *k, *v, *o;                    /* [P,A,U] */
    real *wide;                             /* [P,L], then [P,Y], then [M,Y] */
    real *cos, *sin;                        /* [P,R/2] */
    real *scale, *bias;                     /* a vector of weights at a time */
    int64_t *places;                        /* [P,3] time, row, column */
    int64_t *ends, segments;
};

static int64_t rotated_channels(const struct m3_vision_config *v)
{
    return v->U / 6 * 6;                    /* an even third for each axis; the rest passes */
}

static int make_buffers(struct m3_pass *f, struct buffers *b)
{
    const struct m3_vision_config *v = &f->config->vision;
    int64_t P = f->request->pictures->P, half = rotated_channels(v) / 2, Y = v->projector_hidden;
    int64_t longest = m3_max(m3_max(v->W, v->intermediate), m3_max(Y, f->config->H));

    b->pixels = m3_pass_need(f, P, m3_config_size(f->config, 'C'), sizeof(real));
    b->x = m3_pass_need(f, P, v->W, sizeof(real));
    b->h = m3_pass_need(f, P, v->W, sizeof(real));
    b->q = m3_pass_need(f, P, v->W, sizeof(real));
    b->k = m3_pass_need(f, P, v->W, sizeof(real));
    b->v = m3_pass_need(f, P, v->W, sizeof(real));
    b->o = m3_pass_need(f, P, v->W, sizeof(real));
    b->wide = m3_pass_need(f, P, m3_max(v->intermediate, Y), sizeof(real));
    b->cos = m3_pass_need(f, P, half, sizeof(real));
    b->sin = m3_pass_need(f, P, half, sizeof(real));
    b->scale = m3_pass_need(f, 1, longest, sizeof(real));
    b->bias = m3_pass_need(f, 1, longest, sizeof(real));
    b->places = m3_pass_need(f, P, 3, sizeof(int64_t));
    b->ends = m3_pass_need(f, P, 1, sizeof(int64_t));
    return f->status;
}

static void free_buffers(struct buffers *b)
{
    void *all[] = { b->pixels, b->x,   b->h,   b->q,     b->k,    b->v,      b->o,
                    b->wide,   b->cos, b->sin, b->scale, b->bias, b->places, b->ends };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static int norm(struct m3_pass *f, struct buffers *b, real *y, const real *x, const struct m3_weight *w,
                const struct m3_weight *bias)
{
    m3_pass_vector(b->scale, w);
    m3_pass_vector(b->bias, bias);
    return f->ops.layer_norm(&f->ctx, y, x, b->scale, b->bias, f->rows, w->cols, (real)f->config->vision.eps);
}

static int affine(struct m3_pass *f, struct buffers *b, real *y, const real *x, const struct m3_weight *w,
                  const struct m3_weight *bias)
{
    m3_pass_vector(b->bias, bias);
    return f->ops.linear(&f->ctx, y, x, w, b->bias, f->rows);
}

static void layer_pages(const struct m3_vision_layer *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->q_proj, &w->k_proj, &w->v_proj, &w->out_proj, &w->fc1, &w->fc2 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) m3_pass_pages(all[i], give);
}

static void projector_pages(const struct m3_vision *w, void (*give)(const void *, uint64_t))
{
    const struct m3_weight *all[] = { &w->linear_1, &w->linear_2, &w->merge_linear_1, &w->merge_linear_2 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) m3_pass_pages(all[i], give);
}

static int grids(struct m3_pass *f)
{
    const struct m3_pictures *s = f->request->pictures;
    int64_t pictures = s->images + s->videos;
    int32_t *grid = m3_pass_need(f, pictures, 3, sizeof *grid);
    for (int64_t i = 0; grid && i < pictures * 3; i++) grid[i] = (int32_t)s->grid[i / 3][i % 3];
    if (grid) m3_pass_show(f, M3_TAP_VISION_GRID, grid, 0, pictures, 0);
    free(grid);
    return f->status;
}

/* Patches to hidden states, and where each of them is. */
static int patches(struct m3_pass *f, struct buffers *b)
{
    const struct m3_pictures *s = f->request->pictures;
    const struct m3_vision *w = &f->model->vision;
    const struct m3_vision_config *v = &f->config->vision;
    const struct m3_semantics *semantics = f->request->semantics;
    int64_t P = f->rows, C = m3_config_size(f->config, 'C');
    for (int64_t i = 0; i < P * C; i++) b->pixels[i] = (real)s->pixels[i];
    b->segments = m3_pictures_segments(b->ends, b->places, s, v, semantics->vision_boundary);

    return did(f, M3_TAP_VISION_PIXELS, b->pixels, 0)
        || grids(f)
        || did(f, M3_TAP_PATCH_EMBED, b->x, f->ops.linear(&f->ctx, b->x, b->pixels, &w->patch_embed, NULL, P))
        || did(f, M3_TAP_PRE_NORM, b->x, norm(f, b, b->x, b->x, &w->pre_norm, &w->pre_norm_bias))
        || m3_pass_prepared(f, M3_TAP_PRE_NORM, 0,
                            f->ops.rope_table_3d(&f->ctx, b->cos, b->sin, b->places, P, rotated_channels(v),
                                                 v->rope_theta, semantics->rope_angle));
}

static int run_layer(struct m3_pass *f, struct buffers *b, const struct m3_vision_layer *w)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_vision_config *v = &f->config->vision;
    struct m3_ctx *ctx = &f->ctx;
    int64_t P = f->rows, A = v->A, U = v->U, R = rotated_channels(v);

    return did(f, M3_TAP_NORM1, b->h, norm(f, b, b->h, b->x, &w->norm1, &w->norm1_bias))
        || did(f, M3_TAP_VISION_Q_PROJ, b->q, affine(f, b, b->q, b->h, &w->q_proj, &w->q_bias))
        || did(f, M3_TAP_VISION_K_PROJ, b->k, affine(f, b, b->k, b->h, &w->k_proj, &w->k_bias))
        || did(f, M3_TAP_VISION_V_PROJ, b->v, affine(f, b, b->v, b->h, &w->v_proj, &w->v_bias))
        || did(f, M3_TAP_VISION_Q_ROPE, b->q, op->rope(ctx, b->q, b->q, b->cos, b->sin, P, A, U, R))
        || did(f, M3_TAP_VISION_K_ROPE, b->k, op->rope(ctx, b->k, b->k, b->cos, b->sin, P, A, U, R))
        || did(f, M3_TAP_VISION_ATTN, b->o,
               op->attend_segments(ctx, b->o, b->q, b->k, b->v, b->ends, b->segments, A, U))
        || did(f, M3_TAP_VISION_ATTN_OUT, b->h, affine(f, b, b->h, b->o, &w->out_proj, &w->out_bias))
        || did(f, M3_TAP_VISION_MID, b->x, op->add(ctx, b->x, b->x, b->h, P * v->W))
        || did(f, M3_TAP_NORM2, b->h, norm(f, b, b->h, b->x, &w->norm2, &w->norm2_bias))
        || did(f, M3_TAP_FC1, b->wide, affine(f, b, b->wide, b->h, &w->fc1, &w->fc1_bias))
        || did(f, M3_TAP_VISION_ACT, b->wide, op->gelu(ctx, b->wide, b->wide, P * v->intermediate))
        || did(f, M3_TAP_VISION_MLP, b->h, affine(f, b, b->h, b->wide, &w->fc2, &w->fc2_bias))
        || did(f, M3_TAP_VISION_OUT, b->x, op->add(ctx, b->x, b->x, b->h, P * v->W))
        || m3_pass_nan_free(f, M3_TAP_VISION_OUT, b->x, 0, P, v->W);
}

static int tower(struct m3_pass *f, struct buffers *b)
{
    const struct m3_request *r = f->request;
    int64_t layers = f->config->vision.layers;
    f->layer = -1;
    if (patches(f, b)) return f->status;

    for (int64_t v = 0; v < layers; v++) {
        const struct m3_vision_layer *w = &f->model->vision.layers[v];
        if (r->progress) r->progress(r->progress_self, "vision layer", v, layers);
        f->layer = v;
        layer_pages(w, m3_pages_ask);
        if (run_layer(f, b, w)) return f->status;
        layer_pages(w, m3_pages_release);
    }
    f->layer = -1;
    return 0;
}

/* Every patch is projected; then four neighbours, which are consecutive rows, are read as one and projected again. */
static int projector(struct m3_pass *f, struct buffers *b, real *projected, real *features)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_vision_config *v = &f->config->vision;
    const struct m3_vision *w = &f->model->vision;
    int64_t P = f->rows, M = m3_merged(P, v), Y = v->projector_hidden;

    if (did(f, M3_TAP_LINEAR_1, b->wide, affine(f, b, b->wide, b->x, &w->linear_1, &w->linear_1_bias)) ||
        did(f, M3_TAP_ACT_1, b->wide, op->gelu(&f->ctx, b->wide, b->wide, P * Y)) ||
        did(f, M3_TAP_LINEAR_2, projected, affine(f, b, projected, b->wide, &w->linear_2, &w->linear_2_bias)))
        return f->status;
    f->rows = M;
    return did(f, M3_TAP_MERGED, projected, 0)
        || did(f, M3_TAP_MERGE_LINEAR_1, b->wide,
               affine(f, b, b->wide, projected, &w->merge_linear_1, &w->merge_linear_1_bias))
        || did(f, M3_TAP_ACT_2, b->wide, op->gelu(&f->ctx, b->wide, b->wide, M * Y))
        || did(f, M3_TAP_PROJECTOR_OUT, features,
               affine(f, b, features, b->wide, &w->merge_linear_2, &w->merge_linear_2_bias))
        || m3_pass_nan_free(f, M3_TAP_PROJECTOR_OUT, features, 0, M, f->config->H);
}

int m3_vision_forward(struct m3_pass *f, real **features)
{
    const struct m3_pictures *pictures = f->request->pictures;
    const struct m3_vision *w = &f->model->vision;
    struct buffers b = { 0 };
    real *projected = NULL;
    *features = NULL;
    if (!pictures) return 0;

    f->rows = pictures->P;
    if (!make_buffers(f, &b) && !tower(f, &b)) {
        projected = m3_pass_need(f, pictures->P, f->config->H, sizeof(real));
        *features = m3_pass_need(f, m3_merged(pictures->P, &f->config->vision), f->config->H, sizeof(real));
        projector_pages(w, m3_pages_ask);
        if (!f->status) projector(f, &b, projected, *features);
        projector_pages(w, m3_pages_release);
        if (f->request->progress)
            f->request->progress(f->request->progress_self, "vision layer", f->config->vision.layers,
                                 f->config->vision.layers);
    }
    free(projected);
    free_buffers(&b);
    return f->status;
}
