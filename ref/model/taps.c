#include "model/taps.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct m3_tap_row m3_tap_table[M3_TAPS] = {
    [M3_TAP_EMBED]              = { "embed",              M3_BEFORE_LAYERS,   "TH",  0 },
    [M3_TAP_FUSED]              = { "fused",              M3_BEFORE_LAYERS,   "TH",  0 },
    [M3_TAP_ATTN_NORM]          = { "attn_norm",          M3_EVERY_LAYER,     "TH",  0 },
    [M3_TAP_Q_PROJ]             = { "q_proj",             M3_EVERY_LAYER,     "TQD", 0 },
    [M3_TAP_K_PROJ]             = { "k_proj",             M3_EVERY_LAYER,     "TGD", 0 },
    [M3_TAP_V_PROJ]             = { "v_proj",             M3_EVERY_LAYER,     "TGD", 0 },
    [M3_TAP_Q_NORM]             = { "q_norm",             M3_EVERY_LAYER,     "TQD", 0 },
    [M3_TAP_K_NORM]             = { "k_norm",             M3_EVERY_LAYER,     "TGD", 0 },
    [M3_TAP_Q_ROPE]             = { "q_rope",             M3_EVERY_LAYER,     "TQD", 0 },
    [M3_TAP_K_ROPE]             = { "k_rope",             M3_EVERY_LAYER,     "TGD", 0 },
    [M3_TAP_INDEX_Q_PROJ]       = { "index.q_proj",       M3_SPARSE_LAYER,    "TGX", 0 },
    [M3_TAP_INDEX_K_PROJ]       = { "index.k_proj",       M3_SPARSE_LAYER,    "TX",  0 },
    [M3_TAP_INDEX_Q_NORM]       = { "index.q_norm",       M3_SPARSE_LAYER,    "TGX", 0 },
    [M3_TAP_INDEX_K_NORM]       = { "index.k_norm",       M3_SPARSE_LAYER,    "TX",  0 },
    [M3_TAP_INDEX_Q_ROPE]       = { "index.q_rope",       M3_SPARSE_LAYER,    "TGX", 0 },
    [M3_TAP_INDEX_K_ROPE]       = { "index.k_rope",       M3_SPARSE_LAYER,    "TX",  0 },
    [M3_TAP_INDEX_BLOCK_SCORES] = { "index.block_scores", M3_SPARSE_LAYER,    "TGB", 0 },
    [M3_TAP_INDEX_BLOCKS]       = { "index.blocks",       M3_SPARSE_LAYER,    "TGN", 1 },
    [M3_TAP_ATTN_LSE]           = { "attn_lse",           M3_EVERY_LAYER,     "TQ",  0 },
    [M3_TAP_ATTN]               = { "attn",               M3_EVERY_LAYER,     "TQD", 0 },
    [M3_TAP_ATTN_OUT]           = { "attn_out",           M3_EVERY_LAYER,     "TH",  0 },
    [M3_TAP_MID]                = { "mid",                M3_EVERY_LAYER,     "TH",  0 },
    [M3_TAP_MLP_NORM]           = { "mlp_norm",           M3_EVERY_LAYER,     "TH",  0 },
    [M3_TAP_MLP_GATE]           = { "mlp.gate",           M3_DENSE_MLP_LAYER, "TI",  0 },
    [M3_TAP_MLP_UP]             = { "mlp.up",             M3_DENSE_MLP_LAYER, "TI",  0 },
    [M3_TAP_MLP_ACT]            = { "mlp.act",            M3_DENSE_MLP_LAYER, "TI",  0 },
    [M3_TAP_ROUTER_LOGITS]      = { "moe.router_logits",  M3_MOE_LAYER,       "TE",  0 },
    [M3_TAP_ROUTER_SCORES]      = { "moe.router_scores",  M3_MOE_LAYER,       "TE",  0 },
    [M3_TAP_EXPERTS]            = { "moe.experts",        M3_MOE_LAYER,       "TK",  1 },
    [M3_TAP_EXPERT_WEIGHTS]     = { "moe.weights",        M3_MOE_LAYER,       "TK",  0 },
    [M3_TAP_EXPERT_OUT]         = { "moe.expert_out",     M3_MOE_LAYER,       "TKH", 0 },
    [M3_TAP_ROUTED]             = { "moe.routed",         M3_MOE_LAYER,       "TH",  0 },
    [M3_TAP_SHARED]             = { "moe.shared",         M3_MOE_LAYER,       "TH",  0 },
    [M3_TAP_MLP]                = { "mlp",                M3_EVERY_LAYER,     "TH",  0 },
    [M3_TAP_OUT]                = { "out",                M3_EVERY_LAYER,     "TH",  0 },
    [M3_TAP_FINAL_NORM]         = { "final_norm",         M3_AFTER_LAYERS,    "TH",  0 },
    [M3_TAP_LOGITS]             = { "logits",             M3_AFTER_LAYERS,    "TV",  0 },
};

static int in_a_layer(enum m3_tap tap)
{
    return m3_tap_table[tap].where != M3_BEFORE_LAYERS && m3_tap_table[tap].where != M3_AFTER_LAYERS;
}

int m3_tap_name(char *name, size_t size, enum m3_tap tap, int64_t layer)
{
    int length = in_a_layer(tap) ? snprintf(name, size, "layers.%" PRId64 ".%s", layer, m3_tap_table[tap].name)
                                 : snprintf(name, size, "%s", m3_tap_table[tap].name);
    return length >= 0 && (size_t)length < size ? 0 : -1;
}

int m3_tap_parse(const char *name, enum m3_tap *tap, int64_t *layer)
{
    int64_t number = -1;
    if (strncmp(name, "layers.", 7) == 0) {
        char *end;
        if (name[7] < '0' || name[7] > '9') return -1;
        number = strtoll(name + 7, &end, 10);
        int padded = name[7] == '0' && end != name + 8;
        if (*end != '.' || padded || number == INT64_MAX) return -1;
        name = end + 1;
    }
    for (int i = 0; i < M3_TAPS; i++) {
        if (in_a_layer(i) != (number >= 0) || strcmp(m3_tap_table[i].name, name) != 0) continue;
        *tap = i;
        *layer = m3_tap_table[i].where == M3_AFTER_LAYERS ? INT64_MAX : number;
        return 0;
    }
    return -1;
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
