#include "base/processor.h"
#include "oracle/error/private/kernels.h"

extern const struct m3_error_kernels m3_error_kernels_portable;

#ifdef __x86_64__
extern const struct m3_error_kernels m3_error_kernels_avx2, m3_error_kernels_avx512;

const struct m3_error_kernels *m3_error_kernels(void)
{
    switch (m3_instructions()) {
    case M3_INSTRUCTIONS_AVX512: return &m3_error_kernels_avx512;
    case M3_INSTRUCTIONS_AVX2: return &m3_error_kernels_avx2;
    default: return &m3_error_kernels_portable;
    }
}
#else
const struct m3_error_kernels *m3_error_kernels(void) { return &m3_error_kernels_portable; }
#endif
