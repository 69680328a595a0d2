/* What the parts of one forward pass share: the operators, the context, the rows at hand, the watcher, and the way
 * errors are named. */
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
    struct m3_activation act;
    struct m3_ctx ctx;
    int64_t layer;                          /* of the taps now made; -1 outside layers */
    int64_t row, rows;                      /* which rows of them: [row, row + rows) of T, P, M, or a module's */
    struct m3_cache *cache;                 /* whose places come before row 0, and which gets the rows; or NULL */
    int64_t p0;                             /* how many places it holds */
    int status;                             /* not zero: the pass has failed, and what follows does nothing */
};

/* rows x width numbers, uninitialised, to be freed; NULL sets f->status, and follows from one that is set. */
void *m3_pass_need(struct m3_pass *f, int64_t rows, int64_t width, size_t size);

/* Does somebody watch this tap of the layer at hand? */
int m3_pass_shows(const struct m3_pass *f, enum m3_tap tap);

/* Numbers in a row of a tap, other than one for each block. */
int64_t m3_pass_width(const struct m3_pass *f, enum m3_tap tap);

/* The end of every stage: its operator's status, and the rows at hand of its tap. Who forces a tap may change them. */
void m3_pass_done(struct m3_pass *f, int stage, void *data, int status);

/* A stage without a tap of its own is named after the tap that it prepares, and not shown. */
static inline int prepares(enum m3_tap tap) { return M3_TAPS + (int)tap; }
static inline enum m3_tap m3_pass_tap(int stage) { return (enum m3_tap)(stage % M3_TAPS); }

/* NaN of the model's own arithmetic is reported where it first appears, by layer and row. */
void m3_pass_nan_free(struct m3_pass *f, enum m3_tap tap, const real *x);

/* The hidden states at hand, [rows,H], for or from somebody else; NULL: nobody wants them. */
void m3_pass_copy(struct m3_pass *f, void *to, const void *from);

void m3_pass_progress(const struct m3_pass *f, const char *part, int64_t layer, int64_t layers);

#endif
