/* The binding table: every tensor that a checkpoint may hold, once. The binder checks files by it, and synth writes
 * files from it. SPEC 3.2. */
#ifndef M3_MODEL_TENSORS_H
#define M3_MODEL_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "io/config.h"

enum m3_tensor_dtype {
    M3_TENSOR_PLAIN,        /* F64, F32, F16 or BF16; BF16 as released */
    M3_TENSOR_FLOAT, /* F32 (or F64): rounding the router to BF16 flips experts. In M2, whose dtype is not known,
                             * it is plain */
    M3_TENSOR_MATRIX, /* plain, or F8_E4M3 with a scale tensor */
};

enum m3_tensor_where {
    M3_IN_MODEL, /* once; bound to struct m3_model */
    M3_IN_LM_HEAD, /* once, unless the embedding is tied */
    M3_IN_LAYER, /* every text layer; bound to struct m3_layer, as are the next five */
    M3_IN_SPARSE,
    M3_IN_DENSE_MLP,
    M3_IN_MOE,
    M3_IN_SHARED, /* MoE layers with a shared expert */
    M3_IN_EXPERT, /* every expert of a MoE layer; bound to struct m3_expert */
    M3_IN_MTP, /* every MTP module; its layer also has the places above; bound to struct m3_mtp */
    M3_IN_VISION, /* once, if there is a vision config; bound to struct m3_vision */
    M3_IN_VISION_LAYER, /* every layer of the tower; bound to struct m3_vision_layer */
};

struct m3_tensor_row {
    const char *name; /* after the prefix of its place; %e in it is the expert's number */
    const char *other; /* a second spelling that transformers saves, or NULL */
    enum m3_tensor_where where;
    enum m3_tensor_dtype dtype;
    const char *shape; /* dimensions separated by commas, each a product of letters: "QD,H" */
    ptrdiff_t field; /* offset in the struct of its place */
};

extern const struct m3_tensor_row m3_tensor_table[];
extern const int m3_tensor_rows;

/* One tensor of a particular model. */
struct m3_tensor_spec {
    const struct m3_tensor_row *row;
    char name[192], other[192]; /* other: "" if there is none */
    int64_t layer, expert; /* -1: none. The layer of MTP module m is config.layers + m; for M3_IN_MTP it is m */
    int rank;
    int64_t shape[8];
};

/* The prefix of the text model's tensor names in a release. */
const char *m3_tensors_prefix(const struct m3_config *config);

/* Calls `visit` for every tensor of a model with this config, in the order of the table, layer by layer. Stops at the
 * first call of `visit` that does not return 0 and returns its value. `prefix` is m3_tensors_prefix, or "" in a
 * text-only file; `modules` is the number of MTP modules, which the config need not state. */
int m3_tensors_each(const struct m3_config *config, int64_t modules, const char *prefix,
                    int (*visit)(void *self, const struct m3_tensor_spec *spec), void *self);

/* The field that a tensor is bound to. */
struct m3_model;
struct m3_weight;
struct m3_weight *m3_tensor_field(struct m3_model *model, const struct m3_tensor_spec *spec);

#endif
