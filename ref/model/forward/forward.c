#include "model/forward/forward.h"

#include <inttypes.h>
#include <stdlib.h>

#include "model/divided/share.h"
#include "model/forward/mtp.h"
#include "model/forward/text.h"
#include "model/forward/vision.h"

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
    if (r->resume && r->resume->hidden && (r->resume->layer < r->first_layer || r->resume->layer > r->end_layer))
        return m3_fail(error, M3_USAGE,
                       "request: got layer %" PRId64 " to go on with, expected one from %" PRId64 " to %" PRId64,
                       r->resume->layer, r->first_layer, r->end_layer);
    if (r->embedded && r->first_layer > 0)
        return m3_fail(error, M3_USAGE, "request: got embedded and layers from %" PRId64 ", expected layers from 0",
                       r->first_layer);
    if (r->cache && !m3_cache_is_for(r->cache, c, sizeof(real)))
        return m3_fail(error, M3_USAGE, "request: got a cache of another model or precision");
    if (r->cache && (r->first_layer > 0 || r->end_layer < c->layers))
        return m3_fail(error, M3_USAGE,
                       "request: got some layers and a cache, expected all layers, because the cache holds all");
    if (r->shift < 0 || (r->shift > 0 && (r->cache || !r->seen)))
        return m3_fail(error, M3_USAGE,
                       "request: got %" PRId64 " places without a token, %s, expected none with a cache, and a mask "
                       "that hides them",
                       r->shift, r->cache ? "and a cache" : "and no mask");
    if (r->logits && (r->logit_rows < 1 || r->logit_rows > r->T))
        return m3_fail(error, M3_USAGE, "request: got %" PRId64 " rows of logits, expected 1 to %" PRId64,
                       r->logit_rows, r->T);
    if (r->pictures && !c->vision.present)
        return m3_fail(error, M3_USAGE, "request: got pictures, expected none: the model has no vision part");
    return M3_OK;
}

int m3_forward(const struct m3_model *model, const struct m3_request *request, struct m3_error *error)
{
    int wrong = check_request(&model->config, request, error);
    if (wrong) return wrong;

    struct m3_pass f;
    struct m3_share share;
    struct m3_features features = { 0 };
    m3_pass_open(&f, model, request, error);
    if (!f.status && request->first_layer == 0 && !m3_pass_goes_on(&f)) m3_vision_forward(&f, &features);
    if (!f.status && m3_share_divides(model, request)) m3_share_begin(&f, &share, &features);
    if (!f.status) m3_text_forward(&f, &features);
    m3_share_end(&f);
    free(features.rows);
    return m3_pass_close(&f);
}

static int check_mtp_request(const struct m3_model *model, const struct m3_mtp_request *r, struct m3_error *error)
{
    if (!r->how) return m3_fail(error, M3_USAGE, "request: got a NULL pointer, expected how");
    if (r->module < 0 || r->module >= model->mtp_modules || r->T < 1 || r->how->threads < 1)
        return m3_fail(error, M3_USAGE,
                       "request: got MTP module %" PRId64 ", T %" PRId64 ", %d threads, expected a "
                       "module below %" PRId64 ", T and threads from 1",
                       r->module, r->T, r->how->threads, model->mtp_modules);
    if (!r->ids || !r->positions || !r->hidden || !r->how->semantics)
        return m3_fail(error, M3_USAGE, "request: got a NULL pointer, expected ids, positions, hidden and semantics");
    if (r->embedded_rows < 0 || r->embedded_rows > r->T || (r->logits && (r->logit_rows < 1 || r->logit_rows > r->T)))
        return m3_fail(error, M3_USAGE,
                       "request: got %" PRId64 " embedded rows and %" PRId64 " of logits, expected at "
                       "most T %" PRId64,
                       r->embedded_rows, r->logit_rows, r->T);
    if (r->how->cache && !m3_cache_is_for(r->how->cache, &model->config, sizeof(real)))
        return m3_fail(error, M3_USAGE, "request: got a cache of another model or precision");
    return M3_OK;
}

int m3_forward_mtp(const struct m3_model *model, const struct m3_mtp_request *r, struct m3_error *error)
{
    int wrong = check_mtp_request(model, r, error);
    if (wrong) return wrong;

    struct m3_cache *cache = r->how->cache;
    struct m3_activations a = { 0 };
    struct m3_pass f;
    struct m3_share share;
    m3_pass_open(&f, model, r->how, error);
    f.cache = cache;
    if (!f.status && m3_share_divides(model, r->how)) m3_share_begin_module(&f, &share, r);
    m3_pass_take_rows(&f, r->T, r->T);
    f.p0 = cache ? m3_cache_length(cache, r->module) : 0;
    if (!f.status && cache) f.status = m3_cache_reserve(cache, r->module, f.p0 + f.rows, error);
    m3_activations_make(&f, &a);
    m3_mtp_module(&f, &a, r);
    if (!f.status && cache) m3_cache_set_length(cache, r->module, f.p0 + f.rows);
    m3_activations_free(&a);
    m3_share_end(&f);
    return m3_pass_close(&f);
}
