#include <math.h>
#include <omp.h>
#include <string.h>

#include "oracle/error/backward/backward.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/private/functions.h"

/* What a thread needs for one row and head: its keys, and for each the weight p with its relative error, |do| . |v|,
 * ds and its error. */
struct row {
    int64_t *keys, L;
    double *p, *of_p, *size, *ds, *e_ds;
};

struct attending {
    const struct m3_attend_operands *x;
    const struct m3_backward_arithmetic *how;
    double *dq, *dk, *dv, scale;
};

static double dot(const double *a, const double *b, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
        *size += fabs(a[i] * b[i]);
    }
    return sum;
}

/* exp(z - lse): both arguments are off, and the difference is rounded. A program recomputes z and lse, or keeps lse. */
static void weigh(struct row *r, const struct attending *a, const double *q, const double *k, int64_t stride)
{
    const int64_t D = a->x->d.D;
    const double u = a->how->u;
    double most = -INFINITY, sum = 0, worst = 0;
    for (int64_t j = 0; j < r->L; j++) {
        double size;
        r->p[j] = a->scale * dot(q, k + r->keys[j] * stride, D, &size);
        r->of_p[j] = u * (double)(D + 3) * a->scale * size + 2 * a->how->logits * fabs(r->p[j]);
        most = fmax(most, r->p[j]);
        worst = fmax(worst, r->of_p[j]);
    }
    for (int64_t j = 0; j < r->L; j++) sum += m3_exp(r->p[j] - most);
    const double lse = most + log(sum), of_lse = worst + u * ((double)r->L + a->how->c + 4 + fabs(lse) + fabs(most));
    for (int64_t j = 0; j < r->L; j++) {
        const double z = r->p[j];
        r->of_p[j] = m3_exp_minus_1(r->of_p[j] + of_lse + u * (fabs(z - lse) + fabs(z))) + u * (a->how->c + 2);
        r->p[j] = m3_exp(z - lse);
    }
}

/* ds = p (do . v - delta). delta is do . o, whose o has the errors of the forward pass, or the sum of p do . v. */
static void differentiate(struct row *r, const struct attending *a, const double *dy, const double *v, int64_t stride,
                          double dlse)
{
    const int64_t D = a->x->d.D;
    const double u = a->how->u;
    double delta = 0, sizes = 0, e_delta = 0;
    for (int64_t j = 0; j < r->L; j++) {
        r->ds[j] = dot(dy, v + r->keys[j] * stride, D, &r->size[j]);
        delta += r->p[j] * r->ds[j];
        sizes += r->p[j] * r->size[j];
        e_delta += r->p[j] * r->size[j] * r->of_p[j];
    }
    e_delta += u * (double)(r->L + D + 4) * sizes + (a->how->o + a->how->p) * sizes + u * fabs(dlse);
    delta -= dlse;
    for (int64_t j = 0; j < r->L; j++) {
        const double inner = fabs(r->ds[j]) + fabs(delta);
        const double own = u * (double)(D + 1) * r->size[j] + e_delta + (3 * u + a->how->p) * inner;
        r->ds[j] = r->p[j] * (r->ds[j] - delta);
        r->e_ds[j] = fabs(r->ds[j]) * (r->of_p[j] + a->how->p) + r->p[j] * (1 + r->of_p[j]) * own;
    }
}

/* What a row and head add to the gradients of their keys; dq is complete. A sum of n terms adds u n of its size, where
 * n is that of the longest sum. */
static void add_row(const struct row *r, const struct attending *a, int64_t at, int64_t g)
{
    const struct m3_attend *d = &a->x->d;
    const int64_t terms = d->T * (d->Q / d->G);
    const double u = a->how->u, steps = u * (double)(terms + 2), *dy = a->x->dy + at * d->D;
    const double *q = a->x->q + at * d->D;
    for (int64_t j = 0; j < r->L; j++) {
        const int64_t key = (r->keys[j] * d->G + g) * d->D;
        const double ds = fabs(r->ds[j]), own = a->scale * (r->e_ds[j] + u * (double)(r->L + 2) * ds);
        const double others = a->scale * (r->e_ds[j] + steps * ds), p = r->p[j] * (r->of_p[j] + steps + a->how->p);
        for (int64_t i = 0; i < d->D; i++) {
            if (a->dq) a->dq[at * d->D + i] += own * fabs(a->x->k[key + i]);
            if (a->dk) a->dk[key + i] += others * fabs(q[i]);
            if (a->dv) a->dv[key + i] += p * fabs(dy[i]);
        }
    }
}

/* The keys of the segment of row t. */
static int64_t segment(int64_t *keys, const int64_t *ends, int64_t t)
{
    int64_t s = 0, n = 0;
    while (t >= ends[s]) s++;
    for (int64_t j = s > 0 ? ends[s - 1] : 0; j < ends[s]; j++) keys[n++] = j;
    return n;
}

/* All rows of one key head, whose gradients belong to one thread. */
static void one_group(const struct attending *a, struct row *r, int64_t g)
{
    const struct m3_attend *d = &a->x->d;
    const int64_t heads = d->Q / d->G;
    for (int64_t t = 0; t < d->T; t++) {
        const int32_t *lists = a->x->blocks ? a->x->blocks + t * d->G * d->N : NULL;
        r->L = a->x->ends ? segment(r->keys, a->x->ends, t) : m3_attended_keys(r->keys, d, lists, t, g);
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            const int64_t at = t * d->Q + h;
            weigh(r, a, a->x->q + at * d->D, a->x->k + g * d->D, d->G * d->D);
            differentiate(r, a, a->x->dy + at * d->D, a->x->v + g * d->D, d->G * d->D, a->x->dlse ? a->x->dlse[at] : 0);
            add_row(r, a, at, g);
        }
    }
}

int m3_error_attend_backward(struct m3_ctx *ctx, double *dq, double *dk, double *dv, const struct m3_attend_operands *x,
                             const struct m3_backward_arithmetic *how)
{
    const struct m3_attend *d = &x->d;
    const int64_t S = d->p0 + d->T;
    const struct attending a = {
        .x = x,
        .how = how,
        .dq = dq,
        .dk = dk,
        .dv = dv,
        .scale = 1 / sqrt((double)d->D),
    };
    const int team = m3_team(ctx, d->T * d->Q * d->D * S) < d->G ? m3_team(ctx, d->T * d->Q * d->D * S) : (int)d->G;
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, 6 * S * team, sizeof *memory);
    if (!memory) return M3_INTERNAL;
    if (dq) memset(dq, 0, (size_t)(d->T * d->Q * d->D) * sizeof *dq);
    if (dk) memset(dk, 0, (size_t)(S * d->G * d->D) * sizeof *dk);
    if (dv) memset(dv, 0, (size_t)(S * d->G * d->D) * sizeof *dv);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t g = 0; g < d->G; g++) {
        double *mine = memory + 6 * S * omp_get_thread_num();
        struct row r = { .keys = (int64_t *)(void *)mine,
                         .p = mine + S,
                         .of_p = mine + 2 * S,
                         .size = mine + 3 * S,
                         .ds = mine + 4 * S,
                         .e_ds = mine + 5 * S };
        one_group(&a, &r, g);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
