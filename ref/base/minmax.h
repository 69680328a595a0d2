#ifndef M3_BASE_MINMAX_H
#define M3_BASE_MINMAX_H

#include <stdint.h>

static inline int64_t m3_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t m3_max(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
