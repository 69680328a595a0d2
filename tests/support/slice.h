/* A part of a full matrix, or one of many draws: M3_SLICE is the slice of this run, "0" to "9", or "all"; unset it is
 * 0. */
#ifndef M3_TESTS_SLICE_H
#define M3_TESTS_SLICE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_SLICES = 10 };

static inline int this_slice(void)
{
    const char *slice = getenv("M3_SLICE");
    if (slice && strcmp(slice, "all") == 0) return ALL_SLICES;
    return slice ? atoi(slice) : 0;
}

static inline int in_slice(int64_t i, int of)
{
    const int slice = this_slice();
    return slice == ALL_SLICES || i % of == slice % of;
}

#endif
