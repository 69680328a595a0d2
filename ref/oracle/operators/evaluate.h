/* What an engine, a plug-in or a known mistake makes of the operands of one call. */
#ifndef M3_ORACLE_OPERATORS_EVALUATE_H
#define M3_ORACLE_OPERATORS_EVALUATE_H

#include "model/engine.h"
#include "oracle/operators/fragment.h"

struct m3_evaluation {
    struct m3_tensor outputs[M3_OPERATOR_OUTPUTS];      /* in the order of the row; name is that of the output */
    struct m3_tap_values *taps;                         /* [tap_count] what the outputs point to */
    int tap_count;
    void *rows[M3_OPERATOR_OUTPUTS];                    /* owned: of chosen rows */
    double least;                                       /* numbers below it are nothing but roundings */
};

struct m3_evaluation_how {
    const struct m3_engine *engine;
    int threads;
    enum m3_linear linear;
    const struct m3_replacement *replacement;   /* or NULL */
    const struct m3_force *force;               /* or NULL */
    const struct m3_model *model;               /* of a known mistake, with its semantics; NULL: the fragment's */
    const struct m3_semantics *semantics;
    const int64_t *rows; /* [count] ascending: only these are computed; NULL: all */
    int64_t count;
};

/* Computes all outputs, and whatever lies between them and the operands, in the engine's precision. M3_WRONG if the
 * operator refuses its operands, M3_INTERNAL. Free the result in any case. */
int m3_evaluate(struct m3_evaluation *result, const struct m3_fragment *fragment, const struct m3_evaluation_how *how,
                struct m3_error *error);
void m3_evaluation_free(struct m3_evaluation *result);

#endif
