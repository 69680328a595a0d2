/* One tap of a pass, by the stage that computes it there. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/forward/forward.h"
#include "model/forward/stages.h"

/* A request while its tap is computed. */
struct one {
    struct m3_pass pass;
    const struct m3_tap_request *request;
    const real *in[M3_TAP_INPUTS];
    const int32_t *ids[M3_TAP_INPUTS];
    real *y, *second;
};

/* ---- angles */

static int64_t rotated(const struct one *o)
{
    const int is_vision = m3_tap_table[o->request->tap].where == M3_WHERE_EVERY_VISION_LAYER;
    return is_vision ? o->pass.config->vision.U / 6 * 6 : o->pass.config->R;
}

/* The table of a rotated tap, from the positions of the text or the places of the patches. */
static void make_angles(struct one *o, struct m3_angles *angles)
{
    struct m3_pass *f = &o->pass;
    const struct m3_request *r = f->request;
    const int stage = prepares(o->request->tap);
    if (m3_tap_table[o->request->tap].where != M3_WHERE_EVERY_VISION_LAYER) {
        rope_table(f, stage, angles, r->positions);
        return;
    }
    if (o->request->step == M3_STEP_ANGLES) {
        rope_table_3d(f, stage, angles, o->request->in[0]);
        return;
    }
    int64_t *places = m3_pass_need(f, r->pictures->P, 3, sizeof *places);
    int64_t *ends = m3_pass_need(f, r->pictures->P, 1, sizeof *ends);
    if (!f->status) {
        m3_pictures_segments(ends, places, r->pictures, &f->config->vision, r->semantics->vision_boundary);
        rope_table_3d(f, stage, angles, places);
    }
    free(places);
    free(ends);
}

static void rotate(struct one *o)
{
    struct m3_pass *f = &o->pass;
    struct m3_angles angles = { (real *)(uintptr_t)o->in[1], (real *)(uintptr_t)o->in[2], rotated(o) };
    real *own = o->in[1] ? NULL : m3_pass_need(f, f->rows, angles.R, sizeof *own);
    if (own) {
        angles.cos = own;
        angles.sin = own + f->rows * (angles.R / 2);
        make_angles(o, &angles);
    }
    rope(f, o->request->tap, o->y, o->in[0], &angles);
    free(own);
}

/* ---- taps */

static void segments(struct one *o)
{
    struct m3_pass *f = &o->pass;
    const struct m3_request *r = f->request;
    int64_t *places = m3_pass_need(f, f->rows, 3, sizeof *places);
    int64_t *ends = m3_pass_need(f, f->rows, 1, sizeof *ends);
    if (!f->status) {
        const int64_t count =
            m3_pictures_segments(ends, places, r->pictures, &f->config->vision, r->semantics->vision_boundary);
        attend_segments(f, M3_TAP_VISION_ATTN, o->y, o->in[0], o->in[1], o->in[2], ends, count);
    }
    free(places);
    free(ends);
}

/* Images, then videos, as in a pass. */
static void fuse(struct one *o)
{
    struct m3_pass *f = &o->pass;
    const struct m3_vision_config *v = &f->config->vision;
    const struct m3_pictures *pictures = f->request->pictures;
    const int64_t images = m3_pictures_image_tokens(pictures, v), videos = m3_pictures_video_tokens(pictures, v);
    scatter(f, prepares(M3_TAP_FUSED), o->y, o->in[0], o->in[1], v->image_token, images);
    const real *const of_videos = videos > 0 ? o->in[1] + images * f->config->H : NULL;
    scatter(f, M3_TAP_FUSED, o->y, o->y, of_videos, v->video_token, videos);
}

/* [x ; y] of two normalised halves. */
static void join(struct one *o, const struct m3_mtp *w)
{
    struct m3_pass *f = &o->pass;
    const int64_t H = f->config->H;
    real *joined = m3_pass_need(f, f->rows, 2 * H, sizeof *joined);
    for (int64_t t = 0; joined && t < f->rows; t++) {
        memcpy(joined + 2 * t * H, o->in[0] + t * H, (size_t)H * sizeof *joined);
        memcpy(joined + (2 * t + 1) * H, o->in[1] + t * H, (size_t)H * sizeof *joined);
    }
    linear(f, M3_TAP_MTP_EH_PROJ, o->y, joined, &w->eh_proj);
    free(joined);
}

static void shared(struct one *o, const struct m3_layer *w)
{
    struct m3_pass *f = &o->pass;
    const int64_t J = f->config->shared_intermediate;
    real *gate = m3_pass_need(f, f->rows, J, sizeof *gate), *up = m3_pass_need(f, f->rows, J, sizeof *up);
    linear(f, prepares(M3_TAP_SHARED), gate, o->in[0], &w->gate);
    linear(f, prepares(M3_TAP_SHARED), up, o->in[0], &w->up);
    gated_activation(f, prepares(M3_TAP_SHARED), gate, gate, up, J);
    linear(f, M3_TAP_SHARED, o->y, gate, &w->down);
    free(gate);
    free(up);
}

/* attn and attn_lse, over all keys or those of the blocks in[3]. */
static void attend(struct one *o)
{
    struct m3_pass *f = &o->pass;
    if (o->ids[3])
        attend_blocks(f, M3_TAP_ATTN_LSE, o->second, M3_TAP_ATTN, o->y, o->in[0], o->in[1], o->in[2], o->ids[3]);
    else attend_full(f, M3_TAP_ATTN_LSE, o->second, M3_TAP_ATTN, o->y, o->in[0], o->in[1], o->in[2]);
}

static void mlp(struct one *o, const struct m3_layer *w)
{
    struct m3_pass *f = &o->pass;
    if (!m3_config_moe(f->config, m3_layer_index(f->config, f->layer))) linear(f, M3_TAP_MLP, o->y, o->in[0], &w->down);
    else add(f, M3_TAP_MLP, o->y, o->in[0], o->in[1]);
}

static void choose_experts(struct one *o, const struct m3_layer *w)
{
    int32_t *ids = (int32_t *)(void *)o->y;
    route(&o->pass, M3_TAP_EXPERTS, ids, M3_TAP_EXPERT_WEIGHTS, o->second, o->in[0], &w->router_bias);
}

/* Norms of the text model and of its modules: one operator, other weights. */
static const struct m3_weight *norm_of(const struct one *o, const struct m3_layer *w, const struct m3_mtp *m)
{
    const struct m3_model *model = o->pass.model;
    switch (o->request->tap) {
    case M3_TAP_ATTN_NORM: return &w->attn_norm;
    case M3_TAP_MLP_NORM: return &w->mlp_norm;
    case M3_TAP_Q_NORM: return &w->q_norm;
    case M3_TAP_K_NORM: return &w->k_norm;
    case M3_TAP_INDEX_Q_NORM: return &w->index_q_norm;
    case M3_TAP_INDEX_K_NORM: return &w->index_k_norm;
    case M3_TAP_FINAL_NORM: return &model->final_norm;
    case M3_TAP_MTP_EMBED_NORM: return &m->embed_norm;
    case M3_TAP_MTP_HIDDEN_NORM: return &m->hidden_norm;
    case M3_TAP_MTP_FINAL_NORM: return &m->final_norm;
    default: return NULL;
    }
}

/* Linear operators without a bias. */
static const struct m3_weight *matrix_of(const struct one *o, const struct m3_layer *w)
{
    const struct m3_model *model = o->pass.model;
    switch (o->request->tap) {
    case M3_TAP_Q_PROJ: return &w->q_proj;
    case M3_TAP_K_PROJ: return &w->k_proj;
    case M3_TAP_V_PROJ: return &w->v_proj;
    case M3_TAP_INDEX_Q_PROJ: return &w->index_q_proj;
    case M3_TAP_INDEX_K_PROJ: return &w->index_k_proj;
    case M3_TAP_ATTN_OUT: return &w->o_proj;
    case M3_TAP_MLP_GATE: return &w->gate;
    case M3_TAP_MLP_UP: return &w->up;
    case M3_TAP_ROUTER_LOGITS: return &w->router;
    case M3_TAP_LOGITS:
    case M3_TAP_MTP_LOGITS: return &model->lm_head;
    case M3_TAP_PATCH_EMBED: return &model->vision.patch_embed;
    default: return NULL;
    }
}

/* Linear operators of the tower and the projector, with a bias. Returns the matrix. */
static const struct m3_weight *affine_of(const struct m3_weight **bias, const struct one *o,
                                         const struct m3_vision_layer *w)
{
    const struct m3_vision *v = &o->pass.model->vision;
    switch (o->request->tap) {
    case M3_TAP_VISION_Q_PROJ: *bias = &w->q_bias; return &w->q_proj;
    case M3_TAP_VISION_K_PROJ: *bias = &w->k_bias; return &w->k_proj;
    case M3_TAP_VISION_V_PROJ: *bias = &w->v_bias; return &w->v_proj;
    case M3_TAP_VISION_ATTN_OUT: *bias = &w->out_bias; return &w->out_proj;
    case M3_TAP_FC1: *bias = &w->fc1_bias; return &w->fc1;
    case M3_TAP_VISION_MLP: *bias = &w->fc2_bias; return &w->fc2;
    case M3_TAP_LINEAR_1: *bias = &v->linear_1_bias; return &v->linear_1;
    case M3_TAP_LINEAR_2: *bias = &v->linear_2_bias; return &v->linear_2;
    case M3_TAP_MERGE_LINEAR_1: *bias = &v->merge_linear_1_bias; return &v->merge_linear_1;
    case M3_TAP_PROJECTOR_OUT: *bias = &v->merge_linear_2_bias; return &v->merge_linear_2;
    default: return NULL;
    }
}

/* The operators that need no matrix, and experts. Returns 0 if the tap is none of them. */
static int run_other(struct one *o, const struct m3_layer *w, const struct m3_mtp *m)
{
    struct m3_pass *f = &o->pass;
    const int64_t places = o->request->places;
    const enum m3_tap tap = o->request->tap;
    switch (tap) {
    case M3_TAP_EMBED: embed(f, tap, o->y, f->request->ids); return 1;
    case M3_TAP_FUSED: fuse(o); return 1;
    case M3_TAP_Q_ROPE:
    case M3_TAP_K_ROPE:
    case M3_TAP_INDEX_Q_ROPE:
    case M3_TAP_INDEX_K_ROPE:
    case M3_TAP_VISION_Q_ROPE:
    case M3_TAP_VISION_K_ROPE: rotate(o); return 1;
    case M3_TAP_INDEX_BLOCK_SCORES: block_scores(f, tap, o->y, o->in[0], o->in[1], places); return 1;
    case M3_TAP_INDEX_BLOCKS: select_blocks(f, tap, (int32_t *)(void *)o->y, o->in[0], places); return 1;
    case M3_TAP_ATTN: attend(o); return 1;
    case M3_TAP_VISION_ATTN: segments(o); return 1;
    case M3_TAP_MLP_ACT: gated_activation(f, tap, o->y, o->in[0], o->in[1], f->config->dense_intermediate); return 1;
    case M3_TAP_VISION_ACT:
    case M3_TAP_ACT_1:
    case M3_TAP_ACT_2: gelu(f, tap, o->y, o->in[0]); return 1;
    case M3_TAP_ROUTER_SCORES: sigmoid(f, tap, o->y, o->in[0]); return 1;
    case M3_TAP_EXPERTS: choose_experts(o, w); return 1;
    case M3_TAP_ROUTED:
        experts(f, M3_TAP_EXPERT_OUT, o->second, tap, o->y, o->in[0], o->ids[1], o->in[2], w->experts);
        return 1;
    case M3_TAP_SHARED: shared(o, w); return 1;
    case M3_TAP_MLP: mlp(o, w); return 1;
    case M3_TAP_MTP_EH_PROJ: join(o, m); return 1;
    case M3_TAP_MID:
    case M3_TAP_OUT:
    case M3_TAP_VISION_MID:
    case M3_TAP_VISION_OUT: add(f, tap, o->y, o->in[0], o->in[1]); return 1;
    default: return 0;
    }
}

static void run_tap(struct one *o)
{
    struct m3_pass *f = &o->pass;
    const struct m3_vision *v = &f->model->vision;
    const enum m3_tap tap = o->request->tap;
    const enum m3_tap_where where = m3_tap_table[tap].where;
    const int64_t module = m3_mtp_module_of(f->layer), index = f->layer < 0 ? 0 : m3_layer_index(f->config, f->layer);
    const struct m3_layer *w = f->model->layers ? &f->model->layers[index] : NULL;
    const struct m3_vision_layer *vl = where == M3_WHERE_EVERY_VISION_LAYER ? &v->layers[f->layer] : NULL;
    const struct m3_mtp *m = module >= 0 ? &f->model->mtp[module] : NULL;
    const struct m3_weight *bias = NULL, *norm = norm_of(o, w, m), *matrix = matrix_of(o, w),
                           *with_bias = affine_of(&bias, o, vl);
    if (norm) rms_norm(f, tap, o->y, o->in[0], norm);
    else if (matrix) linear(f, tap, o->y, o->in[0], matrix);
    else if (with_bias) affine(f, tap, o->y, o->in[0], with_bias, bias);
    else if (tap == M3_TAP_PRE_NORM) layer_norm(f, tap, o->y, o->in[0], &v->pre_norm, &v->pre_norm_bias);
    else if (tap == M3_TAP_NORM1) layer_norm(f, tap, o->y, o->in[0], &vl->norm1, &vl->norm1_bias);
    else if (tap == M3_TAP_NORM2) layer_norm(f, tap, o->y, o->in[0], &vl->norm2, &vl->norm2_bias);
    else if (!run_other(o, w, m))
        f->status =
            m3_fail(f->error, M3_USAGE, "%s: got a tap that no single operator computes", m3_tap_table[tap].name);
}

int m3_forward_tap(const struct m3_model *model, const struct m3_tap_request *request, struct m3_error *error)
{
    struct one o = { .request = request, .y = request->y, .second = request->second };
    for (int i = 0; i < M3_TAP_INPUTS; i++) o.in[i] = request->in[i], o.ids[i] = request->in[i];
    m3_pass_open(&o.pass, model, request->how, error);
    o.pass.layer = request->layer;
    o.pass.rows = request->rows;
    o.pass.p0 = request->p0;
    if (!o.pass.status && request->step == M3_STEP_TAP) {
        run_tap(&o);
    } else if (!o.pass.status && request->step == M3_STEP_ANGLES) {
        make_angles(&o, &(struct m3_angles){ o.y, o.second, rotated(&o) });
    } else if (!o.pass.status) {
        /* Without noise, jitter leaves its tensor alone. */
        m3_pass_copy(&o.pass, o.y, o.in[0]);
        jitter(&o.pass, prepares(request->tap), o.y, o.y);
    }
    return m3_pass_close(&o.pass);
}
