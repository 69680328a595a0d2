#include "ops/hot.h"

extern const struct m3_hot m3_hot_plain;

#ifdef __x86_64__
extern const struct m3_hot m3_hot_avx2, m3_hot_avx512;

const struct m3_hot *m3_hot(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return &m3_hot_avx512;
    if (__builtin_cpu_supports("avx2")) return &m3_hot_avx2;
    return &m3_hot_plain;
}
#else
const struct m3_hot *m3_hot(void) { return &m3_hot_plain; }
#endif
