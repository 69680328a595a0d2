#include "io/config_fields.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* Limits that keep every product of two dimensions, and every tensor, far below 2^63. */
#define WIDTH (1 << 20)
#define HEADS (1 << 16)
#define LAYERS 1024
#define VOCABULARY (1 << 28)
#define POSITIONS ((int64_t)1 << 40)

#define LENGTH(array) (sizeof(array) / sizeof *(array))

enum kind { IS_COUNT, IS_NUMBER, IS_FLAG };             /* int64_t, double, int */
enum absent { NEEDED, NOTED, QUIET };                   /* an error; or the default, with or without a note */

struct place {
    enum config_object object;
    const char *key;
};

/* A number or a flag. In the flat form it may be somewhere else; a file that has both must state the same value twice.
 * A range of one value is for a field whose other values are not supported. */
struct number {
    struct place released;
    enum kind kind;
    size_t offset;
    double min, max;
    enum absent absent;
    double otherwise;
    struct place flat;
};

#define SAME { ROOT, NULL }
#define COUNT_AT(field) IS_COUNT, offsetof(struct config_reading, field)
#define NUMBER_AT(field) IS_NUMBER, offsetof(struct config_reading, field)
#define FLAG_AT(field) IS_FLAG, offsetof(struct config_reading, field)
#define COUNT(field) COUNT_AT(config.field)
#define NUMBER(field) NUMBER_AT(config.field)
#define FLAG(field) FLAG_AT(config.field)

static const struct number text_fields[] = {
    { { TEXT, "hidden_size" }, COUNT(H), 1, WIDTH, NEEDED, 0, SAME },
    { { TEXT, "num_hidden_layers" }, COUNT(layers), 1, LAYERS, NEEDED, 0, SAME },
    { { TEXT, "vocab_size" }, COUNT(V), 1, VOCABULARY, NEEDED, 0, SAME },
    { { TEXT, "num_attention_heads" }, COUNT(Q), 1, HEADS, NEEDED, 0, SAME },
    { { TEXT, "num_key_value_heads" }, COUNT(G), 1, HEADS, NEEDED, 0, SAME },
    { { TEXT, "head_dim" }, COUNT(D), 1, HEADS, NEEDED, 0, SAME },
    { { TEXT, "rms_norm_eps" }, NUMBER(eps), 0, 1, NOTED, 1e-6, SAME },
    { { TEXT, "use_qk_norm" }, FLAG_AT(ignored), 1, 1, QUIET, 1, SAME },
    { { TEXT, "attention_output_gate" }, FLAG_AT(ignored), 0, 0, QUIET, 0, SAME },
    { { TEXT, "attention_bias" }, FLAG_AT(ignored), 0, 0, QUIET, 0, SAME },
    { { TEXT, "rope_theta" }, NUMBER(rope_theta), 1, 1e15, NEEDED, 0, { ROPE, "rope_theta" } },
    { { TEXT, "partial_rotary_factor" },
      NUMBER_AT(rotary_factor),
      1e-6,
      1,
      QUIET,
      0,
      { ROPE, "partial_rotary_factor" } },
    { { TEXT, "rotary_dim" }, COUNT_AT(rotary_dim), 2, HEADS, QUIET, 0, SAME },
    { { TEXT, "tie_word_embeddings" }, FLAG(tied_embeddings), 0, 1, QUIET, 0, SAME },
    { { ROOT, "tie_word_embeddings" }, FLAG_AT(tied_root), 0, 1, QUIET, 0, SAME },
    { { TEXT, "num_mtp_modules" }, COUNT(mtp_modules), 0, LAYERS, QUIET, 0, SAME },
    { { SPARSE, "use_sparse_attention" }, FLAG_AT(use_sparse), 0, 1, QUIET, 1, SAME },
    { { ROOT, "image_token_index" }, COUNT(vision.image_token), 0, VOCABULARY, QUIET, -1, { ROOT, "image_token_id" } },
    { { ROOT, "video_token_index" }, COUNT(vision.video_token), 0, VOCABULARY, QUIET, -1, { ROOT, "video_token_id" } },
};

static const struct number m3_fields[] = {
    { { TEXT, "max_position_embeddings" }, COUNT(max_positions), 1, POSITIONS, NOTED, 1048576, SAME },
    { { TEXT, "use_gemma_norm" }, FLAG(gemma_norm), 0, 1, QUIET, 1, SAME },
};

/* The code of M2 has neither a shared expert nor a factor. */
static const struct number m2_fields[] = {
    { { TEXT, "max_position_embeddings" }, COUNT(max_positions), 1, POSITIONS, NOTED, 196608, SAME },
    { { TEXT, "use_gemma_norm" }, FLAG(gemma_norm), 0, 1, QUIET, 0, SAME },
    { { TEXT, "shared_intermediate_size" }, COUNT(shared_intermediate), 0, 0, QUIET, 0, SAME },
    { { TEXT, "n_shared_experts" }, COUNT_AT(ignored_count), 0, 0, QUIET, 0, SAME },
    { { TEXT, "routed_scaling_factor" }, NUMBER(routed_scaling), 1, 1, QUIET, 1, SAME },
    { { TEXT, "use_mtp" }, FLAG_AT(ignored), 0, 1, QUIET, 0, SAME },
    { { TEXT, "mtp_transformer_layers" }, COUNT_AT(ignored_count), 1, 1, QUIET, 1, SAME },
};

static const struct number sparse_fields[] = {
    { { SPARSE, "sparse_num_index_heads" }, COUNT_AT(index_heads), 1, HEADS, NEEDED, 0, { TEXT, "index_n_heads" } },
    { { SPARSE, "sparse_index_dim" }, COUNT(X), 1, HEADS, NEEDED, 128, { TEXT, "index_head_dim" } },
    { { SPARSE, "sparse_block_size" }, COUNT(block), 1, POSITIONS, NEEDED, 128, { TEXT, "index_block_size" } },
    { { SPARSE, "sparse_topk_blocks" }, COUNT(N), 1, WIDTH, NEEDED, 16, { TEXT, "index_topk_blocks" } },
    { { SPARSE, "sparse_local_block" },
      COUNT(semantics.local_blocks),
      0,
      POSITIONS,
      NOTED,
      1,
      { TEXT, "index_local_blocks" } },
    { { SPARSE, "sparse_init_block" }, COUNT(semantics.init_blocks), 0, POSITIONS, QUIET, 0, SAME },
};

static const struct number dense_fields[] = {
    { { TEXT, "dense_intermediate_size" }, COUNT(dense_intermediate), 1, WIDTH, NEEDED, 0, SAME },
};

static const struct number expert_fields[] = {
    { { TEXT, "intermediate_size" }, COUNT(F), 1, WIDTH, NEEDED, 0, SAME },
    { { TEXT, "num_local_experts" }, COUNT(E), 1, HEADS, NEEDED, 0, { TEXT, "num_experts" } },
    { { TEXT, "num_experts_per_tok" }, COUNT(K), 1, HEADS, NEEDED, 0, SAME },
    { { TEXT, "use_routing_bias" }, FLAG_AT(ignored), 1, 1, QUIET, 1, SAME },
};

static const struct number m3_expert_fields[] = {
    { { TEXT, "shared_intermediate_size" }, COUNT(shared_intermediate), 1, WIDTH, NEEDED, 0, SAME },
    { { TEXT, "n_shared_experts" }, COUNT_AT(ignored_count), 1, 1, QUIET, 1, SAME },
    { { TEXT, "routed_scaling_factor" }, NUMBER(routed_scaling), 0, 1e6, NOTED, 2, SAME },
};

static const struct number oai_fields[] = {
    { { TEXT, "swiglu_alpha" }, NUMBER(swiglu_alpha), 0, 1e6, NOTED, 1.702, SAME },
    { { TEXT, "swiglu_limit" }, NUMBER(swiglu_limit), 1e-6, 1e30, NOTED, 7, SAME },
    { { TEXT, "swiglu_beta" }, NUMBER_AT(ignored_number), 1, 1, QUIET, 1, SAME },
};

static const struct number vision_fields[] = {
    { { VISION, "hidden_size" }, COUNT(vision.W), 1, WIDTH, NEEDED, 0, SAME },
    { { VISION, "num_attention_heads" }, COUNT(vision.A), 1, HEADS, NEEDED, 0, SAME },
    { { VISION, "num_hidden_layers" }, COUNT(vision.layers), 1, LAYERS, NEEDED, 0, SAME },
    { { VISION, "intermediate_size" }, COUNT(vision.intermediate), 1, WIDTH, NEEDED, 0, SAME },
    { { VISION, "patch_size" }, COUNT(vision.patch), 1, 4096, NEEDED, 0, SAME },
    { { VISION, "num_channels" }, COUNT(vision.channels), 1, 4096, NOTED, 3, SAME },
    { { VISION, "layer_norm_eps" }, NUMBER(vision.eps), 0, 1, NOTED, 1e-5, SAME },
    { { VISION, "rope_theta" }, NUMBER(vision.rope_theta), 1, 1e15, NEEDED, 0, { VISION_ROPE, "rope_theta" } },
    { { MERGE, "spatial_merge_size" },
      COUNT(vision.spatial_merge),
      1,
      64,
      NEEDED,
      0,
      { VISION, "spatial_merge_size" } },
    { { MERGE, "temporal_patch_size" },
      COUNT(vision.temporal_patch),
      1,
      64,
      NEEDED,
      0,
      { VISION, "temporal_patch_size" } },
    { { VISION, "vision_segment_max_frames" }, COUNT(vision.segment_max_frames), 1, POSITIONS, QUIET, 0, SAME },
    { { ROOT, "projector_hidden_size" }, COUNT(vision.projector_hidden), 1, WIDTH, NEEDED, 0, SAME },
    { { ROOT, "multimodal_projector_bias" }, FLAG_AT(ignored), 1, 1, QUIET, 1, SAME },
    { { ROOT, "vision_feature_layer" }, COUNT_AT(ignored_count), -1, -1, QUIET, -1, SAME },
};

/* Groups of fields, each with the condition under which they are needed. */
static const struct group {
    enum { ALWAYS, IF_M3, IF_M2, IF_SPARSE, IF_DENSE, IF_MOE, IF_M3_MOE, IF_OAI, IF_VISION } when;
    const struct number *rows;
    size_t count;
} groups[] = {
    { ALWAYS, text_fields, LENGTH(text_fields) },
    { IF_M3, m3_fields, LENGTH(m3_fields) },
    { IF_M2, m2_fields, LENGTH(m2_fields) },
    { IF_SPARSE, sparse_fields, LENGTH(sparse_fields) },
    { IF_DENSE, dense_fields, LENGTH(dense_fields) },
    { IF_MOE, expert_fields, LENGTH(expert_fields) },
    { IF_M3_MOE, m3_expert_fields, LENGTH(m3_expert_fields) },
    { IF_OAI, oai_fields, LENGTH(oai_fields) },
    { IF_VISION, vision_fields, LENGTH(vision_fields) },
};

#define CHOICE(field) offsetof(struct config_reading, field)

/* Fields with a choice of words: the index of the word in `words` is stored, as an int. The first is the default. */
static const struct word {
    struct place place;
    size_t offset;
    const char *words[4];
} words[] = {
    { { TEXT, "hidden_act" }, CHOICE(act), { "swigluoai", "silu" } },
    { { TEXT, "qk_norm_type" }, CHOICE(qk_norm), { "per_head", "per_layer" } },
    { { TEXT, "scoring_func" }, CHOICE(ignored), { "sigmoid" } },
    { { SPARSE, "sparse_score_type" }, CHOICE(config.semantics.pool), { "max", "lse" } },
    { { ROPE, "rope_type" }, CHOICE(ignored), { "default" } },
    { { ROPE, "type" }, CHOICE(ignored), { "default" } },
    { { VISION_ROPE, "rope_type" }, CHOICE(ignored), { "default" } },
    { { VISION_ROPE, "type" }, CHOICE(ignored), { "default" } },
    { { VISION, "hidden_act" }, CHOICE(ignored), { "gelu" } },
    { { VISION, "rope_mode" }, CHOICE(ignored), { "3d" } },
    { { VISION, "position_embedding_type" }, CHOICE(ignored), { "rope" } },
    { { MERGE, "image_token_compression_method" }, CHOICE(ignored), { "patch_merge" } },
    { { ROOT, "projector_hidden_act" }, CHOICE(ignored), { "gelu" } },
    { { ROOT, "vision_feature_select_strategy" }, CHOICE(ignored), { "full" } },
};

/* Read and ignored in the flat form, because transformers behaves the same whatever they say. */
static const struct place unused_in_flat[] = {
    { TEXT, "attention_output_gate" },
    { TEXT, "use_routing_bias" },
    { TEXT, "scoring_func" },
};

/* Read in config.c, or ignored because nothing in this program depends on them. */
/* clang-format off */
static const struct place others[] = {
    { ROOT, "architectures" }, { ROOT, "model_type" }, { ROOT, "text_config" }, { ROOT, "vision_config" },
    { ROOT, "quantization_config" }, { ROOT, "img_token_compression_config" },
    { TEXT, "sparse_attention_config" }, { TEXT, "rope_parameters" }, { TEXT, "moe_layer_freq" },
    { TEXT, "mlp_layer_types" }, { TEXT, "layer_types" }, { TEXT, "attn_type_list" }, { TEXT, "rope_scaling" },
    { TEXT, "sliding_window" },
    { SPARSE, "sparse_attention_freq" }, { SPARSE, "sparse_disable_index_value" },
    { VISION, "rope_parameters" }, { VISION, "img_token_compression_config" }, { QUANTISATION, "weight_block_size" },

    { ROOT, "auto_map" }, { ROOT, "image_seq_length" }, { ROOT, "image_grid_pinpoints" }, { ROOT, "num_reward_heads" },
    { ROOT, "process_image_mode" }, { ROOT, "merged_hidden_size" }, { ROOT, "torch_dtype" }, { ROOT, "dtype" },
    { ROOT, "transformers_version" }, { ROOT, "bos_token_id" }, { ROOT, "eos_token_id" }, { ROOT, "pad_token_id" },
    { TEXT, "architectures" }, { TEXT, "model_type" }, { TEXT, "torch_dtype" }, { TEXT, "dtype" },
    { TEXT, "bos_token_id" }, { TEXT, "eos_token_id" }, { TEXT, "pad_token_id" }, { TEXT, "use_cache" },
    { TEXT, "transformers_version" }, { TEXT, "attention_dropout" }, { TEXT, "initializer_range" },
    { TEXT, "num_nextn_predict_layers" }, { TEXT, "output_router_logits" }, { TEXT, "router_aux_loss_coef" },
    { TEXT, "router_jitter_noise" },
    { VISION, "model_type" }, { VISION, "torch_dtype" }, { VISION, "dtype" }, { VISION, "image_size" },
    { VISION, "projection_dim" }, { VISION, "vocab_size" }, { VISION, "attention_dropout" },
    { VISION, "initializer_range" }, { VISION, "initializer_factor" }, { VISION, "transformers_version" },
    { VISION_ROPE, "partial_rotary_factor" },
    { QUANTISATION, "ignored_layers" }, { QUANTISATION, "modules_to_not_convert" }, { QUANTISATION, "fmt" },
    { QUANTISATION, "activation_scheme" }, { QUANTISATION, "scale_fmt" }, { QUANTISATION, "quant_method" },
    { QUANTISATION, "format" }, { QUANTISATION, "config_groups" }, { QUANTISATION, "ignore" },
    { QUANTISATION, "kv_cache_scheme" }, { QUANTISATION, "quantization_status" },
    { QUANTISATION, "global_compression_ratio" }, { QUANTISATION, "sparsity_config" },
    { QUANTISATION, "transform_config" }, { QUANTISATION, "version" }, { QUANTISATION, "quant_algo" },
    { QUANTISATION, "producer" }, { QUANTISATION, "exclude_modules" }, { QUANTISATION, "group_size" },
    { QUANTISATION, "kv_cache_quant_algo" }, { QUANTISATION, "quantized_layers" },
    { QUANTISATION, "global_quant_config" }, { QUANTISATION, "exclude" }, { QUANTISATION, "export" },
    { QUANTISATION, "layer_quant_config" }, { QUANTISATION, "layer_type_quant_config" },
    { QUANTISATION, "algo_config" }, { QUANTISATION, "quant_mode" }, { QUANTISATION, "softmax_quant_spec" },
    { QUANTISATION, "kv_cache_quant_config" },
};

const char *m3_config_prefix(const struct config_reading *reading, enum config_object object)
{
    static const char *const prefixes[CONFIG_OBJECTS] = {
        [ROOT] = "", [TEXT] = "text_config.", [SPARSE] = "text_config.sparse_attention_config.",
        [ROPE] = "text_config.rope_parameters.", [VISION] = "vision_config.",
        [VISION_ROPE] = "vision_config.rope_parameters.",
        [MERGE] = "vision_config.img_token_compression_config.", [QUANTISATION] = "quantization_config.",
    };
    /* clang-format on */
    int text_only = reading->objects[TEXT] == reading->objects[ROOT];
    int in_text = object == TEXT || object == SPARSE || object == ROPE;
    return prefixes[object] + (text_only && in_text ? strlen(prefixes[TEXT]) : 0);
}

json_t *m3_config_field(const struct config_reading *reading, enum config_object object, const char *key)
{
    json_t *value = json_object_get(reading->objects[object], key);
    return json_is_null(value) ? NULL : value;
}

void m3_config_refuse(struct config_reading *reading, enum config_object object, const char *key, const char *expected)
{
    char *got = m3_json_dump(m3_config_field(reading, object, key), JSON_ENCODE_ANY | JSON_COMPACT);
    reading->status = m3_fail(reading->error, M3_BAD_INPUT, "%s: %s%s: got %.60s%s, expected %s", reading->path,
                              m3_config_prefix(reading, object), key, got ? got : "nothing",
                              got && strlen(got) > 60 ? "..." : "", expected);
    free(got);
}

static void refuse_number(struct config_reading *reading, const struct number *row, struct place place)
{
    char expected[100];
    if (row->kind == IS_FLAG)
        snprintf(expected, sizeof expected, "%s", row->min < row->max ? "true or false" : row->min ? "true" : "false");
    else if (row->min == row->max) snprintf(expected, sizeof expected, "%.17g", row->min);
    else
        snprintf(expected, sizeof expected, "%s from %.7g to %.17g", row->kind == IS_COUNT ? "an integer" : "a number",
                 row->min, row->max);
    m3_config_refuse(reading, place.object, place.key, expected);
}

static void store(struct config_reading *reading, const struct number *row, double value)
{
    char *to = (char *)reading + row->offset;
    if (row->kind == IS_COUNT) *(int64_t *)to = (int64_t)value;
    if (row->kind == IS_NUMBER) *(double *)to = value;
    if (row->kind == IS_FLAG) *(int *)to = (int)value;
}

/* Returns NULL if the field is absent or wrong. Counts are exact in a double: every range ends far below 2^53. */
static const json_t *checked_number(struct config_reading *reading, const struct number *row, struct place place,
                                    int refuse, double *number)
{
    const json_t *value = place.key ? m3_config_field(reading, place.object, place.key) : NULL;
    if (!value) return NULL;
    int typed = row->kind == IS_FLAG    ? json_is_boolean(value)
                : row->kind == IS_COUNT ? json_is_integer(value)
                                        : json_is_number(value);
    *number = row->kind == IS_FLAG ? json_is_true(value) : json_number_value(value);
    if (typed && *number >= row->min && *number <= row->max) return value;
    if (refuse) refuse_number(reading, row, place);
    return NULL;
}

static int is_unused(const struct config_reading *reading, struct place place)
{
    for (size_t i = 0; reading->flat && i < LENGTH(unused_in_flat); i++)
        if (unused_in_flat[i].object == place.object && strcmp(unused_in_flat[i].key, place.key) == 0) return 1;
    return 0;
}

static void read_number(struct config_reading *reading, const struct number *row, int refuse)
{
    double released = 0, flat = 0;
    if (is_unused(reading, row->released)) return;
    const json_t *in_released = checked_number(reading, row, row->released, refuse, &released);
    const json_t *in_flat = checked_number(reading, row, row->flat, refuse, &flat);
    if (in_released) store(reading, row, released);
    else if (in_flat) store(reading, row, flat);
    if (in_released && in_flat && released != flat && refuse) {
        char expected[200];
        snprintf(expected, sizeof expected, "the value of %s%s", m3_config_prefix(reading, row->released.object),
                 row->released.key);
        m3_config_refuse(reading, row->flat.object, row->flat.key, expected);
    }
}

static void read_word(struct config_reading *reading, const struct word *row)
{
    const json_t *value = m3_config_field(reading, row->place.object, row->place.key);
    if (!value || is_unused(reading, row->place)) return;
    const char *got = json_is_string(value) ? json_string_value(value) : "";
    char expected[100] = "";
    int found = -1;
    for (int i = 0; row->words[i]; i++) {
        if (strcmp(row->words[i], got) == 0) found = i;
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s\"%s\"", i ? " or " : "", row->words[i]);
    }
    if (found < 0) m3_config_refuse(reading, row->place.object, row->place.key, expected);
    else *(int *)((char *)reading + row->offset) = found;
}

/* Does the group belong to this type of model? */
static int belongs(const struct config_reading *reading, const struct group *group)
{
    int m2 = reading->config.type == M3_TYPE_M2;
    return m2 ? group->when != IF_M3 && group->when != IF_M3_MOE : group->when != IF_M2;
}

void m3_config_read_fields(struct config_reading *reading)
{
    for (size_t i = 0; i < LENGTH(groups); i++) {
        for (size_t j = 0; j < groups[i].count && belongs(reading, &groups[i]); j++) {
            store(reading, &groups[i].rows[j], groups[i].rows[j].otherwise);
            read_number(reading, &groups[i].rows[j], groups[i].when <= IF_M2);
        }
    }
    for (size_t i = 0; i < LENGTH(words); i++) read_word(reading, &words[i]);
}

static int applies(const struct config_reading *reading, const struct group *group)
{
    if (!belongs(reading, group)) return 0;
    switch (group->when) {
    case ALWAYS:
    case IF_M3:
    case IF_M2: return 1;
    case IF_SPARSE: return reading->any_sparse;
    case IF_DENSE: return reading->any_dense;
    case IF_MOE:
    case IF_M3_MOE: return reading->any_moe;
    case IF_OAI: return reading->config.oai;
    case IF_VISION: return reading->config.vision.present;
    }
    return 1;
}

static void check_absent(struct config_reading *reading, const struct number *row)
{
    int given = m3_config_field(reading, row->released.object, row->released.key) ||
                (row->flat.key && m3_config_field(reading, row->flat.object, row->flat.key));
    if (given || row->absent == QUIET) return;

    const struct place *place = reading->flat && row->flat.key ? &row->flat : &row->released;
    const char *prefix = m3_config_prefix(reading, place->object);
    if (row->absent == NEEDED)
        reading->status = m3_fail(reading->error, M3_BAD_INPUT, "%s: %s%s: got nothing, expected this field",
                                  reading->path, prefix, place->key);
    else
        m3_fail(reading->notes, M3_OK, "%s: %s%s: missing, taken as %.7g, the released value", reading->path, prefix,
                place->key, row->otherwise);
}

void m3_config_check_fields(struct config_reading *reading)
{
    for (size_t i = 0; i < LENGTH(groups); i++)
        for (size_t j = 0; j < groups[i].count && applies(reading, &groups[i]); j++) {
            check_absent(reading, &groups[i].rows[j]);
            if (groups[i].when > IF_M2) read_number(reading, &groups[i].rows[j], 1);
        }
}

/* Compares objects and not their names, because in a text-only file two names mean the same object. */
static int is_here(const struct config_reading *reading, const json_t *object, const char *key, struct place place)
{
    return place.key && reading->objects[place.object] == object && strcmp(place.key, key) == 0;
}

static int is_known(const struct config_reading *reading, const json_t *object, const char *key)
{
    int known = 0;
    for (size_t i = 0; i < LENGTH(groups); i++)
        for (size_t j = 0; j < groups[i].count; j++)
            known |= is_here(reading, object, key, groups[i].rows[j].released) ||
                     is_here(reading, object, key, groups[i].rows[j].flat);
    for (size_t i = 0; i < LENGTH(words); i++) known |= is_here(reading, object, key, words[i].place);
    for (size_t i = 0; i < LENGTH(others); i++) known |= is_here(reading, object, key, others[i]);
    return known;
}

void m3_config_note_unknown(struct config_reading *reading)
{
    for (enum config_object object = 0; object < CONFIG_OBJECTS; object++) {
        if (object == TEXT && reading->objects[TEXT] == reading->objects[ROOT]) continue;
        const char *key;
        json_t *value;
        json_object_foreach(reading->objects[object], key,
                            value) if (!json_is_null(value) && !is_known(reading, reading->objects[object], key))
            m3_fail(reading->notes, M3_OK, "%s: %s%s: unknown field, ignored", reading->path,
                    m3_config_prefix(reading, object), key);
    }
}
