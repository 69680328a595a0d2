/* Operators computed by one function outside the library, such as one of another language: it receives each call with
 * named operands, as in the table of ops.h and in `m3ref op --list`, and needs no types of C. */
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
    int optional;               /* an output that the function may leave out; it then sets `left_out` */
    int left_out;
    int rank;
    int64_t shape[M3_OUTSIDE_RANK];
    void *data;
};

struct m3_outside_parameter {
    const char *name;
    const char *word;           /* NULL: a number */
    double number;
};

struct m3_outside_call {
    const char *op;
    int operands, parameters;
    struct m3_outside_operand operand[M3_OUTSIDE_OPERANDS];
    struct m3_outside_parameter parameter[M3_OUTSIDE_PARAMETERS];
};

/* What m3_ctx.plugin points to. The function returns 0 or a status. It is called by the thread that runs the pass. */
struct m3_outside {
    void *self;
    int (*function)(void *self, struct m3_outside_call *call);
};

struct m3_ops;

/* Replaces the named entry of a table; M3_USAGE if there is no such entry. */
int m3_outside_replace(struct m3_ops *ops, const char *name);

#endif
