/* The derivative of one operator, from its operands and the gradient of its output: what a backward pass computes at
 * one place, without the rest of it. The operands are those of the forward operator; what else the derivative reads,
 * such as lse, is computed from them. ref/train/TRAINING.md, sections 19.2 to 19.14. */
#ifndef M3_MODEL_DERIVATIVE_H
#define M3_MODEL_DERIVATIVE_H

#include "model/model.h"
#include "ops/ops.h"

/* M3_DERIVATIVE_EMBED and so on; M3_BACK_name of ops/operators.def numbers `in` and `out`. Matrices are not in `in`: they
 * are `w`, or `experts`. */
enum m3_derivative {
    M3_DERIVATIVE_NONE,
#define M3_ONE(name, NAME, ...) M3_DERIVATIVE_##NAME,
#define M3_NONE(...)
    M3_DERIVATIVES(M3_ONE, M3_NONE, M3_NONE)
#undef M3_ONE
#undef M3_NONE
};

enum { M3_DERIVATIVE_INPUTS = 4, M3_DERIVATIVE_OUTPUTS = 5 };

struct m3_derivative_request {
    enum m3_derivative of;
    const void *dy, *dlse;                              /* `real`; dlse [T,Q] of causal attention, or NULL */
    const void *in[M3_DERIVATIVE_INPUTS];               /* `real`; ids and blocks int32_t, ends int64_t */
    void *out[M3_DERIVATIVE_OUTPUTS];                   /* `real`, all elements are stored; NULL: not wanted */
    int64_t counts[M3_DERIVATIVE_OUTPUTS];              /* how many */
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
