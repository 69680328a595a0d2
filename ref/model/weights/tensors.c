#include "model/weights/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

#define MODEL(field) offsetof(struct m3_model, field)
#define LAYER(field) offsetof(struct m3_layer, field)
#define MTP(field) offsetof(struct m3_mtp, field)
#define EXPERT(field) offsetof(struct m3_expert, field)
#define VISION(field) offsetof(struct m3_vision, field)
#define VISION_LAYER(field) offsetof(struct m3_vision_layer, field)

/* Letters: m3_config_size. */
const struct m3_tensor_row m3_tensor_table[] = {
    { "model.embed_tokens.weight", NULL, M3_IN_MODEL, M3_TENSOR_PLAIN, "V,H", MODEL(embed) },
    { "model.norm.weight", NULL, M3_IN_MODEL, M3_TENSOR_PLAIN, "H", MODEL(final_norm) },
    { "lm_head.weight", NULL, M3_IN_LM_HEAD, M3_TENSOR_PLAIN, "V,H", MODEL(lm_head) },

    { "input_layernorm.weight", NULL, M3_IN_LAYER, M3_TENSOR_PLAIN, "H", LAYER(attn_norm) },
    { "self_attn.q_proj.weight", NULL, M3_IN_LAYER, M3_TENSOR_MATRIX, "QD,H", LAYER(q_proj) },
    { "self_attn.k_proj.weight", NULL, M3_IN_LAYER, M3_TENSOR_MATRIX, "GD,H", LAYER(k_proj) },
    { "self_attn.v_proj.weight", NULL, M3_IN_LAYER, M3_TENSOR_MATRIX, "GD,H", LAYER(v_proj) },
    { "self_attn.o_proj.weight", NULL, M3_IN_LAYER, M3_TENSOR_MATRIX, "H,QD", LAYER(o_proj) },
    { "self_attn.q_norm.weight", NULL, M3_IN_LAYER, M3_TENSOR_PLAIN, "q", LAYER(q_norm) },
    { "self_attn.k_norm.weight", NULL, M3_IN_LAYER, M3_TENSOR_PLAIN, "k", LAYER(k_norm) },
    { "self_attn.index_q_proj.weight", NULL, M3_IN_SPARSE, M3_TENSOR_MATRIX, "GX,H", LAYER(index_q_proj) },
    { "self_attn.index_k_proj.weight", NULL, M3_IN_SPARSE, M3_TENSOR_MATRIX, "X,H", LAYER(index_k_proj) },
    { "self_attn.index_q_norm.weight", NULL, M3_IN_SPARSE, M3_TENSOR_PLAIN, "X", LAYER(index_q_norm) },
    { "self_attn.index_k_norm.weight", NULL, M3_IN_SPARSE, M3_TENSOR_PLAIN, "X", LAYER(index_k_norm) },
    { "post_attention_layernorm.weight", NULL, M3_IN_LAYER, M3_TENSOR_PLAIN, "H", LAYER(mlp_norm) },

    { "mlp.gate_proj.weight", "block_sparse_moe.gate_proj.weight", M3_IN_DENSE_MLP, M3_TENSOR_MATRIX, "I,H",
      LAYER(gate) },
    { "mlp.up_proj.weight", "block_sparse_moe.up_proj.weight", M3_IN_DENSE_MLP, M3_TENSOR_MATRIX, "I,H", LAYER(up) },
    { "mlp.down_proj.weight", "block_sparse_moe.down_proj.weight", M3_IN_DENSE_MLP, M3_TENSOR_MATRIX, "H,I",
      LAYER(down) },

    { "block_sparse_moe.gate.weight", NULL, M3_IN_MOE, M3_TENSOR_FLOAT, "E,H", LAYER(router) },
    { "block_sparse_moe.e_score_correction_bias", NULL, M3_IN_MOE, M3_TENSOR_FLOAT, "E", LAYER(router_bias) },
    { "block_sparse_moe.shared_experts.gate_proj.weight", NULL, M3_IN_SHARED, M3_TENSOR_MATRIX, "J,H", LAYER(gate) },
    { "block_sparse_moe.shared_experts.up_proj.weight", NULL, M3_IN_SHARED, M3_TENSOR_MATRIX, "J,H", LAYER(up) },
    { "block_sparse_moe.shared_experts.down_proj.weight", NULL, M3_IN_SHARED, M3_TENSOR_MATRIX, "H,J", LAYER(down) },
    { "block_sparse_moe.experts.%e.w1.weight", NULL, M3_IN_EXPERT, M3_TENSOR_MATRIX, "F,H", EXPERT(w1) },
    { "block_sparse_moe.experts.%e.w3.weight", NULL, M3_IN_EXPERT, M3_TENSOR_MATRIX, "F,H", EXPERT(w3) },
    { "block_sparse_moe.experts.%e.w2.weight", NULL, M3_IN_EXPERT, M3_TENSOR_MATRIX, "H,F", EXPERT(w2) },

    { "enorm.weight", NULL, M3_IN_MTP, M3_TENSOR_PLAIN, "H", MTP(embed_norm) },
    { "hnorm.weight", NULL, M3_IN_MTP, M3_TENSOR_PLAIN, "H", MTP(hidden_norm) },
    { "eh_proj.weight", NULL, M3_IN_MTP, M3_TENSOR_MATRIX, "H,2H", MTP(eh_proj) },
    { "final_layernorm.weight", NULL, M3_IN_MTP, M3_TENSOR_PLAIN, "H", MTP(final_norm) },

    { "vision_tower.vision_model.embeddings.patch_embedding.weight", NULL, M3_IN_VISION, M3_TENSOR_FLOAT, "W,C",
      VISION(patch_embed) },
    { "vision_tower.vision_model.pre_layrnorm.weight", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "W", VISION(pre_norm) },
    { "vision_tower.vision_model.pre_layrnorm.bias", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "W", VISION(pre_norm_bias) },
    { "multi_modal_projector.linear_1.weight", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "Y,W", VISION(linear_1) },
    { "multi_modal_projector.linear_1.bias", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "Y", VISION(linear_1_bias) },
    { "multi_modal_projector.linear_2.weight", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "H,Y", VISION(linear_2) },
    { "multi_modal_projector.linear_2.bias", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "H", VISION(linear_2_bias) },
    { "patch_merge_mlp.linear_1.weight", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "Y,Z", VISION(merge_linear_1) },
    { "patch_merge_mlp.linear_1.bias", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "Y", VISION(merge_linear_1_bias) },
    { "patch_merge_mlp.linear_2.weight", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "H,Y", VISION(merge_linear_2) },
    { "patch_merge_mlp.linear_2.bias", NULL, M3_IN_VISION, M3_TENSOR_PLAIN, "H", VISION(merge_linear_2_bias) },

    { "layer_norm1.weight", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(norm1) },
    { "layer_norm1.bias", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(norm1_bias) },
    { "layer_norm2.weight", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(norm2) },
    { "layer_norm2.bias", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(norm2_bias) },
    { "self_attn.q_proj.weight", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W,W", VISION_LAYER(q_proj) },
    { "self_attn.q_proj.bias", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(q_bias) },
    { "self_attn.k_proj.weight", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W,W", VISION_LAYER(k_proj) },
    { "self_attn.k_proj.bias", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(k_bias) },
    { "self_attn.v_proj.weight", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W,W", VISION_LAYER(v_proj) },
    { "self_attn.v_proj.bias", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(v_bias) },
    { "self_attn.out_proj.weight", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W,W", VISION_LAYER(out_proj) },
    { "self_attn.out_proj.bias", NULL, M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(out_bias) },
    { "mlp.fc1.weight", "block_sparse_moe.fc1.weight", M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "L,W", VISION_LAYER(fc1) },
    { "mlp.fc1.bias", "block_sparse_moe.fc1.bias", M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "L", VISION_LAYER(fc1_bias) },
    { "mlp.fc2.weight", "block_sparse_moe.fc2.weight", M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W,L", VISION_LAYER(fc2) },
    { "mlp.fc2.bias", "block_sparse_moe.fc2.bias", M3_IN_VISION_LAYER, M3_TENSOR_PLAIN, "W", VISION_LAYER(fc2_bias) },
};

const int m3_tensor_rows = sizeof m3_tensor_table / sizeof m3_tensor_table[0];

static void set_shape(struct m3_tensor_spec *spec, const struct m3_config *config)
{
    spec->rank = 0;
    for (const char *s = spec->row->shape; *s; s++) {
        int64_t product = 1;
        for (; *s && *s != ','; s++) product *= m3_config_size(config, *s);
        spec->shape[spec->rank++] = product;
        if (!*s) break;
    }
    if (spec->row->where == M3_IN_VISION && strcmp(spec->row->shape, "W,C") == 0) {     /* a Conv3d: same numbers */
        const int64_t content[4] = { config->vision.channels, config->vision.temporal_patch, config->vision.patch,
                                     config->vision.patch };
        memcpy(spec->shape + 1, content, sizeof content);
        spec->rank = 5;
    }
}

static void set_name(char name[192], const char *place, const char *pattern, int64_t expert)
{
    const char *mark = pattern ? strstr(pattern, "%e") : NULL;
    if (!pattern) name[0] = '\0';
    else if (!mark) snprintf(name, 192, "%s%s", place, pattern);
    else snprintf(name, 192, "%s%.*s%" PRId64 "%s", place, (int)(mark - pattern), pattern, expert, mark + 2);
}

struct walk {
    const struct m3_config *config;
    int (*visit)(void *, const struct m3_tensor_spec *);
    void *self;
};

/* Visits the rows of one place; `place` is the prefix of their names. */
static int visit_rows(const struct walk *walk, enum m3_tensor_where where, const char *place, int64_t layer,
                      int64_t expert)
{
    for (int i = 0; i < m3_tensor_rows; i++) {
        struct m3_tensor_spec spec = { .row = &m3_tensor_table[i], .layer = layer, .expert = expert };
        if (spec.row->where != where) continue;
        set_name(spec.name, place, spec.row->name, expert);
        set_name(spec.other, place, spec.row->other, expert);
        set_shape(&spec, walk->config);
        int status = walk->visit(walk->self, &spec);
        if (status) return status;
    }
    return 0;
}

static int visit_text_layer(const struct walk *walk, const char *place, int64_t l)
{
    const struct m3_config *config = walk->config;
    int moe = m3_config_moe(config, l);

    int status = visit_rows(walk, M3_IN_LAYER, place, l, -1);
    if (!status && m3_config_sparse(config, l)) status = visit_rows(walk, M3_IN_SPARSE, place, l, -1);
    if (!status) status = visit_rows(walk, moe ? M3_IN_MOE : M3_IN_DENSE_MLP, place, l, -1);
    if (!status && moe && config->shared_intermediate) status = visit_rows(walk, M3_IN_SHARED, place, l, -1);
    for (int64_t e = 0; !status && moe && e < config->E; e++) status = visit_rows(walk, M3_IN_EXPERT, place, l, e);
    return status;
}

static int visit_module(const struct walk *walk, const char *prefix, int64_t m)
{
    char place[96], layer[128];
    snprintf(place, sizeof place, "%smodel.mtp.layers.%" PRId64 ".", prefix, m);
    snprintf(layer, sizeof layer, "%stransformer_layer.", place);
    int status = visit_rows(walk, M3_IN_MTP, place, m, -1);
    return status ? status : visit_text_layer(walk, layer, walk->config->layers + m);
}

const char *m3_tensors_prefix(const struct m3_config *config)
{
    return config->type == M3_TYPE_M2 ? "" : "language_model.";
}

int m3_tensors_each(const struct m3_config *config, int64_t modules, const char *prefix,
                    int (*visit)(void *self, const struct m3_tensor_spec *spec), void *self)
{
    const struct walk walk = { config, visit, self };

    int status = visit_rows(&walk, M3_IN_MODEL, prefix, -1, -1);
    for (int64_t l = 0; !status && l < config->layers; l++) {
        char place[96];
        snprintf(place, sizeof place, "%smodel.layers.%" PRId64 ".", prefix, l);
        status = visit_text_layer(&walk, place, l);
    }
    for (int64_t m = 0; !status && m < modules; m++) status = visit_module(&walk, prefix, m);
    if (!status && !config->tied_embeddings) status = visit_rows(&walk, M3_IN_LM_HEAD, prefix, -1, -1);
    if (!config->vision.present) return status;

    if (!status) status = visit_rows(&walk, M3_IN_VISION, "", -1, -1);
    for (int64_t v = 0; !status && v < config->vision.layers; v++) {
        char place[96];
        snprintf(place, sizeof place, "vision_tower.vision_model.encoder.layers.%" PRId64 ".", v);
        status = visit_rows(&walk, M3_IN_VISION_LAYER, place, v, -1);
    }
    return status;
}

struct m3_weight *m3_tensor_field(struct m3_model *model, const struct m3_tensor_spec *spec)
{
    char *base = NULL;
    switch (spec->row->where) {
    case M3_IN_MODEL:
    case M3_IN_LM_HEAD: base = (char *)model; break;
    case M3_IN_LAYER:
    case M3_IN_SPARSE:
    case M3_IN_DENSE_MLP:
    case M3_IN_MOE:
    case M3_IN_SHARED: base = (char *)&model->layers[spec->layer]; break;
    case M3_IN_EXPERT: base = (char *)&model->layers[spec->layer].experts[spec->expert]; break;
    case M3_IN_MTP: base = (char *)&model->mtp[spec->layer]; break;
    case M3_IN_VISION: base = (char *)&model->vision; break;
    case M3_IN_VISION_LAYER: base = (char *)&model->vision.layers[spec->layer]; break;
    }
    return (struct m3_weight *)(void *)(base + spec->row->field);
}
