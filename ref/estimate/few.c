#include <math.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

static void forget(struct m3_flops *f)
{
    *f = (struct m3_flops){
        .full_attention = M3_UNKNOWN, .msa_index = M3_UNKNOWN, .msa_main = M3_UNKNOWN, .projections = M3_UNKNOWN,
        .index_projections = M3_UNKNOWN, .dense_mlp = M3_UNKNOWN, .moe = M3_UNKNOWN, .lm_head = M3_UNKNOWN,
        .total = M3_UNKNOWN, .moe_shared = M3_UNKNOWN, .moe_routed = M3_UNKNOWN, .moe_router = M3_UNKNOWN,
    };
}

static void count_parameters(struct m3_estimate *e, const struct m3_foreign *model)
{
    for (int i = 0; i < M3_COMPONENTS; i++) e->census.of[i].parameters = M3_UNKNOWN;
    e->tensors = e->tensors_unquantised = M3_UNKNOWN;
    e->params_total = model->parameters;
    e->active_head = model->active;
    e->active_layers = e->active_embedding = e->active_vision = M3_UNKNOWN;
    e->weight_bytes_released = e->weight_bytes_stored = M3_UNKNOWN;
}

/* Two per active parameter stand for all that is no attention: the projections, and whatever the other layers are. */
static void count_flops(struct m3_estimate *e, const struct m3_foreign *model)
{
    const struct m3_config *c = e->config;
    const m3_wide T = e->request.context, pair = e->full * 4 * c->Q * c->D;
    forget(&e->decode);
    forget(&e->prefill);
    e->decode_linear = m3_exact(e, 2 * (m3_wide)model->active);
    e->decode_step = e->decode_all_full = e->keys_main = e->keys_main_prefill = M3_UNKNOWN;
    e->block_maxima = e->candidates = M3_UNKNOWN;
    if (!c->Q) return;
    e->decode.full_attention = m3_exact(e, pair * T);
    e->prefill.full_attention = m3_exact(e, pair * T * (T + 1) / 2);
    e->decode.msa_index = e->decode.msa_main = e->prefill.msa_index = e->prefill.msa_main = 0;
    e->keys_main = e->keys_main_prefill = e->block_maxima = e->candidates = 0;
    e->decode.total = m3_exact(e, (m3_wide)e->decode.full_attention + e->decode_linear);
    e->decode_step = m3_exact(e, (m3_wide)e->request.batch * e->decode.total);
}

static void count_cache(struct m3_estimate *e, const struct m3_foreign *model)
{
    e->kv_main = e->kv_index = e->kv_total = M3_UNKNOWN;
    e->kv_batch_main = e->kv_batch_index = e->kv_batch_total = M3_UNKNOWN;
    if (!model->cached_numbers) return;
    m3_wide numbers = (m3_wide)e->full * model->cached_numbers * e->request.context;
    e->kv_main = e->kv_total = m3_exact(e, m3_packed_bytes(numbers, e->request.kv));
    e->kv_batch_main = e->kv_batch_total = m3_exact(e, (m3_wide)e->request.batch * e->kv_main);
    e->kv_index = e->kv_batch_index = 0;
}

/* Tokens of a batch share experts to a degree that nobody published. */
static void count_reads(struct m3_estimate *e, const struct m3_foreign *model)
{
    const int dense = model->active == model->parameters, known = dense || e->request.batch == 1;
    e->experts_read = dense ? 0 : NAN;
    e->read_weights = known ? e->request.weights->bits / 8.0 * (double)model->active : NAN;
    e->read_weights_stored = NAN;
    e->read_kv_full = e->kv_batch_main;
    e->read_kv_selected = e->read_index_keys = e->kv_batch_index;
    e->read_total = e->kv_total < 0 ? NAN : e->read_weights + (double)e->kv_batch_total;
}

void m3_estimate_few(struct m3_estimate *e)
{
    const struct m3_foreign *model = e->request.foreign;
    e->full = e->config->layers;
    count_parameters(e, model);
    count_flops(e, model);
    count_cache(e, model);
    count_reads(e, model);
}
