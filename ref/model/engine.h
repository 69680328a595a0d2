/* A forward pass in one precision. Two engines live in one process: float, the reference, and double, the truth. */
#ifndef M3_MODEL_ENGINE_H
#define M3_MODEL_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/context.h"
#include "base/semantics.h"
#include "base/status.h"
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

/* How a pass is run, and over what. Zero, except where it says otherwise, is the usual choice. */
struct m3_request {
    const int32_t *ids;                     /* [T] */
    const int64_t *positions;               /* [T] */
    int64_t T;
    const struct m3_pictures *pictures;     /* whose features go where ids has their placeholders; or NULL */
    int64_t first_layer, end_layer;         /* [first, end); the head runs if end is the number of layers */
    const void *hidden;                     /* [T,H] of `real`: what enters first_layer, if that is not 0; else NULL */
    const struct m3_semantics *semantics;
    enum m3_linear linear;
    int threads;                            /* >= 1 */
    const char *plugin;                     /* shared library that replaces operators, or NULL */
    const struct m3_sink *sink;             /* or NULL */
    /* Before each layer of the part ("vision layer", "layer"), and at its end while its memory is held; or NULL. */
    void (*progress)(void *self, const char *part, int64_t layer, int64_t layers);
    void *progress_self;
    double *logits;                         /* [V]: gets the last row, if the head runs; or NULL */
};

struct m3_ops;

struct m3_engine {
    const char *precision;                  /* "f32" or "f64" */
    size_t real_bytes;
    const struct m3_ops *ops;               /* the reference table; ops/ops.h of the same `real` describes it */
    int (*forward)(const struct m3_model *model, const struct m3_request *request, struct m3_error *error);
};

const struct m3_engine *m3_engine_f32(void);
const struct m3_engine *m3_engine_f64(void);

#endif
