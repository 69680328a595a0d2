#include <math.h>
#include <string.h>

#include "estimate/private/parts.h"

#define GIGA INT64_C(1000000000)
#define MIB INT64_C(1048576)

const struct m3_gpu *m3_gpu_named(const char *name)
{
    static const struct m3_gpu gpus[] = {
        /* name      BF16/s          FP8/s           bytes/s      on the box  by the driver */
        { "a100",  312000 * GIGA,          0,     2000 * GIGA,   80 * GIGA,  81920 * MIB },
        { "h100",  989000 * GIGA, 1979000 * GIGA, 3350 * GIGA,   80 * GIGA,  81559 * MIB },
        { "h200",  989000 * GIGA, 1979000 * GIGA, 4800 * GIGA,  141 * GIGA, 143771 * MIB },
        { "b200", 2250000 * GIGA, 4500000 * GIGA, 8000 * GIGA,  180 * GIGA,            0 },
    };
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strcmp(name, gpus[i].name) == 0) return &gpus[i];
    return NULL;
}

/* D(B) = E (1 - (1 - K/E)^B), as K (1 + q + ... + q^(B-1)) with q = 1 - K/E: exactly K for one token. */
static double experts_read(const struct m3_config *c, int64_t batch)
{
    double q = 1 - (double)c->K / (double)c->E, sum = 1, power = q;     /* of so many terms; q to that power */
    int bit = 62;
    while (!(batch >> bit & 1)) bit--;
    while (--bit >= 0) {
        sum += power * sum;
        power *= power;
        if (batch >> bit & 1) {
            sum = 1 + q * sum;
            power *= q;
        }
    }
    return (double)c->K * sum;
}

/* All of the text model but the embedding, which is read if it is lm_head too, and the experts that are not touched. */
static double stored_reads(struct m3_estimate *e)
{
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    const int left_out[] = { M3_COMPONENT_MOE_ROUTED, M3_COMPONENT_VISION_TOWER, M3_COMPONENT_PROJECTOR, M3_COMPONENT_MTP_MODULES };
    int64_t always = 0;
    for (int i = 0; i < M3_COMPONENTS; i++) always += census->of[i].bytes;
    for (int i = 0; i < 4; i++) always -= census->of[left_out[i]].bytes;
    if (!e->config->tied_embeddings) always -= census->of[M3_COMPONENT_EMBEDDING].bytes;
    e->always_bytes = always;
    if (!e->moe) return (double)always;
    return (double)always + e->experts_read * (double)(census->of[M3_COMPONENT_MOE_ROUTED].bytes / e->config->E);
}

void m3_estimate_reads(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct m3_estimate_request *r = &e->request;
    const m3_wide T = r->context, batch = r->batch;
    const int64_t expert = 3 * c->H * c->F;
    const int64_t always = e->active_head - e->moe * c->K * expert;

    if (e->moe) e->experts_read = experts_read(c, r->batch);
    e->read_weights = r->weights->bits / 8.0 * ((double)always + e->experts_read * (double)(e->moe * expert));
    e->read_weights_stored = stored_reads(e);
    e->read_kv_full = m3_exact(e, batch * m3_packed_bytes(e->full * 2 * c->G * c->D * T, r->kv));
    e->read_kv_selected = m3_exact(e, batch * m3_packed_bytes(e->sparse * 2 * c->G * c->D * (m3_wide)e->keys_main,
                                                              r->kv));
    e->read_index_keys = m3_exact(e, batch * m3_packed_bytes(e->sparse * c->X * T, r->index_kv));
    m3_wide caches = (m3_wide)e->read_kv_full + e->read_kv_selected + e->read_index_keys;
    e->read_total = e->read_weights + (double)m3_exact(e, caches);
}

/* All reads and all FLOPs split evenly, nothing sent between cards. */
static void count_time(struct m3_estimate *e, double flops)
{
    const struct m3_gpu *gpu = e->request.gpu;
    const double cards = (double)e->request.gpus;
    int fp8 = e->request.weights->bits == 8 && gpu->fp8_flops;
    e->peak_flops = fp8 ? gpu->fp8_flops : gpu->bf16_flops;
    e->bandwidth_seconds = e->read_total / (cards * (double)gpu->bandwidth);
    e->compute_seconds = flops / (cards * (double)e->peak_flops);
    e->compute_bound = isnan(e->compute_seconds + e->bandwidth_seconds) ? -1
                     : e->compute_seconds >= e->bandwidth_seconds;
}

void m3_estimate_time(struct m3_estimate *e)
{
    const double flops = e->decode_step < 0 ? NAN : (double)e->decode_step;
    e->intensity = flops / e->read_total;
    if (e->request.gpu) count_time(e, flops);
}
