/* Every tensor that a forward pass can show, in execution order (taps.def). The table names, shapes and orders dumps and
 * comparisons. */
#ifndef M3_MODEL_TAPS_H
#define M3_MODEL_TAPS_H

#include <stddef.h>
#include <stdint.h>

#include "io/config.h"
#include "model/taps.def"

enum m3_tap {
#define M3_TAP_NUMBER(NAME, ...) M3_TAP_##NAME,
    M3_TAP_ROWS(M3_TAP_NUMBER)
#undef M3_TAP_NUMBER
    M3_TAPS,
};

/* In which part of a pass, and in which of its layers, a tap exists. Parts are in the order in which they run. */
enum m3_tap_where {
    M3_WHERE_BEFORE_VISION_LAYERS,      /* this and the next two: only with pictures */
    M3_WHERE_EVERY_VISION_LAYER,
    M3_WHERE_AFTER_VISION_LAYERS,
    M3_WHERE_BEFORE_LAYERS,
    M3_WHERE_EVERY_LAYER,
    M3_WHERE_SPARSE_LAYER,
    M3_WHERE_DENSE_MLP_LAYER,
    M3_WHERE_MOE_LAYER,
    M3_WHERE_SHARED_LAYER,              /* MoE layers with a shared expert */
    M3_WHERE_AFTER_LAYERS,
    M3_WHERE_EVERY_MTP_MODULE,          /* around its layer, whose taps are those of a text layer */
};

/* Every function that takes a layer uses M3_MTP_LAYER + m for the layer of MTP module m. */
enum { M3_MTP_LAYER = 1 << 24 };

/* The module of a layer; -1 for a layer of the main model. */
static inline int64_t m3_mtp_module_of(int64_t layer) { return layer >= M3_MTP_LAYER ? layer - M3_MTP_LAYER : -1; }
/* Is the tap in layers of the text model, or in modules? */
int m3_tap_is_of_layers(enum m3_tap tap);
/* Rows of a text tap in a call over T tokens: module m has m + 1 fewer. */
static inline int64_t m3_layer_rows(int64_t layer, int64_t T) { return T - (m3_mtp_module_of(layer) + 1); }
/* The index of a layer in model->layers: the modules' layers follow the main model's. */
int64_t m3_layer_index(const struct m3_config *config, int64_t layer);

enum m3_tap_kind {
    M3_KIND_REALS,
    M3_KIND_CHOICES,            /* I32 ids, a set in each row */
    M3_KIND_COUNTS,             /* I32, exact */
};

struct m3_tap_row {
    const char *name;           /* "embed"; in layers and modules the part after "layers.l.", "mtp.m.", .. */
    enum m3_tap_where where;
    const char *shape;          /* letters of m3_tap_size, the rows first: "TQD" */
    enum m3_tap_kind kind;
    const char *what;           /* "norm before attention" */
};

extern const struct m3_tap_row m3_tap_table[M3_TAPS];

/* Does a text layer of this kind (sparse or full, MoE or dense) have the tap? 1 for taps that do not depend on the
 * kind. */
int m3_layer_has_tap(const struct m3_config *config, enum m3_tap tap, int64_t layer);

/* "layers.3.attn_norm"; `layer` is ignored outside layers. Returns 0, or -1 if it does not fit. */
int m3_tap_name(char *name, size_t size, enum m3_tap tap, int64_t layer);

/* Finds the tap with a name; `layer` is -1 outside layers. Returns 0, or -1 if no such tap exists. */
int m3_tap_parse(const char *name, enum m3_tap *tap, int64_t *layer);

/* Below, equal to or above 0 if tap a of its layer runs before, is, or runs after tap b of its layer. */
int m3_tap_order(enum m3_tap a, int64_t layer_a, enum m3_tap b, int64_t layer_b);

/* Does `name` match one of the comma-separated shell patterns (*, ?, [abc])? NULL matches all. */
int m3_tap_matches(const char *patterns, const char *name);

/* Rows of block scores that a pass holds at a time: all, [T,G,B], would grow with T x T. */
enum { M3_SCORE_ROWS = 256 };

#endif
