/* How error arises in each operator and propagates through it: a descriptor at the end of each operator's file. */
#ifndef M3_ORACLE_ERROR_PRIVATE_OPERATORS_H
#define M3_ORACLE_ERROR_PRIVATE_OPERATORS_H

#include "oracle/error/operators.h"
#include "oracle/error/propagate.h"

struct m3_recomputing;

/* The functions whose error f includes: none; exp, ln, erf or the reciprocal root (c); sine and cosine (c_turn). */
enum m3_functions { M3_FUNCTIONS_NONE, M3_FUNCTIONS_EXP, M3_FUNCTIONS_TURN };

enum { M3_POINTS = 5 };

/* The functions return 0 or a status; NULL means that there is nothing to do. */
struct m3_error_operator {
    const char *name;                   /* in reports */
    const char *sections[2];            /* headings of SPEC.md; the second for sparse layers */
    int (*value)(
        struct m3_recomputing *); /* y or ids, where no stage of the engine makes them of these operands; NULL */
    int (*bound)(struct m3_recomputing *);      /* of the operator's own arithmetic; NULL: 0 */
    int (*propagate)(struct m3_recomputing *);  /* errors of operands and storage points, added to m->spread */

    int (*prepare)(struct m3_recomputing *);    /* before these three: transforms operands, computes tables */
    void (*rows)(struct m3_recomputing *);      /* selects the rows; NULL: m3_rows_in_common */
    int by_span;                        /* these three are called for consecutive rows only */
    int reads; /* so many operands, from the first, are products' operands that the profile may
                                         * round when they are read */
    int keys; /* this many operands after the first are read up to the row's own place */
    const char *points[M3_POINTS]; /* intermediates that a profile may store more coarsely. SPEC 7.3 */
    int linears; /* this many of them, from the first, are linear operators without a tap */
    int in_parts; /* its last product may be computed in parts: m->partials */
    int roundings; /* at c = 4, c_turn = 1; those of the reduction, of weights and of a bias come in addition */
    enum m3_functions functions;
    int copies; /* numbers are copied unchanged */
    int has_suspect; /* the bound includes a probable allowance */
};

/* "layers.3.attn.p": a point, prefixed like the tap of that layer or module. */
void m3_point_name(char *name, size_t size, enum m3_tap tap, int64_t layer, const char *point);

extern const struct m3_error_operator *const m3_error_operators[M3_OPERATORS];

extern const struct m3_error_operator m3_error_activation, m3_error_add, m3_error_attend, m3_error_attend_segments,
    m3_error_block_scores, m3_error_copy, m3_error_counts, m3_error_embed, m3_error_expert, m3_error_gated_mlp,
    m3_error_gelu, m3_error_input, m3_error_layer_norm, m3_error_linear, m3_error_rms_norm, m3_error_rope,
    m3_error_rope_3d, m3_error_route, m3_error_routed, m3_error_scatter, m3_error_select_blocks,
    m3_error_select_experts, m3_error_sigmoid;

#endif
