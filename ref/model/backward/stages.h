/* The stages of the backward pass, as model/stages.h has those of the forward pass: one for each derivative of
 * ops/backward.h. A tap before each gradient that is stored; then the incoming gradient, inputs and weights. Gradients
 * of weights are added to their buffers. prepares(tap) shows nothing: it is a part of a sum. */
#ifndef M3_MODEL_BACKWARD_STAGES_H
#define M3_MODEL_BACKWARD_STAGES_H

#include "model/backward/backward.h"
#include "model/forward/stages.h"

/* Shows the gradient of a tap, complete in the present rows. */
void shown(struct m3_backward *b, int tap, const real *d);

void embed_back(struct m3_backward *b, const real *dy, const int32_t *ids);
/* dx := dy, 0 in the rows of M features; d_features := those rows */
void scatter_back(struct m3_backward *b, real *dx, real *d_features, const real *dy, int64_t id, int64_t M);
void rms_norm_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w);
void layer_norm_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w,
                     const struct m3_weight *bias);
/* dx NULL: it has no readers */
void linear_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w);
void affine_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w,
                 const struct m3_weight *bias);
void rope_back(struct m3_backward *b, int tap, real *dx, const real *dy, const struct m3_angles *angles);
/* Full or over the chosen blocks, of the present layer's taps. */
void attend_back(struct m3_backward *b, int q_tap, real *dq, int k_tap, real *dk, int v_tap, real *dv, const real *dy);
void attend_segments_back(struct m3_backward *b, real *dq, real *dk, real *dv, const real *dy, const int64_t *ends,
                          int64_t segments);
void gated_back(struct m3_backward *b, int gate_tap, real *d_gate, int up_tap, real *d_up, const real *dy,
                const real *gate, const real *up, int64_t F);
void gelu_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x);
void sigmoid_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x);
void route_back(struct m3_backward *b, int tap, real *d_scores, const real *dp, const int32_t *ids, const real *scores);
void experts_back(struct m3_backward *b, int tap, real *dx, int p_tap, real *dp, const real *dy, const real *x,
                  const int32_t *ids, const real *p, const struct m3_expert *w);
/* z [rows,V] := its gradient; the loss is added. */
void cross_entropy_back(struct m3_backward *b, int tap, double *loss, real *z, const int32_t *targets, double weight);
/* Gradients of the index branch's queries and keys; the loss is added. */
void index_loss_back(struct m3_backward *b, double *loss, real *dq, real *dk, int64_t rows, double weight);

#endif
