/* The operators and composites that `m3ref op` offers, as data: operands, parameters and outputs, each as a tap, a
 * weight or an input of a model of one layer (fragment.h). SPEC 5 defines the operators. */
#ifndef M3_ORACLE_OPERATORS_OPERATORS_H
#define M3_ORACLE_OPERATORS_OPERATORS_H

#include "io/safetensors.h"
#include "model/derivative.h"
#include "model/taps.h"

/* What an operand is in the model of one layer. */
enum m3_role {
    M3_ROLE_NONE,               /* the end of a list */
    M3_ROLE_TAP,                /* values of `tap` */
    M3_ROLE_WEIGHT,             /* weight number `weight` of `tap` (m3_graph_made_weight) */
    M3_ROLE_SCALES,             /* the scales of that weight's codes */
    M3_ROLE_EXPERTS,            /* w1, w3 or w2 (`weight` 0, 1, 2) of all experts, one after the other */
    M3_ROLE_IDS,                /* the token ids of the call */
    M3_ROLE_POSITIONS,          /* their RoPE positions */
    M3_ROLE_SEEN,               /* 0: no row sees this place */
    M3_ROLE_ENDS,               /* the ends of the segments of patches */
    M3_ROLE_GRID,               /* time, height and width of each picture, in patches */
    M3_ROLE_PLACES,             /* time, row and column of each patch */
    M3_ROLE_COS,
    M3_ROLE_SIN,   /* the table of angles */
    M3_ROLE_NOISY,              /* what the router and the experts read in training */
    M3_ROLE_INCOMING,           /* the gradient that arrives at the output of the forward operator */
    M3_ROLE_GRADIENT,           /* an output: the gradient of an operand */
    M3_ROLE_OPERAND,
    M3_ROLE_RESULT,    /* reals of an operator that no model has */
};

struct m3_operand_row {
    const char *name;
    enum m3_role role;
    const char *letters; /* its shape: letters of SPEC 1; S: places, r: half the rotated channels, n: pictures or
                                 * segments. Digits stand for themselves */
    enum m3_tap tap;
    int weight;
    int optional;
    const char *what; /* one line, for op --list */
};

/* Parameters besides the shapes; their types and defaults are in parameters.c. Comma-separated in a row. */
enum { M3_OPERATOR_OPERANDS = 14, M3_OPERATOR_OUTPUTS = 6 };

/* The kind of the one layer, and other properties of the model that are part of an operator's definition. */
enum m3_kind_of_layer {
    M3_LAYER_SPARSE = 1,
    M3_LAYER_MOE = 2,
    M3_LAYER_GEMMA = 4,
    M3_LAYER_OAI = 8,
    M3_LAYER_VISION = 16,
    M3_LAYER_MODULE = 32, /* the taps are those of MTP module 0 */
};

struct m3_operator_row {
    const char *name;
    const char *section; /* the heading of SPEC.md, or of TRAINING.md */
    const char *what; /* as an assignment */
    int composite;
    int kind; /* of enum m3_kind_of_layer */
    struct m3_operand_row operands[M3_OPERATOR_OPERANDS];
    struct m3_operand_row outputs[M3_OPERATOR_OUTPUTS]; /* in execution order */
    const char *parameters; /* "eps,theta" */
    enum m3_derivative derivative; /* NAME_backward: which one; NONE: a forward operator */
};

/* In the order of ops/ops.h, then composites, then derivatives in the order of ops/backward.h. */
int m3_operator_rows(void);
const struct m3_operator_row *m3_operator_at(int i);
const struct m3_operator_row *m3_operator_named(const char *name); /* NULL: unknown */

/* The number of an operator's outputs. */
int m3_operator_outputs(const struct m3_operator_row *op);

/* Does a row of each output follow from the same row of the operands that have T or P rows? Attention and the operators
 * of pictures read other rows of patches, too. */
int m3_operator_by_row(const struct m3_operator_row *op);

/* Has the shape of an operand or output this letter? */
int m3_operator_has(const struct m3_operator_row *op, char letter);

/* A shape by its letters, from sizes [128] by letter; a digit multiplies the letter after it, or stands for itself.
 * Returns the rank. */
int m3_shape_by_letters(int64_t shape[M3_MAX_RANK], const char *letters, const int64_t *sizes);

/* The number of the operand or output with that name; -1: none. */
int m3_operand_named(const struct m3_operand_row *rows, int most, const char *name);

#endif
