#include "estimate/foreign.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

#define WIDTH (1 << 20)
#define HEADS (1 << 16)
#define LAYERS 1024
#define POSITIONS ((int64_t)1 << 40)
#define PARAMETERS ((int64_t)1 << 56)

enum kind { IS_COUNT, IS_TEXT, IS_FLAG, IS_UNUSED };        /* int64_t, char *, int; known but without effect */

struct form {
    int ignored;
    int64_t latent, rotary;             /* of latent attention: numbers that a token has in the cache */
    struct m3_foreign model;
};

struct field {
    const char *key;
    enum kind kind;
    size_t offset;
    int64_t low, high;                  /* of a flag: the supported values */
    int needed;
};

#define AT(member) offsetof(struct form, member)

static const struct field llama_fields[] = {
    { "hidden_size", IS_COUNT, AT(model.config.H), 1, WIDTH, 1 },
    { "intermediate_size", IS_COUNT, AT(model.config.dense_intermediate), 1, WIDTH, 1 },
    { "num_hidden_layers", IS_COUNT, AT(model.config.layers), 1, LAYERS, 1 },
    { "num_attention_heads", IS_COUNT, AT(model.config.Q), 1, HEADS, 1 },
    { "num_key_value_heads", IS_COUNT, AT(model.config.G), 1, HEADS, 0 },
    { "head_dim", IS_COUNT, AT(model.config.D), 1, HEADS, 0 },
    { "vocab_size", IS_COUNT, AT(model.config.V), 1, 1 << 28, 1 },
    { "max_position_embeddings", IS_COUNT, AT(model.config.max_positions), 1, POSITIONS, 1 },
    { "tie_word_embeddings", IS_FLAG, AT(model.config.tied_embeddings), 0, 1, 0 },
    { "attention_bias", IS_FLAG, AT(ignored), 0, 0, 0 },
    { "mlp_bias", IS_FLAG, AT(ignored), 0, 0, 0 },
    { .key = "model_type", .kind = IS_UNUSED },
    { .key = "architectures", .kind = IS_UNUSED },
    { .key = "hidden_act", .kind = IS_UNUSED },
    { .key = "attention_dropout", .kind = IS_UNUSED },
    { .key = "bos_token_id", .kind = IS_UNUSED },
    { .key = "eos_token_id", .kind = IS_UNUSED },
    { .key = "pad_token_id", .kind = IS_UNUSED },
    { .key = "initializer_range", .kind = IS_UNUSED },
    { .key = "pretraining_tp", .kind = IS_UNUSED },
    { .key = "rms_norm_eps", .kind = IS_UNUSED },
    { .key = "rope_scaling", .kind = IS_UNUSED },
    { .key = "rope_theta", .kind = IS_UNUSED },
    { .key = "rope_parameters", .kind = IS_UNUSED },
    { .key = "torch_dtype", .kind = IS_UNUSED },
    { .key = "dtype", .kind = IS_UNUSED },
    { .key = "transformers_version", .kind = IS_UNUSED },
    { .key = "use_cache", .kind = IS_UNUSED },
    { .key = NULL },
};

static const struct field few_fields[] = {
    { .key = "model_type", .kind = IS_UNUSED },
    { "name", IS_TEXT, AT(model.name), 0, 0, 1 },
    { "source", IS_TEXT, AT(model.source), 0, 0, 1 },
    { "parameters", IS_COUNT, AT(model.parameters), 1, PARAMETERS, 1 },
    { "active_parameters", IS_COUNT, AT(model.active), 1, PARAMETERS, 0 },
    { "attention_layers", IS_COUNT, AT(model.config.layers), 1, LAYERS, 0 },
    { "num_attention_heads", IS_COUNT, AT(model.config.Q), 1, HEADS, 0 },
    { "num_key_value_heads", IS_COUNT, AT(model.config.G), 1, HEADS, 0 },
    { "head_dim", IS_COUNT, AT(model.config.D), 1, HEADS, 0 },
    { "kv_lora_rank", IS_COUNT, AT(latent), 1, WIDTH, 0 },
    { "qk_rope_head_dim", IS_COUNT, AT(rotary), 1, WIDTH, 0 },
    { "max_position_embeddings", IS_COUNT, AT(model.config.max_positions), 1, POSITIONS, 0 },
    { .key = NULL },
};

static int refuse(const char *path, const char *key, const json_t *value, const char *expected, struct m3_error *error)
{
    char *got = m3_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got %.60s%s, expected %s", path, key, got ? got : "nothing",
                         got && strlen(got) > 60 ? "..." : "", expected);
    free(got);
    return status;
}

static int read_field(struct form *form, const struct field *field, const json_t *value, const char *path,
                      struct m3_error *error)
{
    char expected[80];
    void *to = (char *)form + field->offset;
    switch (field->kind) {
    case IS_COUNT:
        snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, field->low, field->high);
        *(int64_t *)to = json_integer_value(value);
        if (json_is_integer(value) && *(int64_t *)to >= field->low && *(int64_t *)to <= field->high) return M3_OK;
        return refuse(path, field->key, value, expected, error);
    case IS_TEXT:
        if (!json_string_length(value)) return refuse(path, field->key, value, "some words", error);
        *(char **)to = strdup(json_string_value(value));
        return *(char **)to ? M3_OK : m3_fail_memory(error, path, json_string_length(value));
    case IS_FLAG:
        if (!json_is_boolean(value) || json_is_true(value) > field->high)
            return refuse(path, field->key, value, field->high ? "true or false" : "false", error);
        *(int *)to = json_is_true(value);
        return M3_OK;
    case IS_UNUSED: return M3_OK;
    }
    return M3_OK;
}

static const struct field *find_field(const struct field *fields, const char *key)
{
    for (; fields->key; fields++)
        if (strcmp(fields->key, key) == 0) return fields;
    return NULL;
}

static int refuse_key(const char *path, const char *key, const struct field *fields, struct m3_error *error)
{
    char names[512] = "";
    for (; fields->key; fields++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] ? ", " : "", fields->key);
    return m3_fail(error, M3_BAD_INPUT, "%s: got the unknown field %s, expected only %s", path, key, names);
}

/* Reports all errors in one call; null is the same as absent. */
static int read_fields(struct form *form, const struct field *fields, int few, const json_t *root, const char *path,
                       struct m3_error *notes, struct m3_error *error)
{
    const char *key;
    json_t *value;
    int status = M3_OK;
    json_object_foreach((json_t *)root, key, value)
    {
        const struct field *field = find_field(fields, key);
        int failed = M3_OK;
        if (field && !json_is_null(value)) failed = read_field(form, field, value, path, error);
        else if (!field && few) failed = refuse_key(path, key, fields, error);
        else if (!field && !json_is_null(value) && strcmp(key, "quantization_config") == 0)
            failed = refuse(path, key, value, "null", error);
        else if (!field) m3_fail(notes, M3_OK, "%s: %s: unknown field, ignored", path, key);
        if (failed) status = failed;
    }
    for (const struct field *field = fields; field->key; field++) {
        value = json_object_get(root, field->key);
        if (field->needed && (!value || json_is_null(value)))
            status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got nothing, expected this field", path, field->key);
    }
    return status;
}

static int odd(const char *path, const char *what, int64_t left, int64_t right, struct m3_error *error)
{
    return m3_fail(error, M3_BAD_INPUT, "%s: got %" PRId64 " and %" PRId64 ", expected %s", path, left, right, what);
}

static void count(struct m3_census *census, enum m3_component component, int64_t tensors, int64_t parameters)
{
    census->of[component] =
        (struct m3_census_row){ .tensors = tensors, .parameters = parameters, .bytes = 2 * parameters };
}

/* This model has no bias and no norms of heads; a layer has q, k, v, o, gate, up, down and two norms. */
static int settle_llama(struct m3_foreign *model, const char *path, struct m3_error *error)
{
    struct m3_config *c = &model->config;
    if (!c->G) c->G = c->Q;
    if (!c->D && c->H % c->Q)
        return odd(path, "hidden_size to be a multiple of num_attention_heads", c->H, c->Q, error);
    if (!c->D) c->D = c->H / c->Q;
    if (c->Q % c->G) return odd(path, "num_attention_heads to be a multiple of num_key_value_heads", c->Q, c->G, error);
    double layer = 2.0 * (double)(c->Q + c->G) * (double)c->D + 3.0 * (double)c->dense_intermediate;
    if (!((double)c->H * ((double)c->layers * layer + 2.0 * (double)c->V) < 0x1p56))
        return m3_fail(error, M3_BAD_INPUT, "%s: the sizes make a model of more than 2^56 parameters", path);

    struct m3_census *census = &model->census;
    count(census, M3_COMPONENT_EMBEDDING, 1, c->V * c->H);
    if (!c->tied_embeddings) count(census, M3_COMPONENT_LM_HEAD, 1, c->V * c->H);
    count(census, M3_COMPONENT_ATTENTION, 4 * c->layers, c->layers * 2 * c->H * (c->Q + c->G) * c->D);
    count(census, M3_COMPONENT_DENSE_MLP, 3 * c->layers, c->layers * 3 * c->H * c->dense_intermediate);
    count(census, M3_COMPONENT_NORMS, 2 * c->layers + 1, (2 * c->layers + 1) * c->H);
    return M3_OK;
}

/* Attention is described completely or not at all: by heads, or by the numbers that latent attention keeps per
 * token. */
static int settle_few(struct form *form, const char *path, struct m3_error *error)
{
    struct m3_foreign *model = &form->model;
    const struct m3_config *c = &model->config;
    if (!model->active) model->active = model->parameters;
    if (model->active > model->parameters)
        return odd(path, "active_parameters to be at most parameters", model->active, model->parameters, error);

    int heads = c->Q && c->G && c->D, latent = form->latent && form->rotary;
    int some_heads = c->Q || c->G || c->D, some_latent = form->latent || form->rotary;
    int any = c->layers || some_heads || some_latent;
    int whole = c->layers && c->max_positions && heads == some_heads && latent == some_latent && heads != latent;
    if (any && !whole)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: got only some fields of the attention, expected attention_layers and "
                       "max_position_embeddings with num_attention_heads, num_key_value_heads and head_dim, or with "
                       "kv_lora_rank and qk_rope_head_dim",
                       path);
    if (heads && c->Q % c->G)
        return odd(path, "num_attention_heads to be a multiple of num_key_value_heads", c->Q, c->G, error);
    model->cached_numbers = heads ? 2 * c->G * c->D : form->latent + form->rotary;
    return M3_OK;
}

static int has_class(const json_t *root, const char *name)
{
    const json_t *list = json_object_get(root, "architectures");
    const char *first = json_string_value(json_array_get(list, 0));
    return json_array_size(list) == 1 && first && strcmp(first, name) == 0;
}

static int read(struct m3_foreign *model, int few, const json_t *root, const char *path, struct m3_error *notes,
                struct m3_error *error)
{
    struct form form = { 0 };
    int status = M3_OK;
    if (!few && json_object_get(root, "architectures") && !has_class(root, "LlamaForCausalLM"))
        status = refuse(path, "architectures", json_object_get(root, "architectures"), "[\"LlamaForCausalLM\"]", error);
    if (!status) status = read_fields(&form, few ? few_fields : llama_fields, few, root, path, notes, error);
    if (!status) status = few ? settle_few(&form, path, error) : settle_llama(&form.model, path, error);
    *model = form.model;
    model->few = few;
    if (!status) {      /* otherwise the number of layers may be anything */
        model->config.sparse = calloc((size_t)model->config.layers + 1, 1);
        model->config.moe = calloc((size_t)model->config.layers + 1, 1);
        if (!model->config.sparse || !model->config.moe)
            status = m3_fail_memory(error, path, (size_t)model->config.layers + 1);
    }
    if (status) m3_foreign_free(model);
    return status;
}

/* The type of any other model is refused, or its class if it has no type. This happens here because here all types are
 * known that `estimate` accepts. */
static int refuse_others(const json_t *root, const char *path, struct m3_error *error)
{
    const json_t *type = json_object_get(root, "model_type"), *list = json_object_get(root, "architectures");
    const char *name = json_string_value(type), *class = json_string_value(json_array_get(list, 0));
    for (enum m3_model_type own = M3_TYPE_VL; name && own <= M3_TYPE_M2; own++)
        if (strcmp(name, m3_config_type_name(own)) == 0) return M3_OK;
    if (type && !json_is_null(type))
        return refuse(path, "model_type", type,
                      "\"minimax_m3_vl\", \"minimax_m3_vl_text\" for text alone, "
                      "\"minimax_m2\", \"llama\" or \"m3ref_comparison\"",
                      error);
    if (class && strncmp(class, "MiniMax", 7) != 0)
        return refuse(path, "architectures", list,
                      "[\"MiniMaxM3SparseForConditionalGeneration\"], "
                      "[\"MiniMaxM2ForCausalLM\"] or [\"LlamaForCausalLM\"]",
                      error);
    return M3_OK;
}

int m3_foreign_read(struct m3_foreign *model, int *is_one, const char *path, struct m3_error *notes,
                    struct m3_error *error)
{
    *model = (struct m3_foreign){ 0 };
    json_t *root;
    int status = m3_json_load(&root, path, error);
    if (status) return status;
    const json_t *given = json_object_get(root, "model_type");
    const char *type = given ? json_string_value(given) : has_class(root, "LlamaForCausalLM") ? "llama" : NULL;
    int few = type && strcmp(type, "m3ref_comparison") == 0;
    *is_one = few || (type && strcmp(type, "llama") == 0);
    status = *is_one ? read(model, few, root, path, notes, error) : refuse_others(root, path, error);
    json_decref(root);
    return status;
}

void m3_foreign_free(struct m3_foreign *model)
{
    free(model->name);
    free(model->source);
    m3_config_free(&model->config);
    *model = (struct m3_foreign){ 0 };
}
