#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

/* Conditions of a row, which must all hold. IF_COUNTED: all of the config is known; IF_FEW: a few numbers are. */
/* clang-format off */
enum {
    IF_ALWAYS = 0, IF_SHORT = 1 << 0, IF_LONG = 1 << 1, IF_TIED = 1 << 2, IF_UNTIED = 1 << 3, IF_STORED = 1 << 4,
    IF_NOMINAL = 1 << 5, IF_COUNTED = 1 << 6, IF_FEW = 1 << 7, IF_EXPERTS = 1 << 8, IF_NO_EXPERTS = 1 << 9,
    IF_SPARSE = 1 << 10, IF_NOT_SPARSE = 1 << 11, IF_CAUSAL = 1 << 12, IF_SQUARE = 1 << 13, IF_LAST_LOGITS = 1 << 14,
    IF_ALL_LOGITS = 1 << 15, IF_FILES = 1 << 16, IF_NO_FILES = 1 << 17, IF_MODULES = 1 << 18, IF_PICTURES = 1 << 19,
    IF_SPLIT = 1 << 20, IF_PATH = 1 << 21, IF_READ = 1 << 22, IF_CACHED = 1 << 23,
    IF_LAYOUT = 1 << 24,
};
/* clang-format on */

/* Formulas in the symbols of symbols.c, and in other keys. */
const struct m3_figure m3_figures[] = {
    { "type", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "model_type", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "name", M3_FIGURE_TEXT, IF_FEW, NULL, NULL },
    { "source", M3_FIGURE_TEXT, IF_FEW, NULL, NULL },
    { "context", M3_FIGURE_WHOLE, IF_ALWAYS, "tokens", "T" },
    { "batch", M3_FIGURE_WHOLE, IF_ALWAYS, "sequences", "batch" },
    { "weights", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "kv", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "index_kv", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "mtp_modules", M3_FIGURE_WHOLE, IF_ALWAYS, "modules", "mtp" },
    { "mtp_join", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "vision_boundary", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "all_logits", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "no_causal_skip", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "tensors", M3_FIGURE_WHOLE, IF_ALWAYS, "tensors", "tensors_unquantised + scales" },
    { "tensors_unquantised", M3_FIGURE_COUNTED, IF_ALWAYS, "tensors",
      "2 + untied + layers * (6 + qk_norms) + sparse * 4 + dense * 3 + moe * (3 * E + 3 * shared + 2) + vision"
      " * (11 + 16 * tower) + mtp * (module_norms + 7 + qk_norms + last_sparse * 4 + last_moe * (3 * E + 3"
      " * shared + 2) + (1 - last_moe) * 3)" },
    { "params_total", M3_FIGURE_WHOLE, IF_FEW, "parameters", "published" },
    { "params_total", M3_FIGURE_WHOLE, IF_COUNTED, "parameters",
      "params_by_component.embedding + params_by_component.lm_head + params_by_component.attention"
      " + params_by_component.indexer + params_by_component.dense_mlp + params_by_component.moe_routed"
      " + params_by_component.moe_shared + params_by_component.moe_router + params_by_component.moe_router_bias"
      " + params_by_component.norms + params_by_component.vision_tower + params_by_component.projector"
      " + params_mtp" },
    { "params_by_component.embedding", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "V * H" },
    { "params_by_component.lm_head", M3_FIGURE_COUNTED, IF_UNTIED, "parameters", "V * H" },
    { "params_by_component.lm_head", M3_FIGURE_COUNTED, IF_TIED, "parameters", "0" },
    { "params_by_component.attention", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters",
      "layers * (2 * H * Q * D + 2 * H * G * D)" },
    { "params_by_component.indexer", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "sparse * H * (G + 1) * X" },
    { "params_by_component.dense_mlp", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "dense * 3 * H * I" },
    { "params_by_component.moe_routed", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "moe * E * 3 * H * F" },
    { "params_by_component.moe_shared", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "moe * 3 * H * J" },
    { "params_by_component.moe_router", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "moe * E * H" },
    { "params_by_component.moe_router_bias", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters", "moe * E" },
    { "params_by_component.norms", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters",
      "(2 * layers + 1) * H + layers * (q + k) + 2 * sparse * X" },
    { "params_by_component.vision_tower", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters",
      "W * C + 2 * W + tower * (4 * W + 4 * W^2 + 4 * W + 2 * W * L + L + W)" },
    { "params_by_component.projector", M3_FIGURE_COUNTED, IF_ALWAYS, "parameters",
      "vision * (W * Y + Y + Y * H + H + Z * Y + Y + Y * H + H)" },
    { "params_by_component.mtp", M3_FIGURE_COUNTED, IF_MODULES, "parameters",
      "mtp * (halves * H^2 + module_norms * H + 2 * H * Q * D + 2 * H * G * D + 2 * H + q + k + last_sparse * (H"
      " * (G + 1) * X + 2 * X) + last_moe * (E * 3 * H * F + 3 * H * J + E * H + E) + (1 - last_moe) * 3 * H * I)" },
    { "params_active_text", M3_FIGURE_WHOLE, IF_COUNTED, "parameters", "params_active_by_convention.layers_head" },
    { "params_active_text", M3_FIGURE_WHOLE, IF_FEW, "parameters", "published_active" },
    { "params_active_by_convention.layers", M3_FIGURE_WHOLE, IF_ALWAYS, "parameters",
      "moe * K * 3 * H * F + params_by_component.attention + params_by_component.indexer"
      " + params_by_component.dense_mlp + params_by_component.moe_shared + params_by_component.moe_router"
      " + params_by_component.moe_router_bias + params_by_component.norms" },
    { "params_active_by_convention.layers_head", M3_FIGURE_WHOLE, IF_ALWAYS, "parameters",
      "params_active_by_convention.layers + V * H" },
    { "params_active_by_convention.layers_head_embedding", M3_FIGURE_WHOLE, IF_UNTIED, "parameters",
      "params_active_by_convention.layers_head + params_by_component.embedding" },
    { "params_active_by_convention.layers_head_embedding", M3_FIGURE_WHOLE, IF_TIED, "parameters",
      "params_active_by_convention.layers_head" },
    { "params_active_by_convention.layers_head_embedding_vision", M3_FIGURE_WHOLE, IF_ALWAYS, "parameters",
      "params_active_by_convention.layers_head_embedding + params_by_component.vision_tower"
      " + params_by_component.projector" },
    { "flops_decode.full_attention", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "full * 4 * Q * D * T" },
    { "flops_decode.msa_index", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "sparse * 2 * G * X * T" },
    { "flops_decode.msa_main", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "sparse * 4 * Q * D * keys_main" },
    { "flops_decode.projections", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "layers * 2 * (2 * H * Q * D + 2 * H * G * D)" },
    { "flops_decode.index_projections", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "sparse * 2 * H * (G + 1) * X" },
    { "flops_decode.dense_mlp", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "dense * 6 * H * I" },
    { "flops_decode.moe", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP",
      "flops_decode_moe.shared + flops_decode_moe.routed + flops_decode_moe.router" },
    { "flops_decode.lm_head", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "2 * H * V" },
    { "flops_decode.total", M3_FIGURE_WHOLE, IF_FEW, "FLOP", "flops_decode.full_attention + flops_decode_linear" },
    { "flops_decode.total", M3_FIGURE_WHOLE, IF_COUNTED, "FLOP",
      "flops_decode.full_attention + flops_decode.msa_index + flops_decode.msa_main + flops_decode.projections"
      " + flops_decode.index_projections + flops_decode.dense_mlp + flops_decode.moe + flops_decode.lm_head" },
    { "flops_decode_moe.shared", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "moe * 6 * H * J" },
    { "flops_decode_moe.routed", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "moe * K * 6 * H * F" },
    { "flops_decode_moe.router", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "moe * 2 * H * E" },
    { "flops_decode_linear", M3_FIGURE_WHOLE, IF_COUNTED, "FLOP",
      "flops_decode.projections + flops_decode.index_projections + flops_decode.dense_mlp + flops_decode.moe"
      " + flops_decode.lm_head" },
    { "flops_decode_linear", M3_FIGURE_WHOLE, IF_FEW, "FLOP", "2 * published_active" },
    { "flops_decode_step", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "batch * flops_decode.total" },
    { "flops_decode_all_full_attention", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP",
      "layers * 4 * Q * D * T + flops_decode.projections + flops_decode.dense_mlp + flops_decode.moe"
      " + flops_decode.lm_head" },
    { "keys_main", M3_FIGURE_WHOLE, IF_SHORT, "keys", "any_sparse * T" },
    { "keys_main", M3_FIGURE_WHOLE, IF_LONG, "keys", "any_sparse * ((N - 1) * block + last)" },
    { "flops_prefill.full_attention", M3_FIGURE_WHOLE, IF_CAUSAL, "FLOP", "full * 4 * Q * D * T * (T + 1) / 2" },
    { "flops_prefill.full_attention", M3_FIGURE_WHOLE, IF_SQUARE, "FLOP", "full * 4 * Q * D * T^2" },
    { "flops_prefill.msa_index", M3_FIGURE_WHOLE, IF_CAUSAL, "FLOP", "sparse * 2 * G * X * T * (T + 1) / 2" },
    { "flops_prefill.msa_index", M3_FIGURE_WHOLE, IF_SQUARE, "FLOP", "sparse * 2 * G * X * T^2" },
    { "flops_prefill.msa_main", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "sparse * 4 * Q * D * keys_main_prefill" },
    { "flops_prefill.projections", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "T * flops_decode.projections" },
    { "flops_prefill.index_projections", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "T * flops_decode.index_projections" },
    { "flops_prefill.dense_mlp", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "T * flops_decode.dense_mlp" },
    { "flops_prefill.moe", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP", "T * flops_decode.moe" },
    { "flops_prefill.lm_head", M3_FIGURE_WHOLE, IF_LAST_LOGITS, "FLOP", "flops_decode.lm_head" },
    { "flops_prefill.lm_head", M3_FIGURE_WHOLE, IF_ALL_LOGITS, "FLOP", "T * flops_decode.lm_head" },
    { "flops_prefill.total", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP",
      "flops_prefill.full_attention + flops_prefill.msa_index + flops_prefill.msa_main + flops_prefill.projections"
      " + flops_prefill.index_projections + flops_prefill.dense_mlp + flops_prefill.moe + flops_prefill.lm_head" },
    { "keys_main_prefill", M3_FIGURE_WHOLE, IF_SHORT, "keys", "any_sparse * T * (T + 1) / 2" },
    { "keys_main_prefill", M3_FIGURE_WHOLE, IF_LONG, "keys",
      "any_sparse * (N * block * (N * block + 1) / 2 + floor((T - N * block) / block) * (block^2 * (N - 1) + block"
      " * (block + 1) / 2) + rest * block * (N - 1) + rest * (rest + 1) / 2)" },
    { "ratios.main_branch", M3_FIGURE_RATIO, IF_SPARSE, "", "T / keys_main" },
    { "ratios.layer_qk_with_index", M3_FIGURE_RATIO, IF_SPARSE, "",
      "2 * Q * D * T / (2 * G * X * T + 2 * Q * D * keys_main)" },
    { "ratios.layer_attention", M3_FIGURE_RATIO, IF_SPARSE, "",
      "4 * Q * D * T / (2 * G * X * T + 4 * Q * D * keys_main)" },
    { "ratios.model_attention", M3_FIGURE_RATIO, IF_SPARSE, "",
      "layers * 4 * Q * D * T / (flops_decode.full_attention + flops_decode.msa_index + flops_decode.msa_main)" },
    { "ratios.model_without_lm_head", M3_FIGURE_RATIO, IF_SPARSE, "",
      "(flops_decode_all_full_attention - flops_decode.lm_head) / (flops_decode.total - flops_decode.lm_head)" },
    { "ratios.model_with_lm_head", M3_FIGURE_RATIO, IF_SPARSE, "",
      "flops_decode_all_full_attention / flops_decode.total" },
    { "ratios.layer_attention_prefill_causal", M3_FIGURE_RATIO, IF_SPARSE, "",
      "4 * Q * D * T * (T + 1) / 2 / (2 * G * X * T * (T + 1) / 2 + 4 * Q * D * keys_main_prefill)" },
    { "flops_vision.patch_embed", M3_FIGURE_WHOLE, IF_PICTURES, "FLOP", "2 * C * W * P" },
    { "flops_vision.linears", M3_FIGURE_WHOLE, IF_PICTURES, "FLOP", "tower * 2 * (4 * W^2 + 2 * W * L) * P" },
    { "flops_vision.attention", M3_FIGURE_WHOLE, IF_PICTURES, "FLOP", "tower * 4 * W * squares" },
    { "flops_vision.projector", M3_FIGURE_WHOLE, IF_PICTURES, "FLOP",
      "2 * (W * Y + Y * H) * P + 2 * (Z * Y + Y * H) * P / merge^2" },
    { "flops_vision.total", M3_FIGURE_WHOLE, IF_PICTURES, "FLOP",
      "flops_vision.patch_embed + flops_vision.linears + flops_vision.attention + flops_vision.projector" },
    { "flops_vision.patches", M3_FIGURE_WHOLE, IF_PICTURES, "patches", "P" },
    { "flops_vision.tokens", M3_FIGURE_WHOLE, IF_PICTURES, "tokens", "P / merge^2" },
    { "other_work.block_max_comparisons", M3_FIGURE_WHOLE, IF_SPARSE, "comparisons", "sparse * G * T" },
    { "other_work.block_max_comparisons", M3_FIGURE_WHOLE, IF_NOT_SPARSE, "comparisons", "0" },
    { "other_work.block_max_comparisons_per_layer", M3_FIGURE_WHOLE, IF_SPARSE, "comparisons", "G * T" },
    { "other_work.block_max_comparisons_per_layer", M3_FIGURE_WHOLE, IF_NOT_SPARSE, "comparisons", "0" },
    { "other_work.selection_candidates", M3_FIGURE_WHOLE, IF_SPARSE, "scores", "sparse * G * ceil(T / block)" },
    { "other_work.selection_candidates", M3_FIGURE_WHOLE, IF_NOT_SPARSE, "scores", "0" },
    { "other_work.selection_candidates_per_layer", M3_FIGURE_WHOLE, IF_SPARSE, "scores", "G * ceil(T / block)" },
    { "other_work.selection_candidates_per_layer", M3_FIGURE_WHOLE, IF_NOT_SPARSE, "scores", "0" },
    { "kv_bytes.main", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "batch * kv_bytes_per_sequence.main" },
    { "kv_bytes.index", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "batch * kv_bytes_per_sequence.index" },
    { "kv_bytes.total", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "batch * kv_bytes_per_sequence.total" },
    { "kv_bytes_per_sequence.main", M3_FIGURE_WHOLE, IF_FEW, "bytes", "ceil(full * numbers * T * kv_bits / 8)" },
    { "kv_bytes_per_sequence.main", M3_FIGURE_WHOLE, IF_COUNTED, "bytes",
      "ceil(cached * 2 * G * D * T * kv_bits / 8)" },
    { "kv_bytes_per_sequence.index", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "ceil(indexed * X * T * index_bits / 8)" },
    { "kv_bytes_per_sequence.total", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes",
      "kv_bytes_per_sequence.main + kv_bytes_per_sequence.index" },
    { "weight_bytes", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "ceil(params_total * weight_bits / 8)" },
    { "weight_bytes_stored", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "file_bytes" },
    { "weight_bytes_released", M3_FIGURE_COUNTED, IF_ALWAYS, "bytes",
      "2 * (params_total - matrix_params) + code_bytes + scale_bytes + 2 * (moe * E * (H + 1) + mtp * last_moe * E * (H + 1)"
      " + vision * W * C)" },
    { "weight_bytes_in_memory", M3_FIGURE_WHOLE, IF_STORED, "bytes", "weight_bytes_stored" },
    { "weight_bytes_in_memory", M3_FIGURE_WHOLE, IF_NOMINAL, "bytes", "weight_bytes" },
    { "activation_bytes_per_sequence", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "activations" },
    { "memory_bytes_without_activations", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes",
      "weight_bytes_in_memory + batch * kv_bytes_per_sequence.total" },
    { "memory_bytes", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes",
      "memory_bytes_without_activations + batch * activation_bytes_per_sequence" },
    { "decode_read_bytes.weights", M3_FIGURE_QUANTITY, IF_FEW | IF_READ, "bytes",
      "weight_bits / 8 * published_active" },
    { "decode_read_bytes.weights", M3_FIGURE_QUANTITY, IF_COUNTED, "bytes",
      "weight_bits / 8 * (params_active_text - moe * K * 3 * H * F + moe * experts_read_per_layer * 3 * H * F)" },
    { "decode_read_bytes.kv_full", M3_FIGURE_WHOLE, IF_FEW, "bytes", "kv_bytes.main" },
    { "decode_read_bytes.kv_full", M3_FIGURE_WHOLE, IF_COUNTED, "bytes",
      "batch * ceil(full * 2 * G * D * T * kv_bits / 8)" },
    { "decode_read_bytes.kv_selected", M3_FIGURE_WHOLE, IF_FEW | IF_CACHED, "bytes", "0" },
    { "decode_read_bytes.kv_selected", M3_FIGURE_WHOLE, IF_COUNTED, "bytes",
      "batch * ceil(sparse * 2 * G * D * keys_main * kv_bits / 8)" },
    { "decode_read_bytes.index_keys", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes",
      "batch * ceil(sparse * X * T * index_bits / 8)" },
    { "decode_read_bytes.total", M3_FIGURE_QUANTITY, IF_ALWAYS, "bytes",
      "decode_read_bytes.weights + decode_read_bytes.kv_full + decode_read_bytes.kv_selected"
      " + decode_read_bytes.index_keys" },
    { "decode_read_bytes_stored.weights", M3_FIGURE_QUANTITY, IF_EXPERTS, "bytes",
      "always_bytes + experts_read_per_layer * routed_bytes / E" },
    { "decode_read_bytes_stored.weights", M3_FIGURE_QUANTITY, IF_NO_EXPERTS, "bytes", "always_bytes" },
    { "decode_read_bytes_stored.total", M3_FIGURE_QUANTITY, IF_ALWAYS, "bytes",
      "decode_read_bytes_stored.weights + decode_read_bytes.kv_full + decode_read_bytes.kv_selected"
      " + decode_read_bytes.index_keys" },
    { "experts_read_per_layer", M3_FIGURE_COUNTED, IF_EXPERTS, "experts", "E * (1 - (1 - K / E)^batch)" },
    { "experts_read_per_layer", M3_FIGURE_QUANTITY, IF_NO_EXPERTS, "experts", "0" },
    { "arithmetic_intensity", M3_FIGURE_QUANTITY, IF_ALWAYS, "FLOP per byte",
      "flops_decode_step / decode_read_bytes.total" },
    { "gpu", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "gpus", M3_FIGURE_WHOLE, IF_ALWAYS, "cards", "gpus" },
    { "card_bytes", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes", "card_memory" },
    { "peak_flops", M3_FIGURE_WHOLE, IF_ALWAYS, "FLOP/s", "card_peak" },
    { "bandwidth", M3_FIGURE_WHOLE, IF_ALWAYS, "bytes/s", "card_bandwidth" },
    { "ridge", M3_FIGURE_QUANTITY, IF_ALWAYS, "FLOP per byte", "peak_flops / bandwidth" },
    { "min_cards_weights", M3_FIGURE_WHOLE, IF_ALWAYS, "cards", "ceil(weight_bytes_in_memory / card_bytes)" },
    { "min_cards", M3_FIGURE_WHOLE, IF_ALWAYS, "cards", "ceil(memory_bytes / card_bytes)" },
    { "max_batch", M3_FIGURE_WHOLE, IF_ALWAYS, "sequences",
      "max(0, floor((gpus * card_bytes - weight_bytes_in_memory) / (kv_bytes_per_sequence.total"
      " + activation_bytes_per_sequence)))" },
    { "bandwidth_bound_seconds", M3_FIGURE_QUANTITY, IF_ALWAYS, "s", "decode_read_bytes.total / (gpus * bandwidth)" },
    { "compute_bound_seconds", M3_FIGURE_QUANTITY, IF_ALWAYS, "s", "flops_decode_step / (gpus * peak_flops)" },
    { "bound", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "efficiency", M3_FIGURE_WHOLE, IF_ALWAYS, "percent", "efficiency" },
    { "step_seconds", M3_FIGURE_QUANTITY, IF_ALWAYS, "s",
      "max(bandwidth_bound_seconds, compute_bound_seconds) * 100 / efficiency" },
    { "tokens_per_second", M3_FIGURE_QUANTITY, IF_ALWAYS, "tokens/s", "batch / step_seconds" },
    { "prefill_seconds", M3_FIGURE_QUANTITY, IF_ALWAYS, "s",
      "flops_prefill.total / (gpus * peak_flops) * 100 / efficiency" },
    { "expert_spread.p_fullest", M3_FIGURE_SPREAD, IF_ALWAYS, "", NULL },
    { "expert_spread.expected_fullest", M3_FIGURE_SPREAD, IF_ALWAYS, "experts", NULL },
    { "expert_spread.expected_cards_hit", M3_FIGURE_COUNTED, IF_ALWAYS, "cards",
      "gpus * (1 - choose(E - E / gpus, K) / choose(E, K))" },
    { "expert_parallel.weight_bytes_per_card", M3_FIGURE_WHOLE, IF_SPLIT, "bytes",
      "ceil((params_total - routed) * weight_bits / 8) + ceil(routed / gpus * weight_bits / 8)" },
    { "expert_parallel.weight_bytes_per_card_stored", M3_FIGURE_WHOLE, IF_SPLIT | IF_FILES, "bytes",
      "weight_bytes_stored - routed_bytes + routed_bytes / gpus" },
    { "expert_parallel.weight_bytes_per_card_stored", M3_FIGURE_WHOLE, IF_SPLIT | IF_NO_FILES, "bytes",
      "weight_bytes_released - routed_bytes + routed_bytes / gpus" },
    { "expert_parallel.free_bytes_per_card", M3_FIGURE_WHOLE, IF_SPLIT | IF_STORED, "bytes",
      "card_bytes - expert_parallel.weight_bytes_per_card_stored" },
    { "expert_parallel.free_bytes_per_card", M3_FIGURE_WHOLE, IF_SPLIT | IF_NOMINAL, "bytes",
      "card_bytes - expert_parallel.weight_bytes_per_card" },
    { "expert_parallel.fits", M3_FIGURE_TEXT, IF_ALWAYS, NULL, NULL },
    { "critical_path.expert_bytes", M3_FIGURE_QUANTITY, IF_PATH, "bytes",
      "expert_spread.expected_fullest * moe * 3 * H * F * weight_bits / 8" },
    { "critical_path.other_bytes", M3_FIGURE_QUANTITY, IF_PATH, "bytes",
      "decode_read_bytes.weights - K * moe * 3 * H * F * weight_bits / 8" },
    { "critical_path.replicated_seconds", M3_FIGURE_QUANTITY, IF_PATH, "s",
      "(critical_path.other_bytes + critical_path.expert_bytes) / bandwidth" },
    { "critical_path.sharded_seconds", M3_FIGURE_QUANTITY, IF_PATH, "s",
      "(critical_path.other_bytes / gpus + critical_path.expert_bytes) / bandwidth" },
    { "critical_path.cache_seconds", M3_FIGURE_QUANTITY, IF_PATH, "s",
      "(decode_read_bytes.total - decode_read_bytes.weights) / (gpus * bandwidth)" },
    { "critical_path.replicated_seconds_with_caches", M3_FIGURE_QUANTITY, IF_PATH, "s",
      "critical_path.replicated_seconds + critical_path.cache_seconds" },
    { "critical_path.sharded_seconds_with_caches", M3_FIGURE_QUANTITY, IF_PATH, "s",
      "critical_path.sharded_seconds + critical_path.cache_seconds" },
    { "layout.tp", M3_FIGURE_WHOLE, IF_LAYOUT, "cards", "tp" },
    { "layout.pp", M3_FIGURE_WHOLE, IF_LAYOUT, "stages", "pp" },
    { "layout.dp", M3_FIGURE_WHOLE, IF_LAYOUT, "replicas", "dp" },
    { "layout.ep", M3_FIGURE_WHOLE, IF_LAYOUT, "groups", "ep" },
    { "layout.chunk", M3_FIGURE_WHOLE, IF_LAYOUT, "tokens", "chunk" },
    { "layout.layers_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "layers", "stage_layers" },
    { "layout.query_heads_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "heads", "Q / tp" },
    { "layout.kv_heads_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "heads", "ceil(G / tp)" },
    { "layout.experts_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "experts", "E / ep" },
    { "layout.sequences_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "sequences", "ceil(batch / dp)" },
    { "layout.weight_bytes_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes",
      "ceil(bytes_attention * stage_layers / layers * (Q / tp + layout.kv_heads_per_card) / (Q + G) + bytes_indexer"
      " * stage_sparse / max(1, sparse) * (layout.kv_heads_per_card + 1) / (G + 1) + bytes_dense * stage_dense"
      " / max(1, dense) / tp + (bytes_routed / max(tp, ep) + bytes_shared / tp + bytes_router) * stage_moe / max(1, moe)"
      " + bytes_norms * (stage_layers * (2 * H + q + k) + 2 * stage_sparse * X + stage_last * H)"
      " / params_by_component.norms + (stage_embedding + stage_head) / tp + stage_vision)" },
    { "layout.kv_bytes_per_sequence", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes",
      "ceil(stage_layers * 2 * layout.kv_heads_per_card * D * T * kv_bits / 8)"
      " + ceil(stage_sparse * X * T * index_bits / 8)" },
    { "layout.kv_bytes_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes",
      "layout.sequences_per_card * layout.kv_bytes_per_sequence" },
    { "layout.chunk_bytes", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes",
      "ceil(2 * chunk * (3 * H + 2 * Q / tp * D + 2 * layout.kv_heads_per_card * D + max(min(1, dense) * 3 * I / tp,"
      " min(1, moe) * (dp * K / ep * (2 * H + 3 * F * ep / max(tp, ep)) + 3 * J / tp))) + 4 * chunk * any_sparse"
      " * layout.kv_heads_per_card * ceil(T / max(1, block)))" },
    { "layout.logit_bytes_per_sequence", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes", "stage_last * 4 * ceil(V / tp)" },
    { "layout.activation_bytes_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes",
      "layout.chunk_bytes + layout.sequences_per_card * layout.logit_bytes_per_sequence" },
    { "layout.memory_bytes_per_card", M3_FIGURE_WHOLE, IF_LAYOUT, "bytes",
      "layout.weight_bytes_per_card + layout.kv_bytes_per_card + layout.activation_bytes_per_card" },
    { "layout.fits", M3_FIGURE_TEXT, IF_LAYOUT, NULL, NULL },
    { "layout.max_batch", M3_FIGURE_WHOLE, IF_LAYOUT, "sequences",
      "max(0, dp * floor((card_bytes - layout.weight_bytes_per_card - layout.chunk_bytes)"
      " / (layout.kv_bytes_per_sequence + layout.logit_bytes_per_sequence)))" },
    { "layout.read_bytes", M3_FIGURE_QUANTITY, IF_LAYOUT, "bytes",
      "bytes_attention * (Q / tp + layout.kv_heads_per_card) / (Q + G) + bytes_indexer * (layout.kv_heads_per_card + 1)"
      " / (G + 1) + (bytes_dense + bytes_shared + bytes_head) / tp + bytes_router + bytes_norms + bytes_routed"
      " / max(tp, ep) * experts_read_per_layer / max(1, E) + layout.sequences_per_card * ((full * T + sparse"
      " * keys_main) * 2 * layout.kv_heads_per_card * D * kv_bits / 8 + sparse * X * T * index_bits / 8)" },
    { "layout.bandwidth_seconds", M3_FIGURE_QUANTITY, IF_LAYOUT, "s", "layout.read_bytes / bandwidth" },
    { "layout.compute_seconds", M3_FIGURE_QUANTITY, IF_LAYOUT, "s",
      "layout.sequences_per_card * flops_decode.total / tp / peak_flops" },
    { "layout.step_seconds", M3_FIGURE_QUANTITY, IF_LAYOUT, "s",
      "max(layout.bandwidth_seconds, layout.compute_seconds) * 100 / efficiency" },
    { "layout.tokens_per_second", M3_FIGURE_QUANTITY, IF_LAYOUT, "tokens/s", "batch / layout.step_seconds" },
    { "layout.prefill_seconds", M3_FIGURE_QUANTITY, IF_LAYOUT, "s",
      "flops_prefill.total * (ceil(T / chunk) + pp - 1) / (ceil(T / chunk) * pp * tp * peak_flops) * 100 / efficiency" },
};

static unsigned either(int holds, unsigned yes, unsigned no) { return holds ? yes : no; }

/* If only a few numbers are known, the degree to which tokens of a batch share experts is not. */
unsigned m3_figure_conditions(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    const struct m3_config *c = e->config;
    const struct m3_foreign *few = m3_few_numbers(e);
    const int is_dense = !few || few->active == few->parameters, attends = !few || c->Q;
    const int is_short = !e->sparse || r->context <= c->N * c->block;
    return either(attends, either(is_short, IF_SHORT, IF_LONG) | either(e->sparse > 0, IF_SPARSE, IF_NOT_SPARSE), 0) |
           either(c->tied_embeddings, IF_TIED, IF_UNTIED) |
           either(r->files && !r->weights_asked, IF_STORED, IF_NOMINAL) | either(few != NULL, IF_FEW, IF_COUNTED) |
           either(e->moe > 0, IF_EXPERTS, either(is_dense, IF_NO_EXPERTS, 0)) |
           either(r->no_causal_skip, IF_SQUARE, IF_CAUSAL) | either(r->all_logits, IF_ALL_LOGITS, IF_LAST_LOGITS) |
           either(r->files != NULL, IF_FILES, IF_NO_FILES) | either(r->mtp_modules > 0, IF_MODULES, 0) |
           either(r->grid_count > 0, IF_PICTURES, 0) | either(r->gpu && m3_splits_experts(e), IF_SPLIT, 0) |
           either(e->has_spread && r->batch == 1, IF_PATH, 0) | either(is_dense || r->batch == 1, IF_READ, 0) |
           either(few && few->cached_numbers, IF_CACHED, 0) | either(r->layout.tp > 0, IF_LAYOUT, 0);
}

int m3_figure_is_formula(const struct m3_figure *figure)
{
    return figure->kind == M3_FIGURE_WHOLE || figure->kind == M3_FIGURE_RATIO || figure->kind == M3_FIGURE_QUANTITY;
}

int m3_figure_holds(const struct m3_figure *figure, const struct m3_estimate *e)
{
    return !(figure->when & ~e->conditions);
}

const struct m3_figure *m3_figure_named(const struct m3_estimate *e, const char *key)
{
    const struct m3_figure *found = NULL;
    for (int i = 0; i < M3_FIGURES; i++) {
        if (strcmp(m3_figures[i].key, key) != 0) continue;
        if (m3_figure_holds(&m3_figures[i], e)) return &m3_figures[i];
        found = &m3_figures[i];
    }
    return found;
}

struct m3_value m3_estimate_figure(const struct m3_estimate *e, const char *key)
{
    static const char spread[] = "expert_spread.p_fullest.";
    const struct m3_value unknown = { .kind = M3_VALUE_UNKNOWN };
    if (strncmp(key, spread, sizeof spread - 1) == 0) {
        long j = strtol(key + sizeof spread - 1, NULL, 10);
        if (!e->has_spread || j < 0 || j >= e->config->K) return unknown;
        return (struct m3_value){ .kind = M3_VALUE_REAL, .real = e->p_fullest[j] };
    }
    const struct m3_figure *figure = m3_figure_named(e, key);
    return figure ? e->figures[figure - m3_figures] : unknown;
}

const char *m3_ratio_key(int i)
{
    for (int j = 0; j < M3_FIGURES; j++)
        if (m3_figures[j].kind == M3_FIGURE_RATIO && i-- == 0) return m3_figures[j].key;
    return NULL;
}

int64_t m3_whole(const struct m3_estimate *e, const char *key)
{
    struct m3_value value = m3_estimate_figure(e, key);
    return value.kind == M3_VALUE_EXACT && value.under == 1 ? (int64_t)value.over : M3_UNKNOWN;
}

double m3_quantity(const struct m3_estimate *e, const char *key)
{
    struct m3_value value = m3_estimate_figure(e, key);
    return m3_value_double(&value);
}

void m3_estimate_count(struct m3_estimate *e, const char *key, struct m3_value value)
{
    e->figures[m3_figure_named(e, key) - m3_figures] = value;
}

struct m3_scope m3_scope_of(const struct m3_estimate *e)
{
    return (struct m3_scope){ .e = e, .symbols = m3_symbols_of(e) };
}

int m3_scope_value(struct m3_value *value, void *self, const char *name)
{
    struct m3_scope *scope = self;
    const struct m3_symbol *symbol = m3_symbol_named(&scope->symbols, name, strlen(name));
    *value = symbol ? m3_exact(symbol->value, 1) : m3_estimate_figure(scope->e, name);
    if (symbol && symbol->value < 0) value->kind = M3_VALUE_UNKNOWN;
    scope->pending |= value->kind == M3_VALUE_PENDING;
    return symbol || m3_figure_named(scope->e, name);
}

static void reduce(struct m3_value *value)
{
    m3_wide a = value->over, b = value->under;
    while (b) {
        m3_wide rest = a % b;
        a = b;
        b = rest;
    }
    value->over /= a;
    value->under /= a;
}

static int fits(m3_wide x) { return x >= -(m3_wide)INT64_MAX && x <= INT64_MAX; }

/* Bytes of experts of different sizes are divided evenly, rounded down. */
static void keep(struct m3_estimate *e, int i, struct m3_value value)
{
    const enum m3_figure_kind kind = m3_figures[i].kind;
    if (value.kind != M3_VALUE_UNKNOWN && kind == M3_FIGURE_QUANTITY)
        value = (struct m3_value){ .kind = M3_VALUE_REAL, .real = m3_value_double(&value) };
    else if (value.kind == M3_VALUE_EXACT) {
        if (kind == M3_FIGURE_RATIO) reduce(&value);
        else if (value.under > 1) value = m3_exact(value.over / value.under, 1);
        e->overflow |= !fits(value.over) || !fits(value.under);
    } else e->overflow |= value.kind == M3_VALUE_REAL;
    e->figures[i] = value;
}

/* A figure is computed after those in its formula. */
int m3_estimate_figures(struct m3_estimate *e, struct m3_error *error)
{
    struct m3_scope scope = m3_scope_of(e);
    int status = M3_OK, left = M3_FIGURES, before;
    do {
        before = left;
        left = 0;
        for (int i = 0; !status && i < M3_FIGURES; i++) {
            const struct m3_figure *figure = &m3_figures[i];
            struct m3_value value = { .kind = M3_VALUE_UNKNOWN };
            if (e->figures[i].kind != M3_VALUE_PENDING) continue;
            scope.pending = 0;
            if (m3_figure_is_formula(figure) && m3_figure_holds(figure, e))
                status = m3_formula_value(&value, figure->formula, m3_scope_value, &scope, error);
            if (scope.pending) left++;
            else keep(e, i, value);
        }
    } while (!status && left && left < before);
    if (status || !left) return status;
    return m3_fail(error, M3_INTERNAL, "estimate: %d figures wait for each other", left);
}
