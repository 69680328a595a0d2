/* A forward pass in one precision. A process has two engines: float, the reference, and double, the ground truth. */
#ifndef M3_MODEL_ENGINE_H
#define M3_MODEL_ENGINE_H

#include "model/request.h"

struct m3_backward_ops;
struct m3_derivative_request;
struct m3_gradient_request;
struct m3_kernels;
struct m3_losses;
struct m3_order;
struct m3_outside_call;
struct m3_ranks;

struct m3_engine {
    const char *precision; /* "f32" or "f64" */
    const char *(*kernels)(void); /* the instruction set of its inner loops on this processor: "avx512", .. */
    const struct m3_kernels *(*inner_loops)(void); /* these: ops/fast/kernels.h of the same `real` */
    size_t real_bytes;
    const struct m3_ops *ops; /* the operators of a pass; ops/ops.h of the same `real` describes them */
    const struct m3_backward_ops *back; /* their derivatives: ops/backward.h */
    const struct m3_ops *plain; /* the plain definitions: the same bits under ordered sums */
    /* Replaces the named entry of a table by one that calls a function outside (ops/outside.h); M3_USAGE: no such
     * entry. */
    int (*outside)(struct m3_ops *ops, const char *name);
    /* Replaces the entries in which `inner` differs from `own` by ones that are watched; returns how many. */
    int (*watched)(struct m3_ops *ops, const struct m3_ops *inner, const struct m3_ops *own);
    /* Calls the named operator of a table with named operands (ops/outside.h). */
    int (*call)(struct m3_ctx *ctx, const struct m3_ops *ops, const struct m3_outside_call *call);
    /* The main model, then, of the m3_request_modules, those up to the last one with a tap that the sink wants. */
    int (*forward)(const struct m3_model *model, const struct m3_request *request, struct m3_error *error);
    /* One MTP module. */
    int (*mtp)(const struct m3_model *model, const struct m3_mtp_request *request, struct m3_error *error);
    /* The part of a rank other than 0 in a pass of rank 0 (divided/). */
    int (*obey)(const struct m3_model *model, struct m3_ranks *ranks, const struct m3_order *order,
                struct m3_error *error);
    /* One tap. M3_USAGE for a tap that no single operator computes (counts, pixels, copies). */
    int (*tap)(const struct m3_model *model, const struct m3_tap_request *request, struct m3_error *error);
    /* The derivative of one operator (derivative.h), with ordered sums. M3_WRONG if the operator refuses its operands. */
    int (*differentiate)(const struct m3_derivative_request *request, struct m3_error *error);
    /* Losses and their gradient (gradient.h). */
    int (*gradient)(const struct m3_model *model, const struct m3_gradient_request *request, struct m3_losses *losses,
                    struct m3_error *error);
};

const struct m3_engine *m3_engine_f32(void);
const struct m3_engine *m3_engine_f64(void);

#endif
