#include "model/forward/text.h"

#include <stdlib.h>

#include "model/cache.h"
#include "model/divided/part.h"
#include "model/forward/head.h"
#include "model/forward/layer.h"
#include "model/forward/mtp.h"

/* Embedding rows; then the features of images, and of videos, replace the rows of their placeholder ids. Without
 * pictures a placeholder is an ordinary token, which the model itself has generated. */
static void embed_and_fuse(struct m3_pass *f, real *hidden, const struct m3_features *features)
{
    const struct m3_vision_config *v = &f->config->vision;

    embed(f, M3_TAP_EMBED, hidden, f->request->ids);
    if (features->rows) {
        const real *of_videos = features->rows + features->images * f->config->H;
        scatter(f, prepares(M3_TAP_FUSED), hidden, hidden, features->rows, v->image_token, features->images);
        scatter(f, M3_TAP_FUSED, hidden, hidden, of_videos, v->video_token, features->videos);
    } else {
        show(f, M3_TAP_FUSED, hidden);
    }
}

static void keep(struct m3_pass *f, int64_t layer, const real *hidden)
{
    const struct m3_resume *resume = f->request->resume;
    if (!f->status && resume) f->status = resume->keep(resume->self, layer, hidden, f->error);
}

static void run_layers(struct m3_pass *f, struct m3_activations *a, int64_t first)
{
    const struct m3_request *r = f->request;
    f->layer = r->first_layer;
    rope_table(f, prepares(M3_TAP_Q_ROPE), &a->angles, r->positions);
    for (int64_t l = first; l < r->end_layer; l++) {
        m3_pass_progress(f, "layer", l, f->config->layers);
        f->layer = l;
        m3_layer_run(f, a);
        keep(f, l + 1, a->hidden);
    }
    f->layer = -1;
}

/* Rows that the caller gave, or asked for. */
static void take(struct m3_pass *f, real *rows, const void *from)
{
    if (f->share) m3_share_scatter(f, rows, from);
    else m3_pass_copy(f, rows, from);
}

static void give(struct m3_pass *f, void *to, const real *rows, int is_wanted)
{
    if (!f->share) m3_pass_copy(f, to, rows);
    else if (is_wanted) m3_share_gather(f, to, rows, 0, (size_t)f->config->H * sizeof *rows);
}

/* a->hidden := the input of the first layer, which is returned; embedded, unless NULL, := that of layer 0. */
static int64_t begin(struct m3_pass *f, struct m3_activations *a, real *embedded, const struct m3_features *features)
{
    const struct m3_request *r = f->request;
    if (m3_pass_goes_on(f)) {
        if (embedded && !r->resume->embedded)
            f->status = m3_fail(f->error, M3_USAGE, "request: got no input of layer 0 to go on with, expected one");
        m3_pass_copy(f, a->hidden, r->resume->hidden);
        m3_pass_copy(f, embedded, r->resume->embedded);
        return r->resume->layer;
    }
    if (r->first_layer > 0) take(f, a->hidden, r->hidden);
    else embed_and_fuse(f, a->hidden, features);
    if (embedded != r->embedded) m3_pass_copy(f, embedded, a->hidden);
    give(f, r->embedded, a->hidden, f->share && m3_share_gives_embedded(f));
    keep(f, r->first_layer, a->hidden);
    return r->first_layer;
}

static void run(struct m3_pass *f, struct m3_activations *a, const struct m3_features *features)
{
    const struct m3_request *r = f->request;
    real *embedded = r->embedded;
    if (!embedded && m3_mtp_takes_rows(f)) embedded = m3_pass_need(f, f->rows, f->config->H, sizeof(real));

    run_layers(f, a, begin(f, a, embedded, features));
    if (r->end_layer == f->config->layers) {
        m3_head(f, a->normed, a->hidden, &f->model->final_norm, M3_TAP_FINAL_NORM, M3_TAP_LOGITS, r->logits,
                r->logit_rows);
        give(f, r->final_norm, a->normed, f->share && m3_share_gives_final_norm(f));
        m3_mtp_forward(f, a, a->normed, embedded);
    }
    if (embedded != r->embedded) free(embedded);
    m3_pass_progress(f, "layer", r->end_layer, f->config->layers);
}

void m3_text_forward(struct m3_pass *f, const struct m3_features *features)
{
    struct m3_activations a = { 0 };
    struct m3_cache *cache = f->cache = f->request->cache;
    m3_pass_take_rows(f, f->request->T, f->request->T);
    f->p0 = f->share ? m3_share_p0(f) : cache ? m3_cache_length(cache, M3_CACHE_MAIN) : f->request->shift;
    if (cache) f->status = m3_cache_reserve(cache, M3_CACHE_MAIN, f->p0 + f->T, f->error);
    m3_activations_make(f, &a);
    if (!f->status) run(f, &a, features);
    if (!f->status && cache) m3_cache_set_length(cache, M3_CACHE_MAIN, f->p0 + f->T);
    m3_activations_free(&a);
}
