/* The operators of a table, called with named operands, as in the table of ops.h and in `m3ref op --list`: by one function
 * that computes them all, such as one of another language, and needs no types of C; or by functions that run before
 * and after each operator, and watch it. */
#ifndef M3_OPS_OUTSIDE_H
#define M3_OPS_OUTSIDE_H

#include "base/context.h"
#include "base/weight.h"

enum { M3_OUTSIDE_OPERANDS = 10, M3_OUTSIDE_PARAMETERS = 10, M3_OUTSIDE_RANK = 3 };

/* Weights are expanded to `real`, whatever they are stored in. The place of an input may be the place of an output. */
struct m3_outside_operand {
    const char *name;
    enum m3_dtype dtype;
    int is_output;
    int optional; /* an output that the function may leave out; it then sets `left_out` */
    int left_out;
    int rank;
    int64_t shape[M3_OUTSIDE_RANK];
    void *data;
};

struct m3_outside_parameter {
    const char *name;
    const char *word; /* NULL: a number */
    double number;
};

struct m3_outside_call {
    const char *op;
    int operands, parameters;
    struct m3_outside_operand operand[M3_OUTSIDE_OPERANDS];
    struct m3_outside_parameter parameter[M3_OUTSIDE_PARAMETERS];
    /* An operand that is stored: `data` is NULL, until it is expanded for `function`. Otherwise NULL. */
    const struct m3_weight *weight[M3_OUTSIDE_OPERANDS];
    /* Set by `before`: where the operator finds the operand instead; NULL: at `data`. */
    void *moved[M3_OUTSIDE_OPERANDS];
    struct m3_outside *outside;
};

/* Returns 0 or a status. Called by the thread that runs the pass. */
typedef int m3_outside_function(void *self, struct m3_outside_call *call);

/* What m3_ctx.plugin points to. */
struct m3_outside {
    void *self;
    m3_outside_function *function; /* computes the operator; NULL: the inner table does */
    const struct m3_ops *inner; /* of `real`; its operators find `inner_state` in m3_ctx.plugin */
    void *inner_state;
    m3_outside_function *before;
    int (*after)(void *self, struct m3_outside_call *call, struct m3_ctx *ctx, int status);
};

struct m3_ops;

/* The other way: calls entry `call->op` of a table with the operands and parameters of those names. M3_USAGE: there is no
 * such entry, or it reads weights as they are stored or structs of parameters; M3_WRONG, M3_INTERNAL. */
int m3_call_by_name(struct m3_ctx *ctx, const struct m3_ops *ops, const struct m3_outside_call *call);

/* Replaces the named entry of a table; M3_USAGE if there is no such entry. */
int m3_outside_replace(struct m3_ops *ops, const char *name);
/* Replaces the entries in which `inner` differs from `own`, and returns how many there are. */
int m3_outside_replace_changed(struct m3_ops *ops, const struct m3_ops *inner, const struct m3_ops *own);

#endif
