#include "io/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/config_fields.h"
#include "io/json.h"

static void fail(struct config_reading *reading, const char *what)
{
    reading->status = m3_fail(reading->error, M3_BAD_INPUT, "%s: %s", reading->path, what);
}

/* A field that must be an object if it is present. */
static json_t *object_field(struct config_reading *reading, enum config_object object, const char *key)
{
    json_t *value = m3_config_field(reading, object, key);
    if (!value || json_is_object(value)) return value;
    m3_config_refuse(reading, object, key, "an object");
    return NULL;
}

static int is_one_of(const char *name, const char *const *names)
{
    for (; name && *names; names++)
        if (strcmp(name, *names) == 0) return 1;
    return 0;
}

static const char *const type_names[] = {
    [M3_TYPE_VL] = "minimax_m3_vl",
    [M3_TYPE_VL_TEXT] = "minimax_m3_vl_text",
    [M3_TYPE_M2] = "minimax_m2",
};

const char *m3_config_type_name(enum m3_model_type type) { return type_names[type]; }

/* Returns -1 if there is no such type. */
static int find_type(enum m3_model_type *type, const char *name)
{
    for (*type = M3_TYPE_VL; *type <= M3_TYPE_M2; (*type)++)
        if (name && strcmp(type_names[*type], name) == 0) return 0;
    *type = M3_TYPE_VL;
    return -1;
}

/* Refuses other models by name. Class names inside text_config and vision_config are ignored: they differ between
 * files with the same meaning. */
static int check_model(struct config_reading *reading)
{
    static const char *const classes[] = { "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForCausalLM",
                                           "MiniMaxM3SparseForCausalLM", NULL };
    static const char *const m2_classes[] = { "MiniMaxM2ForCausalLM", NULL };
    const json_t *type = m3_config_field(reading, ROOT, "model_type");
    const json_t *list = m3_config_field(reading, ROOT, "architectures");
    if (!type && !list) fail(reading, "model_type: got nothing, expected \"minimax_m3_vl\"");
    if (type && find_type(&reading->config.type, json_string_value(type)))
        m3_config_refuse(reading, ROOT, "model_type",
                         "\"minimax_m3_vl\", \"minimax_m3_vl_text\" for text alone, or "
                         "\"minimax_m2\"");
    if (!type && is_one_of(json_string_value(json_array_get(list, 0)), m2_classes)) reading->config.type = M3_TYPE_M2;

    int m2 = reading->config.type == M3_TYPE_M2, known = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        known &= is_one_of(json_string_value(json_array_get(list, i)), m2 ? m2_classes : classes);
    if (list && !known && !reading->status)
        m3_config_refuse(reading, ROOT, "architectures",
                         m2 ? "[\"MiniMaxM2ForCausalLM\"]" : "[\"MiniMaxM3SparseForConditionalGeneration\"]");
    return reading->status;
}

static void find_objects(struct config_reading *reading)
{
    static const char *const parts[] = { "text_config", "vision_config" };
    json_t **objects = reading->objects;
    const json_t *type = m3_config_field(reading, ROOT, "model_type");
    objects[TEXT] = object_field(reading, ROOT, "text_config");
    if (!objects[TEXT] && type && reading->config.type == M3_TYPE_VL && !m3_config_field(reading, ROOT, "text_config"))
        fail(reading, "text_config: got nothing, expected an object");
    for (size_t i = 0; reading->config.type == M3_TYPE_M2 && i < 2; i++)
        if (m3_config_field(reading, ROOT, parts[i]))
            m3_config_refuse(reading, ROOT, parts[i], "none: fields of minimax_m2 are at the top level");
    if (!objects[TEXT]) objects[TEXT] = objects[ROOT];
    objects[SPARSE] = object_field(reading, TEXT, "sparse_attention_config");
    objects[ROPE] = object_field(reading, TEXT, "rope_parameters");
    objects[VISION] = object_field(reading, ROOT, "vision_config");
    objects[VISION_ROPE] = object_field(reading, VISION, "rope_parameters");
    objects[MERGE] = object_field(reading, VISION, "img_token_compression_config");
    objects[QUANTISATION] = object_field(reading, ROOT, "quantization_config");
    reading->config.vision.present = objects[VISION] != NULL;

    /* Some tools add layer_types to a released file: sparse_attention_config decides. */
    reading->flat = !objects[SPARSE] && (objects[ROPE] || m3_config_field(reading, TEXT, "layer_types") ||
                                         m3_config_field(reading, TEXT, "index_n_heads"));
}

/* Reads a list with a 0 or 1 per layer, or with one of two words per layer. Returns NULL if it is absent or wrong. */
static unsigned char *read_layers(struct config_reading *reading, enum config_object object, const char *key,
                                  const char *word0, const char *word1)
{
    const json_t *list = m3_config_field(reading, object, key);
    size_t layers = (size_t)reading->config.layers;
    if (!list || layers == 0) return NULL;

    char expected[200];
    if (word0) snprintf(expected, sizeof expected, "a list of %zu times \"%s\" or \"%s\"", layers, word0, word1);
    else snprintf(expected, sizeof expected, "a list of %zu times 0 or 1", layers);
    unsigned char *flags = calloc(layers, 1);
    if (!flags) {
        reading->status = m3_fail_memory(reading->error, reading->path, layers);
        return NULL;
    }
    int good = json_is_array(list) && json_array_size(list) == layers;
    for (size_t i = 0; good && i < layers; i++) {
        const json_t *value = json_array_get(list, i);
        const char *word = json_string_value(value);
        json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
        flags[i] = word0 ? word && strcmp(word, word1) == 0 : number == 1;
        good = word0 ? word && (flags[i] || strcmp(word, word0) == 0) : number == 0 || number == 1;
    }
    if (good) return flags;
    m3_config_refuse(reading, object, key, expected);
    free(flags);
    return NULL;
}

/* Merges the released and the flat form of one list; if a file has both, they must agree. */
static unsigned char *merge_layers(struct config_reading *reading, unsigned char *released, unsigned char *flat,
                                   const char *key)
{
    if (released && flat && memcmp(released, flat, (size_t)reading->config.layers) != 0) {
        int64_t layer = 0;
        while (released[layer] == flat[layer]) layer++;
        reading->status =
            m3_fail(reading->error, M3_BAD_INPUT,
                    "%s: %s%s: layer %" PRId64 ": got a kind that differs from the released list in the same config",
                    reading->path, m3_config_prefix(reading, TEXT), key, layer);
    }
    if (!released) return flat;
    free(flat);
    return released;
}

/* M2 has no dense layers, and no field that says so. */
static void all_layers_moe(struct config_reading *reading)
{
    size_t layers = (size_t)reading->config.layers;
    if (!(reading->config.moe = malloc(layers + 1)))
        reading->status = m3_fail_memory(reading->error, reading->path, layers);
    else memset(reading->config.moe, 1, layers);
}

static void read_moe_layers(struct config_reading *reading)
{
    unsigned char *released = read_layers(reading, TEXT, "moe_layer_freq", NULL, NULL);
    unsigned char *flat = read_layers(reading, TEXT, "mlp_layer_types", "dense", "sparse");
    reading->config.moe = merge_layers(reading, released, flat, "mlp_layer_types");
    int undescribed =
        !m3_config_field(reading, TEXT, "moe_layer_freq") && !m3_config_field(reading, TEXT, "mlp_layer_types");
    if (undescribed && reading->config.type == M3_TYPE_M2) all_layers_moe(reading);
    else if (undescribed)
        reading->status = m3_fail(reading->error, M3_BAD_INPUT,
                                  "%s: %s%s: got nothing, expected the kind of each "
                                  "layer",
                                  reading->path, m3_config_prefix(reading, TEXT),
                                  reading->flat ? "mlp_layer_types" : "moe_layer_freq");
    for (int64_t i = 0; reading->config.moe && i < reading->config.layers; i++) {
        reading->any_moe |= reading->config.moe[i];
        reading->any_dense |= !reading->config.moe[i];
    }
}

/* 1 if the file does not mention sparse attention: then every layer is a full layer. */
static int has_no_sparse_config(const struct config_reading *reading)
{
    static const char *const flat[] = {
        "layer_types", "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks",
        NULL
    };
    int none = !reading->objects[SPARSE];
    for (int i = 0; flat[i]; i++) none &= !m3_config_field(reading, TEXT, flat[i]);
    return none;
}

static void read_sparse_layers(struct config_reading *reading)
{
    unsigned char *released = read_layers(reading, SPARSE, "sparse_attention_freq", NULL, NULL);
    unsigned char *flat = read_layers(reading, TEXT, "layer_types", "full_attention", "minimax_m3_sparse");
    reading->config.sparse = merge_layers(reading, released, flat, "layer_types");
    if (has_no_sparse_config(reading)) {
        if (reading->config.type != M3_TYPE_M2)
            m3_fail(reading->notes, M3_OK, "%s: describes no sparse attention: every layer uses full attention",
                    reading->path);
    } else if (!reading->config.sparse && reading->use_sparse && !m3_config_field(reading, TEXT, "layer_types") &&
               !m3_config_field(reading, SPARSE, "sparse_attention_freq")) {
        enum config_object object = reading->flat ? TEXT : SPARSE;
        reading->status = m3_fail(reading->error, M3_BAD_INPUT,
                                  "%s: %s%s: got nothing, expected the kind of each "
                                  "layer",
                                  reading->path, m3_config_prefix(reading, object),
                                  reading->flat ? "layer_types" : "sparse_attention_freq");
    }
    if (!reading->config.sparse && !(reading->config.sparse = calloc((size_t)reading->config.layers + 1, 1)))
        reading->status = m3_fail_memory(reading->error, reading->path, (size_t)reading->config.layers);
    for (int64_t i = 0; reading->config.sparse && i < reading->config.layers; i++) {
        reading->config.sparse_switched_off |= reading->config.sparse[i] && !reading->use_sparse;
        reading->config.sparse[i] &= reading->use_sparse;
        reading->any_sparse |= reading->config.sparse[i];
    }
}

/* The index branch has no value head in this model. For a full layer the entry has no meaning. */
static void check_index_value(struct config_reading *reading)
{
    unsigned char *disabled = read_layers(reading, SPARSE, "sparse_disable_index_value", NULL, NULL);
    for (int64_t i = 0; disabled && reading->config.sparse && i < reading->config.layers; i++)
        if (reading->config.sparse[i] && !disabled[i])
            reading->status =
                m3_fail(reading->error, M3_BAD_INPUT,
                        "%s: %ssparse_disable_index_value: layer %" PRId64 ": got 0, expected 1 for a sparse layer",
                        reading->path, m3_config_prefix(reading, SPARSE), i);
    free(disabled);
}

/* A field of M2: 1 is full attention. M1 also has 0, lightning attention. */
static void check_attention_types(struct config_reading *reading)
{
    const json_t *list = m3_config_field(reading, TEXT, "attn_type_list");
    size_t layers = (size_t)reading->config.layers, full = 0;
    if (!list || layers == 0) return;
    for (size_t i = 0; i < json_array_size(list); i++) full += json_integer_value(json_array_get(list, i)) == 1;
    if (full == layers && json_array_size(list) == layers) return;
    char expected[80];
    snprintf(expected, sizeof expected, "a list of %zu times 1, full attention", layers);
    m3_config_refuse(reading, TEXT, "attn_type_list", expected);
}

/* M2 has one activation; it normalises q and k as whole vectors unless the file says otherwise. */
static void settle_kinds(struct config_reading *reading)
{
    int m2 = reading->config.type == M3_TYPE_M2;
    reading->config.oai = !m2 && (reading->flat || reading->act == ACT_SWIGLUOAI);
    if (m2 && reading->act == ACT_SWIGLUOAI && m3_config_field(reading, TEXT, "hidden_act"))
        m3_config_refuse(reading, TEXT, "hidden_act", "\"silu\"");
    if (!m2 && reading->qk_norm == QK_NORM_PER_LAYER) m3_config_refuse(reading, TEXT, "qk_norm_type", "\"per_head\"");
    reading->config.qk_norm_whole =
        m3_config_field(reading, TEXT, "qk_norm_type") ? reading->qk_norm == QK_NORM_PER_LAYER : m2;
}

/* Checks fields that must be absent, one that may only repeat another, and the one list of numbers. */
static void check_odd_fields(struct config_reading *reading)
{
    check_attention_types(reading);
    if (m3_config_field(reading, TEXT, "rope_scaling")) m3_config_refuse(reading, TEXT, "rope_scaling", "null");
    if (m3_config_field(reading, TEXT, "sliding_window")) m3_config_refuse(reading, TEXT, "sliding_window", "null");
    json_t *again = m3_config_field(reading, ROOT, "img_token_compression_config");
    if (again && reading->objects[MERGE] && !json_equal(again, reading->objects[MERGE]))
        m3_config_refuse(reading, ROOT, "img_token_compression_config", "the same as in vision_config");
    m3_config_read_quantised(reading);
}

/* transformers reads only the factor, and may write an unused rotary_dim as well. */
static void settle_rotary(struct config_reading *reading)
{
    struct m3_config *config = &reading->config;
    const char *prefix = m3_config_prefix(reading, TEXT);
    int64_t by_factor = llround(reading->rotary_factor * (double)config->D);
    int differ = reading->rotary_dim && by_factor && reading->rotary_dim != by_factor;
    config->R = reading->flat && by_factor ? by_factor : reading->rotary_dim ? reading->rotary_dim : by_factor;

    if (differ && !reading->flat)
        reading->status =
            m3_fail(reading->error, M3_BAD_INPUT,
                    "%s: %srotary_dim: got %" PRId64 ", expected %" PRId64 ", partial_rotary_factor times head_dim",
                    reading->path, prefix, reading->rotary_dim, by_factor);
    if (differ && reading->flat)
        m3_fail(reading->notes, M3_OK, "%s: %srotary_dim: %" PRId64 " is overridden by partial_rotary_factor: %" PRId64,
                reading->path, prefix, reading->rotary_dim, by_factor);
    if (!by_factor && reading->rotary_dim && reading->flat)
        m3_fail(reading->notes, M3_OK,
                "%s: %srotary_dim: %" PRId64 " is used, because partial_rotary_factor is missing; "
                "transformers would rotate all of head_dim",
                reading->path, prefix, reading->rotary_dim);
    if (config->R == 0)
        reading->status = m3_fail(reading->error, M3_BAD_INPUT,
                                  "%s: %srotary_dim: got nothing, expected this field "
                                  "or partial_rotary_factor",
                                  reading->path, prefix);
}

/* Checks `what`, a relation between fields with their released names. Does nothing if fields themselves are wrong. */
static void expect(struct config_reading *reading, int holds, const char *what, int64_t left, int64_t right)
{
    if (!holds)
        reading->status = m3_fail(reading->error, M3_BAD_INPUT, "%s: got %" PRId64 " and %" PRId64 ", expected %s",
                                  reading->path, left, right, what);
}

static void check_relations(struct config_reading *reading)
{
    const struct m3_config *c = &reading->config;
    const struct m3_vision_config *v = &c->vision;
    expect(reading, c->Q % c->G == 0, "num_attention_heads to be a multiple of num_key_value_heads", c->Q, c->G);
    expect(reading, c->R % 2 == 0, "an even rotary_dim, for head_dim", c->R, c->D);
    expect(reading, c->R <= c->D, "rotary_dim to be at most head_dim", c->R, c->D);
    if (reading->any_sparse) {
        expect(reading, c->R <= c->X, "rotary_dim to be at most sparse_index_dim", c->R, c->X);
        expect(reading, reading->index_heads == c->G, "sparse_num_index_heads to equal num_key_value_heads",
               reading->index_heads, c->G);
    }
    if (reading->any_moe)
        expect(reading, c->K <= c->E, "num_experts_per_tok to be at most num_local_experts", c->K, c->E);
    if (v->present) {
        expect(reading, v->W % v->A == 0, "vision hidden_size to be a multiple of its num_attention_heads", v->W, v->A);
        expect(reading, v->W / v->A >= 6, "vision heads of at least 6 channels, 2 for each axis", v->W, v->A);
        expect(reading, v->image_token < 0 || v->image_token != v->video_token,
               "image_token_index and video_token_index to differ", v->image_token, v->video_token);
    }
    expect(reading, v->image_token < c->V, "image_token_index to be below vocab_size", v->image_token, c->V);
    expect(reading, v->video_token < c->V, "video_token_index to be below vocab_size", v->video_token, c->V);

    double per_layer = 2.0 * (double)(c->Q + c->G) * c->D + 3.0 * c->dense_intermediate +
                       3.0 * ((double)c->E * c->F + c->shared_intermediate);
    double parameters = c->H * (c->layers * per_layer + 2.0 * c->V);
    if (!(parameters < 0x1p56)) fail(reading, "the sizes make a model of more than 2^56 parameters");
}

static int read_all(struct config_reading *reading)
{
    if (check_model(reading)) return reading->status;
    find_objects(reading);
    m3_config_read_fields(reading);
    settle_kinds(reading);
    reading->config.tied_embeddings |= reading->tied_root;
    read_moe_layers(reading);
    read_sparse_layers(reading);
    check_index_value(reading);
    check_odd_fields(reading);
    m3_config_check_fields(reading);
    m3_config_note_unknown(reading);
    if (reading->config.D > 0) settle_rotary(reading);
    if (!reading->status) check_relations(reading);
    if (!reading->status && reading->config.vision.present)
        reading->config.vision.U = reading->config.vision.W / reading->config.vision.A;
    return reading->status;
}

/* Takes ownership of root. */
static int settle(struct m3_config *config, json_t *root, const char *path, struct m3_error *notes,
                  struct m3_error *error)
{
    struct config_reading reading = { .path = path, .objects[ROOT] = root, .notes = notes, .error = error };
    int status = json_is_object(root)
                     ? read_all(&reading)
                     : m3_fail(error, M3_BAD_INPUT, "%s: got another JSON value, expected an object", path);
    json_decref(root);
    if (status) m3_config_free(&reading.config);
    else *config = reading.config;
    return status;
}

int m3_config_read(struct m3_config *config, const char *path, struct m3_error *notes, struct m3_error *error)
{
    json_t *root;
    *config = (struct m3_config){ 0 };
    int status = m3_json_load(&root, path, error);
    return status ? status : settle(config, root, path, notes, error);
}

int m3_config_parse(struct m3_config *config, const char *text, const char *name, struct m3_error *notes,
                    struct m3_error *error)
{
    json_t *root;
    *config = (struct m3_config){ 0 };
    int status = m3_json_parse(&root, text, strlen(text), name, error);
    return status ? status : settle(config, root, name, notes, error);
}

int m3_config_sparse(const struct m3_config *c, int64_t l) { return c->sparse[l < c->layers ? l : c->layers - 1]; }

int m3_config_moe(const struct m3_config *c, int64_t l) { return c->moe[l < c->layers ? l : c->layers - 1]; }

int64_t m3_config_size(const struct m3_config *c, char letter)
{
    switch (letter) {
    case 'H': return c->H;
    case 'Q': return c->Q;
    case 'G': return c->G;
    case 'D': return c->D;
    case 'X': return c->X;
    case 'V': return c->V;
    case 'N': return c->N;
    case 'K': return c->K;
    case 'E': return c->E;
    case 'F': return c->F;
    case 'q': return c->qk_norm_whole ? c->Q * c->D : c->D;
    case 'k': return c->qk_norm_whole ? c->G * c->D : c->D;
    case 'I': return c->dense_intermediate;
    case 'J': return c->shared_intermediate;
    case 'W': return c->vision.W;
    case 'A': return c->vision.A;
    case 'U': return c->vision.U;
    case 'L': return c->vision.intermediate;
    case 'Y': return c->vision.projector_hidden;
    case 'Z': return c->vision.spatial_merge * c->vision.spatial_merge * c->H;
    case 'C': return c->vision.channels * c->vision.temporal_patch * c->vision.patch * c->vision.patch;
    case '2': return 2;
    case '3': return 3;
    default: return 0;
    }
}

void m3_config_free(struct m3_config *config)
{
    free(config->sparse);
    free(config->moe);
    *config = (struct m3_config){ 0 };
}
