/* The graph of a model: for every tap the operator that makes it, the taps and weights that this reads. It is recorded
 * from a pass over the stages, which computes nothing: forward/ is the only statement of the architecture. */
#ifndef M3_MODEL_GRAPH_GRAPH_H
#define M3_MODEL_GRAPH_GRAPH_H

#include <stdint.h>

#include "base/status.h"
#include "model/graph/operators.h"
#include "model/model.h"
#include "model/taps.h"

enum { M3_NODE_INPUTS = 5, M3_NODE_WEIGHTS = 3 };

/* The struct of model/model.h in which a weight is. */
enum m3_weights_of {
    M3_OF_NOTHING,
    M3_OF_MODEL,
    M3_OF_LAYER,
    M3_OF_VISION,
    M3_OF_VISION_LAYER,
    M3_OF_MTP,
    M3_OF_EXPERTS
};
struct m3_weight_place {
    enum m3_weights_of of;
    size_t offset;
};

/* A tap. Steps without a tap of their own belong to the tap that they prepare. */
struct m3_node {
    enum m3_operator op;
    enum m3_tap tap;
    int64_t layer; /* as in taps.h; -1 outside layers */
    int input_count, weight_count;
    int64_t inputs[M3_NODE_INPUTS]; /* nodes, each once, in the order of the operator's inputs */
    struct m3_weight_place weights[M3_NODE_WEIGHTS];
};

struct m3_graph {
    struct m3_node *nodes; /* [count] in the order of the pass */
    int64_t count;
};

/* Of the whole model in this reading, with pictures if it has a tower. M3_INTERNAL. Free it in any case. */
int m3_graph_record(struct m3_graph *graph, const struct m3_config *config, int64_t modules,
                    const struct m3_semantics *semantics, struct m3_error *error);
void m3_graph_free(struct m3_graph *graph);
/* Weight i of a node, of experts the first one's w1; NULL: there is none. */
const struct m3_weight *m3_node_weight(const struct m3_model *model, const struct m3_node *node, int i);
/* NULL: no such node. */
const struct m3_node *m3_graph_find(const struct m3_graph *graph, enum m3_tap tap, int64_t layer);

#endif
