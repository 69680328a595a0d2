#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"
#include "io/json.h"

/* null if it is not known. */
static void put(json_t *object, const char *key, int64_t value)
{
    m3_json_set(object, key, value < 0 ? json_null() : json_integer(value));
}

/* An expectation or a quotient; null if it is not known. One that is whole is printed whole. */
static json_t *quantity(double x)
{
    if (isnan(x)) return json_null();
    return x == floor(x) && fabs(x) < 0x1p53 ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *parameters_json(const struct m3_estimate *e)
{
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    json_t *object = json_object();
    for (int i = 0; i < M3_COMPONENTS; i++)
        if (i != M3_COMPONENT_MTP_MODULES || e->request.mtp_modules)
            put(object, m3_component_names[i], census->of[i].parameters);
    return object;
}

static json_t *active_json(const struct m3_estimate *e)
{
    json_t *object = json_object();
    put(object, "layers", e->active_layers);
    put(object, "layers_head", e->active_layers < 0 ? M3_UNKNOWN : e->active_head);
    put(object, "layers_head_embedding", e->active_embedding);
    put(object, "layers_head_embedding_vision", e->active_vision);
    return object;
}

static json_t *flops_json(const struct m3_flops *f)
{
    json_t *object = json_object();
    put(object, "full_attention", f->full_attention);
    put(object, "msa_index", f->msa_index);
    put(object, "msa_main", f->msa_main);
    put(object, "projections", f->projections);
    put(object, "index_projections", f->index_projections);
    put(object, "dense_mlp", f->dense_mlp);
    put(object, "moe", f->moe);
    put(object, "lm_head", f->lm_head);
    put(object, "total", f->total);
    return object;
}

static json_t *ratios_json(const struct m3_estimate *e)
{
    json_t *object = json_object();
    for (int i = 0; i < M3_RATIOS; i++) {
        const struct m3_fraction *r = &e->ratios[i];
        char text[64];
        snprintf(text, sizeof text, "%" PRId64 "/%" PRId64, r->over, r->under);
        m3_json_set(object, m3_ratio_names[i],
                            json_pack("{s:s,s:o}", "fraction", text, "value",
                                      quantity((double)r->over / (double)r->under)));
    }
    return object;
}

static json_t *moe_json(const struct m3_flops *f)
{
    json_t *object = json_object();
    put(object, "shared", f->moe_shared);
    put(object, "routed", f->moe_routed);
    put(object, "router", f->moe_router);
    return object;
}

static json_t *cache_json(int64_t main, int64_t index, int64_t total)
{
    json_t *object = json_object();
    put(object, "main", main);
    put(object, "index", index);
    put(object, "total", total);
    return object;
}

static json_t *reads_json(const struct m3_estimate *e)
{
    json_t *object = json_object();
    m3_json_set(object, "weights", quantity(e->read_weights));
    put(object, "kv_full", e->read_kv_full);
    put(object, "kv_selected", e->read_kv_selected);
    put(object, "index_keys", e->read_index_keys);
    m3_json_set(object, "total", quantity(e->read_total));
    return object;
}

static json_t *spread_json(const struct m3_estimate *e)
{
    if (!e->has_spread) return json_null();
    json_t *list = json_array();
    for (int64_t j = 0; j < e->config->K; j++) m3_json_append(list, quantity(e->p_fullest[j]));
    return json_pack("{s:o,s:o,s:o}", "p_fullest", list, "expected_fullest", quantity(e->expected_fullest),
                     "expected_cards_hit", quantity(e->expected_cards_hit));
}

static const char *model_type(const struct m3_estimate *e)
{
    if (e->request.foreign) return e->request.foreign->few ? "m3ref_comparison" : "llama";
    return m3_config_type_name(e->config->type);
}

static json_t *vision_json(const struct m3_vision_flops *f)
{
    if (!f->patches) return json_null();
    json_t *object = json_object();
    put(object, "patch_embed", f->patch_embed);
    put(object, "linears", f->linears);
    put(object, "attention", f->attention);
    put(object, "projector", f->projector);
    put(object, "total", f->total);
    put(object, "patches", f->patches);
    put(object, "tokens", f->tokens);
    return object;
}

/* What is no matrix product, for one decoded token. */
static json_t *other_work_json(const struct m3_estimate *e)
{
    const int known = e->block_maxima >= 0;
    json_t *object = json_object();
    put(object, "block_max_comparisons", known ? e->sparse * e->block_maxima : M3_UNKNOWN);
    put(object, "block_max_comparisons_per_layer", e->block_maxima);
    put(object, "selection_candidates", known ? e->sparse * e->candidates : M3_UNKNOWN);
    put(object, "selection_candidates_per_layer", e->candidates);
    return object;
}

static json_t *expert_parallel_json(const struct m3_estimate *e)
{
    if (!m3_splits_experts(e)) return json_null();
    json_t *object = json_object();
    put(object, "weight_bytes_per_card", e->card_weights);
    put(object, "weight_bytes_per_card_stored", e->card_weights_stored);
    m3_json_set(object, "free_bytes_per_card", json_integer(e->card_rest));
    m3_json_set(object, "fits", json_boolean(e->card_fits));
    return object;
}

static json_t *critical_path_json(const struct m3_estimate *e)
{
    const struct m3_critical_path *path = &e->critical_path;
    if (!e->has_critical_path) return json_null();
    json_t *object = json_object();
    m3_json_set(object, "expert_bytes", quantity(path->expert_bytes));
    m3_json_set(object, "other_bytes", quantity(path->other_bytes));
    m3_json_set(object, "replicated_seconds", quantity(path->replicated_seconds));
    m3_json_set(object, "sharded_seconds", quantity(path->sharded_seconds));
    m3_json_set(object, "cache_seconds", quantity(path->cache_seconds));
    m3_json_set(object, "replicated_seconds_with_caches",
                        quantity(path->replicated_seconds + path->cache_seconds));
    m3_json_set(object, "sharded_seconds_with_caches", quantity(path->sharded_seconds + path->cache_seconds));
    return object;
}

static void put_inputs(json_t *o, const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    m3_json_set(o, "type", json_string("summary"));
    m3_json_set(o, "model_type", json_string(model_type(e)));
    if (r->foreign && r->foreign->few) {
        m3_json_set(o, "name", json_string(r->foreign->name));
        m3_json_set(o, "source", json_string(r->foreign->source));
    }
    put(o, "context", r->context);
    put(o, "batch", r->batch);
    m3_json_set(o, "weights", json_string(r->weights->name));
    m3_json_set(o, "kv", json_string(r->kv->name));
    m3_json_set(o, "index_kv", json_string(r->index_kv->name));
    put(o, "mtp_modules", r->mtp_modules);
    m3_json_set(o, "mtp_join", json_string(r->mtp_join == M3_MTP_ADDITIVE ? "additive" : "concat"));
    m3_json_set(o, "vision_boundary", json_string(r->boundary == M3_BOUNDARY_NONE ? "none" : "segment"));
    m3_json_set(o, "all_logits", json_boolean(r->all_logits));
    m3_json_set(o, "no_causal_skip", json_boolean(r->no_causal_skip));
}

static void put_counts(json_t *o, const struct m3_estimate *e)
{
    put(o, "tensors", e->tensors);
    put(o, "tensors_unquantised", e->tensors_unquantised);
    put(o, "params_total", e->params_total);
    m3_json_set(o, "params_by_component", parameters_json(e));
    put(o, "params_active_text", e->active_head);
    m3_json_set(o, "params_active_by_convention", active_json(e));

    m3_json_set(o, "flops_decode", flops_json(&e->decode));
    m3_json_set(o, "flops_decode_moe", moe_json(&e->decode));
    put(o, "flops_decode_linear", e->decode_linear);
    put(o, "flops_decode_step", e->decode_step);
    put(o, "flops_decode_all_full_attention", e->decode_all_full);
    put(o, "keys_main", e->keys_main);
    m3_json_set(o, "flops_prefill", flops_json(&e->prefill));
    put(o, "keys_main_prefill", e->keys_main_prefill);
    if (e->sparse) m3_json_set(o, "ratios", ratios_json(e));
    m3_json_set(o, "flops_vision", vision_json(&e->vision));
    m3_json_set(o, "other_work", other_work_json(e));
}

static void put_memory(json_t *o, const struct m3_estimate *e)
{
    m3_json_set(o, "kv_bytes", cache_json(e->kv_batch_main, e->kv_batch_index, e->kv_batch_total));
    m3_json_set(o, "kv_bytes_per_sequence", cache_json(e->kv_main, e->kv_index, e->kv_total));
    put(o, "weight_bytes", e->weight_bytes);
    put(o, "weight_bytes_stored", e->weight_bytes_stored);
    put(o, "weight_bytes_released", e->weight_bytes_released);
    put(o, "weight_bytes_in_memory", e->weight_bytes_in_memory);
    put(o, "activation_bytes_per_sequence", e->request.activation_bytes);
    put(o, "memory_bytes_without_activations", e->memory_without_activations);
    put(o, "memory_bytes", e->memory);
    m3_json_set(o, "decode_read_bytes", reads_json(e));
    double caches = e->read_total - e->read_weights;
    m3_json_set(o, "decode_read_bytes_stored",
                        json_pack("{s:o,s:o}", "weights", quantity(e->read_weights_stored), "total",
                                  quantity(e->read_weights_stored + caches)));
    m3_json_set(o, "experts_read_per_layer", quantity(e->experts_read));
    m3_json_set(o, "arithmetic_intensity", quantity(e->intensity));
}

static void put_cards(json_t *o, const struct m3_estimate *e)
{
    static const char *const keys[] = {
        "gpu", "gpus", "card_bytes", "peak_flops", "bandwidth", "ridge", "min_cards_weights", "min_cards", "max_batch",
        "bandwidth_bound_seconds", "compute_bound_seconds", "bound", "expert_spread", "expert_parallel",
        "critical_path",
    };
    const struct m3_gpu *gpu = e->request.gpu;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) m3_json_set(o, keys[i], json_null());
    if (!gpu) return;
    m3_json_set(o, "gpu", json_string(gpu->name));
    put(o, "gpus", e->request.gpus);
    put(o, "card_bytes", e->request.card_bytes);
    put(o, "peak_flops", e->peak_flops);
    put(o, "bandwidth", gpu->bandwidth);
    m3_json_set(o, "ridge", quantity((double)e->peak_flops / (double)gpu->bandwidth));
    put(o, "min_cards_weights", e->min_cards_weights);
    put(o, "min_cards", e->min_cards);
    put(o, "max_batch", e->max_batch);
    m3_json_set(o, "bandwidth_bound_seconds", quantity(e->bandwidth_seconds));
    m3_json_set(o, "compute_bound_seconds", quantity(e->compute_seconds));
    if (e->compute_bound >= 0) m3_json_set(o, "bound", json_string(e->compute_bound ? "compute" : "memory"));
    m3_json_set(o, "expert_spread", spread_json(e));
    m3_json_set(o, "expert_parallel", expert_parallel_json(e));
    m3_json_set(o, "critical_path", critical_path_json(e));
}

json_t *m3_estimate_json(const struct m3_estimate *e)
{
    json_t *summary = json_object();
    put_inputs(summary, e);
    put_counts(summary, e);
    put_memory(summary, e);
    put_cards(summary, e);
    if (!m3_json_failed()) return summary;
    json_decref(summary);
    return NULL;
}

const json_t *m3_estimate_value(const json_t *summary, const char *key)
{
    char step[64];
    while (summary && *key) {
        size_t length = strcspn(key, ".");
        if (length >= sizeof step) return NULL;
        memcpy(step, key, length);
        step[length] = '\0';
        summary = json_is_array(summary) ? json_array_get(summary, strtoul(step, NULL, 10))
                                         : json_object_get(summary, step);
        key += length + (key[length] == '.');
    }
    return summary;
}
