#include <string.h>

#include "estimate/parts.h"

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

static void count_reads(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct m3_estimate_request *r = &e->request;
    const m3_wide T = r->context, batch = r->batch;
    const int64_t expert = 3 * c->H * c->F;
    const int64_t always = e->active_head - e->moe * c->K * expert;

    if (e->moe) e->experts_read = experts_read(c, r->batch);
    e->read_weights = r->weights->bits / 8.0 * ((double)always + e->experts_read * (double)(e->moe * expert));
    e->read_kv_full = m3_exact(e, batch * m3_packed_bytes(e->full * 2 * c->G * c->D * T, r->kv));
    e->read_kv_selected = m3_exact(e, batch * m3_packed_bytes(e->sparse * 2 * c->G * c->D * (m3_wide)e->keys_main,
                                                              r->kv));
    e->read_index_keys = m3_exact(e, batch * m3_packed_bytes(e->sparse * c->X * T, r->index_kv));
    m3_wide caches = (m3_wide)e->read_kv_full + e->read_kv_selected + e->read_index_keys;
    e->read_total = e->read_weights + (double)m3_exact(e, caches);
    e->intensity = (double)e->decode_step / e->read_total;
}

/* All reads and all FLOPs split evenly, nothing sent between cards. */
static void count_time(struct m3_estimate *e)
{
    const struct m3_gpu *gpu = e->request.gpu;
    const double cards = (double)e->request.gpus;
    int fp8 = e->request.weights->bits == 8 && gpu->fp8_flops;
    e->peak_flops = fp8 ? gpu->fp8_flops : gpu->bf16_flops;
    e->bandwidth_seconds = e->read_total / (cards * (double)gpu->bandwidth);
    e->compute_seconds = (double)e->decode_step / (cards * (double)e->peak_flops);
    e->compute_bound = e->compute_seconds >= e->bandwidth_seconds;
}

/* terms[i] = choose(m, i) p^i (1-p)^(m-i), i = 0 .. K: the experts of one card, had each been drawn by itself. */
static void binomial(double *terms, int64_t m, double p, int K)
{
    terms[0] = 1;
    for (int64_t i = 0; i < m; i++) terms[0] *= 1 - p;
    for (int i = 1; i <= K; i++) terms[i] = i <= m ? terms[i - 1] * (double)(m - i + 1) / i * (p / (1 - p)) : 0;
}

/* The coefficient of x^K in (sum over i <= most of terms[i] x^i)^cards. */
static double at_most(const double *terms, int most, int64_t cards, int K)
{
    double sum[M3_MOST_SPREAD + 1] = { 1 }, next[M3_MOST_SPREAD + 1];
    for (int64_t card = 0; card < cards; card++) {
        for (int k = 0; k <= K; k++) {
            next[k] = 0;
            for (int i = 0; i <= k && i <= most; i++) next[k] += sum[k - i] * terms[i];
        }
        memcpy(sum, next, sizeof sum);
    }
    return sum[K];
}

/* K different experts, any K of the E as likely as any other. Independent draws given that they are K in all give the
 * same distribution as choose(E/cards, i) over choose(E, K), without its large numbers. */
static void spread_experts(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const int64_t cards = e->request.gpus, each = c->E / cards;
    const int K = (int)c->K;
    double terms[M3_MOST_SPREAD + 1], below = 0, missed = 1;

    binomial(terms, each, (double)K / ((double)c->E + 1), K);
    const double all = at_most(terms, K, cards, K);
    for (int j = 1; j <= K; j++) {
        double up_to = at_most(terms, j, cards, K) / all;
        e->p_fullest[j - 1] = up_to - below;
        e->expected_fullest += j * e->p_fullest[j - 1];
        below = up_to;
    }
    for (int i = 0; i < K; i++) missed *= (double)(c->E - each - i) / (double)(c->E - i);   /* 0 stays 0 */
    e->expected_cards_hit = (double)cards * (1 - missed);
}

void m3_estimate_roofline(struct m3_estimate *e)
{
    count_reads(e);
    if (!e->request.gpu) return;
    count_time(e);
    e->has_spread = e->moe && e->config->K <= M3_MOST_SPREAD && e->config->E % e->request.gpus == 0;
    if (e->has_spread) spread_experts(e);
}
