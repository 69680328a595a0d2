/* quantization_config: the form in which the matrices are stored. The files decide how each matrix is read
 * (io/matrix.h); the config says what they should hold, and a form that is not supported is refused by its name. */
#include <string.h>

#include "io/config_fields.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct form {
    const char *name;
    enum m3_scaling scaling;
};

/* M3_UNSCALED: several forms in one model. */
static const struct form compressed_formats[] = {
    { "nvfp4-pack-quantized", M3_SCALE_NVFP4 }, { "mxfp4-pack-quantized", M3_SCALE_MXFP4 },
    { "pack-quantized", M3_SCALE_INT4 },        { "mxfp8-quantized", M3_SCALE_MX32 },
    { "mixed-precision", M3_UNSCALED },
};

static const struct form modelopt_algorithms[] = {
    { "NVFP4", M3_SCALE_NVFP4 },          { "W4A16_NVFP4", M3_SCALE_NVFP4 },    { "NVFP4_AWQ", M3_SCALE_NVFP4 },
    { "W4A8_NVFP4_FP8", M3_SCALE_NVFP4 }, { "MXFP4", M3_SCALE_MXFP4 },          { "W4A8_MXFP4_FP8", M3_SCALE_MXFP4 },
    { "MXFP8", M3_SCALE_MX32 },           { "W4A16_AWQ", M3_SCALE_INT4_PAIRS }, { "MIXED_PRECISION", M3_UNSCALED },
};

static const char compressed_words[] =
    "\"nvfp4-pack-quantized\", \"mxfp4-pack-quantized\", \"pack-quantized\", \"mxfp8-quantized\" or "
    "\"mixed-precision\"";
static const char modelopt_words[] =
    "\"NVFP4\", \"W4A16_NVFP4\", \"NVFP4_AWQ\", \"W4A8_NVFP4_FP8\", \"MXFP4\", \"W4A8_MXFP4_FP8\", \"MXFP8\", "
    "\"W4A16_AWQ\" or \"MIXED_PRECISION\"";

static int is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

static void read_form(struct config_reading *reading, const char *key, const struct form *forms, size_t count,
                      const char *expected)
{
    const json_t *value = m3_config_field(reading, QUANTISATION, key);
    for (size_t i = 0; i < count; i++)
        if (is_word(value, forms[i].name)) {
            reading->config.matrix_scaling = forms[i].scaling;
            return;
        }
    m3_config_refuse(reading, QUANTISATION, key, expected);
}

/* Blocks of E4M3 codes, as released. */
static void read_blocks(struct config_reading *reading, int is_mxfp8)
{
    const json_t *block = m3_config_field(reading, QUANTISATION, "weight_block_size");
    json_int_t rows = json_integer_value(json_array_get(block, 0)), cols = json_integer_value(json_array_get(block, 1));
    int good = json_array_size(block) == 2 && ((rows == 1 && cols == 32) || (rows == 128 && cols == 128));
    if (block && !good) m3_config_refuse(reading, QUANTISATION, "weight_block_size", "[1,32] or [128,128]");
    reading->config.matrix_scaling = (block ? rows == 1 : is_mxfp8) ? M3_SCALE_MX32 : M3_SCALE_128X128;
}

/* Codes of 4 bits, or MXFP8: the only ones that are read in these checkpoints. */
static int is_readable_group(const json_t *weights)
{
    const json_int_t bits = json_integer_value(json_object_get(weights, "num_bits"));
    const json_int_t size = json_integer_value(json_object_get(weights, "group_size"));
    if (is_word(json_object_get(weights, "type"), "int")) return bits == 4;
    return (bits == 4 && (size == 16 || size == 32)) || (bits == 8 && size == 32);
}

/* Groups of matrices in compressed-tensors; ModelOpt writes them for information. */
static void read_groups(struct config_reading *reading)
{
    json_t *groups = m3_config_field(reading, QUANTISATION, "config_groups");
    const char *name;
    json_t *group;
    int integers = 0;
    json_object_foreach(groups, name, group)
    {
        const json_t *weights = json_object_get(group, "weights");
        const json_int_t size = json_integer_value(json_object_get(weights, "group_size"));
        if (!is_readable_group(weights)) {
            m3_config_refuse(reading, QUANTISATION, "config_groups",
                             "weights of 4 bits (float with group_size 16 or 32, or int), or of MXFP8");
            return;
        }
        if (!is_word(json_object_get(weights, "type"), "int")) continue;
        const int64_t columns = size > 0 ? size : 0;
        reading->config.matrix_group = integers++ && columns != reading->config.matrix_group ? 0 : columns;
    }
}

/* Weights that are stored after a rotation, or sparse, would need more than their codes. */
static void refuse_transforms(struct config_reading *reading)
{
    static const char *const keys[] = { "transform_config", "sparsity_config" };
    for (size_t i = 0; i < LENGTH(keys); i++) {
        const json_t *value = m3_config_field(reading, QUANTISATION, keys[i]);
        const json_t *format = json_object_get(value, "format");
        if (json_object_size(value) && !is_word(format, "dense"))
            m3_config_refuse(reading, QUANTISATION, keys[i], "{}: transformed or sparse weights are not supported");
    }
}

static void read_quark(struct config_reading *reading)
{
    const json_t *all = m3_config_field(reading, QUANTISATION, "global_quant_config");
    const json_t *weight = json_object_get(all, "weight");
    if (json_is_array(weight)) weight = json_array_get(weight, 0);
    if (is_word(json_object_get(weight, "dtype"), "fp4") &&
        json_integer_value(json_object_get(weight, "group_size")) == 32)
        reading->config.matrix_scaling = M3_SCALE_MXFP4;
    else m3_config_refuse(reading, QUANTISATION, "global_quant_config", "weights of fp4 in groups of 32");
}

void m3_config_read_quantised(struct config_reading *reading)
{
    const json_t *method = m3_config_field(reading, QUANTISATION, "quant_method");
    if (!reading->objects[QUANTISATION]) return;
    const int is_modelopt = is_word(method, "modelopt") || is_word(method, "modelopt_fp4") ||
                            is_word(method, "modelopt_mxfp8") || is_word(method, "modelopt_mixed") ||
                            (!method && m3_config_field(reading, QUANTISATION, "quant_algo"));
    reading->config.is_requantised = is_modelopt || is_word(method, "compressed-tensors") || is_word(method, "quark");
    if (is_modelopt) {
        read_form(reading, "quant_algo", modelopt_algorithms, LENGTH(modelopt_algorithms), modelopt_words);
    } else if (is_word(method, "compressed-tensors")) {
        read_form(reading, "format", compressed_formats, LENGTH(compressed_formats), compressed_words);
        refuse_transforms(reading);
        read_groups(reading);
    } else if (is_word(method, "quark")) {
        read_quark(reading);
    } else if (!method || is_word(method, "mxfp8") || is_word(method, "fp8")) {
        read_blocks(reading, !is_word(method, "fp8"));
    } else {
        m3_config_refuse(reading, QUANTISATION, "quant_method",
                         "\"mxfp8\", \"fp8\", \"compressed-tensors\", \"modelopt\" or \"quark\"");
    }
}
