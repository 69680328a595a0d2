#include "model/files/synth_config.h"

#include <stdlib.h>

#include "io/json.h"

int m3_synth_states(enum m3_synth_dtype dtype, enum m3_scaling stated)
{
    static const enum m3_scaling forms[M3_SYNTH_DTYPES] = {
        [M3_SYNTH_F8_BLOCK] = M3_SCALE_128X128, [M3_SYNTH_MXFP8] = M3_SCALE_MX32, [M3_SYNTH_NVFP4] = M3_SCALE_NVFP4,
        [M3_SYNTH_MXFP4] = M3_SCALE_MXFP4,      [M3_SYNTH_W4A16] = M3_SCALE_INT4,
    };
    return dtype == M3_SYNTH_BF16 || dtype == M3_SYNTH_F32 || forms[dtype] == stated;
}

/* As released; the released files decide by module names, in the spelling of the tensors. */
static json_t *released(const char *method, int rows, int cols, const char *list)
{
    return json_pack("{s:s, s:s, s:[i,i], s:[s,s,s,s,s,s,s]}", "quant_method", method, "activation_scheme", "dynamic",
                     "weight_block_size", rows, cols, list, "lm_head", "embed_tokens", "vision_tower",
                     "multi_modal_projector", "patch_merge_mlp", "gate", "e_score_correction_bias");
}

/* As compressed-tensors 0.20.0 writes it. "re:" begins a regular expression for module names. */
static json_t *compressed(const char *format, const char *type, const char *strategy, int group_size)
{
    json_t *weights = json_pack("{s:i, s:s, s:b, s:s, s:i, s:b}", "num_bits", 4, "type", type, "symmetric", 1,
                                "strategy", strategy, "group_size", group_size, "dynamic", 0);
    return json_pack("{s:s, s:s, s:s, s:{s:{s:[s], s:s, s:o, s:n, s:n}}, s:[s,s,s,s,s,s], s:n, s:{}, s:{}, s:s}",
                     "quant_method", "compressed-tensors", "format", format, "quantization_status", "compressed",
                     "config_groups", "group_0", "targets", "Linear", "format", format, "weights", weights,
                     "input_activations", "output_activations", "ignore", "re:.*lm_head$", "re:.*embed_tokens$",
                     "re:.*vision_tower.*", "re:.*multi_modal_projector.*", "re:.*patch_merge_mlp.*",
                     "re:.*(block_sparse_moe|mlp).gate$", "kv_cache_scheme", "sparsity_config", "transform_config",
                     "version", "0.20.0");
}

static json_t *quantisation(enum m3_synth_dtype dtype)
{
    switch (dtype) {
    case M3_SYNTH_F8_BLOCK: return released("fp8", 128, 128, "modules_to_not_convert");
    case M3_SYNTH_MXFP8: return released("mxfp8", 1, 32, "ignored_layers");
    case M3_SYNTH_NVFP4: return compressed("nvfp4-pack-quantized", "float", "tensor_group", 16);
    case M3_SYNTH_MXFP4: return compressed("mxfp4-pack-quantized", "float", "group", 32);
    default: return compressed("pack-quantized", "int", "group", 32);
    }
}

int m3_synth_config(char **changed, const char *text, size_t size, enum m3_synth_dtype dtype, const char *path,
                    struct m3_error *error)
{
    json_t *root;
    *changed = NULL;
    int status = m3_json_parse(&root, text, size, path, error);
    if (status) return status;
    m3_json_set(root, "quantization_config", quantisation(dtype));
    if (!m3_json_failed()) *changed = m3_json_dump(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    return *changed ? M3_OK : m3_fail_memory(error, path, size);
}
