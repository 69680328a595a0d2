/* A model: its config, and every weight bound to the field that uses it. Knows no `real`: weights stay as stored. */
#ifndef M3_MODEL_MODEL_H
#define M3_MODEL_MODEL_H

#include "base/status.h"
#include "base/weight.h"
#include "io/checkpoint.h"
#include "io/config.h"

/* Fields that a layer does not have are zero. */
struct m3_layer {
    struct m3_weight attn_norm, mlp_norm;                       /* [H] */
    struct m3_weight q_proj, k_proj, v_proj, o_proj;            /* [QD,H] [GD,H] [GD,H] [H,QD] */
    struct m3_weight q_norm, k_norm;                            /* [D], one for all heads */
    struct m3_weight index_q_proj, index_k_proj;                /* [GX,H] [X,H], sparse layers */
    struct m3_weight index_q_norm, index_k_norm;                /* [X] */
    struct m3_weight gate, up, down; /* dense MLP [I,H] [I,H] [H,I], or the shared expert's */
    struct m3_weight router, router_bias;                       /* [E,H] [E], MoE layers */
    struct m3_expert *experts;                          /* [E], MoE layers */
};

struct m3_model {
    struct m3_config config;
    struct m3_checkpoint *checkpoint;
    struct m3_weight embed, final_norm, lm_head;                /* [V,H] [H] [V,H] */
    struct m3_layer *layers;                                    /* [config.layers] */
};

/* Reads the config, opens the files, binds every tensor. All findings in one pass; notes are no failures. */
int m3_model_open(struct m3_model **model, const char *folder, struct m3_error *notes, struct m3_error *error);
void m3_model_close(struct m3_model *model);

#endif
