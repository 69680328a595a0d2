#include <math.h>

#include "ops/math.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/bounds.h"

/* Scores of the visible keys of one block: value, sum |q| |k|, walk^2. */
struct keys {
    double *s, *mass, *walk2;
    int64_t n;
};

/* A dot product in ascending order, its bound and walk. Factor 1 or 1 / sqrt(X). */
static void score(const struct keys *keys, int64_t at, const double *q, const double *k, int64_t X, double factor)
{
    double s = 0, mass = 0, squares = 0, walked = 0, n = (double)X;
    for (int64_t i = 0; i < X; i++) {
        double p = q[i] * k[i];
        s += p;
        mass += fabs(p);
        squares += p * p;
        walked += s * s;
    }
    double mean = (n / 6 + 1) * squares + (n / 3 + 1) * s * s;
    keys->s[at] = factor * s;
    keys->mass[at] = factor * mass;
    keys->walk2[at] = factor * factor * (fmax(walked + squares, mean) + (factor != 1 ? 2 * s * s : 0));
}

/* pool=max: whichever key could be the largest within its own error may be the one that was taken.
 *
 *     B = largest sum |q| |k| among keys with s_j + e_j >= max(s - e),  e_j = (X + 2) u sum |q| |k_j| */
static void of_maximum(double *bound, double *walk, const struct keys *keys, double over)
{
    double floor = -INFINITY, walk2 = 0;
    *bound = 0;
    for (int64_t j = 0; j < keys->n; j++) floor = fmax(floor, keys->s[j] - over * keys->mass[j]);
    for (int64_t j = 0; j < keys->n; j++) {
        if (keys->s[j] + over * keys->mass[j] < floor) continue;
        *bound = keys->mass[j] > *bound || keys->mass[j] != keys->mass[j] ? keys->mass[j] : *bound;
        walk2 = fmax(walk2, keys->walk2[j]);
    }
    *walk = sqrt(walk2);
}

/* pool=lse, over u and then over the steps: errors of scores count by their weights; then exp, sum, ln and the last
 * addition.
 *
 *     sum p_j ((X + 2) sum |q| |k_j| + (m - s_j)) + c + L + c ln(L + 1) + |lse| */
static void of_logarithm(double *bound, double *walk, const struct keys *keys, double steps, double c)
{
    double most = -INFINITY, sum = 0, error = 0, walk2 = 0, L = (double)keys->n;
    *bound = *walk = 0;
    if (keys->n == 0) return;
    for (int64_t j = 0; j < keys->n; j++) most = fmax(most, keys->s[j]);
    for (int64_t j = 0; j < keys->n; j++) sum += m3_exp(keys->s[j] - most);
    double lse = most + m3_log(sum);
    for (int64_t j = 0; j < keys->n; j++) {
        double p = m3_exp(keys->s[j] - lse), distance = most - keys->s[j];
        error += p * (steps * keys->mass[j] + distance);
        walk2 += p * p * (keys->walk2[j] + distance * distance + c * c);
    }
    double rest = c + c * m3_log(L + 1) + fabs(lse);
    *bound = (error + L + rest) / steps;
    *walk = sqrt(walk2 + L + rest * rest);
}

struct scores {
    const struct m3_bound *out;
    const double *q, *k;
    const struct m3_index *d;
    const struct m3_arithmetic *how;
};

static void block_bound(const void *self, const struct m3_scored *block)
{
    const struct scores *a = self;
    const struct m3_index *d = a->d;
    double steps = (double)(a->out->n + a->out->f), walk, *memory = block->scratch;
    double factor = d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? 1 / sqrt((double)d->X) : 1;
    struct keys keys = { memory, memory + block->n, memory + 2 * block->n, block->n };
    int64_t at = block->pair * d->B + block->block;
    for (int64_t j = 0; j < block->n; j++)
        score(&keys, j, a->q + block->pair * d->X, a->k + block->keys[j] * d->X, d->X, factor);
    if (d->semantics->pool == M3_POOL_LSE) of_logarithm(a->out->bound + at, &walk, &keys, steps, a->how->c);
    else of_maximum(a->out->bound + at, &walk, &keys, a->how->u * steps);
    if (a->out->walk) a->out->walk[at] = walk;
}

int m3_bound_block_scores(struct m3_ctx *ctx, struct m3_bound *out, const double *q, const double *k,
                          const struct m3_index *d, const struct m3_arithmetic *how)
{
    struct scores scores = { out, q, k, d, how };
    out->n = d->X;
    out->f = 2;
    return m3_scored_blocks(ctx, block_bound, &scores, (struct m3_attended_scratch){ .per_key = 3 }, d);
}
