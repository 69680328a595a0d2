/* What a pass is asked for, and who receives and changes its taps. */
#ifndef M3_MODEL_REQUEST_H
#define M3_MODEL_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/context.h"
#include "base/progress.h"
#include "base/semantics.h"
#include "base/status.h"
#include "model/cache.h"
#include "model/model.h"
#include "model/pictures.h"
#include "model/taps.h"

/* Receives tensors as the pass computes them, in execution order. It only observes and never changes a result. */
struct m3_sink {
    void *self;
    /* Is this tap wanted? The expensive ones (moe.expert_out, all rows of logits) are computed only if it is. */
    int (*wants)(void *self, enum m3_tap tap, int64_t layer);
    /* Rows [row, row + rows) of a wanted tap, as `real` or int32_t. A tap may arrive in pieces, rows ascending. */
    int (*write)(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                 struct m3_error *error);
    int takes_whole;            /* taps other than block scores and logits must arrive in one piece */
};

/* Replaces values that the pass has computed, before any observer sees them; the pass continues with the new values.
 * Rows as in m3_sink.write. */
struct m3_force {
    void *self;
    int (*replace)(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *error);
    /* Which taps it may replace; NULL: any. Ranks divide a pass only if it says so. */
    int (*wants)(void *self, enum m3_tap tap, int64_t layer);
};

/* Keeps what a later process needs to go on with a pass that was interrupted, and where this pass goes on itself. */
struct m3_resume {
    void *self;
    /* Called before the first layer and after each of them: `hidden` [T,H] of `real` is what `layer`, the next one,
     * reads; after the last it is what the head reads. */
    int (*keep)(void *self, int64_t layer, const void *hidden, struct m3_error *error);
    const void *hidden;                     /* [T,H] of `real`: what was kept for `layer`; NULL: begin at the start */
    int64_t layer;                          /* where the pass goes on; a cache holds the keys of the layers before */
    const void *embedded;                   /* [T,H] what was kept for layer 0, if modules read it; or NULL */
};

struct m3_ops;

/* Operators that replace the reference's, from this process or from a file (plugin.h). */
struct m3_replacement {
    const struct m3_ops *ops;               /* the whole table, in the engine's `real` */
    void *state;                            /* operators find it in m3_ctx.plugin */
};

struct m3_recorder;

/* What a pass runs over, and how. Zero is the default unless a field says otherwise. */
struct m3_request {
    const int32_t *ids;                     /* [T] */
    const int64_t *positions;               /* [T] */
    int64_t T;
    const unsigned char *seen;              /* [places before + T] 0: no row sees that place; or NULL: all are seen */
    int64_t shift;                          /* places before the rows that hold no token and that no row sees, so that
                                             * blocks begin earlier (block_anchor); only without a cache */
    const struct m3_pictures *pictures;     /* their features replace the placeholders in ids; or NULL */
    int64_t first_layer, end_layer;         /* [first, end); the head runs if end is the number of layers */
    const void *hidden; /* [T,H] of `real`: input of first_layer, if that is not 0; otherwise NULL */
    struct m3_cache *cache; /* holds the places before the T rows, which the pass appends; or NULL */
    const struct m3_semantics *semantics;
    int attends_fully; /* sparse layers too: no blocks are chosen (kl_phase=warmup); without a cache and ranks */
    enum m3_linear linear;
    int threads; /* >= 1 */
    const struct m3_replacement *replacement; /* or NULL */
    const struct m3_force *force; /* or NULL */
    const struct m3_sink *sink; /* or NULL */
    const struct m3_resume *resume; /* or NULL */
    struct m3_recorder *recorder; /* notes the stages, which then compute nothing (graph/record.h); or NULL */
    struct m3_progress progress; /* of a "vision layer" or "layer", and at the end of all while their memory is held */
    double *logits; /* [logit_rows,V]: receives the last rows, if the head runs; or NULL */
    int64_t logit_rows;
    void *embedded; /* [T,H] of `real`: receives the input of layer 0; or NULL */
    void *final_norm; /* likewise: receives the input of MTP module 0, if the head runs */
};

/* Row t of module m combines hidden state t with the token m + 1 places later, and predicts the token after that. */
struct m3_mtp_request {
    const struct m3_request *how; /* its cache, semantics, linear, threads, replacement and sink */
    int64_t module, T;
    const int32_t *ids; /* [T] the tokens to combine */
    const void *embedded; /* [embedded_rows,H] of `real`, replaces the first embeddings; or NULL */
    int64_t embedded_rows;
    const int64_t *positions; /* [T] of the hidden states */
    void *hidden; /* [T,H] of `real`: the input, then the output for the next module */
    double *logits; /* [logit_rows,V]: receives the last rows; or NULL */
    int64_t logit_rows;
};

/* How many MTP modules belong to a pass: as many as have a row. None after cached places, where the rows before are
 * unknown, and none for scattered rows in a pass from a later layer, which does not see them. */
static inline int64_t m3_request_modules(const struct m3_model *model, const struct m3_request *r)
{
    int has_cached = r->cache && m3_cache_length(r->cache, M3_CACHE_MAIN) > 0;
    int unseen = r->first_layer > 0 && r->semantics->mtp_embed == M3_MTP_EMBED_FUSED;
    if (has_cached || unseen || r->end_layer < model->config.layers) return 0;
    return model->mtp_modules < r->T - 1 ? model->mtp_modules : r->T - 1;
}

/* One tap, from the values of the taps that its operator reads: what a pass computes there, without the rest of the
 * pass. The weights are the model's. An operator with two outputs computes both: attn with attn_lse, moe.experts with
 * moe.weights, moe.routed with moe.expert_out. */
enum { M3_TAP_INPUTS = 4 };
enum m3_step {
    M3_STEP_TAP, /* the operator of the tap */
    M3_STEP_ANGLES, /* the table of angles of a rotated tap: y is cos, second is sin [rows,R/2]; in the
                                 * tower in[0] are the places [rows,3], I64 */
    M3_STEP_JITTER, /* the noise on what the router and the experts read: in and y [rows,H] */
};
struct m3_tap_request {
    const struct m3_request
        *how; /* its ids, positions, seen, pictures, semantics, linear, threads, replacement, force */
    enum m3_step step;
    enum m3_tap tap;
    int64_t layer; /* as in taps.h */
    const void *in[M3_TAP_INPUTS]; /* `real` or int32_t, in the order of the operator's inputs (ops/ops.h); cos and
                                     * sin may be NULL: then they follow from the positions */
    int64_t p0, rows; /* places before row 0, which keys and values have too; rows of the tap */
    int64_t places; /* of the whole call, p0 + rows or more: block scores have as many blocks */
    void *y, *second; /* [rows,..]; second: attn_lse, moe.weights, moe.expert_out (or NULL) */
    struct m3_ctx *ctx; /* lends its scratch memory, and receives the place of a failure; or NULL */
};

#endif
