/* One case before it is written: sizes, parameters, and what fills each operand. */
#ifndef M3_ORACLE_OPERATORS_PLANNED_H
#define M3_ORACLE_OPERATORS_PLANNED_H

#include <jansson.h>

#include "oracle/operators/fills.h"
#include "oracle/operators/make.h"
#include "oracle/operators/plans/plans.h"

struct m3_planned_operand {
    const struct m3_operand_row *row;
    struct m3_tensor tensor;    /* data NULL until it is generated */
    struct m3_fill fill;
    void *owned;
    int is_drawn;               /* by name and seed: it is not stored */
};

struct m3_planned_case {
    const struct m3_operator_row *op;
    int64_t number;
    char what[160];
    int64_t dims[128], p0;              /* sizes by letter; places before row 0 */
    json_t *parameters;
    int exact;
    struct m3_planned_operand operands[M3_OPERATOR_OPERANDS];
    int count;
    uint64_t bytes, stored;             /* of operands and outputs; of the operands that are stored */
    uint64_t seed;
    int64_t *rows, row_count;           /* owned: the rows that are judged, ascending; row_count 0: all */
};

/* `plan` NULL: a random case. M3_USAGE if the sizes do not fit together, or are so large that no program could use the
 * case. Free the case in any case. */
int m3_plan_case(struct m3_planned_case *planned, const struct m3_operator_row *op, const struct m3_plan *plan,
                 int64_t number, const struct m3_make_options *options, struct m3_error *error);
void m3_planned_free(struct m3_planned_case *planned);

/* {name: how it is drawn} of the operands that are not stored, or NULL if there are none (*status 0) or memory is
 * short. */
json_t *m3_planned_drawn(const struct m3_planned_case *planned, int *status);
/* {name: shape} of the outputs. NULL if memory is short. */
json_t *m3_planned_outputs(const struct m3_planned_case *planned);

/* Elements [first, first + n) of an operand as stored bytes. */
void m3_planned_piece(void *bytes, const struct m3_planned_operand *operand, int64_t first, int64_t n);
/* Generates every operand in memory. */
int m3_planned_generate(struct m3_planned_case *planned, struct m3_error *error);

#endif
