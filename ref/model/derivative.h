/* The derivative of one operator, from its operands and the gradient of its output: what a backward pass computes at
 * one place, without the rest of it. The operands are those of the forward operator; what else the derivative reads,
 * such as lse, is computed from them. ref/train/TRAINING.md, sections 19.2 to 19.14. */
#ifndef M3_MODEL_DERIVATIVE_H
#define M3_MODEL_DERIVATIVE_H

#include "model/model.h"
#include "ops/ops.h"

/* Operators, with `in` and `out` in this order. Matrices are not in `in`: they are `w`, or `experts`. */
enum m3_derivative {
    M3_DERIVATIVE_NONE,
    M3_DERIVATIVE_EMBED,                /* ids: dw */
    M3_DERIVATIVE_RMS_NORM,             /* x w: dx dw */
    M3_DERIVATIVE_RMS_NORM_PLAIN,
    M3_DERIVATIVE_LINEAR,               /* x: dx dw dbias */
    M3_DERIVATIVE_ROPE,                 /* cos sin: dx */
    M3_DERIVATIVE_ATTEND_FULL,          /* q k v: dq dk dv */
    M3_DERIVATIVE_ATTEND_BLOCKS,        /* q k v blocks: dq dk dv */
    M3_DERIVATIVE_ATTEND_SEGMENTS,      /* q k v ends: dq dk dv */
    M3_DERIVATIVE_SWIGLU_OAI,           /* gate up: dgate dup */
    M3_DERIVATIVE_SWIGLU,
    M3_DERIVATIVE_SIGMOID,              /* x: dx */
    M3_DERIVATIVE_ROUTE,                /* s ids: ds; dy is the gradient of the weights */
    M3_DERIVATIVE_EXPERTS,              /* x ids p: dx dp dw1 dw3 dw2 */
    M3_DERIVATIVE_LAYER_NORM,           /* x w: dx dw db */
    M3_DERIVATIVE_GELU,                 /* x: dx */
    M3_DERIVATIVE_SCATTER,              /* ids: dx df */
};

enum { M3_DERIVATIVE_INPUTS = 4, M3_DERIVATIVE_OUTPUTS = 5 };

struct m3_derivative_request {
    enum m3_derivative of;
    const void *dy, *dlse;                              /* `real`; dlse [T,Q] of causal attention, or NULL */
    const void *in[M3_DERIVATIVE_INPUTS];               /* `real`; ids and blocks int32_t, ends int64_t */
    void *out[M3_DERIVATIVE_OUTPUTS];                   /* `real`, all elements are stored; NULL: not wanted */
    const struct m3_weight *w;                          /* of linear */
    const struct m3_expert *experts;                    /* [E] */
    int64_t T, H;               /* rows and columns of x, or of what is computed element by element */
    int64_t V, E, K, F, M, heads, R;
    int64_t segments;
    int32_t id;                                         /* of scatter */
    double eps, factor, alpha, limit;
    int oai;
    enum m3_gate_clamp clamp;
    struct m3_attend attend;                            /* of segments: T, Q = G and D */
    int threads;
};

#endif
