/* config.json of M2, M2.5 and M2.7: what is read, what stands for absent fields, what is refused. */
#include "files.h"

#include <jansson.h>

#include "io/config.h"

/* Released form: fields at the top. Three layers, every size another one. */
static const char released_text[] =
    "{\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"model_type\":\"minimax_m2\",\"hidden_size\":40,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":16,\"rotary_dim\":8,"
    "\"rope_theta\":5000000,\"intermediate_size\":20,\"hidden_act\":\"silu\",\"num_local_experts\":11,"
    "\"num_experts_per_tok\":3,\"shared_intermediate_size\":0,\"scoring_func\":\"sigmoid\",\"use_routing_bias\":true,"
    "\"use_qk_norm\":true,\"qk_norm_type\":\"per_layer\",\"attn_type_list\":[1,1,1],\"vocab_size\":97,"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":false,\"use_mtp\":true,"
    "\"num_mtp_modules\":3,\"mtp_transformer_layers\":1,\"torch_dtype\":\"bfloat16\",\"quantization_config\":{"
    "\"quant_method\":\"fp8\",\"fmt\":\"float8_e4m3fn\",\"weight_block_size\":[128,128],"
    "\"modules_to_not_convert\":[\"gate\",\"e_score_correction_bias\",\"lm_head\"]}}";

/* As transformers writes it. */
static const char flat_text[] =
    "{\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"model_type\":\"minimax_m2\",\"hidden_size\":40,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":0.25},"
    "\"intermediate_size\":20,\"hidden_act\":\"silu\",\"num_local_experts\":11,\"num_experts_per_tok\":3,"
    "\"vocab_size\":97,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-06,\"router_jitter_noise\":0.0,"
    "\"attention_dropout\":0.0,\"output_router_logits\":false,\"router_aux_loss_coef\":0.001,\"use_cache\":true,"
    "\"initializer_range\":0.02,\"bos_token_id\":1,\"eos_token_id\":2,\"dtype\":\"float32\"}";

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

/* Reads a config with one field at its top set to a JSON text, or taken out if that is NULL. */
static int read_with(const char *text, const char *key, const char *value)
{
    json_t *root = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(root);
    if (key && value) ck_assert_int_eq(json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    if (key && !value) ck_assert_int_eq(json_object_del(root, key), 0);
    m3_config_free(&config);
    m3_error_free(&error);
    m3_error_free(&notes);
    ck_assert_int_eq(json_dump_file(root, in_folder("config.json"), 0), 0);
    json_decref(root);
    return m3_config_read(&config, in_folder("config.json"), &notes, &error);
}

static int has_note(const char *part) { return notes.text && strstr(notes.text, part); }

TEST(released_form)
{
    ck_assert_msg(read_with(released_text, NULL, NULL) == M3_OK, "%s", error.text);
    ck_assert_msg(notes.count == 0, "%s", notes.text);
    ck_assert(config.type == M3_TYPE_M2 && strcmp(m3_config_type_name(config.type), "minimax_m2") == 0);
    ck_assert(config.H == 40 && config.Q == 6 && config.G == 2 && config.D == 16 && config.R == 8 && config.V == 97);
    ck_assert(config.layers == 3 && config.E == 11 && config.K == 3 && config.F == 20 && config.max_positions == 512);
    ck_assert(config.gemma_norm == 0 && config.oai == 0 && config.qk_norm_whole == 1 && config.eps == 1e-6);
    ck_assert(config.shared_intermediate == 0 && config.routed_scaling == 1 && config.mtp_modules == 3);
    ck_assert(config.rope_theta == 5e6 && config.tied_embeddings == 0 && !config.vision.present);
    ck_assert_int_eq(config.matrix_scaling, M3_SCALE_128X128);
    for (int l = 0; l < 3; l++) ck_assert(config.moe[l] == 1 && config.sparse[l] == 0);
    ck_assert(m3_config_size(&config, 'q') == 96 && m3_config_size(&config, 'k') == 32);
}

/* A shared factor of rotation that is not a half tells the factor from rotary_dim of the other form. */
TEST(flat_form)
{
    ck_assert_msg(read_with(flat_text, NULL, NULL) == M3_OK, "%s", error.text);
    ck_assert_msg(notes.count == 0, "%s", notes.text);
    ck_assert(config.type == M3_TYPE_M2 && config.R == 4 && config.rope_theta == 1e4);
    ck_assert(config.gemma_norm == 0 && config.oai == 0 && config.qk_norm_whole == 1 && config.routed_scaling == 1);
    ck_assert(config.matrix_scaling == M3_UNSCALED && config.shared_intermediate == 0);
    ck_assert_int_eq(read_with(flat_text, "rotary_dim", "8"), M3_OK);
    ck_assert(config.R == 4 && has_note("rotary_dim: 8 is overridden by partial_rotary_factor: 4"));
}

/* What stands for an absent field, and what may be absent without a word. */
TEST(absent_fields)
{
    static const char *const quiet[] = {
        "architectures",       "hidden_act",   "shared_intermediate_size", "scoring_func", "use_routing_bias",
        "use_qk_norm",         "qk_norm_type", "attn_type_list",           "use_mtp",      "mtp_transformer_layers",
        "quantization_config", "torch_dtype",
    };
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) {
        ck_assert_msg(read_with(released_text, quiet[i], NULL) == M3_OK, "%s: %s", quiet[i], error.text);
        ck_assert_msg(notes.count == 0, "%s: %s", quiet[i], notes.text);
        ck_assert(config.gemma_norm == 0 && config.oai == 0 && config.qk_norm_whole == 1 && config.moe[2] == 1);
    }
    ck_assert_int_eq(read_with(released_text, "model_type", NULL), M3_OK);
    ck_assert_int_eq(config.type, M3_TYPE_M2);
    ck_assert_int_eq(read_with(released_text, "max_position_embeddings", NULL), M3_OK);
    ck_assert(config.max_positions == 196608 && has_note("max_position_embeddings: missing, taken as 196608"));
}

TEST(per_head_norm)
{
    ck_assert_int_eq(read_with(released_text, "qk_norm_type", "\"per_head\""), M3_OK);
    ck_assert(config.qk_norm_whole == 0 && m3_config_size(&config, 'q') == 16 && m3_config_size(&config, 'k') == 16);
}

/* Each value that no M2 has is refused with a line that names its field. */
TEST(cannot_be_honoured)
{
    static const struct {
        const char *key, *value, *line;
    } faults[] = {
        { "architectures", "[\"MiniMaxM3VLForCausalLM\"]", "architectures: got [\"MiniMaxM3VLForCausalLM\"]" },
        { "model_type", "\"minimax\"", "model_type: got \"minimax\"" },
        { "text_config", "{}", "text_config: got {}, expected none" },
        { "vision_config", "{}", "vision_config: got {}, expected none" },
        { "hidden_act", "\"swigluoai\"", "hidden_act: got \"swigluoai\", expected \"silu\"" },
        { "hidden_act", "\"gelu\"", "hidden_act: got \"gelu\"" },
        { "shared_intermediate_size", "20", "shared_intermediate_size: got 20, expected 0" },
        { "n_shared_experts", "1", "n_shared_experts: got 1, expected 0" },
        { "routed_scaling_factor", "2", "routed_scaling_factor: got 2, expected 1" },
        { "scoring_func", "\"softmax\"", "scoring_func: got \"softmax\"" },
        { "use_routing_bias", "false", "use_routing_bias: got false" },
        { "use_qk_norm", "false", "use_qk_norm: got false" },
        { "qk_norm_type", "\"per_row\"", "qk_norm_type: got \"per_row\"" },
        { "attn_type_list", "[1,0,1]", "attn_type_list: got [1,0,1], expected a list of 3 times 1, full attention" },
        { "attn_type_list", "[1,1]", "attn_type_list: got [1,1], expected a list of 3" },
        { "attn_type_list", "[1,1,1,1]", "attn_type_list: got [1,1,1,1], expected a list of 3" },
        { "attn_type_list", "[1,1,1,0]", "attn_type_list: got [1,1,1,0], expected a list of 3" },
        { "attn_type_list", "1", "attn_type_list: got 1," },
        { "mtp_transformer_layers", "2", "mtp_transformer_layers: got 2, expected 1" },
        { "rotary_dim", "18", "got 18 and 16, expected rotary_dim to be at most head_dim" },
        { "num_key_value_heads", "4", "got 6 and 4, expected num_attention_heads to be a multiple" },
        { "num_experts_per_tok", "12", "got 12 and 11, expected num_experts_per_tok" },
        { "num_local_experts", NULL, "num_local_experts: got nothing" },
        { "intermediate_size", NULL, "intermediate_size: got nothing" },
        { "rotary_dim", NULL, "rotary_dim: got nothing" },
        { "sliding_window", "128", "sliding_window: got 128" },
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ck_assert_msg(read_with(released_text, faults[i].key, faults[i].value) == M3_BAD_INPUT, "%s = %s is accepted",
                      faults[i].key, faults[i].value);
        ck_assert_msg(strstr(error.text, faults[i].line), "%s = %s: got %s", faults[i].key, faults[i].value,
                      error.text);
    }
}

/* Fields of M2 mean nothing in an M3 file: there they stay unknown, or keep their range. */
TEST(m3_is_as_before)
{
    ck_assert_int_eq(m3_config_read(&config, "golden/configs/minimax-m3.json", &notes, &error), M3_OK);
    ck_assert(config.type == M3_TYPE_VL && config.gemma_norm == 1 && config.oai == 1 && config.qk_norm_whole == 0);
    ck_assert(config.shared_intermediate == 3072 && config.routed_scaling == 2 && config.max_positions == 1048576);
    ck_assert(m3_config_size(&config, 'q') == 128 && m3_config_size(&config, 'k') == 128);
}
