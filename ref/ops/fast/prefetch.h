/* Asks the memory for numbers that are needed soon. */
#ifndef M3_OPS_FAST_PREFETCH_H
#define M3_OPS_FAST_PREFETCH_H

#include <stdint.h>

#include "base/real.h"

/* x[first] .. x[first + count - 1], a cache line at a time. They may lie anywhere, also past the end of x. */
static inline void m3_prefetch(const real *x, int64_t first, int64_t count)
{
    const uintptr_t begin = (uintptr_t)x + (uintptr_t)first * sizeof *x;
    for (uintptr_t at = begin; at < begin + (uintptr_t)count * sizeof *x; at += 64)
        __builtin_prefetch((const void *)at, 0, 2);
}

#endif
