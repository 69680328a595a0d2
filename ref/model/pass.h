/* What the parts of one forward pass share: the operators, the context, the watcher, and the way errors are named. */
#ifndef M3_MODEL_PASS_H
#define M3_MODEL_PASS_H

#include "base/real.h"
#include "model/engine.h"
#include "ops/ops.h"

struct m3_pass {
    const struct m3_model *model;
    const struct m3_config *config;
    const struct m3_request *request;
    struct m3_error *error;
    struct m3_ops ops;
    int (*norm)(struct m3_ctx *, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps);    /* RMS */
    struct m3_activation act;
    struct m3_ctx ctx;
    int64_t rows;                           /* of the taps now made: T, P, M, or fewer in an MTP module */
    struct m3_cache *cache;                 /* whose places come before row 0, and which gets the rows; or NULL */
    int64_t p0;                             /* how many places it holds */
    int64_t layer;                          /* of the taps now made; -1 outside layers */
    int status;
};

/* rows x width numbers, uninitialised, to be freed; NULL sets f->status, and follows from one that is set. */
void *m3_pass_need(struct m3_pass *f, int64_t rows, int64_t width, size_t size);

/* Does somebody watch this tap of the layer at hand? */
int m3_pass_shows(const struct m3_pass *f, enum m3_tap tap);

/* The end of every step: rows [row, row + rows) of a tap, or why there are none. Not zero ends the pass. Who forces a
 * tap may change them. */
int m3_pass_show(struct m3_pass *f, enum m3_tap tap, void *data, int64_t row, int64_t rows, int status);

/* The same for all rows. */
static inline int did(struct m3_pass *f, enum m3_tap tap, void *data, int status)
{
    return m3_pass_show(f, tap, data, 0, f->rows, status);
}

/* A step without a tap of its own; `tap` is the one that it prepares. */
int m3_pass_prepared(struct m3_pass *f, enum m3_tap tap, int64_t row, int status);

/* NaN of the model's own arithmetic is reported where it first appears, by layer and row. */
int m3_pass_nan_free(struct m3_pass *f, enum m3_tap tap, const real *x, int64_t row0, int64_t rows, int64_t width);

/* out := a stored vector; left alone if the model has none. */
void m3_pass_vector(real *out, const struct m3_weight *w);

/* `give` is m3_pages_ask or m3_pages_release. */
void m3_pass_pages(const struct m3_weight *w, void (*give)(const void *, uint64_t));

#endif
