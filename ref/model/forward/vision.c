#include "model/forward/vision.h"

#include <stdlib.h>

#include "base/minmax.h"
#include "model/weights/pages.h"
#include "model/forward/stages.h"

void m3_tower_make(struct m3_pass *f, struct m3_tower *a)
{
    const struct m3_vision_config *v = &f->config->vision;
    int64_t P = f->rows;

    a->angles.R = v->U / 6 * 6;             /* an even third for each axis; other channels are copied */
    a->angles.cos = m3_pass_need(f, P, a->angles.R / 2, sizeof(real));
    a->angles.sin = m3_pass_need(f, P, a->angles.R / 2, sizeof(real));
    a->pixels = m3_pass_need(f, P, m3_config_size(f->config, 'C'), sizeof(real));
    a->hidden = m3_pass_need(f, P, v->W, sizeof(real));
    a->branch = m3_pass_need(f, P, v->W, sizeof(real));
    a->q = m3_pass_need(f, P, v->W, sizeof(real));
    a->k = m3_pass_need(f, P, v->W, sizeof(real));
    a->v = m3_pass_need(f, P, v->W, sizeof(real));
    a->attn = m3_pass_need(f, P, v->W, sizeof(real));
    a->wide = m3_pass_need(f, P, m3_max(v->intermediate, v->projector_hidden), sizeof(real));
    a->places = m3_pass_need(f, P, 3, sizeof(int64_t));
    a->ends = m3_pass_need(f, P, 1, sizeof(int64_t));
}

void m3_tower_free(struct m3_tower *a)
{
    void *all[] = { a->pixels, a->hidden, a->branch,     a->q,          a->k,      a->v,
                    a->attn,   a->wide,   a->angles.cos, a->angles.sin, a->places, a->ends };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void grids(struct m3_pass *f)
{
    const struct m3_pictures *s = f->request->pictures;
    int64_t patches = f->rows, pictures = s->images + s->videos;
    int32_t *grid = m3_pass_need(f, pictures, 3, sizeof *grid);
    for (int64_t i = 0; grid && i < pictures * 3; i++) grid[i] = (int32_t)s->grid[i / 3][i % 3];
    f->rows = pictures;
    show(f, M3_TAP_VISION_GRID, grid);
    f->rows = patches;
    free(grid);
}

void m3_tower_patches(struct m3_pass *f, struct m3_tower *a)
{
    const struct m3_pictures *s = f->request->pictures;
    const struct m3_vision *w = &f->model->vision;
    a->segments =
        m3_pictures_segments(a->ends, a->places, s, &f->config->vision, f->request->semantics->vision_boundary);

    read_pixels(f, M3_TAP_VISION_PIXELS, a->pixels, s->pixels, m3_config_size(f->config, 'C'));
    grids(f);
    linear(f, M3_TAP_PATCH_EMBED, a->hidden, a->pixels, &w->patch_embed);
    layer_norm(f, M3_TAP_PRE_NORM, a->hidden, a->hidden, &w->pre_norm, &w->pre_norm_bias);
    rope_table_3d(f, prepares(M3_TAP_PRE_NORM), &a->angles, a->places);
}

void m3_tower_layer(struct m3_pass *f, struct m3_tower *a, const struct m3_vision_layer *w)
{
    layer_norm(f, M3_TAP_NORM1, a->branch, a->hidden, &w->norm1, &w->norm1_bias);
    affine(f, M3_TAP_VISION_Q_PROJ, a->q, a->branch, &w->q_proj, &w->q_bias);
    affine(f, M3_TAP_VISION_K_PROJ, a->k, a->branch, &w->k_proj, &w->k_bias);
    affine(f, M3_TAP_VISION_V_PROJ, a->v, a->branch, &w->v_proj, &w->v_bias);
    rope(f, M3_TAP_VISION_Q_ROPE, a->q, a->q, &a->angles);
    rope(f, M3_TAP_VISION_K_ROPE, a->k, a->k, &a->angles);
    attend_segments(f, M3_TAP_VISION_ATTN, a->attn, a->q, a->k, a->v, a->ends, a->segments);
    affine(f, M3_TAP_VISION_ATTN_OUT, a->branch, a->attn, &w->out_proj, &w->out_bias);
    add(f, M3_TAP_VISION_MID, a->hidden, a->hidden, a->branch);
    layer_norm(f, M3_TAP_NORM2, a->branch, a->hidden, &w->norm2, &w->norm2_bias);
    affine(f, M3_TAP_FC1, a->wide, a->branch, &w->fc1, &w->fc1_bias);
    gelu(f, M3_TAP_VISION_ACT, a->wide, a->wide);
    affine(f, M3_TAP_VISION_MLP, a->branch, a->wide, &w->fc2, &w->fc2_bias);
    add(f, M3_TAP_VISION_OUT, a->hidden, a->hidden, a->branch);
    m3_pass_nan_free(f, M3_TAP_VISION_OUT, a->hidden);
}

static void tower(struct m3_pass *f, struct m3_tower *a)
{
    const int64_t layers = f->config->vision.layers;
    f->layer = -1;
    m3_tower_patches(f, a);
    for (int64_t v = 0; !f->status && v < layers; v++) {
        const struct m3_vision_layer *w = &f->model->vision.layers[v];
        m3_pass_progress(f, "vision layer", v, layers);
        f->layer = v;
        m3_pass_tower_pages(f, w, m3_pages_ask);
        m3_tower_layer(f, a, w);
        m3_pass_tower_pages(f, w, m3_pages_release);
    }
    f->layer = -1;
}

/* Every patch is projected; then four neighbours, which are consecutive rows, are read as one and projected again. */
void m3_tower_project(struct m3_pass *f, struct m3_tower *a, real *projected, real *features)
{
    const struct m3_vision *w = &f->model->vision;
    m3_pass_projector_pages(f, w, m3_pages_ask);
    affine(f, M3_TAP_LINEAR_1, a->wide, a->hidden, &w->linear_1, &w->linear_1_bias);
    gelu(f, M3_TAP_ACT_1, a->wide, a->wide);
    affine(f, M3_TAP_LINEAR_2, projected, a->wide, &w->linear_2, &w->linear_2_bias);
    f->rows = m3_merged(f->rows, &f->config->vision);
    show(f, M3_TAP_MERGED, projected);
    affine(f, M3_TAP_MERGE_LINEAR_1, a->wide, projected, &w->merge_linear_1, &w->merge_linear_1_bias);
    gelu(f, M3_TAP_ACT_2, a->wide, a->wide);
    affine(f, M3_TAP_PROJECTOR_OUT, features, a->wide, &w->merge_linear_2, &w->merge_linear_2_bias);
    m3_pass_nan_free(f, M3_TAP_PROJECTOR_OUT, features);
    m3_pass_projector_pages(f, w, m3_pages_release);
}

void m3_vision_forward(struct m3_pass *f, struct m3_features *features)
{
    const struct m3_pictures *pictures = f->request->pictures;
    const struct m3_vision_config *v = &f->config->vision;
    struct m3_tower a = { 0 };
    if (!pictures) return;
    features->images = m3_pictures_image_tokens(pictures, v);
    features->videos = m3_pictures_video_tokens(pictures, v);

    f->rows = pictures->P;
    m3_tower_make(f, &a);
    if (!f->status) tower(f, &a);
    real *projected = m3_pass_need(f, pictures->P, f->config->H, sizeof(real));
    features->rows = m3_pass_need(f, m3_merged(pictures->P, v), f->config->H, sizeof(real));
    if (!f->status) m3_tower_project(f, &a, projected, features->rows);
    m3_pass_progress(f, "vision layer", v->layers, v->layers);
    free(projected);
    m3_tower_free(&a);
}
