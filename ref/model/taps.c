#include "model/taps.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

const struct m3_tap_row m3_tap_table[M3_TAPS] = {
#define ROW(NAME, name, where, shape, kind, what) { name, M3_WHERE_##where, shape, M3_KIND_##kind, what },
    M3_TAP_ROWS(ROW)
#undef ROW
};

static const char vision_prefix[] = "vision.layers.", text_prefix[] = "layers.", mtp_prefix[] = "mtp.";

/* Is it a tap of a text layer, whatever the kind of the layer? */
static int in_text_layer(enum m3_tap tap)
{
    return m3_tap_table[tap].where >= M3_WHERE_EVERY_LAYER && m3_tap_table[tap].where < M3_WHERE_AFTER_LAYERS;
}

/* The parts of a pass: all kinds of text layers are one, those of MTP modules belong to them. */
static int part(enum m3_tap tap, int64_t layer)
{
    if (!in_text_layer(tap)) return m3_tap_table[tap].where;
    return m3_mtp_module_of(layer) < 0 ? M3_WHERE_EVERY_LAYER : M3_WHERE_EVERY_MTP_MODULE;
}

/* The prefix before the layer's number in a name; NULL outside layers. */
static const char *prefix_of(enum m3_tap tap, int64_t layer)
{
    switch (part(tap, layer)) {
    case M3_WHERE_EVERY_VISION_LAYER: return vision_prefix;
    case M3_WHERE_EVERY_LAYER: return text_prefix;
    case M3_WHERE_EVERY_MTP_MODULE: return mtp_prefix;
    default: return NULL;
    }
}

/* Names are made millions of times, and snprintf is slow where libquadmath is loaded, which OpenBLAS needs. */
static const char *decimal(char digits[24], int64_t number)
{
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    char *at = digits + 23;
    *at = '\0';
    do *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--at = '-';
    return at;
}

int m3_tap_name(char *name, size_t size, enum m3_tap tap, int64_t layer)
{
    const char *prefix = prefix_of(tap, layer), *own = m3_tap_table[tap].name;
    const char *inner = prefix == mtp_prefix && in_text_layer(tap) ? ".layer." : ".";
    char digits[24];
    const char *number = decimal(digits, prefix == mtp_prefix ? m3_mtp_module_of(layer) : layer);
    const char *const parts[] = { prefix, number, inner, own };
    size_t length = 0;
    for (int i = prefix ? 0 : 3; i < 4; i++)
        for (const char *c = parts[i]; *c; c++, length++)
            if (length < size) name[length] = *c;
    if (size) name[length < size ? length : size - 1] = '\0';
    return length < size ? 0 : -1;
}

int m3_tap_parse(const char *name, enum m3_tap *tap, int64_t *layer)
{
    static const char *const prefixes[] = { vision_prefix, text_prefix, mtp_prefix };
    int64_t number = -1;
    for (int i = 0; i < 3; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) != 0) continue;
        number = strtoll(name + strlen(prefixes[i]), NULL, 10);
        if (number < 0 || number >= M3_MTP_LAYER) return -1;
        if (prefixes[i] == mtp_prefix) number += M3_MTP_LAYER;
        break;
    }
    const size_t length = strlen(name);
    for (int i = 0; i < M3_TAPS; i++) {
        char again[96];                     /* so that layers.03 and the like are rejected */
        const size_t own = strlen(m3_tap_table[i].name);
        if (own > length || strcmp(name + length - own, m3_tap_table[i].name) != 0) continue;
        if (m3_tap_name(again, sizeof again, i, number) != 0 || strcmp(again, name) != 0) continue;
        *tap = i;
        *layer = number;
        return 0;
    }
    return -1;
}

int64_t m3_layer_index(const struct m3_config *config, int64_t layer)
{
    const int64_t module = m3_mtp_module_of(layer);
    return module < 0 ? layer : config->layers + module;
}

int m3_tap_is_of_layers(enum m3_tap tap)
{
    const enum m3_tap_where where = m3_tap_table[tap].where;
    return where >= M3_WHERE_EVERY_LAYER && where != M3_WHERE_AFTER_LAYERS;
}

int m3_layer_has_tap(const struct m3_config *config, enum m3_tap tap, int64_t layer)
{
    const int64_t l = m3_layer_index(config, layer);
    switch (m3_tap_table[tap].where) {
    case M3_WHERE_SPARSE_LAYER: return m3_config_sparse(config, l);
    case M3_WHERE_DENSE_MLP_LAYER: return !m3_config_moe(config, l);
    case M3_WHERE_MOE_LAYER: return m3_config_moe(config, l);
    case M3_WHERE_SHARED_LAYER: return m3_config_moe(config, l) && config->shared_intermediate > 0;
    default: return 1;
    }
}

int m3_tap_order(enum m3_tap a, int64_t layer_a, enum m3_tap b, int64_t layer_b)
{
    if (part(a, layer_a) != part(b, layer_b)) return part(a, layer_a) - part(b, layer_b);
    if (layer_a != layer_b) return layer_a < layer_b ? -1 : 1;
    return (int)a - (int)b;
}

int m3_tap_matches(const char *patterns, const char *name)
{
    char pattern[256];
    if (patterns == NULL) return 1;
    for (const char *p = patterns;; p++) {
        size_t length = strcspn(p, ",");
        if (length < sizeof pattern) {
            memcpy(pattern, p, length);
            pattern[length] = '\0';
            if (fnmatch(pattern, name, FNM_NOESCAPE) == 0) return 1;
        }
        p += length;
        if (*p == '\0') return 0;
    }
}
