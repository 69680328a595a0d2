/* Which taps and weights of a model are the operands of an operator that makes a tap. */
#ifndef M3_ORACLE_OPERATORS_FROM_DUMP_PAIRS_H
#define M3_ORACLE_OPERATORS_FROM_DUMP_PAIRS_H

#include "base/semantics.h"
#include "model/graph/graph.h"
#include "oracle/operators/operators.h"

/* A tap of the model; found 0: the row is no tap and no weight of one. */
struct m3_pair {
    int found;
    enum m3_tap tap;
    int64_t layer;
};

/* What each row of an operator is in the model. For a weight: the tap whose weight it is. */
struct m3_pairs {
    enum m3_tap tap;            /* the one that was asked for */
    int64_t layer;
    struct m3_pair operands[M3_OPERATOR_OPERANDS], outputs[M3_OPERATOR_OUTPUTS];
    struct m3_pair last;        /* the last output, which tells one call of the operator from another */
};

/* Compares the operator's own graph (own_graph.h) with that of the model, from the tap back to the operands. Returns 0
 * if the operator does not make this tap in this model and reading, otherwise 1. */
int m3_pairs_find(struct m3_pairs *pairs, const struct m3_operator_row *op, const struct m3_graph *own,
                  const struct m3_model *model, const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer);

#endif
