#include "ops/fast/kernels.h"

extern const struct m3_kernels m3_kernels_portable;

#ifdef __x86_64__
extern const struct m3_kernels m3_kernels_avx2, m3_kernels_avx512;

const struct m3_kernels *m3_kernels(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return &m3_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &m3_kernels_avx2;
    return &m3_kernels_portable;
}
#else
const struct m3_kernels *m3_kernels(void) { return &m3_kernels_portable; }
#endif
