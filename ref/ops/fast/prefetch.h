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

/* What is asked for while a product is computed, a little in each step k of each of its tiles: the byte at
 * first + tile * of_tile + (k >> shift) * jump + k % 2^shift * pace. A burst of requests would wait for the memory, and
 * with it the product. */
struct m3_ask {
    uintptr_t first;
    uint64_t of_tile, jump, pace;
    int shift;
};

/* The place that is asked for next, moved on by additions alone. */
struct m3_asking {
    uintptr_t at;
    uint64_t pace, skip, mask;
};

static inline struct m3_asking m3_asking_of(const struct m3_ask *ask, int64_t tile)
{
    const uint64_t mask = ((uint64_t)1 << ask->shift) - 1;
    return (struct m3_asking){ ask->first + (uint64_t)tile * ask->of_tile, ask->pace,
                               ask->jump - (ask->pace << ask->shift), mask };
}

static inline void m3_ask_for(struct m3_asking *asking, int64_t k)
{
    __builtin_prefetch((const void *)asking->at, 0, 2);
    asking->at += asking->pace + (((uint64_t)k & asking->mask) == asking->mask ? asking->skip : 0);
}

#endif
