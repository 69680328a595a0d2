#include <math.h>
#include <string.h>

#include "estimate/private/parts.h"

static struct m3_value inexact(double x) { return (struct m3_value){ .kind = M3_VALUE_REAL, .real = x }; }

/* D(B) = E (1 - (1 - K/E)^B), as K (1 + q + ... + q^(B-1)) with q = 1 - K/E: exactly K for one token. */
static double experts_read(const struct m3_config *c, int64_t batch)
{
    double q = 1 - (double)c->K / (double)c->E, sum = 1, power = q;     /* number of terms; q to that power */
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

/* terms[i] = choose(m, i) p^i (1-p)^(m-i), i = 0 .. K: the experts of one card if each were drawn independently. */
static void binomial(double *terms, int64_t m, double p, int K)
{
    terms[0] = 1;
    for (int64_t i = 0; i < m; i++) terms[0] *= 1 - p;
    for (int i = 1; i <= K; i++) terms[i] = i <= m ? terms[i - 1] * (double)(m - i + 1) / i * (p / (1 - p)) : 0;
}

/* For a group of cards, by the total number of experts: coefficients of x^0 .. x^K. */
struct spread {
    double below[M3_MOST_SPREAD + 1];   /* no card has j of them or more */
    double exact[M3_MOST_SPREAD + 1];   /* the fullest card has j */
};

/* Joins the cards of `a` and `b`: the fullest holds j if it does in a only, in b only, or in both. No term is
 * negative, so a small probability keeps all its digits. */
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

/* The weight of K experts on `cards` cards with j on the fullest; powers by squaring. */
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

/* K different experts, where all sets of K of the E are equally likely. Independent draws under the condition that
 * they are K in total give the same distribution as choose(E/cards, i) over choose(E, K), without its large numbers. */
static void spread_experts(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const int64_t cards = e->request.gpus, each = c->E / cards;
    const int K = (int)c->K;
    double terms[M3_MOST_SPREAD + 1], all = 0, hit = 0, fullest = 0;

    binomial(terms, each, (double)K / ((double)c->E + 1), K);
    for (int j = 1; j <= K; j++) all += e->p_fullest[j - 1] = fullest_has(j, terms, cards, K);
    for (int j = 1; j <= K; j++) {
        e->p_fullest[j - 1] /= all;
        fullest += j * e->p_fullest[j - 1];
    }
    for (int i = 0; i < K; i++) hit += (1 - hit) * fmin(1, (double)each / (double)(c->E - i));
    m3_estimate_count(e, "expert_spread.expected_fullest", inexact(fullest));
    m3_estimate_count(e, "expert_spread.expected_cards_hit", inexact((double)cards * hit));
}

void m3_estimate_experts(struct m3_estimate *e)
{
    if (e->moe) m3_estimate_count(e, "experts_read_per_layer", inexact(experts_read(e->config, e->request.batch)));
    if (e->has_spread) spread_experts(e);
}

/* The formula has as many terms as a token has experts; or it is the j-th probability. */
void m3_estimate_spread_formula(char *text, size_t size, const struct m3_estimate *e, int j)
{
    size_t length = 0;
    text[0] = '\0';
    if (j > 0)
        snprintf(text, size, "(ways(gpus, E / gpus, %d, K) - ways(gpus, E / gpus, %d, K)) / choose(E, K)", j, j - 1);
    for (int k = 1; j == 0 && k <= e->config->K && k <= M3_MOST_SPREAD; k++)
        length += (size_t)snprintf(text + length, size - length, "%s%d * expert_spread.p_fullest.%d",
                                   k > 1 ? " + " : "", k, k - 1);
}
