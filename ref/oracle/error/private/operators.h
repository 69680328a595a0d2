/* How error arises in each operator and travels through it: a descriptor at the end of each operator's file. */
#ifndef M3_ORACLE_ERROR_PRIVATE_OPERATORS_H
#define M3_ORACLE_ERROR_PRIVATE_OPERATORS_H

#include "oracle/error/graph.h"
#include "oracle/error/propagate.h"

struct m3_recomputing;

/* Whose error f counts: none; exp, ln, erf or the reciprocal root (c); sine and cosine (c_turn). */
enum m3_functions { M3_FUNCTIONS_NONE, M3_FUNCTIONS_EXP, M3_FUNCTIONS_TURN };

enum { M3_POINTS = 4 };

/* The functions return 0 or a status; a NULL has nothing to do. */
struct m3_error_operator {
    const char *name;                   /* in reports */
    const char *sections[2];            /* headings of SPEC.md; the second for sparse layers */
    int (*value)(struct m3_recomputing *);      /* y or ids; where there is no bound, that too */
    int (*bound)(struct m3_recomputing *);      /* of the operator's own arithmetic; NULL: 0 */
    int (*propagate)(struct m3_recomputing *);  /* errors of operands and storage points, added to m->spread */

    int (*prepare)(struct m3_recomputing *);    /* before the three: operands as they are read, tables */
    void (*rows)(struct m3_recomputing *);      /* which rows; NULL: m3_rows_in_common */
    int by_span;                        /* the three are called for rows that follow each other without a hole */
    int keys;                           /* so many operands after the first are read up to the row's own place */
    const char *points[M3_POINTS];      /* intermediates that a profile may store coarser. SPEC 7.3 */
    int linears;                        /* so many of them, from the first, are linear operators that no tap shows */
    enum m3_functions functions;
    int copies;                         /* numbers are passed on as they are */
    int has_suspect;                    /* the bound has a probable allowance of its own */
};

/* layers.3.attn.p: a point in the folder of that tap's layer or module. */
void m3_point_name(char *name, size_t size, enum m3_tap tap, int64_t layer, const char *point);

extern const struct m3_error_operator *const m3_error_operators[M3_OPERATORS];

extern const struct m3_error_operator m3_error_activation, m3_error_add, m3_error_attend, m3_error_attend_segments,
    m3_error_block_scores, m3_error_copy, m3_error_counts, m3_error_embed, m3_error_expert, m3_error_gated_mlp,
    m3_error_gelu, m3_error_input, m3_error_layer_norm, m3_error_linear, m3_error_rms_norm, m3_error_rope,
    m3_error_rope_3d, m3_error_route, m3_error_routed, m3_error_scatter, m3_error_select_blocks,
    m3_error_select_experts, m3_error_sigmoid;

#endif
