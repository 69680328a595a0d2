/* quantization_config of config.json: every form of weights that is read, by the names that tools give it, and what is
 * refused.
 *
 * Seen to fail with: a form that is read as another one; groups whose sizes differ taken for one; a group that is not
 * readable let through; a transformation ignored; a list of weights of quark not looked into. */
#include "files.h"

#include <jansson.h>

#include "io/config.h"

static struct m3_error error, notes;
static struct m3_config config;

static void setup(void)
{
    make_folder();
    error = notes = (struct m3_error){ 0 };
    config = (struct m3_config){ 0 };
}

static void teardown(void)
{
    m3_config_free(&config);
    m3_error_free(&error);
    m3_error_free(&notes);
    remove_folder();
}

FIXTURE(setup, teardown);

/* The config of the tiny model, with this quantization_config. */
static int read_with(const char *quantised)
{
    json_t *root = json_load_file("golden/tiny/model/config.json", 0, NULL);
    json_t *value = json_loads(quantised, 0, NULL);
    ck_assert_msg(root && value, "%s", quantised);
    ck_assert_int_eq(json_object_set_new(root, "quantization_config", value), 0);
    ck_assert_int_eq(json_dump_file(root, in_folder("config.json"), 0), 0);
    json_decref(root);
    return m3_config_read(&config, in_folder("config.json"), &notes, &error);
}

#define GROUP(type, bits, size) "{\"weights\":{\"type\":\"" type "\",\"num_bits\":" #bits ",\"group_size\":" #size "}}"
#define PACKED(format, groups)                                                                                         \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"config_groups\":" groups "}"
#define MODELOPT(algorithm) "{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algorithm "\"}"
#define QUARK(weight) "{\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":" weight "}}"

static const struct {
    const char *text;
    enum m3_scaling scaling;
    int64_t group;
    int is_requantised;
} forms[] = {
    { "{\"quant_method\":\"mxfp8\",\"weight_block_size\":[1,32]}", M3_SCALE_MX32, 0, 0 },
    { "{\"quant_method\":\"mxfp8\"}", M3_SCALE_MX32, 0, 0 },
    { "{\"quant_method\":\"fp8\"}", M3_SCALE_128X128, 0, 0 },
    { "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", M3_SCALE_128X128, 0, 0 },
    { MODELOPT("NVFP4"), M3_SCALE_NVFP4, 0, 1 },
    { MODELOPT("MXFP4"), M3_SCALE_MXFP4, 0, 1 },
    { MODELOPT("MXFP8"), M3_SCALE_MX32, 0, 1 },
    { MODELOPT("W4A16_AWQ"), M3_SCALE_INT4_PAIRS, 0, 1 },
    { MODELOPT("MIXED_PRECISION"), M3_UNSCALED, 0, 1 },
    { "{\"quant_method\":\"modelopt_fp4\",\"quant_algo\":\"NVFP4\"}", M3_SCALE_NVFP4, 0, 1 },
    { "{\"quant_method\":\"modelopt_mxfp8\",\"quant_algo\":\"MXFP8\"}", M3_SCALE_MX32, 0, 1 },
    { "{\"quant_method\":\"modelopt_mixed\",\"quant_algo\":\"MIXED_PRECISION\"}", M3_UNSCALED, 0, 1 },
    { "{\"quant_algo\":\"NVFP4_AWQ\"}", M3_SCALE_NVFP4, 0, 1 },
    { PACKED("nvfp4-pack-quantized", "{\"a\":" GROUP("float", 4, 16) "}"), M3_SCALE_NVFP4, 0, 1 },
    { PACKED("mxfp4-pack-quantized", "{\"a\":" GROUP("float", 4, 32) "}"), M3_SCALE_MXFP4, 0, 1 },
    { PACKED("mxfp8-quantized", "{\"a\":" GROUP("float", 8, 32) "}"), M3_SCALE_MX32, 0, 1 },
    { PACKED("pack-quantized", "{\"a\":" GROUP("int", 4, 128) "}"), M3_SCALE_INT4, 128, 1 },
    { PACKED("pack-quantized", "{\"a\":" GROUP("int", 4, 64) ",\"b\":" GROUP("int", 4, 64) "}"), M3_SCALE_INT4, 64, 1 },
    { PACKED("pack-quantized", "{\"a\":" GROUP("int", 4, 64) ",\"b\":" GROUP("int", 4, 32) "}"), M3_SCALE_INT4, 0, 1 },
    { PACKED("pack-quantized", "{\"a\":" GROUP("int", 4, -1) "}"), M3_SCALE_INT4, 0, 1 }, /* a group is a row */
    { PACKED("mixed-precision", "{\"a\":" GROUP("float", 4, 16) ",\"b\":" GROUP("int", 4, 32) "}"), M3_UNSCALED, 32,
      1 },
    { PACKED("mixed-precision", "null"), M3_UNSCALED, 0, 1 },
    { "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"transform_config\":{},"
      "\"sparsity_config\":{\"format\":\"dense\"}}",
      M3_UNSCALED, 0, 1 },
    { QUARK("{\"dtype\":\"fp4\",\"group_size\":32}"), M3_SCALE_MXFP4, 0, 1 },
    { QUARK("[{\"dtype\":\"fp4\",\"group_size\":32}]"), M3_SCALE_MXFP4, 0, 1 },
};

LOOP_TEST(read_forms, sizeof forms / sizeof forms[0])
{
    ck_assert_msg(read_with(forms[_i].text) == M3_OK, "%s: %s", forms[_i].text, error.text);
    ck_assert_int_eq(config.matrix_scaling, forms[_i].scaling);
    ck_assert_int_eq(config.matrix_group, forms[_i].group);
    ck_assert_int_eq(config.is_requantised, forms[_i].is_requantised);
}

static const char *const refused[][2] = {
    { "{\"quant_method\":\"gptq\"}", "quantization_config.quant_method: got \"gptq\"" },
    { "{\"quant_method\":7}", "quantization_config.quant_method: got 7" },
    { "{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "weight_block_size: got [128]" },
    { "{\"quant_method\":\"fp8\",\"weight_block_size\":[32,1]}", "weight_block_size: got [32,1]" },
    { "{\"quant_method\":\"fp8\",\"weight_block_size\":[1,128]}", "weight_block_size: got [1,128]" },
    { "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,32]}", "weight_block_size: got [128,32]" },
    { MODELOPT("FP8"), "quantization_config.quant_algo: got \"FP8\"" },
    { PACKED("int-quantized", "{}"), "quantization_config.format: got \"int-quantized\"" },
    { PACKED("pack-quantized", "{\"a\":" GROUP("int", 8, 128) "}"), "quantization_config.config_groups" },
    { PACKED("nvfp4-pack-quantized", "{\"a\":" GROUP("float", 4, 64) "}"), "quantization_config.config_groups" },
    { PACKED("nvfp4-pack-quantized", "{\"a\":" GROUP("float", 8, 128) "}"), "quantization_config.config_groups" },
    { PACKED("nvfp4-pack-quantized", "{\"a\":7}"), "quantization_config.config_groups" },
    { "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"transform_config\":{\"a\":1}}",
      "quantization_config.transform_config" },
    { "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"sparsity_config\":{\"format\":\"24\"}}",
      "quantization_config.sparsity_config" },
    { QUARK("{\"dtype\":\"fp8_e4m3\",\"group_size\":32}"), "quantization_config.global_quant_config" },
    { QUARK("{\"dtype\":\"fp4\",\"group_size\":16}"), "quantization_config.global_quant_config" },
    { QUARK("[]"), "quantization_config.global_quant_config" },
};

LOOP_TEST(refuse_the_rest, sizeof refused / sizeof refused[0])
{
    ck_assert_int_eq(read_with(refused[_i][0]), M3_BAD_INPUT);
    ck_assert_msg(strstr(error.text, refused[_i][1]) != NULL, "%s: got %s", refused[_i][0], error.text);
    ck_assert_int_eq(error.count, 1);
}
