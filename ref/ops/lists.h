/* Checks of lists of ids, which operators run before they use a list. */
#ifndef M3_OPS_LISTS_H
#define M3_OPS_LISTS_H

#include <stdint.h>

/* The length of a list of blocks [N], which must be ascending ids up to `own`, the row's own block, then -1; returns
 * -1 for any other list. */
static inline int64_t m3_list_length(const int32_t *list, int64_t N, int64_t own)
{
    int64_t n = 0;
    while (n < N && list[n] >= 0) {
        if (list[n] > own || (n > 0 && list[n] <= list[n - 1])) return -1;
        n++;
    }
    for (int64_t i = n; i < N; i++)
        if (list[i] != -1) return -1;
    return n;
}

/* The first row of ids [T,K] that does not hold distinct experts below E; -1 if there is none. */
static inline int64_t m3_bad_experts(const int32_t *ids, int64_t T, int64_t E, int64_t K)
{
    for (int64_t i = 0; i < T * K; i++) {
        if (ids[i] < 0 || ids[i] >= E) return i / K;
        for (int64_t j = i / K * K; j < i; j++)
            if (ids[j] == ids[i]) return i / K;
    }
    return -1;
}

#endif
