/* config.json of the model: the released form, and the flat form that transformers writes; also of the earlier models
 * M2, M2.5 and M2.7, which describe only a text model. SPEC 2.
 *
 * A field with a value that the program does not support is an error that names it. An unknown field is a note, and so
 * is a released value used for an absent field. null is the same as absent. The form is flat if there is no
 * sparse_attention_config but rope_parameters, layer_types or index_n_heads. A field given in both forms must have the
 * same value in both. The kinds of the layers have no default: a file without them is refused, with one exception: if
 * it does not mention sparse attention at all, every layer is a full layer, with a note. */
#ifndef M3_IO_CONFIG_H
#define M3_IO_CONFIG_H

#include <stdint.h>

#include "base/semantics.h"
#include "base/status.h"
#include "base/weight.h"

struct m3_vision_config {
    int present; /* if 0, only the tokens below have a meaning */
    int64_t W, A, U, layers, intermediate, patch, channels;
    int64_t spatial_merge, temporal_patch;
    int64_t segment_max_frames; /* temporal grid steps; 0: no limit */
    int64_t projector_hidden;
    double rope_theta, eps;
    int64_t image_token, video_token; /* -1: none */
};

enum m3_model_type { M3_TYPE_VL, M3_TYPE_VL_TEXT, M3_TYPE_M2 };

struct m3_config {
    enum m3_model_type type;
    int64_t H, Q, G, D, R, X, V, layers;
    int64_t dense_intermediate; /* 0 if the file does not state it and no layer is dense */
    int64_t F, shared_intermediate, E, K; /* 0 if the file does not state it and no layer has experts; no shared expert:
                                             * shared_intermediate 0 */
    int64_t block, N; /* index block size, blocks kept; these and X have the released value if the
                                         * file does not state it and no layer is sparse */
    int64_t max_positions, mtp_modules;
    double rope_theta, eps, routed_scaling, swiglu_alpha, swiglu_limit;
    int gemma_norm; /* otherwise plain RMSNorm */
    int qk_norm_whole; /* q and k are normalised as whole vectors; otherwise each head separately */
    int oai; /* SwiGLU-OAI; otherwise SiLU-SwiGLU */
    int tied_embeddings; /* lm_head is embed_tokens */
    unsigned char *sparse, *moe; /* [layers]: sparse attention; mixture of experts */
    int sparse_switched_off; /* by use_sparse_attention: index tensors may be present, unused */
    enum m3_scaling matrix_scaling; /* from quantization_config: the form of the matrices; the files decide */
    int64_t matrix_group; /* columns of a group of 4-bit integers, if the file states one number; otherwise 0 */
    int is_requantised; /* by a tool that may have cast all other tensors to 16 bits */
    struct m3_semantics semantics; /* the semantics that the config states: pool, init and local blocks */
    struct m3_vision_config vision;
};

/* Is layer l sparse; is it a mixture of experts? The layers of MTP modules follow those of the main model, and are of
 * the same kind as its last layer. */
int m3_config_sparse(const struct m3_config *config, int64_t l);
int m3_config_moe(const struct m3_config *config, int64_t l);

/* model_type, as spelled in config.json. */
const char *m3_config_type_name(enum m3_model_type type);

/* The size for a letter of SPEC 1; also q and k (widths of q_norm and k_norm), I (dense intermediate), J (shared
 * intermediate) and, in the picture path, W, A, U, L (vision intermediate), Y (projector hidden), Z (merged width), C
 * (patch content). 2 and 3 stand for themselves. 0 for any other letter. */
int64_t m3_config_size(const struct m3_config *config, char letter);

/* Reads a config. One call reports all errors; relations between fields are checked only if each field is valid. Notes
 * (unknown, overridden and absent fields) are added to `notes` with status M3_OK and are no failure. Errors: M3_ABSENT
 * if there is no such file, M3_BAD_INPUT, M3_IO, M3_INTERNAL; *config is then empty. */
int m3_config_read(struct m3_config *config, const char *path, struct m3_error *notes, struct m3_error *error);
/* The same from a config's text; `name` replaces its path in messages. */
int m3_config_parse(struct m3_config *config, const char *text, const char *name, struct m3_error *notes,
                    struct m3_error *error);
void m3_config_free(struct m3_config *config);

#endif
