#include <string.h>

#include "estimate/parts.h"

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

/* The card that holds most of a token's experts is waited for in every layer. */
static void count_critical_path(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    struct m3_critical_path *path = &e->critical_path;
    const double weight = e->request.weights->bits / 8.0, cards = (double)e->request.gpus;
    const double bandwidth = (double)e->request.gpu->bandwidth, expert = (double)(e->moe * 3 * c->H * c->F);
    path->expert_bytes = e->expected_fullest * expert * weight;
    path->other_bytes = e->read_weights - (double)c->K * expert * weight;
    path->replicated_seconds = (path->other_bytes + path->expert_bytes) / bandwidth;
    path->sharded_seconds = (path->other_bytes / cards + path->expert_bytes) / bandwidth;
    path->cache_seconds = (e->read_total - e->read_weights) / (cards * bandwidth);
}

void m3_estimate_spread(struct m3_estimate *e)
{
    e->has_spread = e->request.gpu && m3_splits_experts(e) && e->config->K <= M3_MOST_SPREAD;
    if (!e->has_spread) return;
    spread_experts(e);
    e->has_critical_path = e->request.batch == 1;
    if (e->has_critical_path) count_critical_path(e);
}
