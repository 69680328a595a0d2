/* A stored row converted to `real`. */
#ifndef M3_OPS_EXPAND_H
#define M3_OPS_EXPAND_H

#include "base/real.h"
#include "base/weight.h"

/* out [cols] := row `row` of w. */
static inline void m3_expand_row(real *out, const struct m3_weight *w, int64_t row)
{
    if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)out, w, row, 0, w->cols);
    else m3_expand_f32((float *)(void *)out, w, row, 0, w->cols);
}

#endif
