/* Asks the memory for numbers that are needed soon. */
#ifndef M3_OPS_FAST_PREFETCH_H
#define M3_OPS_FAST_PREFETCH_H

#include <stdint.h>

#include "base/real.h"

/* A cache line at a time. The bytes may lie anywhere, also past the end of what exists. */
static inline void m3_prefetch_bytes(const void *first, int64_t bytes)
{
    for (uintptr_t at = (uintptr_t)first; at < (uintptr_t)first + (uintptr_t)bytes; at += 64)
        __builtin_prefetch((const void *)at, 0, 2);
}

/* x[first] .. x[first + count - 1] */
static inline void m3_prefetch(const real *x, int64_t first, int64_t count)
{
    m3_prefetch_bytes((const void *)((uintptr_t)x + (uintptr_t)first * sizeof *x), count * (int64_t)sizeof *x);
}

#endif
