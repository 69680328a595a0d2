#include <math.h>
#include <omp.h>

#include "base/minmax.h"
#include "ops/math.h"
#include "oracle/bounds.h"

/* What one row of one head attends to: L keys and values of D channels, `stride` apart, at these places. */
struct row {
    const double *q, *k, *v;
    const int64_t *keys;
    int64_t L, D, stride;
};

/* Scratch of a thread, [L] each. */
struct work {
    int64_t *keys;
    double *z, *p, *eps, *walk, *probable;      /* logits, weights; a logit's error: worst, typical, probable */
};

enum { KEY_ARRAYS = 6 };

static int64_t work_size(int64_t L) { return KEY_ARRAYS * L; }

static struct work work_in(double *memory, int64_t L)
{
    struct work w = { .keys = (int64_t *)(void *)memory, .z = memory + L, .p = memory + 2 * L, .eps = memory + 3 * L,
                      .walk = memory + 4 * L, .probable = memory + 5 * L };
    return w;
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
static struct scalars weigh(const struct work *w, const struct row *r, const struct m3_arithmetic *how)
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
static void output_bounds(const struct m3_bound *out, int64_t at, const struct row *r, const struct work *w,
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

/* Row `at` of o [.,D] and of lse. */
static void row_bounds(const struct m3_bound *o, const struct m3_bound *lse, int64_t at, const struct row *r,
                       const struct work *w, const struct m3_arithmetic *how)
{
    if (r->L == 0) {
        no_bounds(o, at * r->D, r->D);
        if (lse) no_bounds(lse, at, 1);
        return;
    }
    struct scalars s = weigh(w, r, how);
    output_bounds(o, at * r->D, r, w, &s, how);
    if (lse) lse_bound(lse, at, r->L, w, &s, how);
}

/* Is a block in the list of group g of a row, or with `any` in the list of any group? lists [G,N]. */
static int is_listed(const int32_t *lists, const struct m3_attend *d, int64_t g, int64_t block)
{
    int any = d->selection == M3_SELECT_UNION;
    for (int64_t i = any ? 0 : g * d->N; i < (any ? d->G : g + 1) * d->N; i++)
        if (lists[i] == block) return 1;
    return 0;
}

/* The keys of row t and group g, ascending; lists [G,N] of that row, or NULL: all. Returns how many. */
static int64_t keys_of(int64_t *keys, const struct m3_attend *d, const int32_t *lists, int64_t t, int64_t g)
{
    int64_t n = 0, end = d->p0 + t + 1, block = lists ? d->block : end;
    for (int64_t first = 0; first < end; first += block) {
        if (lists && !is_listed(lists, d, g, first / block)) continue;
        for (int64_t j = first; j < m3_min(first + block, end); j++)
            if (!d->seen || d->seen[j]) keys[n++] = j;
    }
    return n;
}

static int attend(struct m3_ctx *ctx, struct m3_bound *o, struct m3_bound *lse, const double *q, const double *k,
                  const double *v, const int32_t *blocks, const struct m3_attend *d, const struct m3_arithmetic *how)
{
    int64_t S = d->p0 + d->T, heads = d->Q / d->G, size = work_size(S);
    int team = m3_team(ctx, d->T * d->Q * d->D * S);
    size_t mark = m3_scratch_mark(ctx);
    double *scratch = m3_scratch_take(ctx, team * size, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;
    o->n = 0;
    o->f = 1;
    if (lse) lse->n = 0, lse->f = 1;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < d->T * d->G; i++) {
        int64_t t = i / d->G, g = i % d->G;
        struct work w = work_in(scratch + omp_get_thread_num() * size, S);
        struct row r = { .k = k + g * d->D, .v = v + g * d->D, .keys = w.keys, .D = d->D, .stride = d->G * d->D };
        r.L = keys_of(w.keys, d, blocks ? blocks + t * d->G * d->N : NULL, t, g);
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            r.q = q + (t * d->Q + h) * d->D;
            row_bounds(o, lse, t * d->Q + h, &r, &w, how);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
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
    int64_t longest = 0;
    for (int64_t s = 0; s < segments; s++) longest = m3_max(longest, ends[s] - (s ? ends[s - 1] : 0));
    int64_t size = work_size(longest), P = ends[segments - 1];
    int team = m3_team(ctx, P * A * U * longest);
    size_t mark = m3_scratch_mark(ctx);
    double *scratch = m3_scratch_take(ctx, team * size, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;
    o->n = 0;
    o->f = 1;

#pragma omp parallel num_threads(team)
    for (int64_t s = 0; s < segments; s++) {
        int64_t first = s ? ends[s - 1] : 0;
        struct work w = work_in(scratch + omp_get_thread_num() * size, longest);
        struct row r = { .keys = w.keys, .L = ends[s] - first, .D = U, .stride = A * U };
        for (int64_t j = 0; j < r.L; j++) w.keys[j] = first + j;
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = first * A; i < ends[s] * A; i++) {
            r.q = q + i * U;
            r.k = k + i % A * U;
            r.v = v + i % A * U;
            row_bounds(o, NULL, i, &r, &w, how);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
