/* Operands and results of a call as taps that blame and the trace read. */
#ifndef M3_ORACLE_OPERATORS_GIVEN_H
#define M3_ORACLE_OPERATORS_GIVEN_H

#include "oracle/judge/blame/blame.h"
#include "oracle/operators/fragment.h"

struct m3_given_call {
    struct m3_tap_values taps[M3_OPERATOR_OPERANDS + M3_OPERATOR_OUTPUTS];
    const struct m3_tensor *tensors[M3_OPERATOR_OPERANDS + M3_OPERATOR_OUTPUTS]; /* which they were read from */
    int operands, count; /* operands come first; the others are judged */
    struct m3_ctx *ctx;
    struct m3_error *error;
    int64_t judged;             /* rows to judge */
    int64_t *numbers;           /* owned: places from -p0 on, then 0, 1, .., then the rows to judge */
};

/* Reads the operands; those that are read row by row only in rows [count] (NULL: all). The call must be freed. */
int m3_given_operands(struct m3_given_call *call, const struct m3_fragment *fragment, const int64_t *rows,
                      int64_t count, struct m3_ctx *ctx, struct m3_error *error);
/* Adds an output to be judged, whose tensor holds every row, or only those to judge. */
int m3_given_output(struct m3_given_call *call, const struct m3_fragment *fragment, const struct m3_operand_row *output,
                    const struct m3_tensor *tensor);
void m3_given_free(struct m3_given_call *call);

#endif
