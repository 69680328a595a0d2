#include "estimate/parts.h"

static void count_cache(struct m3_estimate *e)
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
    e->min_cards = m3_exact(e, (e->memory + card - 1) / card);
    e->max_batch = room > 0 ? m3_exact(e, room / sequence) : 0;
}

void m3_estimate_memory(struct m3_estimate *e)
{
    const struct m3_estimate_request *request = &e->request;
    count_cache(e);
    e->weight_bytes = m3_exact(e, m3_packed_bytes(e->params_total, request->weights));
    int stored = e->weight_bytes_stored >= 0 && !request->weights_asked;
    e->weight_bytes_in_memory = stored ? e->weight_bytes_stored : e->weight_bytes;
    e->memory_without_activations = m3_exact(e, (m3_wide)e->weight_bytes_in_memory + e->kv_batch_total);
    e->memory = m3_exact(e, (m3_wide)e->memory_without_activations
                                + (m3_wide)request->batch * request->activation_bytes);
    if (request->gpu) count_cards(e);
}
