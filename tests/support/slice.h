/* A part of a full matrix: M3_SLICE is the slice of this run, "0" to "9", or "all"; unset it is 0. */
#ifndef M3_TESTS_SLICE_H
#define M3_TESTS_SLICE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline int in_slice(int64_t i, int of)
{
    const char *slice = getenv("M3_SLICE");
    if (slice && strcmp(slice, "all") == 0) return 1;
    return i % of == (slice ? atoi(slice) : 0) % of;
}

#endif
