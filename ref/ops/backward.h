/* The derivative of every operator of ops.h, on one page.
 *
 * d before a name is the gradient of the loss with respect to it. Letters and signs as in ops.h; := is stored, and
 * +:= is added to what the buffer holds. Sections are those of ref/train/TRAINING.md.
 *
 *  name            outputs          incoming    inputs, weights           meaning                             section
 *  embed           dw[V,H]          dy[T,H]     ids[T]                    dw[id] +:= sum of its rows of dy       19.2
 *  rms_norm        dx[T,H] dw[H]    dy[T,H]     x[T,H] w[H]               of x / rms (1 + w)                 (1) 19.3
 *  rms_norm_plain  dx[T,H] dw[H]    dy[T,H]     x[T,H] w[H]               of x / rms w                       (1) 19.3
 *  linear          dx dw dbias      dy[T,rows]  x[T,cols] w               dx := dy w, dw +:= dy' x, dbias +:=    19.4
 *  rope            dx[T,heads,D]    dy          cos sin [T,R/2]           dx := dy, turned back              (1) 19.5
 *  attend_full     dq dk dv         do dlse     q k v o lse               through all keys that a row sees   (2) 19.6
 *  attend_blocks   dq dk dv         do dlse     q k v o lse blocks        through the chosen blocks only     (2) 19.6
 *  attend_segments dq dk dv [P,A,U] do          q k v ends                through the segment of the row         19.6
 *  swiglu_oai      dgate dup [T,F]  dy[T,F]     gate up                   0 beyond a clamp                   (3) 19.7
 *  swiglu          dgate dup [T,F]  dy[T,F]     gate up                   of up gate sig(gate)               (3) 19.7
 *  sigmoid         dx[n]            dy[n]       x[n]                      dx := dy sig(x) sig(-x)            (1) 19.8
 *  route           ds[T,E]          dp[T,K]     ids[T,K] s[T,E]           0 for experts that are not chosen      19.9
 *  experts         dx dp, each dw   dy[T,H]     x ids p, experts          factor and p on the way               19.10
 *  add             da[n] db[n]      dy[n]       -                         both := dy                         (4) 19.11
 *  layer_norm      dx[T,H] dw db    dy[T,H]     x[T,H] w[H]               of (x - mean) / sqrt(var + eps) w  (1) 19.12
 *  gelu            dx[n]            dy[n]       x[n]                      of x/2 (1 + erf(x / sqrt 2))       (1) 19.13
 *  scatter         dx[T,H] df[M,H]  dy[T,H]     ids[T]                    rows of one id go to df, 0 in dx   (1) 19.14
 *
 * The gradient of an input is stored; that of a weight, a bias or a norm's vector is added. An output that is not
 * wanted is NULL. The tables of angles, the choice of blocks and of experts, and the bias of route have no gradient.
 * (1) dx may be dy.   (2) dlse [T,Q] is the gradient of lse; NULL: nothing reads lse.   (3) dgate or dup may be dy.
 * (4) da or db may be dy.   Otherwise outputs overlap nothing.
 *
 * Every element belongs to one thread, and a sum over tokens is in double, ascending, and rounded once for a call, so
 * that results do not depend on the number of threads. Statuses and failures are as in ops.h. */
#ifndef M3_OPS_BACKWARD_H
#define M3_OPS_BACKWARD_H

#include "ops/ops.h"

/* The gradients of one routed expert's matrices, laid out as in m3_expert; a NULL matrix is not wanted. */
struct m3_expert_gradient {
    real *dw1, *dw3, *dw2;          /* gate [F,H], up [F,H], down [H,F] */
};

/* Signatures. The table above describes the operands. do is a word of C: the gradient of o is d_o. */
typedef int m3_op_embed_backward(struct m3_ctx *, real *dw, const real *dy, const int32_t *ids, int64_t T, int64_t V,
                                 int64_t H);
typedef int m3_op_rms_norm_backward(struct m3_ctx *, real *dx, real *dw, const real *dy, const real *x, const real *w,
                                    int64_t T, int64_t H, real eps);
typedef int m3_op_rms_norm_plain_backward(struct m3_ctx *, real *dx, real *dw, const real *dy, const real *x,
                                          const real *w, int64_t T, int64_t H, real eps);
/* x is only read for dw, w only for dx and for the dimensions. */
typedef int m3_op_linear_backward(struct m3_ctx *, real *dx, real *dw, real *dbias, const real *dy, const real *x,
                                  const struct m3_weight *w, int64_t T);
typedef int m3_op_rope_backward(struct m3_ctx *, real *dx, const real *dy, const real *cos, const real *sin, int64_t T,
                                int64_t heads, int64_t D, int64_t R);
typedef int m3_op_attend_full_backward(struct m3_ctx *, real *dq, real *dk, real *dv, const real *d_o, const real *dlse,
                                       const real *q, const real *k, const real *v, const real *o, const real *lse,
                                       const struct m3_attend *d);
typedef int m3_op_attend_blocks_backward(struct m3_ctx *, real *dq, real *dk, real *dv, const real *d_o,
                                         const real *dlse, const real *q, const real *k, const real *v, const real *o,
                                         const real *lse, const int32_t *blocks, const struct m3_attend *d);
typedef int m3_op_attend_segments_backward(struct m3_ctx *, real *dq, real *dk, real *dv, const real *d_o,
                                           const real *q, const real *k, const real *v, const int64_t *ends,
                                           int64_t segments, int64_t A, int64_t U);
typedef int m3_op_swiglu_oai_backward(struct m3_ctx *, real *dgate, real *dup, const real *dy, const real *gate,
                                      const real *up, int64_t T, int64_t F, const struct m3_activation *act);
typedef int m3_op_swiglu_backward(struct m3_ctx *, real *dgate, real *dup, const real *dy, const real *gate,
                                  const real *up, int64_t T, int64_t F);
typedef int m3_op_sigmoid_backward(struct m3_ctx *, real *dx, const real *dy, const real *x, int64_t n);
typedef int m3_op_route_backward(struct m3_ctx *, real *ds, const real *dp, const int32_t *ids, const real *s,
                                 int64_t T, int64_t E, int64_t K);
/* dw [E] may be NULL. */
typedef int m3_op_experts_backward(struct m3_ctx *, real *dx, real *dp, const struct m3_expert_gradient *dw,
                                   const real *dy, const real *x, const int32_t *ids, const real *p,
                                   const struct m3_expert *experts, const struct m3_activation *act, int64_t T,
                                   int64_t E, int64_t K, real factor);
typedef int m3_op_add_backward(struct m3_ctx *, real *da, real *db, const real *dy, int64_t n);
typedef int m3_op_layer_norm_backward(struct m3_ctx *, real *dx, real *dw, real *db, const real *dy, const real *x,
                                      const real *w, int64_t T, int64_t H, real eps);
typedef int m3_op_gelu_backward(struct m3_ctx *, real *dx, const real *dy, const real *x, int64_t n);
typedef int m3_op_scatter_backward(struct m3_ctx *, real *dx, real *df, const real *dy, const int32_t *ids, int32_t id,
                                   int64_t T, int64_t M, int64_t H);

struct m3_backward_ops {
#define ENTRY(name, ...) m3_op_##name##_backward *name;
#define NONE(...)
    M3_DERIVATIVES(ENTRY, NONE, ENTRY)
#undef ENTRY
#undef NONE
};

/* m3_NAME_backward is the plain body, the definition, in the file of the operator. m3_fast_NAME_backward (ops/fast/)
 * gives the same bits under the sum order `ordered`; under `blas` it computes and adds in `real`, in another order.
 * Where it is missing, the plain body is fast enough. */
#define BACK_PLAIN(name) m3_op_##name##_backward m3_##name##_backward;
#define BACK_FAST(name) m3_op_##name##_backward m3_##name##_backward, m3_fast_##name##_backward;
#define BODIES(name, NAME, bodies, ...) BACK_##bodies(name)
#define NONE(...)
M3_DERIVATIVES(BODIES, NONE, BODIES)
#undef BODIES
#undef NONE

/* The plain bodies, and the bodies that a pass uses by default. */
extern const struct m3_backward_ops m3_plain_backward_ops, m3_fast_backward_ops;

#endif
