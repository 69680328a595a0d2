/* Buffers for operator tests: outputs start as NaN, zones around every buffer must not be written, and inputs must
 * stay unchanged. */
#ifndef M3_TESTS_GUARD_H
#define M3_TESTS_GUARD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, GUARD_FILL = 0xA5, GUARD_POISON = 0xFF }; /* 0xFF..: NaN in every float, -1 in integers */

/* Layout: zone, buffer, zone, and after them a copy of an input's bytes. `size` bytes are the buffer's own. */
struct guard {
    unsigned char *memory;
    size_t size;
    int input;
};

static inline void *guard_memory(struct guard *g, size_t size, int input)
{
    g->size = size;
    g->input = input;
    g->memory = malloc(2 * GUARD_BYTES + 2 * size + 1);
    if (!g->memory) abort();
    memset(g->memory, GUARD_FILL, 2 * GUARD_BYTES + size);
    return g->memory + GUARD_BYTES;
}

/* An output: every byte 0xFF. */
static inline void *guard_output(struct guard *g, size_t size)
{
    return memset(guard_memory(g, size, 0), GUARD_POISON, size);
}

/* An input: a copy of `bytes`. */
static inline void *guard_input(struct guard *g, const void *bytes, size_t size)
{
    void *buffer = guard_memory(g, size, 1);
    memcpy(g->memory + 2 * GUARD_BYTES + size, bytes, size);
    return memcpy(buffer, bytes, size);
}

/* Are the zones intact, and is an input unchanged? Frees the buffer. */
static inline int guard_intact(struct guard *g)
{
    int intact = 1;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        intact &= g->memory[i] == GUARD_FILL && g->memory[GUARD_BYTES + g->size + i] == GUARD_FILL;
    if (g->input) intact &= memcmp(g->memory + GUARD_BYTES, g->memory + 2 * GUARD_BYTES + g->size, g->size) == 0;
    free(g->memory);
    return intact;
}

/* False for NaN. */
static inline int within(double got, double want, double allowed)
{
    double d = got - want;
    return (d < 0 ? -d : d) <= allowed;
}

#endif
