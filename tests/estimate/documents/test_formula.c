/* Formulas of printed figures over M3 at T = 2^20 in bf16, batch 2, 8 x H200.
 *
 * Seen to fail with: - and / grouped from the right; ^ from the left; a minus sign above ^; max for min; a letter for
 * its neighbour; the tail of a formula ignored. */
#include "estimates.h"

#include "estimate/documents/documents.h"

TIMEOUT(120);

/* clang-format off */
static const struct {
    const char *formula;
    double value;
} formulas[] = {
    { "2 + 3 * 4", 14 }, { "(2 + 3) * 4", 20 }, { "10 - 4 - 3", 3 }, { "100 / 10 / 5", 2 }, { "2*6/3*2", 8 },
    { "2^3^2", 512 }, { "-2^2", -4 }, { "2^-1", 0.5 }, { "--3", 3 }, { " 7 ", 7 }, { "1.5e3", 1500 }, { "1e-2", 0.01 },
    { "0.25", 0.25 }, { "ceil(7 / 2)", 4 }, { "floor(7/2)", 3 }, { "floor(-7/2)", -4 }, { "ceil(4)", 4 },
    { "min(3, 2)", 2 }, { "min(2, 3)", 2 }, { "max(3, 2)", 3 }, { "max(2,3)", 3 }, { "min(1 + 1, max(1, 5))", 2 },
    { "H", 6144 }, { "Q", 64 }, { "G", 4 }, { "D", 128 }, { "X", 128 }, { "V", 200064 }, { "N", 16 }, { "K", 4 },
    { "E", 128 }, { "F", 3072 }, { "I", 12288 }, { "J", 3072 }, { "W", 1280 }, { "A", 16 }, { "U", 80 }, { "L", 5120 },
    { "Y", 6144 }, { "Z", 24576 }, { "C", 1176 }, { "R", 64 }, { "T", 1048576 }, { "batch", 2 }, { "layers", 60 },
    { "full", 3 }, { "sparse", 57 }, { "dense", 3 }, { "moe", 57 }, { "cached", 60 }, { "indexed", 57 },
    { "block", 128 }, { "keys", 2048 }, { "max_positions", 1048576 }, { "theta", 5e6 }, { "eps", 1e-6 },
    { "scaling", 2 }, { "alpha", 1.702 }, { "limit", 7 }, { "patch", 14 }, { "merge", 2 }, { "temporal_patch", 2 },
    { "channels", 3 }, { "segment", 4 }, { "vision_layers", 32 }, { "vision_theta", 10000 }, { "image_token", 200025 },
    { "video_token", 200026 }, { "vision", 1 }, { "local_blocks", 1 }, { "init_blocks", 0 }, { "modules", 7 },
    { "mtp", 0 }, { "params_mtp", 0 },
    { "weight_bits", 16 }, { "kv_bits", 16 }, { "index_bits", 16 }, { "gpus", 8 }, { "card", 141e9 },
    { "peak", 989e12 }, { "bandwidth", 4.8e12 }, { "act", 5368709120 },
    { "57 * 2*G*X*T", 61203283968 }, { "kv_bytes_per_sequence.index", 15300820992 }, { "kv_bytes.index", 30601641984 },
    { "flops_decode.full_attention / full", 34359738368 }, { "ratios.main_branch", 512 },
    { "ratios.layer_attention * 17", 512 }, { "params_total", 427040140160 }, { "context", 1048576 },
    { "expert_spread.p_fullest.0 + expert_spread.p_fullest.1 + expert_spread.p_fullest.2 + "
      "expert_spread.p_fullest.3", 1 },
    { "params_by_component.moe_routed / (57 * 128)", 56623104 },
};
/* clang-format on */

/* clang-format off */
static const char *const bad_formulas[] = {
    "", " ", "1 +", "(1", "1)", "()", "1 2", "2T", "* 2", "nosuch", "kv_bytes", "kv_bytes.", "kv_bytes.nosuch", "gpu",
    "bound", "weight_bytes_stored", "ceil 2", "ceil(", "ceil()", "ceil(1, 2)", "min(1)", "min(1, 2, 3)", "0x10", "1..2",
    ".5", "1,000", "1 % 2", "H.G", "T()", "1 + (2 * (3 - )",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "1111111111111111111111111111111111111111111111111111111111111111111111111111111111",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((1",
    "--------------------------------------------------------------------------------1",
    "2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2"
    "^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2^2",
};
/* clang-format on */

static int close_to(double got, double expected) { return fabs(got - expected) <= 1e-12 * fabs(expected); }

TEST(formulas_by_hand)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = request(M, 2, "bf16", "bf16");
    r.gpu = m3_gpu_named("h200");
    r.gpus = 8;
    r.card_bytes = 141000000000;
    struct m3_estimate e = estimate(&config, &r);
    json_t *summary = m3_estimate_json(&e);
    struct m3_error error = { 0 };
    double value;
    for (size_t i = 0; i < sizeof formulas / sizeof formulas[0]; i++) {
        ck_assert_msg(m3_figure_value(&value, formulas[i].formula, &e, &error) == M3_OK, "%s", formulas[i].formula);
        ck_assert_msg(close_to(value, formulas[i].value), "%s: got %.17g", formulas[i].formula, value);
    }
    for (size_t i = 0; i < sizeof bad_formulas / sizeof bad_formulas[0]; i++) {
        value = 1;
        ck_assert_msg(m3_figure_value(&value, bad_formulas[i], &e, &error) == M3_BAD_INPUT && isnan(value), "%s",
                      bad_formulas[i]);
    }
    m3_error_free(&error);
    json_decref(summary);
    m3_config_free(&config);
}
