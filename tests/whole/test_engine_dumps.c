/* Dumps of engines that nobody here wrote: what is right in them is not called wrong. tests/candidates/README.md says how
 * each was made. */
#include "program.h"

#define MODEL "golden/tiny/model"
#define CASE "tests/candidates/case.safetensors"
#define F32 "tests/candidates/mlx_lm_f32.safetensors.gz"
#define BF16 "tests/candidates/mlx_lm_bf16.safetensors.gz"

static const char *reference(void) { return in_folder("reference.safetensors"); }

static void setup(void)
{
    make_folder();
    ck_assert_int_eq(m3ref("run " MODEL " --case " CASE " --precision f64 --bounds --dump %s", reference()), 0);
}

TIMEOUT(120);
FIXTURE_ONCE(setup, remove_folder);

/* Goal:  mlx-lm lists blocks that come after the row, because its top-k has always N places, and masks them later.
 * Claim: compare and blame pass; so does a float engine under every profile that allows more.
 * Seen to fail with blocks after the row not dropped from the list: 16 of 38 sets were inadmissible. */
TEST(blocks_to_come)
{
    ck_assert_int_eq(m3ref("compare %s " F32, reference()), 0);
    ck_assert(has("out", "pass  30 of 30 stages judged"));
    ck_assert_int_eq(m3ref("blame " MODEL " " F32 " --case " CASE " --taps 'layers.2.*'"), 0);
    ck_assert_int_eq(m3ref("compare %s " F32 " --profile fp32+rope_exp2", reference()), 0);
}

/* Goal:  mlx-lm in BF16 rounds what transformers does not: 1 + w, x over the root before it meets 1 + w, and weights of
 *        experts.
 * Claim: all 125 taps pass under `mlx_bf16`, none is suspect. Under `bf16` the norms fail, and with 1 + w alone allowed,
 *        too.
 * Seen to fail with norm.unit not read by the norm; and with a profile `mlx_bf16` that lacks norm_weight, or the
 * rounding of weights of experts. */
TEST(mlx_in_bf16)
{
    ck_assert_int_eq(m3ref("blame " MODEL " " BF16 " --case " CASE " --profile mlx_bf16"), 0);
    ck_assert(has("out", "pass  125 of 125 taps judged"));
    ck_assert_int_eq(m3ref("compare %s " BF16 " --profile mlx_bf16", reference()), 0);
    ck_assert_int_eq(m3ref("blame " MODEL " " BF16 " --case " CASE " --profile bf16"), 1);
    ck_assert_int_eq(m3ref("blame " MODEL " " BF16 " --case " CASE " --profile bf16+norm_weight_bf16"), 1);
    ck_assert(has("out", "layers.0.attn_norm"));
}

/* Goal:  a profile may say that alpha is held in BF16.
 * Given: a float run of the model with alpha 1.703125, which is 1.702 in BF16, judged by the model with 1.702.
 * Claim: under a profile with that alpha all taps pass; under `fp32` the activation of the first layer fails.
 * Seen to fail with the profile's alpha not read by the activation. */
TEST(alpha_in_bf16)
{
    static const char was[] = "\"swiglu_alpha\": 1.702,", made[] = "\"swiglu_alpha\": 1.703125,";
    char config[8192], own[512], dump[512];
    size_t count;
    copy_tiny();
    unsigned char *text = read_bytes(in_folder("model/config.json"), &count);
    const char *at = strstr((char *)text, was);
    ck_assert(at && strstr(at + 1, was) == NULL);
    snprintf(config, sizeof config, "%.*s%s%s", (int)(at - (char *)text), (char *)text, made, at + strlen(was));
    free(text);
    write_text(in_folder("model/config.json"), config);
    write_text(in_folder("alpha.json"), "{\"name\": \"alpha\", \"base\": \"fp32\", \"alpha\": \"bf16\"}");
    snprintf(own, sizeof own, "%s", in_folder("model"));
    snprintf(dump, sizeof dump, "%s", in_folder("own.safetensors"));
    ck_assert_int_eq(m3ref("run %s --case " CASE " --dump %s", own, dump), 0);
    ck_assert_int_eq(m3ref("blame " MODEL " %s --case " CASE " --force --profile %s", dump, in_folder("alpha.json")),
                     0);
    ck_assert_int_eq(m3ref("blame " MODEL " %s --case " CASE " --force --profile fp32", dump), 1);
    ck_assert(has("out", "fail  layers.0.mlp.act "));
}

/* Goal:  vLLM's dump is read by the map of its name.
 * Claim: all 54 taps pass: lists are token-major, weights of experts hold the factor, linears return tuples.
 * Seen to fail with the lists transposed (refused), with the weights as they are (moe.weights fails), and with names
 * without .0 alone (28 taps). */
TEST(vllm)
{
    write_text(in_folder("fp16.json"), "{\"name\": \"vllm_fp16\", \"base\": \"fp16+fused_norm\", \"store\": "
                                       "{\"*.index.q_rope\": \"bf16\", \"*.index.k_rope\": \"bf16\"}}");
    char model[512], profile[512];
    snprintf(model, sizeof model, "%s", in_folder("vllm"));
    snprintf(profile, sizeof profile, "%s", in_folder("fp16.json"));
    ck_assert_int_eq(m3ref("synth tests/candidates/vllm_config.json %s", model), 0);
    ck_assert_int_eq(
        m3ref("check %s tests/candidates/vllm.safetensors.gz --case tests/candidates/vllm_case.safetensors "
              "--map vllm --profile %s",
              model, profile),
        0);
    ck_assert(has("out", "pass  54 of 54 taps judged"));
}

/* Goal:  every command with --profile says what the profiles and words are, a line each, from their files.
 * Seen to fail with help taken for the name of a profile, and with words left out. */
TEST(profiles_are_listed)
{
    static const char *const commands[] = { "compare", "blame", "check", "envelope", "run", "op rms_norm" };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        ck_assert_int_eq(m3ref("%s --profile help", commands[i]), 0);
        ck_assert(has("out", "  llama_cpp             llama.cpp on a CPU"));
        ck_assert(has("out", "  act_q8_0              activations in 8-bit integers"));
        ck_assert(has("out", "  tp2, tp4, .. tp64"));
    }
    ck_assert_int_eq(m3ref("estimate --profile help"), 64);
}
