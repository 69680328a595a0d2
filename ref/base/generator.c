#include "base/generator.h"

#include <string.h>

static uint64_t mix(uint64_t z)
{
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t m3_draw_key(uint64_t seed, const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return mix(h + seed * 0x9E3779B97F4A7C15u);
}

uint64_t m3_draw(uint64_t key, uint64_t i, uint64_t m)
{
    return (mix(key + (i + 1) * 0x9E3779B97F4A7C15u) >> 32) * m >> 32;
}

void m3_draw_run(uint32_t *out, uint64_t key, uint64_t first, int64_t n, uint64_t m)
{
    const uint64_t start = key + (first + 1) * 0x9E3779B97F4A7C15u;
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint32_t)((mix(start + (uint64_t)i * 0x9E3779B97F4A7C15u) >> 32) * m >> 32);
}

static int contains(const char *name, const char *part) { return strstr(name, part) != NULL; }

static int ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

int m3_draw_is_norm(const char *name) { return ends_in(name, "norm.weight") && !contains(name, "vision_tower."); }

int m3_draw_exponent(const char *name, int64_t columns)
{
    int c = 0;
    for (; columns >= 4; columns /= 4) c++;         /* floor(floor(log2 columns) / 2) */

    if (ends_in(name, "e_score_correction_bias")) return -2;
    if (ends_in(name, ".bias")) return -3;
    if (contains(name, "layer_norm1") || contains(name, "layer_norm2") || contains(name, "pre_layrnorm")) return 0;
    if (m3_draw_is_norm(name)) return -2;
    if (contains(name, "embed_tokens")) return 0;
    if (contains(name, "gate_proj") || contains(name, "up_proj") || ends_in(name, ".w1.weight") ||
        ends_in(name, ".w3.weight"))
        return 2 - c;
    if (contains(name, "o_proj") || contains(name, "down_proj") || ends_in(name, ".w2.weight")) return -c;
    return 1 - c;
}
