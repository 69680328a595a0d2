/* A model: its config, and every weight bound to the field that uses it. It does not depend on `real`: weights stay as
 * stored. */
#ifndef M3_MODEL_MODEL_H
#define M3_MODEL_MODEL_H

#include "base/status.h"
#include "base/weight.h"
#include "io/checkpoint.h"
#include "io/config.h"

struct m3_graphs;
struct m3_ranks;

/* Weights that a layer does not have are zero. */
struct m3_layer {
    struct m3_weight attn_norm, mlp_norm;                       /* [H] */
    struct m3_weight q_proj, k_proj, v_proj, o_proj;            /* [QD,H] [GD,H] [GD,H] [H,QD] */
    struct m3_weight q_norm, k_norm;                            /* [D], one for all heads; or [QD] [GD] */
    struct m3_weight index_q_proj, index_k_proj;                /* [GX,H] [X,H], sparse layers */
    struct m3_weight index_q_norm, index_k_norm;                /* [X] */
    struct m3_weight gate, up, down; /* dense MLP [I,H] [I,H] [H,I], or the shared expert's */
    struct m3_weight router, router_bias;                       /* [E,H] [E], MoE layers */
    struct m3_expert *experts;                          /* [E], MoE layers */
};

/* A module of multi-token prediction without its layer. */
struct m3_mtp {
    struct m3_weight embed_norm, hidden_norm, final_norm;       /* [H] */
    struct m3_weight eh_proj;                                   /* [H,2H]: columns of the embedding first */
};

struct m3_vision_layer {
    struct m3_weight norm1, norm1_bias, norm2, norm2_bias;                  /* [W] */
    struct m3_weight q_proj, q_bias, k_proj, k_bias, v_proj, v_bias;        /* [W,W] [W] */
    struct m3_weight out_proj, out_bias;                                    /* [W,W] [W] */
    struct m3_weight fc1, fc1_bias, fc2, fc2_bias;                          /* [L,W] [L] [W,L] [W] */
};

/* Vision tower and projector; all zero if the config has no vision part. */
struct m3_vision {
    struct m3_weight patch_embed;                                           /* [W,C] */
    struct m3_weight pre_norm, pre_norm_bias;                               /* [W] */
    struct m3_vision_layer *layers;                                         /* [config.vision.layers] */
    struct m3_weight linear_1, linear_1_bias, linear_2, linear_2_bias;      /* [Y,W] [Y] [H,Y] [H] */
    struct m3_weight merge_linear_1, merge_linear_1_bias;                   /* [Y,4H] [Y] */
    struct m3_weight merge_linear_2, merge_linear_2_bias;                   /* [H,Y] [H] */
};

struct m3_model {
    struct m3_config config;
    struct m3_checkpoint *checkpoint;
    struct m3_weight embed, final_norm, lm_head;                /* [V,H] [H] [V,H] */
    struct m3_layer *layers;            /* [config.layers + mtp_modules]: that of module m is at config.layers + m */
    int64_t mtp_modules;                                        /* in the files */
    struct m3_mtp *mtp;                                         /* [mtp_modules] */
    struct m3_vision vision;
    struct m3_graphs *graphs;           /* model/graph/graph.h */
    struct m3_ranks *ranks;             /* which divide the passes over the model; or NULL */
};

/* Reads the config, opens the files and binds every tensor. One call reports all errors it finds; notes do not make it
 * fail. */
int m3_model_open(struct m3_model **model, const char *folder, struct m3_error *notes, struct m3_error *error);
/* The same for a run of the layers first .. end - 1: weights that it does not need have shapes but NULL data, and files
 * that hold no others may be absent. The embedding and the vision part are needed for layer 0, the head and the modules
 * after the last layer. M3_USAGE if the model has fewer layers. */
int m3_model_open_layers(struct m3_model **model, const char *folder, int64_t first, int64_t end,
                         struct m3_error *notes, struct m3_error *error);
/* Lists the weight files of such a run as m3_checkpoint_list does; end 0: of all layers. Reads config.json and the index
 * alone. */
int m3_model_list_files(const char *folder, int64_t first, int64_t end,
                        void (*visit)(void *to, const char *name, int is_needed, int64_t bytes), void *to,
                        struct m3_error *error);
/* A model whose weights have shapes but NULL data, for comparisons without the weight files. Takes over *config. */
int m3_model_without_weights(struct m3_model **model, struct m3_config *config, int64_t modules,
                             struct m3_error *error);
void m3_model_close(struct m3_model *model);            /* NULL is fine */

#endif
