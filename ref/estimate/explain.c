#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

/* IF_COUNTED: all of the config is known; IF_FEW: a few numbers are. */
enum when {
    ALWAYS, IF_SHORT, IF_LONG, IF_TIED, IF_UNTIED, IF_STORED, IF_NOMINAL, IF_COUNTED, IF_FEW, IF_EXPERTS,
    IF_NO_EXPERTS, IF_SPARSE, IF_NOT_SPARSE, IF_CAUSAL, IF_SQUARE, IF_LAST_LOGITS, IF_ALL_LOGITS, IF_FILES, IF_NO_FILES
};

/* Formulas in the symbols below, and in other keys. Where two rows have one key, `when` says which one holds. */
static const struct row {
    const char *key;
    enum when when;
    const char *unit, *formula;
} rows[] = {
    { "context", ALWAYS, "tokens", "T" },
    { "batch", ALWAYS, "sequences", "batch" },
    { "mtp_modules", ALWAYS, "modules", "mtp" },
    { "tensors", ALWAYS, "tensors", "tensors_unquantised + scales" },
    { "tensors_unquantised", ALWAYS, "tensors", "2 + untied + layers * (6 + qk_norms) + sparse * 4 + dense * 3"
      " + moe * (3 * E + 3 * shared + 2) + vision * (11 + 16 * tower)"
      " + mtp * (module_norms + 7 + qk_norms + last_sparse * 4 + last_moe * (3 * E + 3 * shared + 2)"
      " + (1 - last_moe) * 3)" },
    { "params_by_component.embedding", ALWAYS, "parameters", "V * H" },
    { "params_by_component.lm_head", IF_UNTIED, "parameters", "V * H" },
    { "params_by_component.lm_head", IF_TIED, "parameters", "0" },
    { "params_by_component.attention", ALWAYS, "parameters", "layers * (2 * H * Q * D + 2 * H * G * D)" },
    { "params_by_component.indexer", ALWAYS, "parameters", "sparse * H * (G + 1) * X" },
    { "params_by_component.dense_mlp", ALWAYS, "parameters", "dense * 3 * H * I" },
    { "params_by_component.moe_routed", ALWAYS, "parameters", "moe * E * 3 * H * F" },
    { "params_by_component.moe_shared", ALWAYS, "parameters", "moe * 3 * H * J" },
    { "params_by_component.moe_router", ALWAYS, "parameters", "moe * E * H" },
    { "params_by_component.moe_router_bias", ALWAYS, "parameters", "moe * E" },
    { "params_by_component.norms", ALWAYS, "parameters",
      "(2 * layers + 1) * H + layers * (q + k) + 2 * sparse * X" },
    { "params_by_component.vision_tower", ALWAYS, "parameters",
      "W * C + 2 * W + tower * (4 * W + 4 * W^2 + 4 * W + 2 * W * L + L + W)" },
    { "params_by_component.projector", ALWAYS, "parameters",
      "vision * (W * Y + Y + Y * H + H + Z * Y + Y + Y * H + H)" },
    { "params_by_component.mtp", ALWAYS, "parameters",
      "mtp * (halves * H^2 + module_norms * H + 2 * H * Q * D + 2 * H * G * D + 2 * H + q + k"
      " + last_sparse * (H * (G + 1) * X + 2 * X)"
      " + last_moe * (E * 3 * H * F + 3 * H * J + E * H + E) + (1 - last_moe) * 3 * H * I)" },
    { "params_total", IF_FEW, "parameters", "published" },
    { "params_total", IF_COUNTED, "parameters", "params_by_component.embedding + params_by_component.lm_head"
      " + params_by_component.attention + params_by_component.indexer + params_by_component.dense_mlp"
      " + params_by_component.moe_routed + params_by_component.moe_shared + params_by_component.moe_router"
      " + params_by_component.moe_router_bias + params_by_component.norms + params_by_component.vision_tower"
      " + params_by_component.projector + params_mtp" },
    { "params_active_by_convention.layers", ALWAYS, "parameters", "moe * K * 3 * H * F"
      " + params_by_component.attention + params_by_component.indexer + params_by_component.dense_mlp"
      " + params_by_component.moe_shared + params_by_component.moe_router + params_by_component.moe_router_bias"
      " + params_by_component.norms" },
    { "params_active_by_convention.layers_head", ALWAYS, "parameters",
      "params_active_by_convention.layers + V * H" },
    { "params_active_by_convention.layers_head_embedding", IF_UNTIED, "parameters",
      "params_active_by_convention.layers_head + params_by_component.embedding" },
    { "params_active_by_convention.layers_head_embedding", IF_TIED, "parameters",
      "params_active_by_convention.layers_head" },
    { "params_active_by_convention.layers_head_embedding_vision", ALWAYS, "parameters",
      "params_active_by_convention.layers_head_embedding + params_by_component.vision_tower"
      " + params_by_component.projector" },
    { "params_active_text", IF_COUNTED, "parameters", "params_active_by_convention.layers_head" },
    { "params_active_text", IF_FEW, "parameters", "published_active" },

    { "flops_decode.full_attention", ALWAYS, "FLOP", "full * 4 * Q * D * T" },
    { "flops_decode.msa_index", ALWAYS, "FLOP", "sparse * 2 * G * X * T" },
    { "flops_decode.msa_main", ALWAYS, "FLOP", "sparse * 4 * Q * D * keys_main" },
    { "flops_decode.projections", ALWAYS, "FLOP", "layers * 2 * (2 * H * Q * D + 2 * H * G * D)" },
    { "flops_decode.index_projections", ALWAYS, "FLOP", "sparse * 2 * H * (G + 1) * X" },
    { "flops_decode.dense_mlp", ALWAYS, "FLOP", "dense * 6 * H * I" },
    { "flops_decode.moe", ALWAYS, "FLOP",
      "flops_decode_moe.shared + flops_decode_moe.routed + flops_decode_moe.router" },
    { "flops_decode.lm_head", ALWAYS, "FLOP", "2 * H * V" },
    { "flops_decode.total", IF_FEW, "FLOP", "flops_decode.full_attention + flops_decode_linear" },
    { "flops_decode.total", IF_COUNTED, "FLOP", "flops_decode.full_attention + flops_decode.msa_index"
      " + flops_decode.msa_main + flops_decode.projections + flops_decode.index_projections + flops_decode.dense_mlp"
      " + flops_decode.moe + flops_decode.lm_head" },
    { "flops_decode_moe.shared", ALWAYS, "FLOP", "moe * 6 * H * J" },
    { "flops_decode_moe.routed", ALWAYS, "FLOP", "moe * K * 6 * H * F" },
    { "flops_decode_moe.router", ALWAYS, "FLOP", "moe * 2 * H * E" },
    { "flops_decode_linear", IF_COUNTED, "FLOP", "flops_decode.projections + flops_decode.index_projections"
      " + flops_decode.dense_mlp + flops_decode.moe + flops_decode.lm_head" },
    { "flops_decode_linear", IF_FEW, "FLOP", "2 * published_active" },
    { "flops_decode_step", ALWAYS, "FLOP", "batch * flops_decode.total" },
    { "flops_decode_all_full_attention", ALWAYS, "FLOP", "layers * 4 * Q * D * T + flops_decode.projections"
      " + flops_decode.dense_mlp + flops_decode.moe + flops_decode.lm_head" },
    { "keys_main", IF_SHORT, "keys", "any_sparse * T" },
    { "keys_main", IF_LONG, "keys", "any_sparse * ((N - 1) * block + last)" },
    { "flops_prefill.full_attention", IF_CAUSAL, "FLOP", "full * 4 * Q * D * T * (T + 1) / 2" },
    { "flops_prefill.full_attention", IF_SQUARE, "FLOP", "full * 4 * Q * D * T^2" },
    { "flops_prefill.msa_index", IF_CAUSAL, "FLOP", "sparse * 2 * G * X * T * (T + 1) / 2" },
    { "flops_prefill.msa_index", IF_SQUARE, "FLOP", "sparse * 2 * G * X * T^2" },
    { "flops_prefill.msa_main", ALWAYS, "FLOP", "sparse * 4 * Q * D * keys_main_prefill" },
    { "flops_prefill.projections", ALWAYS, "FLOP", "T * flops_decode.projections" },
    { "flops_prefill.index_projections", ALWAYS, "FLOP", "T * flops_decode.index_projections" },
    { "flops_prefill.dense_mlp", ALWAYS, "FLOP", "T * flops_decode.dense_mlp" },
    { "flops_prefill.moe", ALWAYS, "FLOP", "T * flops_decode.moe" },
    { "flops_prefill.lm_head", IF_LAST_LOGITS, "FLOP", "flops_decode.lm_head" },
    { "flops_prefill.lm_head", IF_ALL_LOGITS, "FLOP", "T * flops_decode.lm_head" },
    { "flops_prefill.total", ALWAYS, "FLOP", "flops_prefill.full_attention + flops_prefill.msa_index"
      " + flops_prefill.msa_main + flops_prefill.projections + flops_prefill.index_projections"
      " + flops_prefill.dense_mlp + flops_prefill.moe + flops_prefill.lm_head" },
    { "keys_main_prefill", IF_SHORT, "keys", "any_sparse * T * (T + 1) / 2" },
    { "keys_main_prefill", IF_LONG, "keys", "any_sparse * (N * block * (N * block + 1) / 2"
      " + floor((T - N * block) / block) * (block^2 * (N - 1) + block * (block + 1) / 2)"
      " + rest * block * (N - 1) + rest * (rest + 1) / 2)" },
    { "ratios.main_branch", ALWAYS, "", "T / keys_main" },
    { "ratios.layer_qk_with_index", ALWAYS, "", "2 * Q * D * T / (2 * G * X * T + 2 * Q * D * keys_main)" },
    { "ratios.layer_attention", ALWAYS, "", "4 * Q * D * T / (2 * G * X * T + 4 * Q * D * keys_main)" },
    { "ratios.model_attention", ALWAYS, "", "layers * 4 * Q * D * T / (flops_decode.full_attention"
      " + flops_decode.msa_index + flops_decode.msa_main)" },
    { "ratios.model_without_lm_head", ALWAYS, "", "(flops_decode_all_full_attention - flops_decode.lm_head)"
      " / (flops_decode.total - flops_decode.lm_head)" },
    { "ratios.model_with_lm_head", ALWAYS, "", "flops_decode_all_full_attention / flops_decode.total" },
    { "ratios.layer_attention_prefill_causal", ALWAYS, "",
      "4 * Q * D * T * (T + 1) / 2 / (2 * G * X * T * (T + 1) / 2 + 4 * Q * D * keys_main_prefill)" },

    { "flops_vision.patch_embed", ALWAYS, "FLOP", "2 * C * W * P" },
    { "flops_vision.linears", ALWAYS, "FLOP", "tower * 2 * (4 * W^2 + 2 * W * L) * P" },
    { "flops_vision.attention", ALWAYS, "FLOP", "tower * 4 * W * squares" },
    { "flops_vision.projector", ALWAYS, "FLOP",
      "2 * (W * Y + Y * H) * P + 2 * (Z * Y + Y * H) * P / merge^2" },
    { "flops_vision.total", ALWAYS, "FLOP", "flops_vision.patch_embed + flops_vision.linears"
      " + flops_vision.attention + flops_vision.projector" },
    { "flops_vision.patches", ALWAYS, "patches", "P" },
    { "flops_vision.tokens", ALWAYS, "tokens", "P / merge^2" },
    { "other_work.block_max_comparisons", IF_SPARSE, "comparisons", "sparse * G * T" },
    { "other_work.block_max_comparisons", IF_NOT_SPARSE, "comparisons", "0" },
    { "other_work.block_max_comparisons_per_layer", IF_SPARSE, "comparisons", "G * T" },
    { "other_work.block_max_comparisons_per_layer", IF_NOT_SPARSE, "comparisons", "0" },
    { "other_work.selection_candidates", IF_SPARSE, "scores", "sparse * G * ceil(T / block)" },
    { "other_work.selection_candidates", IF_NOT_SPARSE, "scores", "0" },
    { "other_work.selection_candidates_per_layer", IF_SPARSE, "scores", "G * ceil(T / block)" },
    { "other_work.selection_candidates_per_layer", IF_NOT_SPARSE, "scores", "0" },

    { "kv_bytes_per_sequence.main", IF_FEW, "bytes", "ceil(full * numbers * T * kv_bits / 8)" },
    { "kv_bytes_per_sequence.main", IF_COUNTED, "bytes", "ceil(cached * 2 * G * D * T * kv_bits / 8)" },
    { "kv_bytes_per_sequence.index", ALWAYS, "bytes", "ceil(indexed * X * T * index_bits / 8)" },
    { "kv_bytes_per_sequence.total", ALWAYS, "bytes", "kv_bytes_per_sequence.main + kv_bytes_per_sequence.index" },
    { "kv_bytes.main", ALWAYS, "bytes", "batch * kv_bytes_per_sequence.main" },
    { "kv_bytes.index", ALWAYS, "bytes", "batch * kv_bytes_per_sequence.index" },
    { "kv_bytes.total", ALWAYS, "bytes", "batch * kv_bytes_per_sequence.total" },
    { "weight_bytes", ALWAYS, "bytes", "ceil(params_total * weight_bits / 8)" },
    { "weight_bytes_stored", ALWAYS, "bytes", "file_bytes" },
    { "weight_bytes_released", ALWAYS, "bytes", "2 * params_total - matrix_params + scale_bytes"
      " + 2 * (moe * E * (H + 1) + mtp * last_moe * E * (H + 1) + vision * W * C)" },
    { "activation_bytes_per_sequence", ALWAYS, "bytes", "activations" },
    { "weight_bytes_in_memory", IF_STORED, "bytes", "weight_bytes_stored" },
    { "weight_bytes_in_memory", IF_NOMINAL, "bytes", "weight_bytes" },
    { "memory_bytes_without_activations", ALWAYS, "bytes",
      "weight_bytes_in_memory + batch * kv_bytes_per_sequence.total" },
    { "memory_bytes", ALWAYS, "bytes",
      "memory_bytes_without_activations + batch * activation_bytes_per_sequence" },
    { "min_cards_weights", ALWAYS, "cards", "ceil(weight_bytes_in_memory / card_bytes)" },
    { "min_cards", ALWAYS, "cards", "ceil(memory_bytes / card_bytes)" },
    { "max_batch", ALWAYS, "sequences", "max(0, floor((gpus * card_bytes - weight_bytes_in_memory)"
      " / (kv_bytes_per_sequence.total + activation_bytes_per_sequence)))" },

    { "experts_read_per_layer", IF_EXPERTS, "experts", "E * (1 - (1 - K / E)^batch)" },
    { "experts_read_per_layer", IF_NO_EXPERTS, "experts", "0" },
    { "decode_read_bytes.weights", IF_FEW, "bytes", "weight_bits / 8 * published_active" },
    { "decode_read_bytes.weights", IF_COUNTED, "bytes", "weight_bits / 8 * (params_active_text - moe * K * 3 * H * F"
      " + moe * experts_read_per_layer * 3 * H * F)" },
    { "decode_read_bytes.kv_full", IF_FEW, "bytes", "kv_bytes.main" },
    { "decode_read_bytes.kv_full", IF_COUNTED, "bytes", "batch * ceil(full * 2 * G * D * T * kv_bits / 8)" },
    { "decode_read_bytes.kv_selected", IF_FEW, "bytes", "0" },
    { "decode_read_bytes.kv_selected", IF_COUNTED, "bytes",
      "batch * ceil(sparse * 2 * G * D * keys_main * kv_bits / 8)" },
    { "decode_read_bytes.index_keys", ALWAYS, "bytes", "batch * ceil(sparse * X * T * index_bits / 8)" },
    { "decode_read_bytes.total", ALWAYS, "bytes", "decode_read_bytes.weights + decode_read_bytes.kv_full"
      " + decode_read_bytes.kv_selected + decode_read_bytes.index_keys" },
    { "decode_read_bytes_stored.weights", IF_EXPERTS, "bytes",
      "always_bytes + experts_read_per_layer * routed_bytes / E" },
    { "decode_read_bytes_stored.weights", IF_NO_EXPERTS, "bytes", "always_bytes" },
    { "decode_read_bytes_stored.total", ALWAYS, "bytes", "decode_read_bytes_stored.weights + decode_read_bytes.kv_full"
      " + decode_read_bytes.kv_selected + decode_read_bytes.index_keys" },
    { "arithmetic_intensity", ALWAYS, "FLOP per byte", "flops_decode_step / decode_read_bytes.total" },
    { "gpus", ALWAYS, "cards", "gpus" },
    { "card_bytes", ALWAYS, "bytes", "card_memory" },
    { "peak_flops", ALWAYS, "FLOP/s", "card_peak" },
    { "bandwidth", ALWAYS, "bytes/s", "card_bandwidth" },
    { "ridge", ALWAYS, "FLOP per byte", "peak_flops / bandwidth" },
    { "bandwidth_bound_seconds", ALWAYS, "s", "decode_read_bytes.total / (gpus * bandwidth)" },
    { "compute_bound_seconds", ALWAYS, "s", "flops_decode_step / (gpus * peak_flops)" },
    { "expert_spread.expected_cards_hit", ALWAYS, "cards",
      "gpus * (1 - choose(E - E / gpus, K) / choose(E, K))" },
    { "expert_parallel.weight_bytes_per_card", ALWAYS, "bytes",
      "ceil((params_total - routed) * weight_bits / 8) + ceil(routed / gpus * weight_bits / 8)" },
    { "expert_parallel.weight_bytes_per_card_stored", IF_FILES, "bytes",
      "weight_bytes_stored - routed_bytes + routed_bytes / gpus" },
    { "expert_parallel.weight_bytes_per_card_stored", IF_NO_FILES, "bytes",
      "weight_bytes_released - routed_bytes + routed_bytes / gpus" },
    { "expert_parallel.free_bytes_per_card", IF_STORED, "bytes",
      "card_bytes - expert_parallel.weight_bytes_per_card_stored" },
    { "expert_parallel.free_bytes_per_card", IF_NOMINAL, "bytes",
      "card_bytes - expert_parallel.weight_bytes_per_card" },
    { "critical_path.expert_bytes", ALWAYS, "bytes",
      "expert_spread.expected_fullest * moe * 3 * H * F * weight_bits / 8" },
    { "critical_path.other_bytes", ALWAYS, "bytes",
      "decode_read_bytes.weights - K * moe * 3 * H * F * weight_bits / 8" },
    { "critical_path.replicated_seconds", ALWAYS, "s",
      "(critical_path.other_bytes + critical_path.expert_bytes) / bandwidth" },
    { "critical_path.sharded_seconds", ALWAYS, "s",
      "(critical_path.other_bytes / gpus + critical_path.expert_bytes) / bandwidth" },
    { "critical_path.cache_seconds", ALWAYS, "s",
      "(decode_read_bytes.total - decode_read_bytes.weights) / (gpus * bandwidth)" },
    { "critical_path.replicated_seconds_with_caches", ALWAYS, "s",
      "critical_path.replicated_seconds + critical_path.cache_seconds" },
    { "critical_path.sharded_seconds_with_caches", ALWAYS, "s",
      "critical_path.sharded_seconds + critical_path.cache_seconds" },
};

struct symbol {
    const char *name, *meaning;
    int64_t value;
};

enum { MOST_SYMBOLS = 80 };

struct symbols {
    struct symbol list[MOST_SYMBOLS];
    int count;
};

static void add_symbols(struct symbols *s, const struct symbol *more, size_t count)
{
    memcpy(s->list + s->count, more, count * sizeof *more);
    s->count += (int)count;
}

static void add_sizes(struct symbols *s, const struct m3_config *c, int own)
{
    const struct symbol sizes[] = {
        { "H", "hidden size", c->H },
        { "Q", "query heads", c->Q },
        { "G", "key/value heads, index heads", c->G },
        { "D", "channels of a head", c->D },
        { "X", "channels of an index head", c->X },
        { "V", "vocabulary", c->V },
        { "untied", "1 unless lm_head is the embedding", !c->tied_embeddings },
        { "q", "width of the norm of queries", own ? m3_config_size(c, 'q') : 0 },
        { "k", "width of the norm of keys", own ? m3_config_size(c, 'k') : 0 },
        { "qk_norms", "norms of queries and keys in a layer", own ? 2 : 0 },
        { "I", "width of a dense MLP", c->dense_intermediate },
        { "E", "routed experts", c->E },
        { "K", "experts per token", c->K },
        { "F", "width of a routed expert", c->F },
        { "J", "width of the shared expert", c->shared_intermediate },
        { "shared", "1 if there is a shared expert", c->shared_intermediate > 0 },
        { "N", "blocks kept", c->N },
        { "block", "keys in a block", c->block },
    };
    add_symbols(s, sizes, sizeof sizes / sizeof sizes[0]);
}

static void add_layers(struct symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const int additive = e->request.mtp_join == M3_MTP_ADDITIVE;
    const struct symbol layers[] = {
        { "layers", "layers", c->layers },
        { "full", "layers of full attention", e->full },
        { "sparse", "layers of sparse attention", e->sparse },
        { "dense", "layers with a dense MLP", e->dense },
        { "moe", "layers with experts", e->moe },
        { "any_sparse", "1 if there are sparse layers", e->sparse > 0 },
        { "last_sparse", "1 if the last layer is sparse", c->layers && m3_config_sparse(c, c->layers) },
        { "last_moe", "1 if the last layer has experts", c->layers && m3_config_moe(c, c->layers) },
        { "mtp", "MTP modules", e->request.mtp_modules },
        { "params_mtp", "parameters of MTP modules", e->census.of[M3_COMPONENT_MTP_MODULES].parameters },
        { "halves", "widths H in a row of a module's eh_proj", additive ? 1 : 2 },
        { "module_norms", "norms of a module outside its layer", additive ? 1 : 3 },
        { "cached", "layers with keys and values, MTP modules with them", e->cached },
        { "indexed", "layers with index keys, MTP modules with them", e->indexed },
    };
    add_symbols(s, layers, sizeof layers / sizeof layers[0]);
}

static void add_request(struct symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct m3_estimate_request *r = &e->request;
    const int64_t T = r->context, kept = c->N * c->block;
    const struct symbol asked[] = {
        { "T", "context", T },
        { "last", "keys of the own block", c->block ? (T - 1) % c->block + 1 : 0 },
        { "rest", "(T - N block) mod block", c->block && T > kept ? (T - kept) % c->block : 0 },
        { "batch", "sequences", r->batch },
        { "weight_bits", "bits of a weight", r->weights->bits },
        { "kv_bits", "bits of a cached number", r->kv->bits },
        { "index_bits", "bits of a number of an index key", r->index_kv->bits },
        { "activations", "an assumption, --activations", r->activation_bytes },
        { "gpus", "cards", r->gpus },
        { "card_memory", "of a card, as --card-memory reads it", r->card_bytes },
        { "card_peak", "dense peak of a card for such weights, SPEC 14.5", e->peak_flops },
        { "card_bandwidth", "of a card's memory, SPEC 14.5", r->gpu ? r->gpu->bandwidth : 0 },
    };
    add_symbols(s, asked, sizeof asked / sizeof asked[0]);
}

static int64_t of_picture(const struct m3_config *c, char letter)
{
    return c->vision.present ? m3_config_size(c, letter) : 0;
}

static void add_pictures(struct symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct symbol pictures[] = {
        { "vision", "1 if there is a tower", c->vision.present },
        { "tower", "layers of the tower", c->vision.present ? c->vision.layers : 0 },
        { "W", "hidden size of the tower", of_picture(c, 'W') },
        { "L", "width of the tower's MLP", of_picture(c, 'L') },
        { "C", "numbers in a patch", of_picture(c, 'C') },
        { "Y", "inner width of the projector", of_picture(c, 'Y') },
        { "Z", "merge^2 H", of_picture(c, 'Z') },
        { "P", "patches", e->vision.patches },
        { "squares", "sum over segments of their patches squared", e->vision.squares },
        { "merge", "side of the patches merged to a token", c->vision.present ? c->vision.spatial_merge : 0 },
    };
    add_symbols(s, pictures, sizeof pictures / sizeof pictures[0]);
}

/* What files hold or would hold, and what others published. */
static void add_counts(struct symbols *s, const struct m3_estimate *e)
{
    const struct m3_foreign *foreign = e->request.foreign && e->request.foreign->few ? e->request.foreign : NULL;
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    const struct symbol counts[] = {
        { "scales", "scale tensors, one for each matrix in E4M3", e->tensors - e->tensors_unquantised },
        { "matrix_params", "parameters in E4M3", e->census.scaled_parameters },
        { "scale_bytes", "bytes of their scales", e->census.scale_bytes },
        { "file_bytes", "bytes of the tensors in the files", e->weight_bytes_stored },
        { "routed", "parameters of routed experts", census->of[M3_COMPONENT_MOE_ROUTED].parameters },
        { "routed_bytes", "bytes of routed experts, as stored", census->of[M3_COMPONENT_MOE_ROUTED].bytes },
        { "always_bytes", "bytes of the other weights that a token is multiplied by, as stored", e->always_bytes },
        { "published", "parameters, as published", foreign ? foreign->parameters : 0 },
        { "published_active", "active parameters, as published", foreign ? foreign->active : 0 },
        { "numbers", "numbers in the cache for a token and layer", foreign ? foreign->cached_numbers : 0 },
    };
    add_symbols(s, counts, sizeof counts / sizeof counts[0]);
}

static void set_symbols(struct symbols *s, const struct m3_estimate *e)
{
    s->count = 0;
    add_sizes(s, e->config, !e->request.foreign);
    add_layers(s, e);
    add_request(s, e);
    add_pictures(s, e);
    add_counts(s, e);
}

/* Length of the name at the start of `text`: letters, digits, '_', and '.' between them. */
static size_t name_length(const char *text)
{
    size_t n = 0;
    if (!isalpha((unsigned char)text[0])) return 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || (text[n] == '.' && isalnum((unsigned char)text[n + 1])))
        n++;
    return n;
}

static void print_value(const json_t *value, FILE *out)
{
    const json_t *fraction = json_object_get(value, "fraction");
    if (fraction) fprintf(out, "%s = ", json_string_value(fraction));
    if (fraction) value = json_object_get(value, "value");
    if (json_is_integer(value)) fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value)) fprintf(out, "%.17g", json_real_value(value));
    else fprintf(out, "%s", json_is_string(value) ? json_string_value(value) : "?");
}

static const struct symbol *find_symbol(const struct symbols *symbols, const char *name, size_t length)
{
    for (int i = 0; i < symbols->count; i++)
        if (strlen(symbols->list[i].name) == length && strncmp(symbols->list[i].name, name, length) == 0)
            return &symbols->list[i];
    return NULL;
}

/* The formula with the numbers in place of names; what has none, such as "ceil", stays. */
static void print_numbers(const char *formula, const struct symbols *symbols, const json_t *summary, FILE *out)
{
    while (*formula) {
        size_t length = name_length(formula);
        char name[128] = "";
        if (length && length < sizeof name) memcpy(name, formula, length);
        const struct symbol *symbol = length ? find_symbol(symbols, formula, length) : NULL;
        const json_t *value = name[0] ? m3_estimate_value(summary, name) : NULL;
        if (symbol) fprintf(out, "%" PRId64, symbol->value);
        else if (json_is_number(value)) print_value(value, out);
        else fprintf(out, "%.*s", length ? (int)length : 1, formula);
        formula += length ? length : 1;
    }
}

static void print_legend(const char *formula, const struct symbols *symbols, FILE *out)
{
    unsigned char seen[MOST_SYMBOLS] = { 0 };
    const char *between = "    ";
    if (strstr(formula, "ways(")) {
        fprintf(out, "    ways(n, m, j, K): choices of K experts on n cards of m, at most j on a card");
        between = "; ";
    }
    for (size_t length; *formula; formula += length ? length : 1) {
        length = name_length(formula);
        const struct symbol *symbol = length ? find_symbol(symbols, formula, length) : NULL;
        if (!symbol || seen[symbol - symbols->list]++) continue;
        fprintf(out, "%s%s: %s", between, symbol->name, symbol->meaning);
        between = "; ";
    }
    if (between[0] == ';') fprintf(out, "\n");
}

static int holds(enum when when, const struct m3_estimate *e)
{
    int is_short = !e->sparse || e->request.context <= e->config->N * e->config->block;
    int stored = e->weight_bytes_stored >= 0 && !e->request.weights_asked;
    int few = e->request.foreign && e->request.foreign->few;
    switch (when) {
    case IF_SHORT: return is_short;
    case IF_LONG: return !is_short;
    case IF_TIED: return e->config->tied_embeddings;
    case IF_UNTIED: return !e->config->tied_embeddings;
    case IF_STORED: return stored;
    case IF_NOMINAL: return !stored;
    case IF_COUNTED: return !few;
    case IF_FEW: return few;
    case IF_SPARSE: return e->sparse > 0;
    case IF_NOT_SPARSE: return e->sparse == 0;
    case IF_CAUSAL: return !e->request.no_causal_skip;
    case IF_SQUARE: return e->request.no_causal_skip;
    case IF_LAST_LOGITS: return !e->request.all_logits;
    case IF_ALL_LOGITS: return e->request.all_logits;
    case IF_FILES: return e->weight_bytes_stored >= 0;
    case IF_NO_FILES: return e->weight_bytes_stored < 0;
    case IF_EXPERTS: return e->moe > 0;
    case IF_NO_EXPERTS: return e->moe == 0;
    default: return 1;
    }
}

/* The key itself, or a member of the group that it names. Of a ratio also what is in it. */
static int asked(const char *row, const char *key)
{
    size_t length = strlen(key), whole = strlen(row);
    if (strncmp(row, "ratios.", 7) == 0 && strncmp(row, key, whole) == 0
        && (strcmp(key + whole, ".value") == 0 || strcmp(key + whole, ".fraction") == 0))
        return 1;
    return strncmp(row, key, length) == 0 && (row[length] == '\0' || row[length] == '.');
}

struct explanation {
    const struct m3_estimate *e;
    const json_t *summary;
    const char *key;            /* as asked */
    struct symbols symbols;
    FILE *out;
    int known, printed;         /* there is such a key; it has a value */
};

static void explain_row(struct explanation *x, const struct row *row)
{
    if (!asked(row->key, x->key)) return;
    const json_t *value = m3_estimate_value(x->summary, row->key);
    x->known = 1;
    if (!value || json_is_null(value) || !holds(row->when, x->e)) return;
    fprintf(x->out, "%s\n  = %s\n  = ", row->key, row->formula);
    print_numbers(row->formula, &x->symbols, x->summary, x->out);
    fprintf(x->out, "\n  = ");
    print_value(value, x->out);
    fprintf(x->out, "%s%s\n", row->unit[0] ? " " : "", row->unit);
    print_legend(row->formula, &x->symbols, x->out);
    x->printed = 1;
}

/* Rows with a number in the key, or as many terms as a token has experts. */
static void explain_spread(struct explanation *x)
{
    enum { TERM = 48 };
    char key[64], formula[TERM * M3_MOST_SPREAD] = "";
    for (int j = 1; j <= M3_MOST_SPREAD; j++) {
        snprintf(key, sizeof key, "expert_spread.p_fullest.%d", j - 1);
        snprintf(formula, sizeof formula, "(ways(gpus, E / gpus, %d, K) - ways(gpus, E / gpus, %d, K)) / choose(E, K)",
                 j, j - 1);
        explain_row(x, &(struct row){ key, ALWAYS, "", formula });
    }
    size_t length = 0;
    formula[0] = '\0';
    for (int64_t j = 1; j <= x->e->config->K && j <= M3_MOST_SPREAD; j++)
        length += (size_t)snprintf(formula + length, sizeof formula - length, "%s%d * expert_spread.p_fullest.%d",
                                   j > 1 ? " + " : "", (int)j, (int)j - 1);
    explain_row(x, &(struct row){ "expert_spread.expected_fullest", ALWAYS, "experts", formula });
}

int m3_estimate_explain(const struct m3_estimate *e, const json_t *summary, const char *key, FILE *out,
                        struct m3_error *error)
{
    struct explanation x = { .e = e, .summary = summary, .key = key, .out = out };
    char caches[64];
    if (strncmp(key, "kv.", 3) == 0) {
        snprintf(caches, sizeof caches, "kv_bytes.%s", key + 3);
        x.key = caches;
    }
    set_symbols(&x.symbols, e);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) explain_row(&x, &rows[i]);
    explain_spread(&x);
    if (!x.known)
        return m3_fail(error, M3_USAGE, "--explain: got %s, expected the key of a number of --json, such as "
                       "flops_decode.total, or a group such as kv_bytes", key);
    if (!x.printed)
        return m3_fail(error, M3_USAGE, "--explain: got %s, which has no value for this model, or not without --gpu, "
                       "--mtp, --image or sparse layers", key);
    return M3_OK;
}
