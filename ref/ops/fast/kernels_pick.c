#include "base/processor.h"
#include "ops/fast/kernels.h"

extern const struct m3_kernels m3_kernels_portable;

#ifdef __x86_64__
extern const struct m3_kernels m3_kernels_avx2, m3_kernels_avx512;

const struct m3_kernels *m3_kernels(void)
{
    switch (m3_instructions()) {
    case M3_INSTRUCTIONS_AVX512: return &m3_kernels_avx512;
    case M3_INSTRUCTIONS_AVX2: return &m3_kernels_avx2;
    default: return &m3_kernels_portable;
    }
}
#else
const struct m3_kernels *m3_kernels(void) { return &m3_kernels_portable; }
#endif
