/* One call of an operator as a model of one layer: its operands are taps, weights and inputs of that model, and its
 * outputs are taps. So what the pass, blame and the known mistakes do with a model, they do with one operator. */
#ifndef M3_ORACLE_OPERATORS_FRAGMENT_H
#define M3_ORACLE_OPERATORS_FRAGMENT_H

#include <jansson.h>

#include "io/safetensors.h"
#include "model/files/case.h"
#include "model/model.h"
#include "oracle/operators/drawn/experts.h"
#include "oracle/operators/operators.h"

struct m3_fragment {
    const struct m3_operator_row *op;
    struct m3_tensor operands[M3_OPERATOR_OPERANDS]; /* rank 0: an optional one that is not given; data NULL: drawn */
    struct m3_model model;
    struct m3_semantics semantics;
    struct m3_case the_case;
    int64_t places; /* p0 + T */
    int64_t dims[128]; /* sizes by letter; 0: not known */
    struct m3_layer layers[2];
    struct m3_vision_layer vision_layer;
    struct m3_mtp mtp;
    unsigned char sparse, moe;
    struct m3_drawing drawings[3]; /* of w1, w3, w2; levels 0: stored */
    struct m3_drawn_experts *drawn; /* NULL: all weights are stored */
};

/* Takes the operands by name from `find`, which returns 0 for a name that it does not have. The tensors must outlive
 * the fragment. `name` is for errors. M3_BAD_INPUT: an operand is missing, or has a dtype, rank or size that does not
 * fit; a parameter; ids or lists out of range. M3_INTERNAL. *fragment is NULL on failure. */
struct m3_operand_source {
    void *self;
    int (*find)(void *self, const char *operand, struct m3_tensor *tensor);
    const json_t *parameters; /* or NULL */
    const char *name;
    /* Asked for an operand that `find` does not have: *found if it is drawn, as *drawing says; or NULL. */
    int (*drawn)(void *self, const char *operand, struct m3_tensor *tensor, struct m3_drawing *drawing, int *found,
                 struct m3_error *error);
};
int m3_fragment_make(struct m3_fragment **fragment, const struct m3_operator_row *op,
                     const struct m3_operand_source *source, struct m3_error *error);
void m3_fragment_free(struct m3_fragment *fragment); /* NULL is fine */

/* The layer of a tap: -1 outside layers. */
int64_t m3_fragment_layer(const struct m3_fragment *fragment, enum m3_tap tap);
/* Shape of an operand or output by its letters. Returns its rank. Letters whose sizes are not known are 0. */
int m3_fragment_shape(int64_t shape[M3_MAX_RANK], const struct m3_fragment *fragment, const struct m3_operand_row *row);
/* Rows of the first dimension of the outputs: T or P. */
int64_t m3_fragment_rows(const struct m3_fragment *fragment);

#endif
