/* The graph of a model with one layer of the operator's kind: its operands and outputs are taps of that model. */
#ifndef M3_ORACLE_OPERATORS_OWN_GRAPH_H
#define M3_ORACLE_OPERATORS_OWN_GRAPH_H

#include "model/graph/graph.h"
#include "oracle/operators/operators.h"

/* With a shared expert, in this reading. M3_INTERNAL. m3_graph_free it in any case. */
int m3_operator_graph(struct m3_graph *graph, const struct m3_operator_row *op, const struct m3_semantics *semantics,
                      struct m3_error *error);
/* In which layer of that model the tap is. */
int64_t m3_operator_layer(const struct m3_operator_row *op, enum m3_tap tap);
int m3_operator_reads(const struct m3_operator_row *op, enum m3_tap tap);
/* A weight of a tap; of one that the reading does not make, as in the released reading: an additive join takes the norms'
 * weights too. */
const struct m3_weight *m3_operator_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                           enum m3_tap tap, int64_t layer, int i);

#endif
