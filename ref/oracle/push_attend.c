#include <math.h>

#include "ops/math.h"
#include "oracle/attended.h"
#include "oracle/push.h"
#include "oracle/push_exp.h"

struct attend {
    struct m3_spread *o, *lse;                  /* either may be NULL */
    const struct m3_spread *of_q, *of_k, *of_v;
    const struct m3_attend_storage *storage;
};

/* Of one row. [L] each: weights; worst error of a logit, and its variance from what no other logit shares; what of a
 * weight's relative change moves o, and the largest weight within reach. [D]: keys by their weights. */
struct work {
    double *p, *error, *own, *moved, *most, *key;
    double sum_error, largest;                  /* sum p_j error_j; largest error */
    int far;                                    /* beyond all linearity */
    int query_off;
};

enum { KEY_ARRAYS = 5 };

static struct work work_in(const struct m3_attended *r)
{
    double *memory = r->scratch;
    return (struct work){ .p = memory, .error = memory + r->L, .own = memory + 2 * r->L, .moved = memory + 3 * r->L,
                          .most = memory + 4 * r->L, .key = memory + 5 * r->L };
}

/* A logit s = scale q.k:
 *
 *     error = scale sum (|q| e_k + e_q |k| + e_q e_k) + 2 u |s|
 *     own   = scale^2 sum (q^2 v_k + v_q v_k) + 2 (u s)^2 / 3          the part of v_q k^2 is common to all keys */
static double logit(double *error, double *own, const struct m3_attended *r, const struct attend *a, int64_t key)
{
    const double *k = r->k + key * r->stride;
    int64_t at_q = r->at * r->D, at_k = r->head + key * r->stride;
    int q_off = !m3_is_exact(a->of_q), k_off = !m3_is_exact(a->of_k);
    double scale = 1 / sqrt((double)r->D), dot = 0, worst = 0, variance = 0;
    for (int64_t i = 0; i < r->D; i++) dot += r->q[i] * k[i];
    for (int64_t i = 0; i < r->D && (q_off || k_off); i++) {
        double e_q = q_off ? a->of_q->error[at_q + i] : 0, v_q = q_off ? a->of_q->variance[at_q + i] : 0;
        double e_k = k_off ? a->of_k->error[at_k + i] : 0, v_k = k_off ? a->of_k->variance[at_k + i] : 0;
        worst += fabs(r->q[i]) * e_k + e_q * fabs(k[i]) + e_q * e_k;
        variance += r->q[i] * r->q[i] * v_k + v_q * v_k;
    }
    double s = dot * scale, stored = a->storage->logits * fabs(s);
    *error = scale * worst + 2 * stored;
    *own = scale * scale * variance + 2 * stored * stored / 3;
    return s;
}

/* Weights, and how far each may move. With |d_j| <= e_j
 *
 *     o' - o = sum p_j (exp(d_j) - 1) (v_j - o) / sum p_j exp(d_j)
 *
 * and the denominator is at least sum p_j exp(-e_j): no first order, but a bound. */
static void weigh(struct work *w, const struct m3_attended *r, const struct attend *a)
{
    double top = -INFINITY, sum = 0, least = 0;
    for (int64_t j = 0; j < r->L; j++) {
        w->p[j] = logit(&w->error[j], &w->own[j], r, a, r->keys[j]);
        top = w->p[j] > top || w->p[j] != w->p[j] ? w->p[j] : top;
        w->largest = w->error[j] > w->largest || w->error[j] != w->error[j] ? w->error[j] : w->largest;
    }
    w->far = w->largest > 30;
    for (int64_t i = 0; i < r->D && !m3_is_exact(a->of_q); i++)
        if (a->of_q->variance[r->at * r->D + i] != 0) w->query_off = 1;
    for (int64_t j = 0; j < r->L; j++) sum += w->p[j] = m3_exp(w->p[j] - top);
    for (int64_t j = 0; j < r->L; j++) {
        w->p[j] /= sum;
        w->sum_error += w->p[j] * (w->far ? w->largest : m3_exp_minus_1(w->error[j]));
        least += w->p[j] * (w->far ? 1 : m3_exp(-w->error[j]));
    }
    for (int64_t j = 0; j < r->L; j++) {
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

/* lse moves by at most ln sum p exp(e), at most by the largest e. */
static void row(const void *self, const struct m3_attended *r)
{
    const struct attend *a = self;
    struct work w = work_in(r);
    if (r->L == 0) return;
    weigh(&w, r, a);
    for (int64_t i = 0; i < r->D && a->o; i++) output(a, r, &w, i);
    if (!a->lse) return;
    double variance = of_query(r, a, &w, NULL, 0);
    for (int64_t j = 0; j < r->L; j++) variance += w.p[j] * w.p[j] * w.own[j];
    a->lse->error[r->at] += w.sum_error > w.largest ? w.largest : w.sum_error;
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
    return (struct m3_attended_scratch){ .per_key = KEY_ARRAYS, .fixed = D };
}

int m3_push_attend(struct m3_ctx *ctx, struct m3_spread *o, struct m3_spread *lse, const double *q, const double *k,
                   const double *v, const struct m3_spread *of_q, const struct m3_spread *of_k,
                   const struct m3_spread *of_v, const int32_t *blocks, const struct m3_attend *d,
                   const struct m3_attend_storage *storage)
{
    struct attend a = { o, lse, of_q, of_k, of_v, storage };
    if (nothing(&a)) return M3_OK;
    return m3_attended_causal(ctx, row, &a, needed(d->D), q, k, v, blocks, d);
}

int m3_push_attend_segments(struct m3_ctx *ctx, struct m3_spread *o, const double *q, const double *k, const double *v,
                            const struct m3_spread *of_q, const struct m3_spread *of_k, const struct m3_spread *of_v,
                            const int64_t *ends, int64_t segments, int64_t A, int64_t U,
                            const struct m3_attend_storage *storage)
{
    struct attend a = { o, NULL, of_q, of_k, of_v, storage };
    if (nothing(&a)) return M3_OK;
    return m3_attended_segments(ctx, row, &a, needed(U), q, k, v, ends, segments, A, U);
}
