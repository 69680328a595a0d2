/* The graph of a model with one layer of the operator's kind: its operands and outputs are taps of that model. */
#ifndef M3_ORACLE_OPERATORS_OWN_GRAPH_H
#define M3_ORACLE_OPERATORS_OWN_GRAPH_H

#include "model/graph/graph.h"
#include "oracle/operators/operators.h"

/* With a shared expert, and modules that join in this way: the other readings change no edge between the operands and
 * outputs of an operator. M3_INTERNAL. m3_graph_free it in any case. */
int m3_operator_graph(struct m3_graph *graph, const struct m3_operator_row *op, int mtp_join, struct m3_error *error);
/* In which layer of that model the tap is. */
int64_t m3_operator_layer(const struct m3_operator_row *op, enum m3_tap tap);
int m3_operator_reads(const struct m3_operator_row *op, enum m3_tap tap);
#endif
