/* A call of NAME_backward: the derivative of a forward operator at given operands (model/derivative.h). */
#ifndef M3_ORACLE_OPERATORS_DERIVATIVE_H
#define M3_ORACLE_OPERATORS_DERIVATIVE_H

#include "oracle/error/recompute.h"
#include "oracle/operators/evaluate.h"

/* The operands of a call in a precision, and room for its outputs. */
struct m3_derivative_call {
    struct m3_derivative_request request;
    void *owned[M3_OPERATOR_OPERANDS];
    void *outputs[M3_OPERATOR_OUTPUTS];
    int64_t counts[M3_OPERATOR_OUTPUTS];
};

/* M3_INTERNAL. The call must be freed after any result. */
int m3_derivative_call_make(struct m3_derivative_call *call, const struct m3_fragment *fragment,
                            const struct m3_engine *engine, int threads, struct m3_error *error);
void m3_derivative_call_free(struct m3_derivative_call *call);
/* Makes the outputs those of an evaluation, which owns them. */
void m3_derivative_give(struct m3_evaluation *result, struct m3_derivative_call *call,
                        const struct m3_fragment *fragment, const struct m3_engine *engine);

/* m3_evaluate of such a call; rows are never listed. */
int m3_evaluate_derivative(struct m3_evaluation *result, const struct m3_fragment *fragment,
                           const struct m3_evaluation_how *how, struct m3_error *error);

/* allowed: the largest error of each element of the output, before it is stored. */
int m3_bound_derivative(double *allowed, const struct m3_fragment *fragment, const struct m3_operand_row *output,
                        const struct m3_setting *setting, const struct m3_arithmetic *how, struct m3_error *error);
/* The tap whose format a profile gives to this gradient. */
const char *m3_derivative_stored_as(const struct m3_operator_row *op, const struct m3_operand_row *output);

#endif
