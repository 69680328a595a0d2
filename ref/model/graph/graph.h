/* The graph of a model: for every tap the operator that makes it, the taps and weights that this reads. It is recorded
 * from a pass over the stages, which computes nothing: forward/ is the only statement of the architecture. */
#ifndef M3_MODEL_GRAPH_GRAPH_H
#define M3_MODEL_GRAPH_GRAPH_H

#include <stdint.h>

#include "base/status.h"
#include "model/graph/operators.h"
#include "model/model.h"
#include "model/taps.h"

enum { M3_OPERANDS = 5, M3_NODE_WEIGHTS = 3 };

/* The struct of model/model.h in which a weight is. */
enum m3_weights_of { M3_OF_NOTHING, M3_OF_MODEL, M3_OF_LAYER, M3_OF_VISION_LAYER, M3_OF_MTP, M3_OF_EXPERTS };
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
    const struct m3_node *inputs[M3_OPERANDS]; /* in the order of the operator's inputs; NULLs at the end */
    struct m3_weight_place weights[M3_NODE_WEIGHTS];
    int64_t shift; /* its row t reads row t + shift of input 0: a module joins the embeddings of later tokens */
    int is_noisy; /* reads its input with the noise of `jitter` */
    int adds_input; /* a linear operator of its last input, to which input 0 is added: an additive join */
};

struct m3_graph {
    struct m3_node *nodes; /* [count] in the order of the pass */
    int64_t count;
    int32_t *at; /* [M3_TAPS,places] 1 + the node of a tap and layer; 0: none */
    int64_t places, layers; /* layers: of the text model, before those of modules */
};

/* Of the whole model in this reading, with pictures if it has a tower. Sizes of the config may be 0: those of which
 * there is one or none, `shared_intermediate` and `vision.present`, decide. M3_INTERNAL. Free it in any case. */
int m3_graph_record(struct m3_graph *graph, const struct m3_config *config, int64_t modules,
                    const struct m3_semantics *semantics, struct m3_error *error);
/* Of a small model with every kind of layer, a tower and modules, for what is known of a tap without a model. */
int m3_graph_record_every_tap(struct m3_graph *graph, struct m3_error *error);
void m3_graph_free(struct m3_graph *graph);

/* NULL: no such node. */
const struct m3_node *m3_graph_find(const struct m3_graph *graph, enum m3_tap tap, int64_t layer);
/* The last one of that tap in any layer: of layers that may be dense or not, one that is not. */
const struct m3_node *m3_graph_last(const struct m3_graph *graph, enum m3_tap tap);
/* The first node of that operator that reads it as input 0; NULL: there is none. */
const struct m3_node *m3_graph_reader(const struct m3_graph *graph, const struct m3_node *node, enum m3_operator op);
/* Weight i of a node, of experts the first one's w1; NULL: there is none. */
const struct m3_weight *m3_node_weight(const struct m3_model *model, const struct m3_node *node, int i);

/* ---- calls: an operator that makes two taps is called once */

/* The tap whose operator also computes this one, or the tap itself; and the tap that its operator computes beside it,
 * M3_TAPS if there is none. */
enum m3_tap m3_computed_with(enum m3_tap tap);
enum m3_tap m3_computed_beside(enum m3_tap tap);
/* Input i of the call that makes a node: the experts' reads what their outputs read, and the weights of the sum. NULL:
 * there is none. */
const struct m3_node *m3_call_input(const struct m3_node *node, int i);

/* ---- the graphs that belong to a model: one for each reading that has other edges, found by recording all of them */

/* For model->graphs, after the config and the number of modules. M3_INTERNAL. */
int m3_graphs_record(struct m3_model *model, struct m3_error *error);
void m3_graphs_free(struct m3_model *model);
const struct m3_graph *m3_graph_of(const struct m3_model *model, const struct m3_semantics *semantics);
/* Never NULL: of a tap that the model does not have, one with M3_OP_NONE. */
const struct m3_node *m3_graph_node(const struct m3_model *model, const struct m3_semantics *semantics, enum m3_tap tap,
                                    int64_t layer);
/* The same; of a tap that the reading does not make, as in the released reading: an additive join leaves out norms. */
const struct m3_node *m3_graph_made(const struct m3_model *model, const struct m3_semantics *semantics, enum m3_tap tap,
                                    int64_t layer);
/* Operand i of a tap as a tap and its layer. Returns 0, or -1 if there is none. */
int m3_graph_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_model *model,
                     const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer, int i);
const struct m3_weight *m3_graph_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                        enum m3_tap tap, int64_t layer, int i);
/* The same by m3_graph_made. */
const struct m3_weight *m3_graph_made_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                             enum m3_tap tap, int64_t layer, int i);

#endif
