/* What fills an operand of a case: each element is a function of its place, so that cases of any size are written in
 * pieces. Drawn numbers are those of SPEC 3.6. */
#ifndef M3_ORACLE_OPERATORS_FILLS_H
#define M3_ORACLE_OPERATORS_FILLS_H

#include "base/weight.h"
#include "io/safetensors.h"
#include "oracle/operators/drawn/drawn.h"
#include "oracle/operators/operators.h"

/* The sizes and numbers that ids and lists depend on. */
struct m3_fill_call {
    int64_t places, p0, block, own_experts, E, V, K, N, G, P, n, T, M, id, R;
    double limit;
};

struct m3_fill {
    const struct m3_operand_row *row;
    char kind[24];              /* "" for drawn values */
    uint64_t key, other;        /* of the operand, of the first operand of the case */
    int coarse;                 /* drawn values have 8 significant bits */
    double scale;
    int64_t width, cols;        /* elements in a row of the first dimension; size of the last one */
    struct m3_fill_call call;
};

/* Does this kind exist for such an operand? */
int m3_fill_is_known(const char *kind);
/* Is it filled with drawn values and nothing else? Then as this says, once the dtype is set. */
int m3_fill_drawing(struct m3_drawing *drawing, const struct m3_fill *fill);
/* The function that gives element i of a real operand. */
typedef double m3_fill_value(const struct m3_fill *fill, int64_t i);
m3_fill_value *m3_fill_real(const struct m3_fill *fill);
int64_t m3_fill_id(const struct m3_fill *fill, int64_t i);

#endif
