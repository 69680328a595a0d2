#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/private/parts.h"
#include "model/tensors.h"

const char *const m3_component_names[M3_COMPONENTS] = {
    "embedding",  "lm_head",         "attention", "indexer",      "dense_mlp", "moe_routed", "moe_shared",
    "moe_router", "moe_router_bias", "norms",     "vision_tower", "projector", "mtp",
};

/* The component of a tensor by a part of its name: the first matching row decides. */
static const struct {
    const char *part;
    enum m3_component component;
} name_parts[] = {
    { "mtp.", M3_COMPONENT_MTP_MODULES },
    { "vision_tower.", M3_COMPONENT_VISION_TOWER },
    { "multi_modal_projector.", M3_COMPONENT_PROJECTOR },
    { "patch_merge_mlp.", M3_COMPONENT_PROJECTOR },
    { "embed_tokens.", M3_COMPONENT_EMBEDDING },
    { "lm_head.", M3_COMPONENT_LM_HEAD },
    { "norm.weight", M3_COMPONENT_NORMS }, /* the end of every norm of the text model, also of heads and index */
    { ".self_attn.index_", M3_COMPONENT_INDEXER },
    { ".self_attn.", M3_COMPONENT_ATTENTION },
    { ".shared_experts.", M3_COMPONENT_MOE_SHARED },
    { ".experts.", M3_COMPONENT_MOE_ROUTED },
    { ".e_score_correction_bias", M3_COMPONENT_MOE_ROUTER_BIAS },
    { ".block_sparse_moe.gate.", M3_COMPONENT_MOE_ROUTER },
    { ".gate_proj.", M3_COMPONENT_DENSE_MLP },
    { ".up_proj.", M3_COMPONENT_DENSE_MLP },
    { ".down_proj.", M3_COMPONENT_DENSE_MLP },
};

/* Returns M3_COMPONENTS if the name belongs to none. */
static enum m3_component component_of(const char *name)
{
    for (size_t i = 0; i < sizeof name_parts / sizeof name_parts[0]; i++)
        if (strstr(name, name_parts[i].part)) return name_parts[i].component;
    return M3_COMPONENTS;
}

struct walk {
    struct m3_census *census;
    enum m3_scaling scaling;
    enum m3_mtp_join join;
};

static int ends_in(const char *name, const char *tail)
{
    size_t length = strlen(name), end = strlen(tail);
    return length >= end && strcmp(name + length - end, tail) == 0;
}

static int count_spec(void *self, const struct m3_tensor_spec *spec)
{
    const struct walk *walk = self;
    struct m3_census_row *row = &walk->census->of[component_of(spec->name)];
    int64_t count = 1, rows = spec->shape[0], scales = 0;
    for (int i = 0; i < spec->rank; i++) count *= spec->shape[i];
    if (walk->join == M3_MTP_ADDITIVE) {
        if (ends_in(spec->name, ".enorm.weight") || ends_in(spec->name, ".hnorm.weight")) return 0;
        if (ends_in(spec->name, ".eh_proj.weight")) count /= 2;
    }
    int64_t cols = count / rows;
    if (spec->row->dtype == M3_TENSOR_MATRIX && walk->scaling == M3_SCALE_MX32) scales = rows * ((cols + 31) / 32);
    if (spec->row->dtype == M3_TENSOR_MATRIX && walk->scaling == M3_SCALE_128X128)
        scales = 4 * ((rows + 127) / 128) * ((cols + 127) / 128);

    row->tensors++;
    row->parameters += count;
    row->scales += scales > 0;
    walk->census->scaled_parameters += scales > 0 ? count : 0;
    walk->census->scale_bytes += scales;
    row->bytes += scales > 0 ? count + scales : count * (spec->row->dtype == M3_TENSOR_FLOAT ? 4 : 2);
    return 0;
}

void m3_census_of_config(struct m3_census *census, const struct m3_config *config, int64_t modules,
                         enum m3_mtp_join join)
{
    *census = (struct m3_census){ 0 };
    struct walk walk = { census, config->matrix_scaling, join };
    m3_tensors_each(config, modules, m3_tensors_prefix(config), count_spec, &walk);
}

/* Returns 3 for "...mtp.layers.3.eh_proj.weight"; modules under other names come after all others. */
static int64_t module_of(const char *name)
{
    const char *number = strstr(name, "model.mtp.layers.");
    return number ? strtoll(number + strlen("model.mtp.layers."), NULL, 10) : INT64_MAX;
}

int m3_census_of_files(struct m3_census *census, const struct m3_checkpoint *files, const struct m3_config *config,
                       int64_t modules, struct m3_error *error)
{
    *census = (struct m3_census){ 0 };
    int status = M3_OK;
    for (int64_t i = 0; i < m3_checkpoint_count(files); i++) {
        const char *path;
        const struct m3_tensor *tensor = m3_checkpoint_at(files, i, &path);
        enum m3_component component = component_of(tensor->name);
        if (component == M3_COMPONENTS) {
            status = m3_fail(error, M3_BAD_INPUT,
                             "%s: %s: got a tensor of no component, expected one that a model of "
                             "the family has",
                             path, tensor->name);
            continue;
        }
        if (component == M3_COMPONENT_MTP_MODULES && module_of(tensor->name) >= modules) {
            census->other_modules++;
            continue;
        }
        if (component != M3_COMPONENT_MTP_MODULES && config->sparse_switched_off &&
            strstr(tensor->name, ".self_attn.index_"))
            continue;
        struct m3_census_row *row = &census->of[component];
        int scale = ends_in(tensor->name, "_scale_inv");
        row->tensors += !scale;
        row->scales += scale;
        row->parameters += scale ? 0 : tensor->count;
        row->bytes += (int64_t)tensor->bytes;
    }
    return status;
}

int m3_census_agree(const struct m3_census *files, const struct m3_census *config, const char *path,
                    struct m3_error *error)
{
    int status = M3_OK;
    for (int i = 0; i < M3_COMPONENTS; i++) {
        const struct m3_census_row *got = &files->of[i], *expected = &config->of[i];
        if (got->parameters == expected->parameters && got->tensors == expected->tensors) continue;
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: %s: got %" PRId64 " parameters in %" PRId64 " tensors, expected %" PRId64 " in %" PRId64
                         " by config.json",
                         path, m3_component_names[i], got->parameters, got->tensors, expected->parameters,
                         expected->tensors);
    }
    return status;
}

int64_t m3_census_bytes(const struct m3_census *census)
{
    int64_t bytes = 0;
    for (int i = 0; i < M3_COMPONENTS; i++) bytes += census->of[i].bytes;
    return bytes;
}

void m3_estimate_parameters(struct m3_estimate *e)
{
    char key[64];
    int64_t tensors = 0;
    if (m3_few_numbers(e)) return;
    if (e->request.config) e->census = *e->request.config;
    else m3_census_of_config(&e->census, e->config, e->request.mtp_modules, e->request.mtp_join);
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    for (int i = 0; i < M3_COMPONENTS; i++) {
        snprintf(key, sizeof key, "params_by_component.%s", m3_component_names[i]);
        m3_estimate_count(e, key, m3_exact(census->of[i].parameters, 1));
        tensors += census->of[i].tensors;
    }
    m3_estimate_count(e, "tensors_unquantised", m3_exact(tensors, 1));
    m3_estimate_count(e, "weight_bytes_released", m3_exact(m3_census_bytes(&e->census), 1));
}
