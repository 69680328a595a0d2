#include <math.h>
#include <string.h>

#include "estimate/private/parts.h"

/* terms[i] = choose(m, i) p^i (1-p)^(m-i), i = 0 .. K: the experts of one card, had each been drawn by itself. */
static void binomial(double *terms, int64_t m, double p, int K)
{
    terms[0] = 1;
    for (int64_t i = 0; i < m; i++) terms[0] *= 1 - p;
    for (int i = 1; i <= K; i++) terms[i] = i <= m ? terms[i - 1] * (double)(m - i + 1) / i * (p / (1 - p)) : 0;
}

/* Over some cards, by experts in all: coefficients of x^0 .. x^K. */
struct spread {
    double below[M3_MOST_SPREAD + 1];   /* no card has j of them or more */
    double exact[M3_MOST_SPREAD + 1];   /* the fullest card has j */
};

/* The cards of `a` and of `b` together: the fullest holds j if it does in a alone, in b alone, or in both. No term is
 * negative, so that a small probability keeps all its digits. */
static void join(struct spread *out, const struct spread *a, const struct spread *b, int K)
{
    struct spread both;
    for (int k = 0; k <= K; k++) {
        both.below[k] = both.exact[k] = 0;
        for (int i = 0; i <= k; i++) {
            both.below[k] += a->below[i] * b->below[k - i];
            both.exact[k] += a->exact[i] * (b->below[k - i] + b->exact[k - i]) + a->below[i] * b->exact[k - i];
        }
    }
    *out = both;
}

/* The weight of K experts on so many cards with j on the fullest: powers by squaring. */
static double fullest_has(int j, const double *terms, int64_t cards, int K)
{
    struct spread power = { { 0 }, { 0 } }, all = { { 1 }, { 0 } };
    memcpy(power.below, terms, (size_t)j * sizeof *terms);
    power.exact[j] = terms[j];
    for (; cards; cards >>= 1) {
        if (cards & 1) join(&all, &all, &power, K);
        if (cards > 1) join(&power, &power, &power, K);
    }
    return all.exact[K];
}

/* K different experts, any K of the E as likely as any other. Independent draws given that they are K in all give the
 * same distribution as choose(E/cards, i) over choose(E, K), without its large numbers. */
static void spread_experts(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const int64_t cards = e->request.gpus, each = c->E / cards;
    const int K = (int)c->K;
    double terms[M3_MOST_SPREAD + 1], all = 0, hit = 0;

    binomial(terms, each, (double)K / ((double)c->E + 1), K);
    for (int j = 1; j <= K; j++) all += e->p_fullest[j - 1] = fullest_has(j, terms, cards, K);
    for (int j = 1; j <= K; j++) {
        e->p_fullest[j - 1] /= all;
        e->expected_fullest += j * e->p_fullest[j - 1];
    }
    for (int i = 0; i < K; i++) hit += (1 - hit) * fmin(1, (double)each / (double)(c->E - i));
    e->expected_cards_hit = (double)cards * hit;
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
