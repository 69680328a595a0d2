#include "model/forward.h"

#include <inttypes.h>
#include <stdlib.h>

#include "model/plugin.h"
#include "model/text.h"
#include "model/vision.h"
#include "ops/operators.h"

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
    if (r->pictures && !c->vision.present)
        return m3_fail(error, M3_USAGE, "request: got pictures, expected none: the model has no vision part");
    return M3_OK;
}

int m3_forward(const struct m3_model *model, const struct m3_request *request, struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    int wrong = check_request(c, request, error);
    if (wrong) return wrong;

    void *library = NULL;
    real *features = NULL;
    struct m3_pass f = { .model = model, .config = c, .request = request, .error = error, .ops = m3_reference_ops,
                         .layer = -1 };
    f.act =
        (struct m3_activation){ c->oai, (real)c->swiglu_alpha, (real)c->swiglu_limit, request->semantics->gate_clamp };

    f.status = m3_ctx_init(&f.ctx, request->threads, request->linear);
    if (f.status) return m3_fail_memory(error, "a context", sizeof f.ctx);
    if (request->plugin) f.status = m3_plugin_load(&f.ops, &library, request->plugin, error);
    f.norm = c->gemma_norm ? f.ops.rms_norm : f.ops.rms_norm_plain;
    if (!f.status && request->first_layer == 0) m3_vision_forward(&f, &features);
    if (!f.status) m3_text_forward(&f, features);

    free(features);
    m3_ctx_free(&f.ctx);
    m3_plugin_close(library);
    return f.status;
}
