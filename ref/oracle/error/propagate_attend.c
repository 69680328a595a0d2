#include <math.h>

#include "ops/math.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/propagate.h"
#include "oracle/error/private/exp_minus_1.h"

struct attend {
    struct m3_spread *o, *lse;                  /* either may be NULL */
    const struct m3_spread *of_q, *of_k, *of_v;
    const struct m3_attend_storage *storage;
};

/* Of one row. [L] each: logits, then weights; worst error of a logit beside `shift`, and its variance from what no
 * other logit shares; what of a weight's change moves o, and the largest weight within reach. [D]: mean key, a sum. */
struct work {
    double *p, *error, *own, *moved, *most, *mean, *key;
    double shift;                               /* error that all logits share */
    double sum_error, largest;                  /* sum p_j (exp(error_j) - 1); largest error */
    int far;                                    /* beyond all linearity */
    int query_off;
};

enum { KEY_ARRAYS = 5, CHANNEL_ARRAYS = 2 };

static struct work work_in(const struct m3_attended *r)
{
    double *memory = r->scratch, *channels = memory + KEY_ARRAYS * r->L;
    return (struct work){ .p = memory, .error = memory + r->L, .own = memory + 2 * r->L, .moved = memory + 3 * r->L,
                          .most = memory + 4 * r->L, .mean = channels, .key = channels + r->D };
}

/* Logits, and what storing them costs; then weights, and the mean key. */
static void weigh(struct work *w, const struct m3_attended *r, const struct attend *a)
{
    double scale = 1 / sqrt((double)r->D), top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        double dot = 0;
        for (int64_t i = 0; i < r->D; i++) dot += r->q[i] * k[i];
        double stored = a->storage->logits * fabs(scale * dot);
        w->p[j] = scale * dot;
        w->error[j] = 2 * stored;
        w->own[j] = 2 * stored * stored / 3;
        top = w->p[j] > top || w->p[j] != w->p[j] ? w->p[j] : top;
    }
    for (int64_t j = 0; j < r->L; j++) sum += w->p[j] = m3_exp(w->p[j] - top);
    for (int64_t i = 0; i < r->D; i++) w->mean[i] = 0;
    for (int64_t j = 0; j < r->L; j++) {
        w->p[j] /= sum;
        for (int64_t i = 0; i < r->D; i++) w->mean[i] += w->p[j] * r->k[r->keys[j] * r->stride + i];
    }
}

/* What q and k do to logits. With c the mean key
 *
 *     error_j = scale sum (|q| e_k + e_q |k_j - c| + e_q e_k),  shift = scale sum e_q |c|
 *     own_j   = scale^2 sum (q^2 v_k + v_q v_k)                 the part of v_q k^2 is in of_query
 *
 * A shift of all logits moves lse and no weight; without c, keys of a large mean would hide all. */
static void carry_to_logits(struct work *w, const struct m3_attended *r, const struct attend *a)
{
    int q_off = !m3_is_exact(a->of_q), k_off = !m3_is_exact(a->of_k);
    double scale = 1 / sqrt((double)r->D);
    for (int64_t i = 0; i < r->D && q_off; i++) {
        w->shift += scale * a->of_q->error[r->at * r->D + i] * fabs(w->mean[i]);
        if (a->of_q->variance[r->at * r->D + i] != 0) w->query_off = 1;
    }
    for (int64_t j = 0; j < r->L && (q_off || k_off); j++) {
        int64_t at_q = r->at * r->D, key = r->keys[j] * r->stride, at_k = r->head + key;
        double worst = 0, variance = 0;
        for (int64_t i = 0; i < r->D; i++) {
            double e_q = q_off ? a->of_q->error[at_q + i] : 0, v_q = q_off ? a->of_q->variance[at_q + i] : 0;
            double e_k = k_off ? a->of_k->error[at_k + i] : 0, v_k = k_off ? a->of_k->variance[at_k + i] : 0;
            worst += fabs(r->q[i]) * e_k + e_q * fabs(r->k[key + i] - w->mean[i]) + e_q * e_k;
            variance += r->q[i] * r->q[i] * v_k + v_q * v_k;
        }
        w->error[j] += scale * worst;
        w->own[j] += scale * scale * variance;
    }
}

/* How far each weight may move. With |d_j| <= error_j
 *
 *     o' - o = sum p_j (exp(d_j) - 1) (v_j - o) / sum p_j exp(d_j)
 *
 * and the denominator is at least sum p_j exp(-error_j): no first order, but a bound. */
static void carry_to_weights(struct work *w, int64_t L)
{
    double least = 0;
    for (int64_t j = 0; j < L; j++)
        w->largest = w->error[j] > w->largest || w->error[j] != w->error[j] ? w->error[j] : w->largest;
    w->far = w->largest > 30;
    for (int64_t j = 0; j < L; j++) {
        w->sum_error += w->p[j] * (w->far ? w->largest : m3_exp_minus_1(w->error[j]));
        least += w->p[j] * (w->far ? 1 : m3_exp(-w->error[j]));
    }
    for (int64_t j = 0; j < L; j++) {
        double change = w->far ? 1 : m3_exp_minus_1(w->error[j]), most = w->p[j] * (1 + change) / least;
        w->moved[j] = w->p[j] * change / least;
        w->most[j] = w->far || most > 1 ? 1 : most;
    }
}

/* scale^2 sum over channels d of v_q,d (sum_j p_j f_j k_jd)^2: one q meets all keys. f_j = v_j - o, or v NULL: 1. */
static double of_query(const struct m3_attended *r, const struct attend *a, const struct work *w, const double *v,
                       double o)
{
    double sum = 0, *key = w->key;
    if (!w->query_off) return 0;
    const double *v_q = a->of_q->variance + r->at * r->D;
    for (int64_t d = 0; d < r->D; d++) key[d] = 0;
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        double weight = w->p[j] * (v ? v[r->keys[j] * r->stride] - o : 1);
        for (int64_t d = 0; d < r->D; d++) key[d] += weight * k[d];
    }
    for (int64_t d = 0; d < r->D; d++) sum += v_q[d] * key[d] * key[d];
    return sum / (double)r->D;
}

/* Channel i of o. What moves weights moves it along v - o, and never out of the values; what moves values, their mean.
 * Stored weights and parts count against |v|, for they need not sum to 1. */
static void output(const struct attend *a, const struct m3_attended *r, const struct work *w, int64_t i)
{
    const double *v = r->v + i;
    int v_off = !m3_is_exact(a->of_v);
    double u_p = a->storage->p, u_parts = a->storage->partial, o = 0, mass = 0;
    for (int64_t j = 0; j < r->L; j++) {
        o += w->p[j] * v[r->keys[j] * r->stride];
        mass += w->p[j] * fabs(v[r->keys[j] * r->stride]);
    }
    double moved = 0, furthest = 0, values = 0, value_most = 0, variance = 0, stored = 0, top = 0;
    for (int64_t j = 0; j < r->L; j++) {
        int64_t key = r->keys[j] * r->stride, at_v = r->head + key + i;
        double away = fabs(v[key] - o), p = w->p[j], e_v = v_off ? a->of_v->error[at_v] : 0;
        double v_v = v_off ? a->of_v->variance[at_v] : 0, of_p = p * v[key] * u_p;
        moved += w->moved[j] * away;
        furthest = away > furthest ? away : furthest;
        values += w->most[j] * e_v;
        value_most = e_v > value_most ? e_v : value_most;
        variance += p * p * (away * away * w->own[j] + v_v) + of_p * of_p / 3;
        stored += w->most[j] * fabs(v[key]);
        top = fabs(v[key]) > top ? fabs(v[key]) : top;
    }
    if (moved > furthest || w->far) moved = furthest;
    if (values > value_most) values = value_most;
    if (stored > top) stored = top;
    variance += of_query(r, a, w, v, o);
    a->o->error[r->at * r->D + i] += moved + values + (u_p + u_parts) * stored;
    a->o->variance[r->at * r->D + i] += variance + u_parts * u_parts * mass * mass / 3;
}

/* lse moves by the shift and ln sum p exp(error), which is at most the largest error. */
static void row(const void *self, const struct m3_attended *r)
{
    const struct attend *a = self;
    struct work w = work_in(r);
    if (r->L == 0) return;
    weigh(&w, r, a);
    carry_to_logits(&w, r, a);
    carry_to_weights(&w, r->L);
    for (int64_t i = 0; i < r->D && a->o; i++) output(a, r, &w, i);
    if (!a->lse) return;
    double variance = of_query(r, a, &w, NULL, 0);
    for (int64_t j = 0; j < r->L; j++) variance += w.p[j] * w.p[j] * w.own[j];
    a->lse->error[r->at] += w.shift + (w.sum_error > w.largest ? w.largest : w.sum_error);
    a->lse->variance[r->at] += variance;
}

static int nothing(const struct attend *a)
{
    const struct m3_attend_storage *s = a->storage;
    int stored = s->logits != 0 || s->p != 0 || s->partial != 0;
    return m3_is_exact(a->of_q) && m3_is_exact(a->of_k) && m3_is_exact(a->of_v) && !stored;
}

static struct m3_attended_scratch needed(int64_t D)
{
    return (struct m3_attended_scratch){ .per_key = KEY_ARRAYS, .fixed = CHANNEL_ARRAYS * D };
}

int m3_propagate_attend(struct m3_ctx *ctx, struct m3_spread *o, struct m3_spread *lse, const double *q, const double *k,
                   const double *v, const struct m3_spread *of_q, const struct m3_spread *of_k,
                   const struct m3_spread *of_v, const int32_t *blocks, const struct m3_attend *d,
                   const struct m3_attend_storage *storage)
{
    struct attend a = { o, lse, of_q, of_k, of_v, storage };
    if (nothing(&a)) return M3_OK;
    return m3_attended_causal(ctx, row, &a, needed(d->D), q, k, v, blocks, d);
}

int m3_propagate_attend_segments(struct m3_ctx *ctx, struct m3_spread *o, const double *q, const double *k, const double *v,
                            const struct m3_spread *of_q, const struct m3_spread *of_k, const struct m3_spread *of_v,
                            const int64_t *ends, int64_t segments, int64_t A, int64_t U,
                            const struct m3_attend_storage *storage)
{
    struct attend a = { o, NULL, of_q, of_k, of_v, storage };
    if (nothing(&a)) return M3_OK;
    return m3_attended_segments(ctx, row, &a, needed(U), q, k, v, ends, segments, A, U);
}
