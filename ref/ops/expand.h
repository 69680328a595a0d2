/* Stored numbers as `real`. */
#ifndef M3_OPS_EXPAND_H
#define M3_OPS_EXPAND_H

#include <stddef.h>
#include <stdint.h>

#include "base/real.h"
#include "base/weight.h"

/* out [cols] := row `row` of w. */
static inline void m3_expand_row(real *out, const struct m3_weight *w, int64_t row)
{
    if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)out, w, row, 0, w->cols);
    else m3_expand_f32((float *)(void *)out, w, row, 0, w->cols);
}

/* The stored matrix itself if it holds `real` and is aligned; otherwise NULL. */
static inline const real *m3_as_stored(const struct m3_weight *w)
{
    const enum m3_dtype same = sizeof(real) == sizeof(double) ? M3_F64 : M3_F32;
    return w->dtype == same && (uintptr_t)w->data % sizeof(real) == 0 ? w->data : NULL;
}

#endif
