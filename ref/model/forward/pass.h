/* State shared by the parts of one forward pass: operators, context, current rows, the sink, and how errors are
 * named. */
#ifndef M3_MODEL_PASS_H
#define M3_MODEL_PASS_H

#include "base/real.h"
#include "model/request.h"
#include "ops/ops.h"
#include "ranks/division.h"

struct m3_backward_ops;
struct m3_share;

struct m3_pass {
    const struct m3_model *model;
    const struct m3_config *config;
    const struct m3_request *request;
    struct m3_error *error;
    struct m3_ops ops;
    const struct m3_backward_ops *back;     /* their derivatives */
    struct m3_activation act;
    struct m3_ctx ctx;
    size_t mark;                            /* what of its scratch memory is somebody else's */
    int64_t layer;                          /* of the taps computed at present; -1 outside layers */
    int64_t row, rows;                      /* their rows: [row, row + rows) of T, P, M, or a module's; of them those
                                             * that this process has */
    int64_t T;                              /* rows of the call, or of the module, in all processes */
    struct m3_rows own;                     /* those that this one has; without ranks all */
    struct m3_share *share;                 /* of a pass that ranks divide (divided/); or NULL */
    struct m3_cache *cache;                 /* holds the places before row 0, receives the rows; or NULL */
    int64_t p0;                             /* number of places it holds */
    int status;                             /* not zero: the pass has failed, and later stages do nothing */
};

/* Begins every kind of pass; m3_pass_close must follow, also after a failure. Both return f->status. */
int m3_pass_open(struct m3_pass *f, const struct m3_model *model, const struct m3_request *request,
                 struct m3_error *error);
int m3_pass_close(struct m3_pass *f);

/* The next stages are about `rows` rows of a call with T: sets f->T, f->own and f->rows. */
void m3_pass_take_rows(struct m3_pass *f, int64_t T, int64_t rows);

/* Is this one of many short passes on a cache? */
int m3_pass_is_step(const struct m3_pass *f);

/* Allocates rows x width numbers, uninitialised, to be freed. NULL if f->status is set already, or on failure, which
 * sets it. */
void *m3_pass_need(struct m3_pass *f, int64_t rows, int64_t width, size_t size);

/* Does the pass go on where an earlier one was interrupted? */
static inline int m3_pass_goes_on(const struct m3_pass *f) { return f->request->resume && f->request->resume->hidden; }

/* Does the sink want this tap of the current layer? */
int m3_pass_shows(const struct m3_pass *f, enum m3_tap tap);

/* The number of values in a row of a tap, other than one per block. */
int64_t m3_pass_width(const struct m3_pass *f, enum m3_tap tap);

/* Ends every stage: takes its operator's status, and shows the current rows of its tap. A force may change them. */
void m3_pass_done(struct m3_pass *f, int stage, void *data, int status);

/* A stage without its own tap is named after the tap that it prepares, and is not shown. */
static inline int prepares(enum m3_tap tap) { return M3_TAPS + (int)tap; }
static inline enum m3_tap m3_pass_tap(int stage) { return (enum m3_tap)(stage % M3_TAPS); }

/* A NaN from the model's own arithmetic is reported where it first appears, by layer and row. */
void m3_pass_nan_free(struct m3_pass *f, enum m3_tap tap, const real *x);

/* Copies the current hidden states, [rows,H], to or from the caller's memory; NULL: does nothing. */
void m3_pass_copy(struct m3_pass *f, void *to, const void *from);

void m3_pass_progress(const struct m3_pass *f, const char *part, int64_t layer, int64_t layers);

#endif
