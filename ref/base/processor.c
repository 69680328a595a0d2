#include "base/processor.h"

#ifdef __x86_64__
enum m3_instructions m3_instructions(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return M3_INSTRUCTIONS_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return M3_INSTRUCTIONS_AVX2;
    return M3_INSTRUCTIONS_PORTABLE;
}
#else
enum m3_instructions m3_instructions(void) { return M3_INSTRUCTIONS_PORTABLE; }
#endif
