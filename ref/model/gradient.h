/* The gradient of a sum of losses over some sequences: of every parameter, and of the taps that a sink wants. Engines
 * compute it (engine.h); ref/train/TRAINING.md has the losses and the derivatives. */
#ifndef M3_MODEL_GRADIENT_H
#define M3_MODEL_GRADIENT_H

#include "base/progress.h"
#include "model/engine.h"
#include "train/readings.h"

enum { M3_MOST_MODULES = 16 };

/* What each loss is multiplied with; 0: it is not computed. */
struct m3_loss_weights {
    double lm;              /* cross-entropy of the next token, mean over the scored rows of all sequences */
    double mtp;             /* mean over modules of their cross-entropies, each a sum over rows / scored rows of lm */
    double aux;             /* balance of the router, rows of all MoE layers of the main model together */
    double kl;              /* index branch against the main branch, a sum over the layers of the main model */
};

/* The losses, before they are weighted. */
struct m3_losses {
    double lm, mtp, aux, kl, total;             /* total: the weighted sum */
    double module[M3_MOST_MODULES];
    int64_t modules;                            /* that have a row with a label */
};

/* Receives gradients as soon as they are complete. */
struct m3_gradient_sink {
    void *self;
    /* Is the gradient of this tap wanted? Only asked where there is one sequence. */
    int (*wants)(void *self, enum m3_tap tap, int64_t layer);
    /* Rows [row, row + rows) of the gradient of a wanted tap, as `real`; pieces with ascending rows. */
    int (*tap)(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
               struct m3_error *error);
    /* The gradient of a parameter, [rows,cols] of `real`, once. Parameters that no loss reaches do not come. */
    int (*parameter)(void *self, const struct m3_weight *w, const void *gradient, struct m3_error *error);
};

struct m3_gradient_request {
    const struct m3_request *sequences;         /* [count] each without cache, from layer 0 to the last */
    int32_t *const *labels;                     /* [count][T] row t predicts label t + 1; below 0: no label */
    int64_t count, scored;                      /* scored: rows with a label in all sequences */
    int64_t padding;                            /* rows of padding outside the sequences (kl_rows=all counts them) */
    struct m3_loss_weights weights;
    struct m3_readings readings;
    const struct m3_gradient_sink *sink;
    struct m3_progress progress;                /* of the way back; each sequence has that of its forward pass */
};

/* Is it a reading whose gradient is not implemented? Then M3_USAGE with its name. */
int m3_gradient_check(const struct m3_semantics *semantics, struct m3_error *error);

#endif
