/* The graph as data: for every tap except counts, the operator that computes it, the taps and weights that it reads,
 * and the number of its roundings. Bounds, blame and operator cases read this table; it describes the forward pass of
 * ref/model. SPEC 6, 7.1. */
#ifndef M3_ORACLE_ERROR_GRAPH_H
#define M3_ORACLE_ERROR_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "model/graph/graph.h"
#include "model/model.h"
#include "model/taps.h"
#include "oracle/error/bounds.h"

/* Where an operand is, relative to the tap that reads it. */
enum m3_from {
    M3_FROM_NOWHERE,            /* no such operand */
    M3_FROM_HERE,               /* the same layer, or the same part outside layers */
    M3_FROM_BEFORE,             /* the input of the layer or module: the hidden state before it */
    M3_FROM_START,              /* a tap outside layers */
    M3_FROM_LAST,               /* in the last layer of the tower, or of the text model */
};

struct m3_operand {
    enum m3_from from;
    enum m3_tap tap;            /* M3_FROM_BEFORE: of the layer before; m3_graph_operand handles layer 0 */
};

enum { M3_OPERANDS = 5, M3_GRAPH_WEIGHTS = 3 };

/* Roundings in addition to the reduction and m3_graph_row.f, which depend on weights or config. */
enum m3_more {
    M3_MORE_NONE,
    M3_MORE_WEIGHT,             /* m3_bound_weight_roundings of the first weight */
    M3_MORE_GEMMA,              /* 1 + w: one, if config.gemma_norm */
    M3_MORE_FACTOR,             /* one, if routed_scaling is not a power of two */
    M3_MORE_JITTER,             /* as WEIGHT; with jitter two more, of an input that is not a tap */
    M3_MORE_JOIN,               /* as WEIGHT; with mtp_join=additive one more, of the addition */
};

struct m3_graph_row {
    enum m3_operator op;
    struct m3_operand operands[M3_OPERANDS];        /* in the order of the operator's inputs */
    enum m3_weights_of of;
    size_t weights[M3_GRAPH_WEIGHTS];               /* offset + 1 of a struct m3_weight, or of `experts`; 0: none */
    const char *n;              /* letters (m3_config_size) whose product is the reduction; NULL: none */
    int halved;                 /* n = ceil(product / 2), because of a square root */
    int f;                      /* fixed roundings at c = 4, c_turn = 1 */
    enum m3_more more;
};

extern const struct m3_graph_row m3_graph[M3_TAPS];     /* M3_OP_NONE for counts, otherwise the released reading */

const char *m3_operator_name(enum m3_operator op);
/* [2]: the headings of the sections of SPEC.md that define a tap, by the operator with which M3 computes it. The
 * second is for the other kind of layer (sparse instead of full, MoE instead of dense); NULL: there is none. */
const char *const *m3_tap_sections(enum m3_tap tap);

/* How the tap is computed in this model and reading: `mlp` without a shared expert is `moe.routed` itself, and without
 * experts a linear; with mtp_join=additive eh_proj reads other taps. */
const struct m3_graph_row *m3_graph_row_of(const struct m3_model *model, const struct m3_semantics *semantics,
                                           enum m3_tap tap, int64_t layer);

/* Operand i of a tap of `layer` (numbered as in model/taps.h), as a tap and its layer; -1 outside layers. Returns 0,
 * or -1 if there is no operand i. MTP module m uses rows m + 1 and later of the embeddings, and the first rows of a
 * hidden state. */
int m3_graph_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_model *model,
                     const struct m3_semantics *semantics, enum m3_tap tap, int64_t layer, int i);

/* The tap whose operator also computes this one, or the tap itself; and the tap that its operator computes beside it,
 * M3_TAPS if there is none. */
enum m3_tap m3_graph_computed_with(enum m3_tap tap);
enum m3_tap m3_graph_second(enum m3_tap tap);

/* Weight i of a tap, or NULL if it has none. For experts: w1 of the first one. */
const struct m3_weight *m3_graph_weight(const struct m3_model *model, const struct m3_semantics *semantics,
                                        enum m3_tap tap, int64_t layer, int i);

/* The steps n + f of a tap that is judged in that arithmetic. */
void m3_graph_steps(int64_t *n, int64_t *f, const struct m3_model *model, const struct m3_semantics *semantics,
                    enum m3_tap tap, int64_t layer, const struct m3_arithmetic *how);

#endif
