#include <math.h>

#include "ops/math.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/propagate.h"
#include "oracle/error/private/exp_minus_1.h"

struct scores {
    struct m3_spread *m;
    const double *q, *k;
    const struct m3_spread *of_q, *of_k;
    const struct m3_index *d;
    double u_score, factor;
};

/* Scores of one block: value, error, variance, and how far it may be off with a float's own arithmetic. */
struct keys {
    double *s, *error, *variance, *reach;
    int64_t n;
};

enum { KEY_ARRAYS = 4 };

/* error = factor sum (|q| e_k + e_q |k| + e_q e_k) + u |s|, twice u |s| where the factor is a product of its own */
static void score(const struct keys *keys, int64_t j, const struct scores *a, int64_t at_q, int64_t at_k)
{
    int64_t X = a->d->X;
    int q_off = !m3_is_exact(a->of_q), k_off = !m3_is_exact(a->of_k);
    double dot = 0, mass = 0, worst = 0, variance = 0;
    for (int64_t i = 0; i < X; i++) {
        double q = a->q[at_q + i], k = a->k[at_k + i];
        double e_q = q_off ? a->of_q->error[at_q + i] : 0, v_q = q_off ? a->of_q->variance[at_q + i] : 0;
        double e_k = k_off ? a->of_k->error[at_k + i] : 0, v_k = k_off ? a->of_k->variance[at_k + i] : 0;
        dot += q * k;
        mass += fabs(q * k);
        worst += fabs(q) * e_k + e_q * fabs(k) + e_q * e_k;
        variance += q * q * v_k + v_q * k * k + v_q * v_k;
    }
    double times = a->factor != 1 ? 2 : 1, stored = a->u_score * fabs(a->factor * dot);
    keys->s[j] = a->factor * dot;
    keys->error[j] = a->factor * worst + times * stored;
    keys->variance[j] = a->factor * a->factor * variance + times * stored * stored / 3;
    keys->reach[j] = keys->error[j] + (double)(X + 2) * 0x1p-24 * a->factor * mass;
}

/* pool=max: whichever key can be the largest within reach may be the one that was taken. A float's own arithmetic
 * counts for the reach alone: it can bring forward a key that neither error brings forward without the other. */
static void of_maximum(double *error, double *variance, const struct keys *keys)
{
    double floor = -INFINITY;
    for (int64_t j = 0; j < keys->n; j++) floor = fmax(floor, keys->s[j] - keys->reach[j]);
    for (int64_t j = 0; j < keys->n; j++) {
        double e = keys->error[j], v = keys->variance[j];
        if (keys->s[j] + keys->reach[j] < floor) continue;
        *error = e > *error || e != e ? e : *error;
        *variance = v > *variance || v != v ? v : *variance;
    }
}

/* pool=lse: ln sum p exp(e), at most the largest e. One q meets all keys, so standard deviations add. */
static void of_logarithm(double *error, double *variance, const struct keys *keys)
{
    double top = -INFINITY, sum = 0, spread = 0, deviation = 0, largest = 0;
    for (int64_t j = 0; j < keys->n; j++) top = fmax(top, keys->s[j]);
    for (int64_t j = 0; j < keys->n; j++) {
        double p = m3_exp(keys->s[j] - top);
        sum += p;
        spread += p * m3_exp_minus_1(keys->error[j]);
        deviation += p * sqrt(keys->variance[j]);
        largest = fmax(largest, keys->error[j]);
    }
    *error = spread / sum > largest ? largest : spread / sum;
    *variance = deviation / sum * (deviation / sum);
}

static void block_spread(const void *self, const struct m3_scored *block)
{
    const struct scores *a = self;
    double *memory = block->scratch, error = 0, variance = 0;
    int64_t n = block->n, X = a->d->X, at = block->pair * a->d->B + block->block;
    struct keys keys = { memory, memory + n, memory + 2 * n, memory + 3 * n, n };
    if (n == 0) return;
    for (int64_t j = 0; j < n; j++) score(&keys, j, a, block->pair * X, block->keys[j] * X);
    if (a->d->semantics->pool == M3_POOL_LSE) of_logarithm(&error, &variance, &keys);
    else of_maximum(&error, &variance, &keys);
    a->m->error[at] += error;
    a->m->variance[at] += variance;
}

int m3_propagate_block_scores(struct m3_ctx *ctx, struct m3_spread *m, const double *q, const double *k,
                         const struct m3_spread *of_q, const struct m3_spread *of_k, const struct m3_index *d,
                         double u_score)
{
    double factor = d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? 1 / sqrt((double)d->X) : 1;
    struct scores scores = { m, q, k, of_q, of_k, d, u_score, factor };
    if (m3_is_exact(of_q) && m3_is_exact(of_k) && u_score == 0) return M3_OK;
    return m3_scored_blocks(ctx, block_spread, &scores, (struct m3_attended_scratch){ .per_key = KEY_ARRAYS }, d);
}
