/* How far a conforming backward pass may be from the true gradient, operator by operator, on equal operands.
 * ref/train/TRAINING.md, section 19.21.
 *
 * Operands are those of ops/backward.h in double, weights as they are stored; o and lse of attention are not operands,
 * because a kernel recomputes what it needs. `allowed` receives the largest error of each element of a gradient, in
 * whatever order sums are added and in the usual forms of each formula; NULL: not wanted. A gradient that is copied has
 * none and no function here. Where a candidate may round what it stores between the steps, the unit roundoff of that
 * is added. Every function returns 0, or a status after m3_fail_at. */
#ifndef M3_ORACLE_ERROR_BACKWARD_BACKWARD_H
#define M3_ORACLE_ERROR_BACKWARD_BACKWARD_H

#include "oracle/error/bounds.h"

struct m3_backward_arithmetic {
    double u;                   /* unit roundoff of the arithmetic */
    int c;                      /* error of exp, erf and the reciprocal root, in u */
    /* Unit roundoffs of storing; 0: as exact as the arithmetic. */
    double stored;              /* gradients of activations, and their sums */
    double unit;                /* normalised values, and what arrives at them; the mean and r that were kept */
    double product;             /* products with cos and sin */
    double logits;              /* attention's logits */
    double p;                   /* its weights, and the gradients of weights and logits */
    double o;                   /* attention's output, as delta reads it */
    double act;                 /* gate, up, activation, and their gradients */
    double expert;              /* outputs of experts */
};

/* ---- sums.c. dw [V,H]; dy [T,H] */
int m3_error_embed_backward(struct m3_ctx *, double *dw, const double *dy, const int32_t *ids, int64_t T, int64_t V,
                            int64_t H, const struct m3_backward_arithmetic *);
int m3_error_linear_backward(struct m3_ctx *, double *dx, double *dw, double *dbias, const double *dy, const double *x,
                             const struct m3_weight *w, int64_t T, const struct m3_backward_arithmetic *);
int m3_error_rope_backward(struct m3_ctx *, double *dx, const double *dy, const double *cos, const double *sin,
                           int64_t T, int64_t heads, int64_t D, int64_t R, const struct m3_backward_arithmetic *);
int m3_error_route_backward(struct m3_ctx *, double *ds, const double *dp, const int32_t *ids, const double *s,
                            int64_t T, int64_t E, int64_t K, const struct m3_backward_arithmetic *);

/* ---- norms.c. offset 1: weights are offsets from 1 */
int m3_error_rms_norm_backward(struct m3_ctx *, double *dx, double *dw, const double *dy, const double *x,
                               const double *w, int64_t T, int64_t H, double eps, int offset,
                               const struct m3_backward_arithmetic *);
int m3_error_layer_norm_backward(struct m3_ctx *, double *dx, double *dw, double *db, const double *dy, const double *x,
                                 const double *w, int64_t T, int64_t H, double eps,
                                 const struct m3_backward_arithmetic *);

/* ---- gates.c, element by element */
int m3_error_gate_backward(struct m3_ctx *, double *dgate, double *dup, const double *dy, const double *gate,
                           const double *up, int64_t n, const struct m3_gate *, const struct m3_backward_arithmetic *);
int m3_error_sigmoid_backward(struct m3_ctx *, double *dx, const double *dy, const double *x, int64_t n,
                              const struct m3_backward_arithmetic *);
int m3_error_gelu_backward(struct m3_ctx *, double *dx, const double *dy, const double *x, int64_t n,
                           const struct m3_backward_arithmetic *);

/* ---- attend.c. ends NULL: causal; blocks NULL: all keys. dlse may be NULL. dq, dy, q [T,Q,D]; dk, dv, k, v [p0+T,G,D] */
struct m3_attend_operands {
    const double *dy, *dlse, *q, *k, *v;
    const int32_t *blocks;
    const int64_t *ends;
    struct m3_attend d;
};
int m3_error_attend_backward(struct m3_ctx *, double *dq, double *dk, double *dv, const struct m3_attend_operands *,
                             const struct m3_backward_arithmetic *);

/* ---- experts.c. dw1, dw3 [E,F,H], dw2 [E,H,F] */
struct m3_experts_errors {
    double *dx, *dp, *dw1, *dw3, *dw2;
};
struct m3_experts_operands {
    const double *dy, *x, *p;
    const int32_t *ids;
    const struct m3_expert *experts;
    const struct m3_gate *gate;
    int64_t T, E, K, H, F;
    double factor;
};
int m3_error_experts_backward(struct m3_ctx *, const struct m3_experts_errors *, const struct m3_experts_operands *,
                              const struct m3_backward_arithmetic *);

#endif
