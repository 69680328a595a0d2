/* config.json of the model, in the released form and in the flat form that transformers writes; also of its forerunners
 * M2, M2.5 and M2.7, which describe a text model alone. SPEC 2.
 *
 * A field that the file gives and the program cannot honour is an error that names it; an unknown field is a note, and
 * so is a released value that stands for an absent field. null is the same as absent. The form is flat if there is no
 * sparse_attention_config but rope_parameters, layer_types or index_n_heads. A field given in both forms must say the
 * same twice. The kinds of the layers have no default: a file without them is refused, with one exception: if it says
 * nothing at all about sparse attention, every layer is a full one, with a note. */
#ifndef M3_IO_CONFIG_H
#define M3_IO_CONFIG_H

#include <stdint.h>

#include "base/semantics.h"
#include "base/status.h"
#include "base/weight.h"

struct m3_vision_config {
    int present; /* else only the tokens below mean anything */
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
    int64_t dense_intermediate; /* 0 if the file does not say, and no layer is dense */
    int64_t F, shared_intermediate, E, K; /* 0 if the file does not say, and no layer has experts; no shared expert:
                                             * shared_intermediate 0 */
    int64_t block, N; /* index block size, blocks kept; with X the released ones if it does not say
                                         * and no layer is sparse */
    int64_t max_positions, mtp_modules;
    double rope_theta, eps, routed_scaling, swiglu_alpha, swiglu_limit;
    int gemma_norm; /* else plain RMSNorm */
    int qk_norm_whole; /* q and k are normalised as whole vectors; else each head by itself */
    int oai; /* SwiGLU-OAI; else SiLU-SwiGLU */
    int tied_embeddings; /* lm_head is embed_tokens */
    unsigned char *sparse, *moe; /* [layers]: sparse attention; mixture of experts */
    int sparse_switched_off; /* by use_sparse_attention: index tensors may be there, unused */
    enum m3_scaling matrix_scaling; /* by quantization_config: scales beside E4M3 matrices; the files decide */
    struct m3_semantics semantics; /* what the config says of it: pool, init and local blocks */
    struct m3_vision_config vision;
};

/* Of layer l: sparse attention; mixture of experts. The layers of MTP modules follow those of the main model, and are
 * of the kind of its last one. */
int m3_config_sparse(const struct m3_config *config, int64_t l);
int m3_config_moe(const struct m3_config *config, int64_t l);

/* model_type, as config.json spells it. */
const char *m3_config_type_name(enum m3_model_type type);

/* The size that a letter of SPEC 1 stands for; also q and k, the widths of q_norm and k_norm, I dense intermediate, J
 * shared intermediate, and of the picture path W, A, U, L vision intermediate, Y projector hidden, Z merged width, C
 * patch content. 2 and 3 are themselves. 0 for any other. */
int64_t m3_config_size(const struct m3_config *config, char letter);

/* All findings in one pass; relations between fields only when each field is good. Notes (unknown, overridden and
 * absent fields) are added to `notes`, with status M3_OK: not a failure. M3_ABSENT if there is no such file,
 * M3_BAD_INPUT, M3_IO, M3_INTERNAL; *config is empty then. */
int m3_config_read(struct m3_config *config, const char *path, struct m3_error *notes, struct m3_error *error);
/* The same of a config's text; `name` stands for its path in findings. */
int m3_config_parse(struct m3_config *config, const char *text, const char *name, struct m3_error *notes,
                    struct m3_error *error);
void m3_config_free(struct m3_config *config);

#endif
