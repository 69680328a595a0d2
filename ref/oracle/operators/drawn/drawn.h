/* Operands of drawn values: a rule instead of bytes, so that an operand of any size is made piece by piece, and the
 * largest ones need not be stored. Element i is (draw(seed, name, i, levels) - offset) * scale, with the generator of
 * SPEC 3.6, rounded to the dtype. SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_DRAWN_H
#define M3_ORACLE_OPERATORS_DRAWN_H

#include "base/weight.h"

enum { M3_DRAWN_NAME = 96 };

struct m3_drawing {
    uint64_t key;
    int64_t levels;             /* at most 2^24; at most 256 for dtypes other than F32 */
    double offset, scale;
    enum m3_dtype dtype;        /* F32, BF16, F16 or F8_E4M3 */
};

/* Elements [first, first + n) as stored bytes. */
void m3_drawing_piece(void *bytes, const struct m3_drawing *drawing, int64_t first, int64_t n);
/* The bits of a number that is rounded to F16. */
uint16_t m3_f16_of(double x);
/* Element i of stored reals of any of these dtypes := x, rounded to nearest. */
void m3_store_real(void *bytes, enum m3_dtype dtype, int64_t i, double x);

#endif
