#include "ops/visible.h"

static int contains(const int32_t *list, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == id) return 1;
    return 0;
}

static int64_t segment_of(const int64_t *ends, int64_t row)
{
    int64_t s = 0;
    while (row >= ends[s]) s++;
    return s;
}

int m3_visible(const struct m3_mask *mask, int64_t t, int64_t g, int64_t j)
{
    if (mask->ends) return segment_of(mask->ends, t) == segment_of(mask->ends, j);
    if (j > mask->p0 + t) return 0;
    if (mask->seen && !mask->seen[j]) return 0;
    if (!mask->blocks) return 1;

    int64_t b = j / mask->block, N = mask->N, groups = mask->G;
    const int32_t *blocks_t = mask->blocks + t * groups * N;
    if (mask->selection == M3_SELECT_UNION) return contains(blocks_t, groups * N, b);
    return contains(blocks_t + g * N, N, b);
}
