#include "model/files/synth_tensor.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/context.h"
#include "base/generator.h"

/* k/8 for |k| <= 15 as E4M3 bits: exact, because k has 4 significant bits. */
static unsigned char e4m3_of_eighths(int k)
{
    int magnitude = k < 0 ? -k : k, exponent = 0;
    if (k == 0) return 0;
    while (magnitude >> (exponent + 1)) exponent++;
    int mantissa = (magnitude << (3 - exponent)) & 7;
    return (unsigned char)((k < 0) << 7 | (exponent - 3 + 7) << 3 | mantissa);
}

/* Neighbours differ by 2^4 or more and use all 24 bits, so that a scale that is missing, or taken from the next block,
 * shows. */
static float block_scale(uint64_t key, uint64_t block, int exponent)
{
    float fraction = 1 + (float)m3_draw(key, 2 * block + 1, 1 << 23) / (1 << 23);
    int lower = 6 * (int)(block % 2) + (int)m3_draw(key, 2 * block, 2);
    return ldexpf(fraction, exponent + 1 - lower);
}

/* A scale of BF16 with all its 8 bits. */
static uint16_t group_scale(uint64_t key, uint64_t group, int exponent)
{
    float fraction = 1 + (float)m3_draw(key, 2 * group + 1, 128) / 128;
    return m3_bf16_of(ldexpf(fraction, exponent - 2 - (int)m3_draw(key, 2 * group, 3)));
}

static float value_at(const struct m3_synth_tensor *t, uint64_t key, uint64_t i)
{
    float unit = ldexpf(1, t->exponent - 7);
    return (float)((int)m3_draw(key, i, 255) - 127) * unit + (t->one_more ? 1 : 0);
}

static void fill_one(void *numbers, const struct m3_synth_tensor *t, uint64_t key, uint64_t i, int64_t to)
{
    unsigned char *bytes = numbers;
    switch (t->kind) {
    case M3_SYNTH_VALUES:
        if (t->dtype == M3_BF16) ((uint16_t *)numbers)[to] = m3_bf16_of(value_at(t, key, i));
        else ((float *)numbers)[to] = value_at(t, key, i);
        break;
    case M3_SYNTH_EIGHTHS: bytes[to] = e4m3_of_eighths((int)m3_draw(key, i, 31) - 15); break;
    case M3_SYNTH_POWERS: bytes[to] = (unsigned char)(127 + t->exponent + 2 - (int)m3_draw(key, i, 6)); break;
    case M3_SYNTH_SMALL_POWERS: bytes[to] = (unsigned char)(127 + t->exponent - (int)m3_draw(key, i, 6)); break;
    case M3_SYNTH_BLOCKS: ((float *)numbers)[to] = block_scale(key, i, t->exponent); break;
    case M3_SYNTH_PAIRS: bytes[to] = (unsigned char)m3_draw(key, i, 256); break;
    case M3_SYNTH_GROUPS: bytes[to] = (unsigned char)(0x30 + m3_draw(key, i, 32)); break;
    case M3_SYNTH_GLOBAL:
        ((float *)numbers)[to] = ldexpf(1 + (float)m3_draw(key, i, 1 << 23) / (1 << 23), 2 - t->exponent);
        break;
    case M3_SYNTH_WORDS: ((uint32_t *)numbers)[to] = (uint32_t)m3_draw(key, i, (uint64_t)1 << 32); break;
    case M3_SYNTH_GROUP_SCALES: ((uint16_t *)numbers)[to] = group_scale(key, i, t->exponent); break;
    case M3_SYNTH_SIZES: ((int64_t *)numbers)[to] = t->sizes[i]; break;
    }
}

void m3_synth_fill(void *numbers, const struct m3_synth_tensor *tensor, uint64_t seed, int64_t first, int64_t n)
{
    const uint64_t key = m3_draw_key(seed, tensor->name);
#pragma omp parallel for num_threads(m3_team_of(omp_get_max_threads(), n * 16))
    for (int64_t i = 0; i < n; i++) fill_one(numbers, tensor, key, (uint64_t)(first + i), i);
}
