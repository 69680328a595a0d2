#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/private/parts.h"
#include "io/matrix.h"
#include "model/weights/tensors.h"

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
    int64_t group;
    enum m3_mtp_join join;
};

/* How a matrix in codes is stored: bytes of codes, scale tensors and their bytes. Zero points are not counted. */
struct coded {
    int64_t codes, tensors, scales;
};

static struct coded coded(const struct walk *walk, int64_t rows, int64_t cols)
{
    const int64_t groups = rows * (walk->group ? (cols + walk->group - 1) / walk->group : 1);
    switch (walk->scaling) {
    case M3_UNSCALED: break;
    case M3_SCALE_MX32: return (struct coded){ rows * cols, 1, rows * ((cols + 31) / 32) };
    case M3_SCALE_128X128: return (struct coded){ rows * cols, 1, 4 * ((rows + 127) / 128) * ((cols + 127) / 128) };
    case M3_SCALE_NVFP4: return (struct coded){ rows * ((cols + 1) / 2), 2, rows * ((cols + 15) / 16) + 4 };
    case M3_SCALE_MXFP4: return (struct coded){ rows * ((cols + 1) / 2), 1, rows * ((cols + 31) / 32) };
    case M3_SCALE_INT4: return (struct coded){ rows * ((cols + 7) / 8) * 4, 2, 2 * groups + 16 };
    case M3_SCALE_INT4_PAIRS: return (struct coded){ (rows + 1) / 2 * cols, 1, 2 * groups };
    }
    return (struct coded){ 0 };
}

static int ends_in(const char *name, const char *tail)
{
    size_t length = strlen(name), end = strlen(tail);
    return length >= end && strcmp(name + length - end, tail) == 0;
}

static int count_spec(void *self, const struct m3_tensor_spec *spec)
{
    const struct walk *walk = self;
    struct m3_census_row *row = &walk->census->of[component_of(spec->name)];
    int64_t count = 1, rows = spec->shape[0];
    for (int i = 0; i < spec->rank; i++) count *= spec->shape[i];
    if (walk->join == M3_MTP_ADDITIVE) {
        if (ends_in(spec->name, ".enorm.weight") || ends_in(spec->name, ".hnorm.weight")) return 0;
        if (ends_in(spec->name, ".eh_proj.weight")) count /= 2;
    }
    int64_t cols = count / rows;
    const struct coded in = spec->row->dtype == M3_TENSOR_MATRIX ? coded(walk, rows, cols) : (struct coded){ 0 };
    row->tensors++;
    row->parameters += count;
    row->scales += in.tensors;
    walk->census->scaled_parameters += in.codes > 0 ? count : 0;
    walk->census->code_bytes += in.codes;
    walk->census->scale_bytes += in.scales;
    row->bytes += in.codes > 0 ? in.codes + in.scales : count * (spec->row->dtype == M3_TENSOR_FLOAT ? 4 : 2);
    return 0;
}

void m3_census_of_config(struct m3_census *census, const struct m3_config *config, int64_t modules,
                         enum m3_mtp_join join)
{
    *census = (struct m3_census){ 0 };
    struct walk walk = { census, config->matrix_scaling, config->matrix_group, join };
    m3_tensors_each(config, modules, m3_tensors_prefix(config), count_spec, &walk);
}

/* Returns 3 for "...mtp.layers.3.eh_proj.weight"; modules under other names come after all others. */
static int64_t module_of(const char *name)
{
    const char *number = strstr(name, "model.mtp.layers.");
    return number ? strtoll(number + strlen("model.mtp.layers."), NULL, 10) : INT64_MAX;
}

static const struct m3_tensor *find_tensor(const void *files, const char *name, const char **path)
{
    return m3_checkpoint_find(files, name, path);
}

static void count_problem(void *self, const char *path, const char *tensor, const char *what)
{
    (void)path, (void)tensor, (void)what;
    ++*(int *)self;
}

/* The parameters in a tensor: of codes, the size of their matrix; of what belongs to codes, 0. */
static int64_t parameters_in(const struct m3_checkpoint *files, const struct m3_tensor *tensor)
{
    static const char *const beside[] = { ".weight_scale_inv", ".weight_scale", ".weight_global_scale",
                                          ".weight_scale_2",   ".weight_shape", ".weight_zero_point" };
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (ends_in(tensor->name, beside[i])) return 0;
    const int is_packed = ends_in(tensor->name, ".weight_packed");
    if (!is_packed && !(tensor->dtype == M3_U8 && ends_in(tensor->name, ".weight"))) return tensor->count;

    char name[256];
    int problems = 0;
    struct m3_matrix matrix;
    const struct m3_matrix_report report = { count_problem, &problems };
    const struct m3_tensor_source source = { find_tensor, files, "" };
    const size_t length = strlen(tensor->name) - (is_packed ? strlen("_packed") : 0);
    if (length >= sizeof name) return tensor->count;
    snprintf(name, sizeof name, "%.*s", (int)length, tensor->name);
    m3_matrix_find(&matrix, &source, name, 0, 0, &report);
    return problems ? tensor->count : matrix.weight.rows * matrix.weight.cols;
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
        if (config->is_requantised && m3_is_of_activations(tensor->name)) continue;
        struct m3_census_row *row = &census->of[component];
        const int64_t parameters = parameters_in(files, tensor);
        row->tensors += parameters > 0;
        row->scales += parameters == 0;
        row->parameters += parameters;
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
