/* The graph as data: every tensor that a forward pass can show, in execution order. Dumps are named, shaped and
 * ordered by this table, and so are comparisons. Names and shapes: design of the dump format, SPEC 3.5 and 6. */
#ifndef M3_MODEL_TAPS_H
#define M3_MODEL_TAPS_H

#include <stddef.h>
#include <stdint.h>

enum m3_tap {
    M3_TAP_EMBED, M3_TAP_FUSED,
    M3_TAP_ATTN_NORM, M3_TAP_Q_PROJ, M3_TAP_K_PROJ, M3_TAP_V_PROJ, M3_TAP_Q_NORM, M3_TAP_K_NORM,
    M3_TAP_Q_ROPE, M3_TAP_K_ROPE,
    M3_TAP_INDEX_Q_PROJ, M3_TAP_INDEX_K_PROJ, M3_TAP_INDEX_Q_NORM, M3_TAP_INDEX_K_NORM,
    M3_TAP_INDEX_Q_ROPE, M3_TAP_INDEX_K_ROPE, M3_TAP_INDEX_BLOCK_SCORES, M3_TAP_INDEX_BLOCKS,
    M3_TAP_ATTN_LSE, M3_TAP_ATTN, M3_TAP_ATTN_OUT, M3_TAP_MID, M3_TAP_MLP_NORM,
    M3_TAP_MLP_GATE, M3_TAP_MLP_UP, M3_TAP_MLP_ACT,
    M3_TAP_ROUTER_LOGITS, M3_TAP_ROUTER_SCORES, M3_TAP_EXPERTS, M3_TAP_EXPERT_WEIGHTS, M3_TAP_EXPERT_OUT,
    M3_TAP_ROUTED, M3_TAP_SHARED, M3_TAP_MLP, M3_TAP_OUT,
    M3_TAP_FINAL_NORM, M3_TAP_LOGITS,
    M3_TAPS,
};

/* In which layers a tap exists. */
enum m3_tap_where {
    M3_BEFORE_LAYERS,
    M3_EVERY_LAYER,
    M3_SPARSE_LAYER,
    M3_DENSE_MLP_LAYER,
    M3_MOE_LAYER,
    M3_AFTER_LAYERS
};

struct m3_tap_row {
    const char *name;           /* "embed"; of a layer's tap the part behind "layers.l." */
    enum m3_tap_where where;
    const char *shape;          /* letters of SPEC 1 and "I" for the dense intermediate width, the rows first: "TQD" */
    int integer;                /* I32 ids: a selection */
};

extern const struct m3_tap_row m3_tap_table[M3_TAPS];

/* "layers.3.attn_norm"; `layer` is ignored outside layers. Returns 0, or -1 if it does not fit. */
int m3_tap_name(char *name, size_t size, enum m3_tap tap, int64_t layer);

/* Place of a name in execution order: two taps compare as their `layer`, then `tap`. Taps before the layers have layer
 * -1, taps after them INT64_MAX. Returns 0, or -1 if no such tap exists. */
int m3_tap_parse(const char *name, enum m3_tap *tap, int64_t *layer);

/* Does `name` match one of the comma-separated patterns of the shell's kind (*, ?, [abc])? NULL matches all. */
int m3_tap_matches(const char *patterns, const char *name);

#endif
