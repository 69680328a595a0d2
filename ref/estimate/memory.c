#include "estimate/private/parts.h"

void m3_estimate_caches(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const m3_wide T = e->request.context, batch = e->request.batch;
    e->kv_main = m3_exact(e, m3_packed_bytes(e->cached * 2 * c->G * c->D * T, e->request.kv));
    e->kv_index = m3_exact(e, m3_packed_bytes(e->indexed * c->X * T, e->request.index_kv));
    e->kv_total = m3_exact(e, (m3_wide)e->kv_main + e->kv_index);
    e->kv_batch_main = m3_exact(e, batch * e->kv_main);
    e->kv_batch_index = m3_exact(e, batch * e->kv_index);
    e->kv_batch_total = m3_exact(e, batch * e->kv_total);
}

/* As if weights and caches could be split over cards without loss. */
static void count_cards(struct m3_estimate *e)
{
    const m3_wide card = e->request.card_bytes, weights = e->weight_bytes_in_memory;
    const m3_wide sequence = (m3_wide)e->kv_total + e->request.activation_bytes;
    const m3_wide room = e->request.gpus * card - weights;
    e->min_cards_weights = m3_exact(e, (weights + card - 1) / card);
    e->min_cards = e->max_batch = M3_UNKNOWN;
    if (e->kv_total < 0) return;
    e->min_cards = m3_exact(e, (e->memory + card - 1) / card);
    e->max_batch = room > 0 ? m3_exact(e, room / sequence) : 0;
}

/* Experts shared out, all else on every card: no even split, which is what the figures above take. */
static void count_one_card(struct m3_estimate *e)
{
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    const m3_wide gpus = e->request.gpus, routed = census->of[M3_COMPONENT_MOE_ROUTED].parameters;
    const m3_wide routed_bytes = census->of[M3_COMPONENT_MOE_ROUTED].bytes;
    const m3_wide all = e->weight_bytes_stored >= 0 ? e->weight_bytes_stored : e->weight_bytes_released;
    const m3_wide sequence = (m3_wide)e->kv_total + e->request.activation_bytes;
    e->card_weights_stored = m3_exact(e, all - routed_bytes + routed_bytes / gpus);
    e->card_weights = m3_exact(e, m3_packed_bytes(e->params_total - routed, e->request.weights)
                                      + m3_packed_bytes(routed / gpus, e->request.weights));
    int stored = e->weight_bytes_stored >= 0 && !e->request.weights_asked;
    m3_wide rest = (m3_wide)e->request.card_bytes - (stored ? e->card_weights_stored : e->card_weights);
    e->card_rest = (int64_t)rest;
    e->card_fits = rest * gpus >= e->request.batch * sequence;
}

void m3_estimate_memory(struct m3_estimate *e)
{
    const struct m3_estimate_request *request = &e->request;
    e->weight_bytes = m3_exact(e, m3_packed_bytes(e->params_total, request->weights));
    int stored = e->weight_bytes_stored >= 0 && !request->weights_asked;
    e->weight_bytes_in_memory = stored ? e->weight_bytes_stored : e->weight_bytes;
    e->memory_without_activations = e->memory = M3_UNKNOWN;
    if (e->kv_total >= 0) {
        m3_wide without = (m3_wide)e->weight_bytes_in_memory + e->kv_batch_total;
        e->memory_without_activations = m3_exact(e, without);
        e->memory = m3_exact(e, without + (m3_wide)request->batch * request->activation_bytes);
    }
    if (request->gpu) count_cards(e);
    if (request->gpu && m3_splits_experts(e)) count_one_card(e);
}
