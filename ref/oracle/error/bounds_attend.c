#include <math.h>

#include "ops/math.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/bounds.h"

/* Scratch of a thread, [L] each: logits, weights; a logit's error: worst, typical, probable. */
struct work {
    double *z, *p, *eps, *walk, *probable;
};

enum { KEY_ARRAYS = 5 };

static struct work work_in(double *memory, int64_t L)
{
    return (struct work){ memory, memory + L, memory + 2 * L, memory + 3 * L, memory + 4 * L };
}

/* A relative error of a weight, over u, where its logit is off by eps u: beyond 0.01 not the first order alone. */
static double weight_error(double eps, double u)
{
    return u * eps > 0.01 ? (m3_exp(u * eps) - 1) / u : eps;
}

/* What does not depend on the channel. */
struct scalars {
    double lse, R, S, largest;
};

/* Logits and weights of a row, and how far each may be off:
 *
 *     eps_j = (D + 4) a_j + (m - z_j) + c (R + 1),   a_j = sum |q| |k_j| / sqrt(D) */
static struct scalars weigh(const struct work *w, const struct m3_attended *r, const struct m3_arithmetic *how)
{
    double scale = 1 / sqrt((double)r->D), n = (double)r->D, sum = 0;
    struct scalars s = { .R = (double)((r->L + 15) / 16), .largest = -INFINITY };
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        double dot = 0, mass = 0;
        for (int64_t i = 0; i < r->D; i++) {
            double p = r->q[i] * k[i];
            dot += p;
            mass += fabs(p);
        }
        w->z[j] = dot * scale;
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
 * What is common to numerator and denominator moves o along v - o alone: against |v|, a large mean of v would hide all.
 */
static void output_bounds(const struct m3_bound *out, int64_t at, const struct m3_attended *r, const struct work *w,
                          const struct scalars *s, const struct m3_arithmetic *how)
{
    double L = (double)r->L, least = how->u > 0x1p-53 ? 0x1p-126 : 0x1p-1022;
    double rest = 2 * s->R + 2 * s->S + 12, probable = how->lambda * sqrt(2 * L) + rest;
    for (int64_t i = 0; i < r->D; i++) {
        double o = 0, mass = 0, top = 0, worst = 0, walk2 = 0, probable2 = 0;
        for (int64_t j = 0; j < r->L; j++) {
            double v = r->v[r->keys[j] * r->stride + i];
            o += w->p[j] * v;
            mass += w->p[j] * fabs(v);
            top = fabs(v) > top ? fabs(v) : top;
        }
        for (int64_t j = 0; j < r->L; j++) {
            double moved = w->p[j] * fabs(r->v[r->keys[j] * r->stride + i] - o);
            worst += moved * w->eps[j];
            walk2 += moved * w->walk[j] * moved * w->walk[j];
            probable2 += moved * w->probable[j] * moved * w->probable[j];
        }
        double underflow = L * least * top / how->u;
        out->bound[at + i] = worst + (2 * L + rest) * mass + underflow;
        if (out->walk) out->walk[at + i] = sqrt(walk2 + (2 * L + 2 * s->S * s->S + 8) * mass * mass);
        if (out->suspect) out->suspect[at + i] = sqrt(probable2) + probable * mass + underflow;
    }
}

/* HARD(lse) / u = sum p_j eps_j + 2L + 2R + c + c ln(L + 1) + |lse| + S + 4 */
static void lse_bound(const struct m3_bound *out, int64_t at, int64_t count, const struct work *w,
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
    struct work w = work_in(r->scratch, r->L);
    struct scalars s = weigh(&w, r, rows->how);
    output_bounds(rows->o, r->at * r->D, r, &w, &s, rows->how);
    if (rows->lse) lse_bound(rows->lse, r->at, r->L, &w, &s, rows->how);
}

static const struct m3_attended_scratch needed = { .per_key = KEY_ARRAYS };

static int attend(struct m3_ctx *ctx, struct m3_bound *o, struct m3_bound *lse, const double *q, const double *k,
                  const double *v, const int32_t *blocks, const struct m3_attend *d, const struct m3_arithmetic *how)
{
    struct rows rows = { o, lse, how };
    o->n = 0;
    o->f = 1;
    if (lse) lse->n = 0, lse->f = 1;
    return m3_attended_causal(ctx, row_bounds, &rows, needed, q, k, v, blocks, d);
}

int m3_bound_attend_full(struct m3_ctx *ctx, struct m3_bound *o, struct m3_bound *lse, const double *q, const double *k,
                         const double *v, const struct m3_attend *d, const struct m3_arithmetic *how)
{
    return attend(ctx, o, lse, q, k, v, NULL, d, how);
}

int m3_bound_attend_blocks(struct m3_ctx *ctx, struct m3_bound *o, struct m3_bound *lse, const double *q,
                           const double *k, const double *v, const int32_t *blocks, const struct m3_attend *d,
                           const struct m3_arithmetic *how)
{
    return attend(ctx, o, lse, q, k, v, blocks, d, how);
}

int m3_bound_attend_segments(struct m3_ctx *ctx, struct m3_bound *o, const double *q, const double *k, const double *v,
                             const int64_t *ends, int64_t segments, int64_t A, int64_t U,
                             const struct m3_arithmetic *how)
{
    struct rows rows = { o, NULL, how };
    o->n = 0;
    o->f = 1;
    return m3_attended_segments(ctx, row_bounds, &rows, needed, q, k, v, ends, segments, A, U);
}
