/* One tap of a pass, by the stage that computes it there. */
#include <inttypes.h>
#include <stdlib.h>

#include "model/forward/forward.h"
#include "model/forward/stages.h"
#include "model/graph/graph.h"

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

/* A module's matrix times [norm of the embedding ; norm of the hidden state]; or, if its join adds, the embedding and
 * the matrix times [0 ; hidden state]. */
static void join(struct one *o, const struct m3_node *node, const struct m3_weight *w)
{
    struct m3_pass *f = &o->pass;
    const int stage = prepares(node->tap);
    real *joined = m3_pass_need(f, f->rows, w->cols, sizeof *joined);
    if (joined) {
        put_half(f, stage, joined, node->adds_input ? NULL : o->in[0], 0);
        put_half(f, stage, joined, o->in[1], 1);
        linear(f, node->adds_input ? stage : (int)node->tap, o->y, joined, w);
        if (node->adds_input) add(f, node->tap, o->y, o->in[0], o->y);
    }
    free(joined);
}

static void product(struct one *o, const struct m3_node *node, const struct m3_weight *w, const struct m3_weight *bias)
{
    if (bias) affine(&o->pass, node->tap, o->y, o->in[0], w, bias);
    else if (node->input_count == 1) linear(&o->pass, node->tap, o->y, o->in[0], w);
    else join(o, node, w);
}

static void gated_mlp(struct one *o, const struct m3_node *node, const struct m3_weight *const w[3])
{
    struct m3_pass *f = &o->pass;
    const int64_t F = w[0]->rows;
    real *gate = m3_pass_need(f, f->rows, F, sizeof *gate), *up = m3_pass_need(f, f->rows, F, sizeof *up);
    linear(f, prepares(node->tap), gate, o->in[0], w[0]);
    linear(f, prepares(node->tap), up, o->in[0], w[1]);
    gated_activation(f, prepares(node->tap), gate, gate, up, F);
    linear(f, node->tap, o->y, gate, w[2]);
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

static void run_experts(struct one *o)
{
    struct m3_pass *f = &o->pass;
    const struct m3_layer *layer = &f->model->layers[m3_layer_index(f->config, f->layer)];
    experts(f, M3_TAP_EXPERT_OUT, o->second, M3_TAP_ROUTED, o->y, o->in[0], o->ids[1], o->in[2], layer->experts);
}

/* The stage of a node. */
static void run(struct one *o, const struct m3_node *node)
{
    struct m3_pass *f = &o->pass;
    const int64_t places = o->request->places;
    const enum m3_tap tap = node->tap;
    const struct m3_weight *w[M3_NODE_WEIGHTS];
    for (int i = 0; i < M3_NODE_WEIGHTS; i++) w[i] = m3_node_weight(f->model, node, i);
    switch (node->op) {
    case M3_OP_EMBED: embed(f, tap, o->y, f->request->ids); break;
    case M3_OP_SCATTER: fuse(o); break;
    case M3_OP_RMS_NORM: rms_norm(f, tap, o->y, o->in[0], w[0]); break;
    case M3_OP_LAYER_NORM: layer_norm(f, tap, o->y, o->in[0], w[0], w[1]); break;
    case M3_OP_LINEAR: product(o, node, w[0], w[1]); break;
    case M3_OP_ROPE:
    case M3_OP_ROPE_3D: rotate(o); break;
    case M3_OP_BLOCK_SCORES: block_scores(f, tap, o->y, o->in[0], o->in[1], places); break;
    case M3_OP_SELECT_BLOCKS: select_blocks(f, tap, (int32_t *)(void *)o->y, o->in[0], places); break;
    case M3_OP_ATTEND: attend(o); break;
    case M3_OP_ATTEND_SEGMENTS: segments(o); break;
    case M3_OP_ACTIVATION: gated_activation(f, tap, o->y, o->in[0], o->in[1], m3_pass_width(f, tap)); break;
    case M3_OP_GELU: gelu(f, tap, o->y, o->in[0]); break;
    case M3_OP_SIGMOID: sigmoid(f, tap, o->y, o->in[0]); break;
    case M3_OP_SELECT_EXPERTS:
        route(f, tap, (int32_t *)(void *)o->y, M3_TAP_EXPERT_WEIGHTS, o->second, o->in[0], w[0]);
        break;
    case M3_OP_ROUTED: run_experts(o); break;
    case M3_OP_GATED_MLP: gated_mlp(o, node, w); break;
    case M3_OP_ADD: add(f, tap, o->y, o->in[0], o->in[1]); break;
    default:
        f->status = m3_fail(f->error, M3_USAGE, "%s: got a tap that no operator computes alone",
                            m3_tap_table[o->request->tap].name);
    }
}

/* A module embeds tokens too: the node of what is outside layers has none. */
static const struct m3_node *node_of(const struct m3_model *model, const struct m3_tap_request *r)
{
    const int is_of_tower = m3_tap_table[r->tap].where == M3_WHERE_EVERY_VISION_LAYER;
    const int64_t layer = is_of_tower || m3_tap_is_of_layers(r->tap) ? r->layer : -1;
    return m3_graph_made(model, r->how->semantics, r->tap, layer);
}

int m3_forward_tap(const struct m3_model *model, const struct m3_tap_request *request, struct m3_error *error)
{
    struct one o = { .request = request, .y = request->y, .second = request->second };
    for (int i = 0; i < M3_TAP_INPUTS; i++) o.in[i] = request->in[i], o.ids[i] = request->in[i];
    m3_pass_open(&o.pass, model, request->how, error);
    struct m3_scratch *own = o.pass.ctx.scratch;
    if (request->ctx) o.pass.ctx.scratch = request->ctx->scratch, o.pass.mark = m3_scratch_mark(request->ctx);
    o.pass.layer = request->layer;
    o.pass.rows = request->rows;
    o.pass.p0 = request->p0;
    if (!o.pass.status && request->step == M3_STEP_TAP) {
        run(&o, node_of(model, request));
    } else if (!o.pass.status && request->step == M3_STEP_ANGLES) {
        make_angles(&o, &(struct m3_angles){ o.y, o.second, rotated(&o) });
    } else if (!o.pass.status) {
        /* Without noise, jitter leaves its tensor alone. */
        m3_pass_copy(&o.pass, o.y, o.in[0]);
        jitter(&o.pass, prepares(request->tap), o.y, o.y);
    }
    if (request->ctx) request->ctx->failure = o.pass.ctx.failure;
    o.pass.ctx.scratch = own;
    return m3_pass_close(&o.pass);
}
