/* Declarations shared by the files that cut operands out of a dump. */
#ifndef M3_ORACLE_OPERATORS_FROM_DUMP_PRIVATE_H
#define M3_ORACLE_OPERATORS_FROM_DUMP_PRIVATE_H

#include <jansson.h>

#include "io/safetensors.h"
#include "model/files/case.h"
#include "oracle/judge/align.h"
#include "oracle/operators/from_dump/pairs.h"

/* The run that wrote the dump. */
struct m3_cut_run {
    const struct m3_operator_row *op;
    const struct m3_model *model;
    struct m3_semantics semantics;
    const struct m3_safetensors *dump;
    struct m3_side side;                /* which rows the dump holds */
    struct m3_case the_case;
    int has_case;
    int is_f64;                         /* the run was in double */
    enum m3_dtype dtype;                /* of real operands; M3_DTYPES: as they are stored */
};

/* One operand, and where its bytes come from: `tensor.data`, if that is not NULL; otherwise the numbers of weights, one
 * after the other, as `tensor.dtype`. */
struct m3_cut_operand {
    const struct m3_operand_row *row;
    struct m3_tensor tensor;
    struct m3_tensor numbers;           /* of another dtype than `tensor`: its numbers are rounded; count 0: none */
    const struct m3_weight *weight;
    const struct m3_expert *experts;    /* w1, w3 or w2 (row->weight) of all experts, instead of `weight` */
    int64_t count;                      /* how many */
    void *owned;
};

/* One tap of the dump as a case. */
struct m3_cut {
    struct m3_pairs pairs;
    char tap[96];
    int64_t module;                     /* of the tap; -1: none */
    int64_t rows;                       /* of the call; -1: not known yet */
    struct m3_cut_operand operands[M3_OPERATOR_OPERANDS];
    int count;
    json_t *parameters;
    uint64_t weight_bytes;
};

/* parameters.c: the operator's parameters in this model and reading. NULL if memory is short. */
json_t *m3_cut_parameters(const struct m3_cut_run *run);

/* inputs.c: an operand that is no tap and no weight. M3_BAD_INPUT: it cannot be read off the case. */
int m3_cut_needs_case(const struct m3_operator_row *op);
int m3_cut_input(struct m3_cut_operand *operand, const struct m3_cut_run *run, const struct m3_cut *cut,
                 struct m3_error *error);

/* operands.c. A case without pictures has no features to scatter: then their operand has no rows. */
int m3_cut_may_lack(const struct m3_cut_run *run, const struct m3_operand_row *row);
/* An operand from the dump or from the model. M3_BAD_INPUT with the tap that is missing. */
int m3_cut_from_tap(struct m3_cut_operand *operand, const struct m3_cut_run *run, struct m3_cut *cut,
                    const struct m3_pair *pair, struct m3_error *error);
int m3_cut_from_weights(struct m3_cut_operand *operand, const struct m3_cut_run *run, struct m3_cut *cut,
                        const struct m3_pair *pair, struct m3_error *error);
/* Memory of `operand` for its shape. */
int m3_cut_room(struct m3_cut_operand *operand, enum m3_dtype dtype, int rank, const int64_t *shape,
                struct m3_error *error);
int m3_cut_write(struct m3_writer *writer, const struct m3_cut_operand *operand, struct m3_error *error);

#endif
