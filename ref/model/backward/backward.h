/* The backward pass: what its parts share. One layer at a time is computed again from its input, which the forward pass
 * has kept, and differentiated; its parameters' gradients go to the sink, and its memory is released. */
#ifndef M3_MODEL_BACKWARD_BACKWARD_H
#define M3_MODEL_BACKWARD_BACKWARD_H

#include "model/forward/activations.h"
#include "model/gradient.h"

/* The taps of one layer, computed again. `real`, or int32_t for choices; NULL: the layer does not have the tap. */
struct m3_kept {
    void *at[M3_TAPS];
};

/* What the forward pass keeps of one sequence, and the gradients on their way back. */
struct m3_trace {
    real **hidden; /* [layers + 1][T,H] the input of each layer, and of the final norm */
    real **module; /* [modules][T,H] the hidden states that each module is given; its first rows */
    real *d; /* [T,H] gradient of the hidden states at the present layer */
    real *d_given; /* [T,H] gradient of what the next module is given, then of final_norm */
};

/* The gradient of a parameter that is not complete yet. */
struct m3_gradient {
    const struct m3_weight *of;
    real *values; /* [rows,cols] */
};

/* What the router's balance loss needs of a layer, or of all of them, before any gradient. */
struct m3_router_counts {
    double *chosen, *mass; /* [E] how many rows chose each expert, the sum of its probabilities */
    int64_t rows;
};

struct m3_backward {
    const struct m3_model *model;
    const struct m3_gradient_request *request;
    struct m3_error *error;
    struct m3_losses *losses;

    int64_t b; /* the sequence at present */
    struct m3_request how; /* its request, */
    struct m3_sink keeper; /* sometimes with a sink, which fills `kept` */
    struct m3_kept kept;
    struct m3_angles angles; /* of its rows */
    struct m3_pass f; /* its rows, operators and context, and the status of everything */

    struct m3_trace *traces; /* [count] */
    int64_t modules; /* MTP modules that have a row with a label in some sequence */
    struct m3_router_counts *counts; /* [layers]; the first one is for all of them, unless aux=sigmoid */

    struct m3_gradient *open; /* [opened] of parameters */
    int64_t opened, room;
};

/* Makes `rows` first rows of sequence i the present ones. */
void m3_backward_take(struct m3_backward *b, int64_t i, int64_t rows);

/* trace.c: all sequences forward. */
void m3_backward_trace(struct m3_backward *b);
/* head.c, of the present sequence: logits and final norm; trace.d := gradient of the final norm's input. */
void m3_backward_head(struct m3_backward *b);
/* Cross-entropy of the logits of `normed`, and its gradient. labels [f->rows]: those that the rows predict, below 0:
 * none. d_normed is stored. Returns the loss: the sum over these rows, divided by all scored rows of the request. */
double m3_backward_logits(struct m3_backward *b, enum m3_tap tap, real *d_normed, const real *normed,
                          const int32_t *labels, double weight);
/* mtp.c: module m of the present sequence; trace.d_given is replaced. */
void m3_backward_module(struct m3_backward *b, int64_t m);
/* layer.c: b->kept are the layer's taps, d [T,H] is the gradient of its output, and then of its input. */
void m3_backward_layer(struct m3_backward *b, int64_t layer, const real *input, real *d);
/* index.c: the alignment loss of a sparse layer, added to b->losses, and its gradients. */
void m3_backward_index(struct m3_backward *b, const struct m3_layer *w);
/* balance.c: counts rows [rows,E] of router logits, or [rows,K] of chosen experts (aux=sigmoid); the loss, when all are counted; then adds its gradient to
 * d_logits [rows,E] of the present layer. */
void m3_backward_count(struct m3_backward *b, int64_t layer, const real *logits, const int32_t *ids, int64_t row,
                       int64_t rows);
void m3_backward_balance_loss(struct m3_backward *b);
void m3_backward_balance(struct m3_backward *b, real *d_logits);
/* fused.c: embedding and scattered rows; tower.c: projector and tower. */
void m3_backward_fused(struct m3_backward *b);
void m3_backward_tower(struct m3_backward *b, const real *d_features);

/* kept.c: between begin and end, what the pass computes is kept. A layer's taps are computed from its input [rows,H]. */
void m3_keep_begin(struct m3_backward *b);
void m3_keep_end(struct m3_backward *b);
void m3_keep_layer(struct m3_backward *b, int64_t layer, const real *input);
void m3_keep_nothing(struct m3_backward *b); /* frees it */

/* gradients.c: the gradient of a parameter so far, which operators add to: zeros at first. NULL after a failure. */
real *m3_gradient_of(struct m3_backward *b, const struct m3_weight *w);
/* Gives complete gradients to the sink and frees them: modules and the head share lm_head, and modules read the
 * embedding. */
enum m3_give { M3_GIVE_LAYER, M3_GIVE_HEAD, M3_GIVE_ALL };
void m3_gradient_give(struct m3_backward *b, enum m3_give which);

#endif
