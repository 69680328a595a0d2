#include "model/text.h"

#include <stdlib.h>
#include <string.h>

#include "model/cache.h"
#include "model/head.h"
#include "model/layer.h"
#include "model/mtp.h"

/* Embedding rows; then, in the places of their ids, the features of images, and those of videos. Without pictures a
 * placeholder is a token like any other: one that the model itself chose. */
static int embed(struct m3_pass *f, real *x, const real *features)
{
    const struct m3_ops *op = &f->ops;
    const struct m3_vision_config *v = &f->config->vision;
    const int32_t *ids = f->request->ids, image = (int32_t)v->image_token, video = (int32_t)v->video_token;
    struct m3_ctx *ctx = &f->ctx;
    int64_t T = f->rows, H = f->config->H;
    if (did(f, M3_TAP_EMBED, x, op->embed(ctx, x, ids, &f->model->embed, T))) return f->status;
    if (!f->request->pictures) return did(f, M3_TAP_FUSED, x, 0);

    int64_t images = m3_pictures_image_tokens(f->request->pictures, v);
    int64_t videos = m3_pictures_video_tokens(f->request->pictures, v);
    const real *of_videos = features ? features + images * H : NULL;
    return m3_pass_prepared(f, M3_TAP_FUSED, 0, op->scatter(ctx, x, x, ids, features, image, T, images, H))
        || did(f, M3_TAP_FUSED, x, op->scatter(ctx, x, x, ids, of_videos, video, T, videos, H));
}

static int run_layers(struct m3_pass *f, struct m3_activations *b)
{
    const struct m3_request *r = f->request;
    f->layer = r->first_layer;
    if (m3_layer_angles(f, b, r->positions)) return f->status;
    for (int64_t l = r->first_layer; l < r->end_layer; l++) {
        if (r->progress) r->progress(r->progress_self, "layer", l, f->config->layers);
        f->layer = l;
        if (m3_layer_run(f, b, l)) return f->status;
    }
    f->layer = -1;
    return 0;
}

static int run(struct m3_pass *f, struct m3_activations *b, const real *features)
{
    const struct m3_request *r = f->request;
    size_t bytes = (size_t)(f->rows * f->config->H) * sizeof(real);
    real *embedded = r->embedded;
    if (!embedded && m3_mtp_takes_rows(f)) embedded = m3_pass_need(f, f->rows, f->config->H, sizeof(real));
    if (f->status) return f->status;

    if (r->first_layer > 0) memcpy(b->x, r->hidden, bytes);
    else embed(f, b->x, features);
    if (!f->status && embedded) memcpy(embedded, b->x, bytes);
    if (!f->status) run_layers(f, b);
    if (!f->status && r->end_layer == f->config->layers) {
        m3_head(f, b->h, b->x, &f->model->final_norm, M3_TAP_FINAL_NORM, M3_TAP_LOGITS, r->logits, r->logit_rows);
        if (!f->status && r->final_norm) memcpy(r->final_norm, b->h, bytes);
        if (!f->status) m3_mtp_forward(f, b, b->h, embedded);
    }
    if (embedded != r->embedded) free(embedded);
    if (!f->status && r->progress) r->progress(r->progress_self, "layer", r->end_layer, f->config->layers);
    return f->status;
}

int m3_text_forward(struct m3_pass *f, const real *features)
{
    struct m3_activations b = { 0 };
    struct m3_cache *cache = f->cache = f->request->cache;
    f->rows = f->request->T;
    f->p0 = cache ? m3_cache_length(cache, M3_CACHE_MAIN) : 0;
    if (cache) f->status = m3_cache_reserve(cache, M3_CACHE_MAIN, f->p0 + f->rows, f->error);
    if (!f->status && !m3_activations_make(f, &b)) run(f, &b, features);
    if (!f->status && cache) m3_cache_set_length(cache, M3_CACHE_MAIN, f->p0 + f->rows);
    m3_activations_free(&b);
    return f->status;
}
