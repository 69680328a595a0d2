/* From given numbers to a result, one operation a step.
 *
 * Sums and products of matrices are calls of the plain `linear`; exp, ln, sin, cos, pow and the tail of GELU are the
 * functions that the operators call. The others are one IEEE operation, rounded to the step's type. So whoever repeats
 * the operations in this order gets the same bits. */
#ifndef M3_ORACLE_EXPLAIN_STEPS_H
#define M3_ORACLE_EXPLAIN_STEPS_H

#include <stdint.h>

#include "base/context.h"
#include "base/status.h"
#include "base/weight.h"

/* How a step follows from others, a, b and c below. A single number goes with each element of an array. */
enum m3_by {
    M3_BY_GIVEN,                /* it went in */
    M3_BY_ADD,
    M3_BY_SUBTRACT,
    M3_BY_MULTIPLY,
    M3_BY_DIVIDE,
    M3_BY_SQRT,
    M3_BY_EXP,
    M3_BY_LN,
    M3_BY_POW,
    M3_BY_COS,
    M3_BY_SIN,
    M3_BY_SOFTMAX_EXP,          /* exp of a number that is at most 0, as softmax takes it (SPEC 8.4) */
    M3_BY_TAIL,                 /* erfc(|a| / sqrt 2) / 2, as GELU takes it (SPEC 8.9) */
    M3_BY_AT_MOST,              /* the smaller of a and b */
    M3_BY_AT_LEAST,             /* the larger */
    M3_BY_ROUND,                /* a in the step's type */
    M3_BY_LARGEST,              /* of the elements of a */
    M3_BY_SUM,                  /* of the elements of a, in ascending order, from 0 */
    M3_BY_DOT,                  /* of a b, likewise; each product is rounded before it is added */
    M3_BY_MATRIX,               /* the dot of each row of the matrix a with b */
    M3_BY_PICK,                 /* elements of a at the places b */
    M3_BY_BEST_BLOCKS,          /* select_blocks of scores a: the forced b, then the best, c blocks in all */
    M3_BY_BEST_EXPERTS,         /* the ids of the b largest of a, largest first; the lower id first on a tie */
    M3_BYS,
};
enum m3_step_type { M3_STEP_F32, M3_STEP_F64, M3_STEP_INT };

enum { M3_STEP_OPERANDS = 3 };

struct m3_explained_step {
    char name[64];                      /* "mean square" */
    char formula[112];                  /* "squares / H"; of given numbers: where they are from */
    enum m3_by by;
    enum m3_step_type type;
    int of[M3_STEP_OPERANDS];           /* earlier steps; -1: none */
    int64_t count;                      /* 1: a number */
    double *values;                     /* [count] exact: every float and every id is a double; NULL: see `matrix` */
    struct m3_weight matrix;            /* a given matrix, as it is stored */
    float *owned;                       /* its numbers, if they belong to the step */
};

struct m3_steps {
    struct m3_explained_step *list;
    int count, room;
    struct m3_ctx *ctx;
    struct m3_error *error;
    int status;                         /* not 0: a step has failed, and later ones do nothing */
};

const char *m3_by_name(enum m3_by by);  /* "multiply" */

/* Each adds a step and returns its number, or -1 after a failure. */
int m3_given_number(struct m3_steps *s, enum m3_step_type type, const char *name, const char *from, double value);
int m3_given_floats(struct m3_steps *s, const char *name, const char *from, const float *values, int64_t n);
int m3_given_ints(struct m3_steps *s, const char *name, const char *from, const int32_t *values, int64_t n);
/* A row of a weight, as numbers; and a whole one, which is not copied. */
int m3_given_row(struct m3_steps *s, const char *name, const char *from, const struct m3_weight *w, int64_t row);
int m3_given_matrix(struct m3_steps *s, const char *name, const char *from, const struct m3_weight *w);
/* Takes over `values` [rows,cols], which may be NULL after a failure. */
int m3_given_keys(struct m3_steps *s, const char *name, const char *from, float *values, int64_t rows, int64_t cols);

/* One operation on a and b; b is -1 where there is only one operand. */
int m3_step(struct m3_steps *s, enum m3_by by, enum m3_step_type type, const char *name, const char *formula, int a,
            int b);
/* The result of a choice, which an operator made. */
int m3_step_choice(struct m3_steps *s, enum m3_by by, const char *name, const char *formula, const int of[3],
                   const int32_t *ids, int64_t n);

/* Element i of a step; NaN after a failure. */
double m3_step_value(const struct m3_steps *s, int step, int64_t i);
/* Room that is released with the steps' context; NULL after a failure. */
void *m3_steps_scratch(struct m3_steps *s, int64_t count, size_t size);

void m3_steps_free(struct m3_steps *s);

#endif
