/* A forward pass in one precision. Two engines live in one process: float, the reference, and double, the truth. */
#ifndef M3_MODEL_ENGINE_H
#define M3_MODEL_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/context.h"
#include "base/semantics.h"
#include "base/status.h"
#include "model/cache.h"
#include "model/model.h"
#include "model/pictures.h"
#include "model/taps.h"

/* Receives tensors as the pass makes them, in execution order. It watches; it never changes what is computed. */
struct m3_sink {
    void *self;
    /* Is this tap wanted? The costly ones (moe.expert_out, all rows of logits) are made only then. */
    int (*wants)(void *self, enum m3_tap tap, int64_t layer);
    /* Rows [row, row + rows) of a wanted tap, of `real` or int32_t. A tap may come in pieces, rows ascending. */
    int (*write)(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                 struct m3_error *error);
};

/* Puts other values in the place of some that the pass has made, before anybody watches them; the pass goes on from
 * those. Rows as in m3_sink.write. */
struct m3_force {
    void *self;
    int (*replace)(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *error);
};

struct m3_ops;

/* Other operators in the place of the reference's, from this process or from a file (plugin.h). */
struct m3_replacement {
    const struct m3_ops *ops;               /* the whole table, in the engine's `real` */
    void *state;                            /* operators find it in m3_ctx.plugin */
};

/* How a pass is run, and over what. Zero, except where it says otherwise, is the usual choice. */
struct m3_request {
    const int32_t *ids;                     /* [T] */
    const int64_t *positions;               /* [T] */
    int64_t T;
    const unsigned char *seen;              /* [cached places + T] 0: no row sees that place; or NULL: all are seen */
    const struct m3_pictures *pictures;     /* whose features go where ids has their placeholders; or NULL */
    int64_t first_layer, end_layer;         /* [first, end); the head runs if end is the number of layers */
    const void *hidden; /* [T,H] of `real`: what enters first_layer, if that is not 0; else NULL */
    struct m3_cache *cache; /* the T rows come behind what it holds, and it then holds them; or NULL */
    const struct m3_semantics *semantics;
    enum m3_linear linear;
    int threads; /* >= 1 */
    const struct m3_replacement *replacement; /* or NULL */
    const struct m3_force *force; /* or NULL */
    const struct m3_sink *sink; /* or NULL */
    /* Before each layer of the part ("vision layer", "layer"), and at its end while its memory is held; or NULL. */
    void (*progress)(void *self, const char *part, int64_t layer, int64_t layers);
    void *progress_self;
    double *logits; /* [logit_rows,V]: gets the last rows, if the head runs; or NULL */
    int64_t logit_rows;
    void *embedded; /* [T,H] of `real`: gets what enters layer 0; or NULL */
    void *final_norm; /* the same for what MTP module 0 takes, if the head runs */
};

/* Row t of module m joins hidden state t with the token m + 1 places on, and predicts the one after that. */
struct m3_mtp_request {
    const struct m3_request *how; /* its cache, semantics, linear, threads, replacement and sink */
    int64_t module, T;
    const int32_t *ids; /* [T] the tokens joined */
    const void *embedded; /* [embedded_rows,H] of `real` in place of the first embeddings; or NULL */
    int64_t embedded_rows;
    const int64_t *positions; /* [T] of the hidden states */
    void *hidden; /* [T,H] of `real`: what it takes, then what it hands to the next module */
    double *logits; /* [logit_rows,V]: gets the last rows; or NULL */
    int64_t logit_rows;
};

/* How many MTP modules belong to a pass: none behind cached places, where their rows before are not known, and none of
 * scattered rows that a pass from a later layer does not see; else those that have a row. */
static inline int64_t m3_request_modules(const struct m3_model *model, const struct m3_request *r)
{
    int behind = r->cache && m3_cache_length(r->cache, M3_CACHE_MAIN) > 0;
    int unseen = r->first_layer > 0 && r->semantics->mtp_embed == M3_MTP_EMBED_FUSED;
    if (behind || unseen || r->end_layer < model->config.layers) return 0;
    return model->mtp_modules < r->T - 1 ? model->mtp_modules : r->T - 1;
}

struct m3_engine {
    const char *precision; /* "f32" or "f64" */
    size_t real_bytes;
    const struct m3_ops *ops; /* what a pass runs; ops/ops.h of the same `real` describes it */
    const struct m3_ops *plain; /* the plain definitions: the same bits, with ordered sums */
    /* The main model, then the m3_request_modules up to the last that the sink wants a tap of. */
    int (*forward)(const struct m3_model *model, const struct m3_request *request, struct m3_error *error);
    /* One MTP module. */
    int (*mtp)(const struct m3_model *model, const struct m3_mtp_request *request, struct m3_error *error);
};

const struct m3_engine *m3_engine_f32(void);
const struct m3_engine *m3_engine_f64(void);

#endif
