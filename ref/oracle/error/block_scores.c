#include "oracle/error/private/recompute.h"

#include <math.h>

#include "ops/math.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/private/functions.h"

static struct m3_index dimensions(const struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const struct m3_case *the_case = m->setting->the_case;
    const int64_t places = the_case->p0 + m3_tap_rows(m->setting, m->tap, m->layer);
    return (struct m3_index){ .T = m->rows,
                              .p0 = the_case->p0 + m->numbers[0],
                              .G = c->G,
                              .X = c->X,
                              .block = c->block,
                              .N = c->N,
                              .B = (places + c->block - 1) / c->block,
                              .seen = the_case->seen,
                              .semantics = m->setting->semantics };
}

static double factor_of(const struct m3_index *d)
{
    return d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? 1 / sqrt((double)d->X) : 1;
}

/* ---- bound */

/* Scores of the visible keys of one block: value, sum |q| |k|, walk^2. */
struct bounded {
    double *s, *mass, *walk2;
    int64_t n;
};

/* A dot product in ascending order, its bound and walk. Factor 1 or 1 / sqrt(X). */
static void score_bound(const struct bounded *keys, int64_t at, const double *q, const double *k, int64_t X,
                        double factor)
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

/* pool=max: any key that could be the largest within its own error may have been taken.
 *
 *     B = largest sum |q| |k| among keys with s_j + e_j >= max(s - e),  e_j = (X + 2) u sum |q| |k_j| */
static void maximum_bound(double *bound, double *walk, const struct bounded *keys, double over)
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

/* pool=lse, divided by u and then by the steps: errors of scores are weighted by their p; then exp, sum, ln and the
 * last addition.
 *
 *     sum p_j ((X + 2) sum |q| |k_j| + (m - s_j)) + c + L + c ln(L + 1) + |lse| */
static void logarithm_bound(double *bound, double *walk, const struct bounded *keys, double steps, double c)
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

struct bounded_scores {
    const struct m3_bound *out;
    const double *q, *k;
    const struct m3_index *d;
    const struct m3_arithmetic *how;
};

static void block_bound(const void *self, const struct m3_scored *block)
{
    const struct bounded_scores *a = self;
    const struct m3_index *d = a->d;
    double steps = (double)(a->out->n + a->out->f), walk, *memory = block->scratch;
    double factor = factor_of(d);
    struct bounded keys = { memory, memory + block->n, memory + 2 * block->n, block->n };
    int64_t at = block->pair * d->B + block->block;
    for (int64_t j = 0; j < block->n; j++)
        score_bound(&keys, j, a->q + block->pair * d->X, a->k + block->keys[j] * d->X, d->X, factor);
    if (d->semantics->pool == M3_POOL_LSE) logarithm_bound(a->out->bound + at, &walk, &keys, steps, a->how->c);
    else maximum_bound(a->out->bound + at, &walk, &keys, a->how->u * steps);
    if (a->out->walk) a->out->walk[at] = walk;
}

int m3_bound_block_scores(struct m3_ctx *ctx, struct m3_bound *out, const double *q, const double *k,
                          const struct m3_index *d, const struct m3_arithmetic *how)
{
    struct bounded_scores scores = { out, q, k, d, how };
    out->n = d->X;
    out->f = 2;
    return m3_scored_blocks(ctx, block_bound, &scores, (struct m3_attended_scratch){ .per_key = 3 }, d);
}

static int bound(struct m3_recomputing *m)
{
    const struct m3_index d = dimensions(m);
    return m3_bound_block_scores(m->ctx, &m->bound, m->in[0].values, m->in[1].values, &d, &m->how);
}

/* ---- propagation */

struct propagated_scores {
    struct m3_spread *m;
    const double *q, *k;
    const struct m3_spread *of_q, *of_k;
    const struct m3_index *d;
    double u_score, factor;
};

/* Scores of one block: value, error, variance, and the error including the arithmetic of a float. */
struct propagated {
    double *s, *error, *variance, *reach;
    int64_t n;
};

enum { KEY_ARRAYS = 4 };

/* error = factor sum (|q| e_k + e_q |k| + e_q e_k) + u |s|; twice u |s| if the factor is multiplied separately */
static void score_spread(const struct propagated *keys, int64_t j, const struct propagated_scores *a, int64_t at_q,
                         int64_t at_k)
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

/* pool=max: any key that can be the largest within reach may have been taken. The arithmetic of a float counts only
 * for the reach: together with the error it can promote a key that neither would promote alone. */
static void maximum_spread(double *error, double *variance, const struct propagated *keys)
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

/* pool=lse: ln sum p exp(e), at most the largest e. One q is multiplied with all keys, so standard deviations add. */
static void logarithm_spread(double *error, double *variance, const struct propagated *keys)
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
    const struct propagated_scores *a = self;
    double *memory = block->scratch, error = 0, variance = 0;
    int64_t n = block->n, X = a->d->X, at = block->pair * a->d->B + block->block;
    struct propagated keys = { memory, memory + n, memory + 2 * n, memory + 3 * n, n };
    if (n == 0) return;
    for (int64_t j = 0; j < n; j++) score_spread(&keys, j, a, block->pair * X, block->keys[j] * X);
    if (a->d->semantics->pool == M3_POOL_LSE) logarithm_spread(&error, &variance, &keys);
    else maximum_spread(&error, &variance, &keys);
    a->m->error[at] += error;
    a->m->variance[at] += variance;
}

int m3_propagate_block_scores(struct m3_ctx *ctx, struct m3_spread *m, const double *q, const double *k,
                              const struct m3_spread *of_q, const struct m3_spread *of_k, const struct m3_index *d,
                              double u_score)
{
    struct propagated_scores scores = { m, q, k, of_q, of_k, d, u_score, factor_of(d) };
    if (m3_is_exact(of_q) && m3_is_exact(of_k) && u_score == 0) return M3_OK;
    return m3_scored_blocks(ctx, block_spread, &scores, (struct m3_attended_scratch){ .per_key = KEY_ARRAYS }, d);
}

static int propagate(struct m3_recomputing *m)
{
    const struct m3_index d = dimensions(m);
    const struct m3_tap_values *q = &m->in[0], *k = &m->in[1];
    return m3_propagate_block_scores(m->ctx, &m->spread, q->values, k->values, &q->off, &k->off, &d, m->stored[0]);
}

const struct m3_error_operator m3_error_block_scores = {
    .name = "block_scores",
    .sections = { "5.8 block_scores" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 2,
    .rows = m3_rows_with_keys,
    .reads = 2,
    .keys = 1,
    .by_span = 1,
    .points = { "index.scores" },
};

/* ---- select_blocks: ids, selected from given scores */

const struct m3_error_operator m3_error_select_blocks = {
    .name = "select_blocks",
    .sections = { "5.9 select_blocks" },
    .by_span = 1,
};
