#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "ops/math.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/private/functions.h"
#include "oracle/error/private/kernels.h"

static struct m3_attend dimensions(const struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const struct m3_case *the_case = m->setting->the_case;
    return (struct m3_attend){
        .T = m->rows,
        .p0 = the_case->p0 + m->numbers[0],
        .Q = c->Q,
        .G = c->G,
        .D = c->D,
        .seen = the_case->seen,
        .block = c->block,
        .N = c->N,
        .selection = m->setting->semantics->selection,
    };
}

/* ---- bound */

/* A thread's scratch memory, [L] each: logits, weights, and the error of a logit: worst, typical, probable; and sums of
 * [D] channels. */
struct bounded {
    double *z, *p, *eps, *walk, *probable;
    struct m3_weighed channels;
};

enum { BOUND_ARRAYS = 5, BOUND_CHANNELS = 6 };

static struct bounded bounded_in(const struct m3_attended *r)
{
    const int64_t L = r->L, D = r->D;
    double *memory = r->scratch, *sums = memory + BOUND_ARRAYS * L;
    memset(sums, 0, (size_t)(BOUND_CHANNELS * D) * sizeof *sums);
    return (struct bounded){
        memory,         memory + L,     memory + 2 * L,
        memory + 3 * L, memory + 4 * L, { sums, sums + D, sums + 2 * D, sums + 3 * D, sums + 4 * D, sums + 5 * D }
    };
}

/* The relative error of a weight, over u, if its logit is off by eps u; above 0.01 not only to first order. */
static double weight_error(double eps, double u) { return u * eps > 0.01 ? (m3_exp(u * eps) - 1) / u : eps; }

/* The values that do not depend on the channel. */
struct scalars {
    double lse, R, S, largest;
};

/* Logits and weights of a row, and the largest error of each:
 *
 *     eps_j = (D + 4) a_j + (m - z_j) + c (R + 1),   a_j = sum |q| |k_j| / sqrt(D) */
static struct scalars weigh_bounded(const struct bounded *w, const struct m3_attended *r,
                                    const struct m3_arithmetic *how)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    double scale = 1 / sqrt((double)r->D), n = (double)r->D, sum = 0;
    const int64_t pieces = (r->L + 15) / 16;
    struct scalars s = { .R = (double)pieces, .largest = -INFINITY };
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        double mass;
        w->z[j] = kernels->dot(&mass, r->q, k, r->D) * scale;
        w->eps[j] = mass * scale;
        s.largest = w->z[j] > s.largest || w->z[j] != w->z[j] ? w->z[j] : s.largest;
        s.S = fabs(w->z[j]) > s.S ? fabs(w->z[j]) : s.S;
    }
    for (int64_t j = 0; j < r->L; j++) sum += m3_exp(w->z[j] - s.largest);
    s.lse = s.largest + m3_log(sum);
    s.S += fabs(s.lse);
    for (int64_t j = 0; j < r->L; j++) {
        double a = w->eps[j], distance = s.largest - w->z[j], c = how->c;
        w->p[j] = m3_exp(w->z[j] - s.lse);
        w->eps[j] = weight_error((n + 4) * a + distance + c * (s.R + 1), how->u);
        w->probable[j] = weight_error((how->lambda * sqrt(n) + 4) * a + distance + c * (s.R + 1), how->u);
        w->walk[j] = sqrt(n) * a + distance + c;
    }
    return s;
}

/* HARD / u = sum p_j eps_j |v_j - o| + (2L + 2R + 2S + 12) sum p_j |v_j| + L least max |v| / u
 *
 * An error common to numerator and denominator moves o only along v - o: against abs(v), a large mean of v would hide
 * all errors. */
static void output_bounds(const struct m3_bound *out, int64_t at, const struct m3_attended *r, const struct bounded *w,
                          const struct scalars *s, const struct m3_arithmetic *how)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    const struct m3_weighed *sums = &w->channels;
    double L = (double)r->L, least = how->u > 0x1p-53 ? 0x1p-126 : 0x1p-1022;
    double rest = 2 * s->R + 2 * s->S + 12, probable = how->lambda * sqrt(2 * L) + rest;
    for (int64_t j = 0; j < r->L; j++) kernels->add_value(sums, r->v + r->keys[j] * r->stride, w->p[j], r->D);
    for (int64_t j = 0; j < r->L; j++)
        kernels->add_moved(sums, r->v + r->keys[j] * r->stride, w->p[j], w->eps[j], w->walk[j], w->probable[j], r->D);
    for (int64_t i = 0; i < r->D; i++) {
        const double mass = sums->mass[i], underflow = L * least * sums->top[i] / how->u;
        const double walk2 = sums->walk2[i] + (2 * L + 2 * s->S * s->S + 8) * mass * mass;
        out->bound[at + i] = sums->worst[i] + (2 * L + rest) * mass + underflow;
        if (out->walk) out->walk[at + i] = sqrt(walk2);
        if (out->suspect) out->suspect[at + i] = sqrt(sums->probable2[i]) + probable * mass + underflow;
    }
}

/* HARD(lse) / u = sum p_j eps_j + 2L + 2R + c + c ln(L + 1) + |lse| + S + 4 */
static void lse_bound(const struct m3_bound *out, int64_t at, int64_t count, const struct bounded *w,
                      const struct scalars *s, const struct m3_arithmetic *how)
{
    double L = (double)count, c = how->c, size = fabs(s->lse), worst = 0, walk2 = 0, probable2 = 0;
    double rest = 2 * s->R + c + c * m3_log(L + 1) + size + s->S + 4;
    for (int64_t j = 0; j < count; j++) {
        worst += w->p[j] * w->eps[j];
        walk2 += w->p[j] * w->walk[j] * w->p[j] * w->walk[j];
        probable2 += w->p[j] * w->probable[j] * w->p[j] * w->probable[j];
    }
    out->bound[at] = worst + 2 * L + rest;
    if (out->walk) out->walk[at] = sqrt(walk2 + 2 * L + (size + s->S + 8) * (size + s->S + 8));
    if (out->suspect) out->suspect[at] = sqrt(probable2) + how->lambda * sqrt(2 * L) + rest;
}

/* A row without a key: o = 0 and lse = -inf exactly. */
static void no_bounds(const struct m3_bound *out, int64_t at, int64_t n)
{
    for (int64_t i = at; i < at + n; i++) {
        out->bound[i] = 0;
        if (out->walk) out->walk[i] = 0;
        if (out->suspect) out->suspect[i] = 0;
    }
}

struct rows {
    struct m3_bound *o, *lse;           /* lse may be NULL */
    const struct m3_arithmetic *how;
};

static void row_bounds(const void *self, const struct m3_attended *r)
{
    const struct rows *rows = self;
    if (r->L == 0) {
        no_bounds(rows->o, r->at * r->D, r->D);
        if (rows->lse) no_bounds(rows->lse, r->at, 1);
        return;
    }
    struct bounded w = bounded_in(r);
    struct scalars s = weigh_bounded(&w, r, rows->how);
    output_bounds(rows->o, r->at * r->D, r, &w, &s, rows->how);
    if (rows->lse) lse_bound(rows->lse, r->at, r->L, &w, &s, rows->how);
}

static struct m3_attended_scratch bound_scratch(int64_t D)
{
    return (struct m3_attended_scratch){ .per_key = BOUND_ARRAYS, .fixed = BOUND_CHANNELS * D };
}

int m3_bound_attend(struct m3_ctx *ctx, struct m3_bound *o, struct m3_bound *lse, const double *q, const double *k,
                    const double *v, const int32_t *blocks, const struct m3_attend *d, const struct m3_arithmetic *how)
{
    struct rows rows = { o, lse, how };
    o->n = 0;
    o->f = 1;
    if (lse) lse->n = 0, lse->f = 1;
    return m3_attended_causal(ctx, row_bounds, &rows, bound_scratch(d->D), q, k, v, blocks, d);
}

int m3_bound_attend_segments(struct m3_ctx *ctx, struct m3_bound *o, const double *q, const double *k, const double *v,
                             const int64_t *ends, int64_t segments, int64_t A, int64_t U,
                             const struct m3_arithmetic *how)
{
    struct rows rows = { o, NULL, how };
    o->n = 0;
    o->f = 1;
    return m3_attended_segments(ctx, row_bounds, &rows, bound_scratch(U), q, k, v, ends, segments, A, U);
}

static int bound(struct m3_recomputing *m)
{
    const struct m3_attend d = dimensions(m);
    const int is_lse = m->tap == M3_TAP_ATTN_LSE;
    struct m3_bound other = { .bound = m3_recompute_scratch(m, is_lse ? m->rows * d.Q * d.D : 0, sizeof(double)) };
    if (m->status) return m->status;
    return m3_bound_attend(m->ctx, is_lse ? &other : &m->bound, is_lse ? &m->bound : NULL, m->in[0].values,
                           m->in[1].values, m->in[2].values, m->in[3].ids, &d, &m->how);
}

/* ---- propagation */

struct propagated {
    struct m3_spread *o, *lse;                  /* either may be NULL */
    const struct m3_spread *of_q, *of_k, *of_v;
    const struct m3_attend_storage *storage;
};

/* The state of one row. [L] each: logits, then weights; the worst error of a logit apart from `shift`, and its
 * variance from sources that no other logit shares; the part of a weight's change that moves o, and the largest weight
 * within reach. [D]: the mean key, a sum. */
struct moved {
    double *p, *error, *own, *moved, *most, *mean, *key;
    double shift;                               /* error that all logits share */
    double sum_error, largest;                  /* sum p_j (exp(error_j) - 1); largest error */
    int far;                                    /* too far for a linear estimate */
    int query_off;
    double part;                                /* the largest error that the logits of a part share */
};

enum { MOVED_ARRAYS = 5, CHANNEL_ARRAYS = 2 };

static struct moved moved_in(const struct m3_attended *r)
{
    double *memory = r->scratch, *channels = memory + MOVED_ARRAYS * r->L;
    return (struct moved){ .p = memory,
                           .error = memory + r->L,
                           .own = memory + 2 * r->L,
                           .moved = memory + 3 * r->L,
                           .most = memory + 4 * r->L,
                           .mean = channels,
                           .key = channels + r->D };
}

/* The lse of the part in which key j is, whichever part that is, is at least its logit and at most that of all keys:
 * its rounding shifts the logits of the part by no more than that of the larger. */
static void shift_part(struct moved *w, int64_t j, double most, const struct propagated *a)
{
    const double shift = a->storage->lse * fmax(fabs(w->p[j]), fabs(most));
    w->error[j] += shift;
    w->part = fmax(w->part, shift);
}

/* Computes logits and the cost of storing them, then weights and the mean key. */
static void weigh_moved(struct moved *w, const struct m3_attended *r, const struct propagated *a)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    double scale = 1 / sqrt((double)r->D), top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        double mass;
        const double dot = kernels->dot(&mass, r->q, k, r->D);
        double stored = a->storage->logits * fabs(scale * dot);
        w->p[j] = scale * dot;
        const double floor = a->storage->logits > 0 ? a->storage->floor : 0;
        w->error[j] = 2 * (stored + floor);
        w->own[j] = 2 * (stored * stored + floor * floor) / 3;
        top = w->p[j] > top || w->p[j] != w->p[j] ? w->p[j] : top;
    }
    for (int64_t j = 0; j < r->L && a->storage->lse > 0; j++) shift_part(w, j, top + m3_log((double)r->L), a);
    for (int64_t j = 0; j < r->L; j++) sum += w->p[j] = m3_exp(w->p[j] - top);
    for (int64_t i = 0; i < r->D; i++) w->mean[i] = 0;
    for (int64_t j = 0; j < r->L; j++) {
        w->p[j] /= sum;
        kernels->add_scaled(w->mean, r->k + r->keys[j] * r->stride, w->p[j], r->D);
    }
}

/* The errors that q and k cause in logits. With c the mean key
 *
 *     error_j = scale sum (|q| e_k + e_q |k_j - c| + e_q e_k),  shift = scale sum e_q |c|
 *     own_j   = scale^2 sum (q^2 v_k + v_q v_k)                 the part of v_q k^2 is in of_query
 *
 * A shift of all logits moves lse but no weight; without c, keys with a large mean would hide all errors. */
static void propagate_to_logits(struct moved *w, const struct m3_attended *r, const struct propagated *a)
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

/* The largest change of each weight. With |d_j| <= error_j
 *
 *     o' - o = sum p_j (exp(d_j) - 1) (v_j - o) / sum p_j exp(d_j)
 *
 * and the denominator is at least sum p_j exp(-error_j): a bound, not only first order. */
static void propagate_to_weights(struct moved *w, int64_t L)
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

/* scale^2 sum over channels d of v_q,d (sum_j p_j f_j k_jd)^2: one q is multiplied with all keys. f_j = v_j - o, or v
 * NULL: 1. */
static double of_query(const struct m3_attended *r, const struct propagated *a, const struct moved *w, const double *v,
                       double o)
{
    double sum = 0, *key = w->key;
    if (!w->query_off) return 0;
    const double *v_q = a->of_q->variance + r->at * r->D;
    for (int64_t d = 0; d < r->D; d++) key[d] = 0;
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        double weight = w->p[j] * (v ? v[r->keys[j] * r->stride] - o : 1);
        m3_error_kernels()->add_scaled(key, k, weight, r->D);
    }
    for (int64_t d = 0; d < r->D; d++) sum += v_q[d] * key[d] * key[d];
    return sum / (double)r->D;
}

/* A sum that is rounded after every key, and once more when a new largest logit shrinks it. `running` is the sum of all
 * partial sums of absolute values. Its numbers are no smaller than those of o, because the sum of weights is at least 1
 * until o is divided by it. */
static void add_running_sum(const struct propagated *a, const struct m3_attended *r, int64_t i, double running,
                            double mass)
{
    const double u = a->storage->sum, least = u > 0 ? a->storage->floor : 0, L = (double)r->L;
    const double grown = u > 0 ? 2 * u * running * m3_exp(2 * u * L) : 0;
    a->o->error[r->at * r->D + i] += grown + 2 * L * least;
    a->o->variance[r->at * r->D + i] += 2 * L * (u * u * mass * mass + least * least) / 3;
}

/* Channel i of o. Errors of weights move it along v - o, and never beyond the range of the values; errors of values
 * move it by their mean. Stored weights and parts count against abs(v), because they need not sum to 1. */
static void output_spread(const struct propagated *a, const struct m3_attended *r, const struct moved *w, int64_t i)
{
    const double *v = r->v + i;
    int v_off = !m3_is_exact(a->of_v);
    double u_p = a->storage->p, u_parts = a->storage->partial, o = 0, mass = 0;
    for (int64_t j = 0; j < r->L; j++) {
        o += w->p[j] * v[r->keys[j] * r->stride];
        mass += w->p[j] * fabs(v[r->keys[j] * r->stride]);
    }
    double moved = 0, furthest = 0, values = 0, value_most = 0, variance = 0, stored = 0, top = 0, all = 0, squares = 0,
           swing = 0, running = 0;
    for (int64_t j = 0; j < r->L; j++) {
        int64_t key = r->keys[j] * r->stride, at_v = r->head + key + i;
        double away = fabs(v[key] - o), p = w->p[j], e_v = v_off ? a->of_v->error[at_v] : 0;
        double v_v = v_off ? a->of_v->variance[at_v] : 0, of_p = p * v[key] * u_p;
        moved += w->moved[j] * away;
        swing += p * away;
        furthest = away > furthest ? away : furthest;
        values += w->most[j] * e_v;
        value_most = e_v > value_most ? e_v : value_most;
        variance += p * p * (away * away * w->own[j] + v_v) + of_p * of_p / 3;
        stored += w->most[j] * fabs(v[key]);
        running += (double)(r->L - j) * w->most[j] * fabs(v[key]);
        all += fabs(v[key]), squares += v[key] * v[key];
        top = fabs(v[key]) > top ? fabs(v[key]) : top;
    }
    if (moved > furthest || w->far) moved = furthest;
    if (values > value_most) values = value_most;
    if (stored > top) stored = top;
    variance += of_query(r, a, w, v, o) + w->part * swing * w->part * swing / 3;
    a->o->error[r->at * r->D + i] += moved + values + (u_p + u_parts) * stored;
    a->o->variance[r->at * r->D + i] += variance + u_parts * u_parts * mass * mass / 3;
    add_running_sum(a, r, i, running, mass);
    const double least = a->storage->floor, of_p = u_p > 0 ? least : 0, of_parts = u_parts > 0 ? least : 0;
    a->o->error[r->at * r->D + i] += of_p * all + of_parts;
    a->o->variance[r->at * r->D + i] += (of_p * of_p * squares + of_parts * of_parts) / 3;
}

/* lse moves by at most the shift and ln sum p exp(error), which is at most the largest error. */
static void row_spread(const void *self, const struct m3_attended *r)
{
    const struct propagated *a = self;
    struct moved w = moved_in(r);
    if (r->L == 0) return;
    weigh_moved(&w, r, a);
    propagate_to_logits(&w, r, a);
    propagate_to_weights(&w, r->L);
    for (int64_t i = 0; i < r->D && a->o; i++) output_spread(a, r, &w, i);
    if (!a->lse) return;
    double variance = of_query(r, a, &w, NULL, 0) + w.part * w.part / 3;
    for (int64_t j = 0; j < r->L; j++) variance += w.p[j] * w.p[j] * w.own[j];
    a->lse->error[r->at] += w.shift + (w.sum_error > w.largest ? w.largest : w.sum_error);
    a->lse->variance[r->at] += variance;
}

static int is_nothing(const struct propagated *a)
{
    const struct m3_attend_storage *s = a->storage;
    int stored = s->logits != 0 || s->p != 0 || s->partial != 0 || s->lse != 0 || s->sum != 0;
    return m3_is_exact(a->of_q) && m3_is_exact(a->of_k) && m3_is_exact(a->of_v) && !stored;
}

static struct m3_attended_scratch spread_scratch(int64_t D)
{
    return (struct m3_attended_scratch){ .per_key = MOVED_ARRAYS, .fixed = CHANNEL_ARRAYS * D };
}

int m3_propagate_attend(struct m3_ctx *ctx, struct m3_spread *o, struct m3_spread *lse, const double *q,
                        const double *k, const double *v, const struct m3_spread *of_q, const struct m3_spread *of_k,
                        const struct m3_spread *of_v, const int32_t *blocks, const struct m3_attend *d,
                        const struct m3_attend_storage *storage)
{
    struct m3_spread keys, values;
    struct propagated a = { o, lse, of_q, &keys, &values, storage };
    const size_t mark = m3_scratch_mark(ctx);
    int status = m3_equal_keys(ctx, &keys, k, of_k, d->p0 + d->T, d->G * d->D);
    if (!status) status = m3_equal_keys(ctx, &values, v, of_v, d->p0 + d->T, d->G * d->D);
    if (!status && !is_nothing(&a))
        status = m3_attended_causal(ctx, row_spread, &a, spread_scratch(d->D), q, k, v, blocks, d);
    m3_scratch_release(ctx, mark);
    return status;
}

int m3_propagate_attend_segments(struct m3_ctx *ctx, struct m3_spread *o, const double *q, const double *k,
                                 const double *v, const struct m3_spread *of_q, const struct m3_spread *of_k,
                                 const struct m3_spread *of_v, const int64_t *ends, int64_t segments, int64_t A,
                                 int64_t U, const struct m3_attend_storage *storage)
{
    const int64_t patches = segments > 0 ? ends[segments - 1] : 0;
    struct m3_spread keys, values;
    struct propagated a = { o, NULL, of_q, &keys, &values, storage };
    const size_t mark = m3_scratch_mark(ctx);
    int status = m3_equal_keys(ctx, &keys, k, of_k, patches, A * U);
    if (!status) status = m3_equal_keys(ctx, &values, v, of_v, patches, A * U);
    if (!status && !is_nothing(&a))
        status = m3_attended_segments(ctx, row_spread, &a, spread_scratch(U), q, k, v, ends, segments, A, U);
    m3_scratch_release(ctx, mark);
    return status;
}

static struct m3_attend_storage storage_of(const struct m3_recomputing *m)
{
    const double floor = fmax(fmax(m->floor[0], m->floor[1]), fmax(m->floor[2], m->floor[4]));
    return (struct m3_attend_storage){ m->stored[0], m->stored[1], m->stored[2], floor, m->stored[3], m->stored[4] };
}

static int propagate(struct m3_recomputing *m)
{
    const struct m3_attend d = dimensions(m);
    const int is_lse = m->tap == M3_TAP_ATTN_LSE;
    const struct m3_attend_storage storage = storage_of(m);
    const struct m3_tap_values *q = &m->in[0], *k = &m->in[1], *v = &m->in[2];
    return m3_propagate_attend(m->ctx, is_lse ? NULL : &m->spread, is_lse ? &m->spread : NULL, q->values, k->values,
                               v->values, &q->off, &k->off, &v->off, m->in[3].ids, &d, &storage);
}

const struct m3_error_operator m3_error_attend = {
    .name = "attend",
    .sections = { "5.7 attend_full", "5.10 attend_blocks" },
    .bound = bound,
    .roundings = 1,
    .propagate = propagate,
    .rows = m3_rows_with_keys,
    .reads = 3,
    .keys = 2,
    .by_span = 1,
    .has_suspect = 1,
    .points = { "attn.logits", "attn.p", "attn.partial", "attn.partial.lse", "attn.sum" },
};

/* ---- pictures: a patch attends to its segment */

struct segments {
    int64_t *ends, count;
};

static int prepare_segments(struct m3_recomputing *m)
{
    const struct m3_pictures *pictures = &m->setting->the_case->pictures;
    struct segments *s = m->prepared = m3_recompute_scratch(m, 1, sizeof *s);
    int64_t *places = m3_recompute_scratch(m, 3 * m->rows, sizeof *places);
    int64_t *ends = m3_recompute_scratch(m, m->rows, sizeof *ends);
    if (m->status) return m->status;
    *s = (struct segments){ ends, m3_pictures_segments(ends, places, pictures, &m->config->vision,
                                                       m->setting->semantics->vision_boundary) };
    return M3_OK;
}

static int bound_segments(struct m3_recomputing *m)
{
    const struct segments *s = m->prepared;
    const struct m3_vision_config *v = &m->config->vision;
    return m3_bound_attend_segments(m->ctx, &m->bound, m->in[0].values, m->in[1].values, m->in[2].values, s->ends,
                                    s->count, v->A, v->U, &m->how);
}

static int propagate_segments(struct m3_recomputing *m)
{
    const struct segments *s = m->prepared;
    const struct m3_vision_config *v = &m->config->vision;
    const struct m3_attend_storage storage = storage_of(m);
    const struct m3_tap_values *q = &m->in[0], *k = &m->in[1], *x = &m->in[2];
    return m3_propagate_attend_segments(m->ctx, &m->spread, q->values, k->values, x->values, &q->off, &k->off, &x->off,
                                        s->ends, s->count, v->A, v->U, &storage);
}

const struct m3_error_operator m3_error_attend_segments = {
    .name = "attend_segments",
    .sections = { "5.19 attend_segments" },
    .roundings = 1,
    .bound = bound_segments,
    .propagate = propagate_segments,
    .prepare = prepare_segments,
    .rows = m3_rows_of_pictures,
    .reads = 3,
    .has_suspect = 1,
    .points = { "attn.logits", "attn.p", "attn.partial", "attn.partial.lse", "attn.sum" },
};
