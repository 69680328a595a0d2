#include "oracle/operators/drawn/drawn.h"

#include <math.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "oracle/error/tiers/tiers.h"

uint16_t m3_f16_of(double x)
{
    const double size = fabs(m3_stored_as(x, M3_F16));
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    if (isinf(size)) return sign | 0x7c00;
    frexp(size, &exponent);
    if (size == 0 || exponent < -13) return sign | (uint16_t)ldexp(size, 24);
    return sign | (uint16_t)((exponent + 14) << 10 | ((int)ldexp(size, 11 - exponent) - 1024));
}

/* The E4M3 code of a multiple of 1/8 below 16. */
static unsigned char e4m3_of(double x)
{
    for (int code = 0; code < 0x7f; code++) {
        const unsigned char byte = (unsigned char)code;
        if (m3_decode(M3_F8_E4M3, &byte, 0) == fabs(x)) return (unsigned char)(code | (x < 0 ? 0x80 : 0));
    }
    return 0;
}

void m3_store_real(void *bytes, enum m3_dtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case M3_F32: ((float *)bytes)[i] = (float)x; break;
    case M3_BF16: ((uint16_t *)bytes)[i] = m3_bf16_of((float)x); break;
    case M3_F16: ((uint16_t *)bytes)[i] = m3_f16_of(x); break;
    default: ((unsigned char *)bytes)[i] = e4m3_of(x);
    }
}

/* Few levels: each is encoded once. */
static void by_table(void *bytes, const struct m3_drawing *d, int64_t first, int64_t n)
{
    enum { RUN = 4096, LEVELS = 256 };
    uint16_t wide[LEVELS];
    unsigned char narrow[LEVELS];
    uint32_t levels[RUN];
    const int is_wide = m3_dtype_bytes(d->dtype) == sizeof *wide;
    for (int64_t k = 0; k < m3_min(d->levels, LEVELS); k++)
        m3_store_real(is_wide ? (void *)wide : narrow, d->dtype, k, ((double)k - d->offset) * d->scale);
    for (int64_t at = 0; at < n; at += RUN) {
        const int64_t count = m3_min(RUN, n - at);
        m3_draw_run(levels, d->key, (uint64_t)(first + at), count, (uint64_t)d->levels);
        if (is_wide)
            for (int64_t i = 0; i < count; i++) ((uint16_t *)bytes)[at + i] = wide[levels[i]];
        else
            for (int64_t i = 0; i < count; i++) ((unsigned char *)bytes)[at + i] = narrow[levels[i]];
    }
}

void m3_drawing_piece(void *bytes, const struct m3_drawing *d, int64_t first, int64_t n)
{
    enum { RUN = 4096 };
    uint32_t levels[RUN];
    if (d->dtype != M3_F32) {
        by_table(bytes, d, first, n);
        return;
    }
    for (int64_t at = 0; at < n; at += RUN) {
        const int64_t count = m3_min(RUN, n - at);
        float *to = (float *)bytes + at;
        m3_draw_run(levels, d->key, (uint64_t)(first + at), count, (uint64_t)d->levels);
        for (int64_t i = 0; i < count; i++) to[i] = (float)(((double)(int32_t)levels[i] - d->offset) * d->scale);
    }
}
