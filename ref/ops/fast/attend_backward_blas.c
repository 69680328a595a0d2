#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "base/status.h"
#include "ops/fast/attend_backward.h"
#include "ops/fast/blas.h"
#include "ops/fast/kernels.h"

/* A task is one key head and a range of rows. It goes through the pieces of keys; the rows that see a piece are gathered,
 * and five products give logits, the gradients of the weights, and what the piece adds to dv, dk and dq. Rows belong to
 * their task; the ranges' sums of dk and dv are added at the end, ascending. Tasks do not depend on the number of
 * threads. */
enum {
    LANES = 256,        /* of the gathered rows, about: they stay in a near cache */
    RANGES = 8,         /* of rows at most, */
    TASKS = 32,         /* and no more than give so many tasks: each range has its own dk and dv */
    LEAST = 64,         /* spans of a range */
};

struct work {
    const struct m3_attend_back *a;
    int64_t ranges, lanes;          /* lanes: room for gathered ones */
    real *dk, *dv;                  /* [ranges,keys,G,D] */
};

/* The memory of a thread. */
struct memory {
    real *k, *v, *dk, *dv;          /* [M3_PIECE,D] */
    real *q, *d_o, *dq;             /* [lanes,D] */
    real *p, *ds;                   /* [M3_PIECE,lanes] */
    real *lse, *delta;              /* [lanes] */
    int64_t *span, *first, *sees;   /* [lanes] the gathered spans, and the keys that they see */
    int64_t spans, lanes;           /* gathered */
};

static int64_t memory_reals(const struct m3_attend_back *a, int64_t lanes)
{
    return (4 * a->D + 2 * lanes) * M3_PIECE + lanes * (3 * a->D + 2);
}

static struct memory memory_at(real *x, int64_t *list, const struct m3_attend_back *a, int64_t lanes)
{
    const int64_t piece = M3_PIECE * a->D;
    struct memory m = { .k = x, .v = x + piece, .dk = x + 2 * piece, .dv = x + 3 * piece };
    m.q = x + 4 * piece;
    m.d_o = m.q + lanes * a->D;
    m.dq = m.d_o + lanes * a->D;
    m.p = m.dq + lanes * a->D;
    m.ds = m.p + M3_PIECE * lanes;
    m.lse = m.ds + M3_PIECE * lanes;
    m.delta = m.lse + lanes;
    m.span = list;
    m.first = list + lanes;
    m.sees = list + 2 * lanes;
    return m;
}

static void gather(struct memory *m, const struct m3_attend_back *a, int64_t s, int64_t g, int64_t first, int64_t sees)
{
    const struct m3_span *span = &a->span[s];
    const int64_t heads = a->heads, D = a->D;
    m->span[m->spans] = s;
    m->first[m->spans] = first;
    m->sees[m->spans++] = sees;
    for (int64_t r = 0; r < span->rows; r++, m->lanes += heads) {
        const int64_t at = (span->t + r) * a->Q + g * heads;
        memcpy(m->q + m->lanes * D, a->q + at * D, (size_t)(heads * D) * sizeof *m->q);
        memcpy(m->d_o + m->lanes * D, a->d_o + at * D, (size_t)(heads * D) * sizeof *m->d_o);
        for (int64_t h = 0; h < heads; h++) {
            m->lse[m->lanes + h] = (real)a->lse[at + h];
            m->delta[m->lanes + h] = (real)a->delta[at + h];
        }
    }
}

/* p and ds of the keys that a span does not see := 0. */
static void hide(struct memory *m, const struct m3_attend_back *a, int64_t keys)
{
    for (int64_t i = 0, lane = 0; i < m->spans; i++) {
        const int64_t lanes = a->span[m->span[i]].rows * a->heads, end = m->first[i] + m->sees[i];
        for (int64_t j = 0; j < keys && m->sees[i] < keys; j++) {
            if (j >= m->first[i] && j < end) continue;
            memset(m->p + j * m->lanes + lane, 0, (size_t)lanes * sizeof *m->p);
            memset(m->ds + j * m->lanes + lane, 0, (size_t)lanes * sizeof *m->ds);
        }
        lane += lanes;
    }
}

static void add_rows(const struct memory *m, const struct m3_attend_back *a, int64_t g)
{
    const int64_t wide = a->heads * a->D;
    const real *dq = m->dq;
    for (int64_t i = 0; i < m->spans; i++) {
        const struct m3_span *span = &a->span[m->span[i]];
        for (int64_t r = 0; r < span->rows; r++, dq += wide) {
            real *row = a->dq + (span->t + r) * a->Q * a->D + g * wide;
            for (int64_t c = 0; c < wide; c++) row[c] = row[c] + dq[c];
        }
    }
}

/* What the gathered rows and the keys of a piece give to each other. */
static void multiply(struct memory *m, const struct m3_attend_back *a, int64_t g, int64_t n)
{
    const int64_t D = a->D, lanes = m->lanes;
    const real scale = (real)(1 / sqrt((double)D));
    if (lanes == 0) return;
    m3_blas_product(m->p, lanes, m->k, D, M3_BLAS_PLAIN, m->q, D, M3_BLAS_TURNED, n, lanes, D, 0);
    m3_blas_product(m->ds, lanes, m->v, D, M3_BLAS_PLAIN, m->d_o, D, M3_BLAS_TURNED, n, lanes, D, 0);
    m3_kernels()->weigh_back(m->p, m->ds, m->lse, m->delta, n, lanes, scale);
    hide(m, a, n);
    m3_blas_product(m->dv, D, m->p, lanes, M3_BLAS_PLAIN, m->d_o, D, M3_BLAS_PLAIN, n, D, lanes, 1);
    m3_blas_product(m->dk, D, m->ds, lanes, M3_BLAS_PLAIN, m->q, D, M3_BLAS_PLAIN, n, D, lanes, 1);
    if (a->dq) {
        m3_blas_product(m->dq, D, m->ds, lanes, M3_BLAS_TURNED, m->k, D, M3_BLAS_PLAIN, lanes, D, n, 0);
        add_rows(m, a, g);
    }
    m->spans = m->lanes = 0;
}

/* One piece of keys and the spans s0 .. s1-1. */
static void one_piece(struct memory *m, const struct work *w, const struct m3_piece *piece, int64_t g, int64_t range,
                      int64_t s0, int64_t s1)
{
    const struct m3_attend_back *a = w->a;
    const int64_t D = a->D;
    for (int64_t j = 0; j < piece->n; j++) {
        memcpy(m->k + j * D, a->k + (piece->key[j] * a->G + g) * D, (size_t)D * sizeof *m->k);
        memcpy(m->v + j * D, a->v + (piece->key[j] * a->G + g) * D, (size_t)D * sizeof *m->v);
    }
    memset(m->dk, 0, (size_t)(piece->n * D) * sizeof *m->dk);
    memset(m->dv, 0, (size_t)(piece->n * D) * sizeof *m->dv);
    for (int64_t s = s0; s < s1; s++) {
        int64_t first, sees = m3_span_sees(&first, a, &a->span[s], g, piece);
        if (sees == 0) continue;
        if (m->lanes + a->span[s].rows * a->heads > w->lanes) multiply(m, a, g, piece->n);
        gather(m, a, s, g, first, sees);
    }
    multiply(m, a, g, piece->n);
    for (int64_t j = 0; j < piece->n; j++) {
        const int64_t at = ((range * a->keys + piece->key[j]) * a->G + g) * D;
        memcpy(w->dk + at, m->dk + j * D, (size_t)D * sizeof *m->dk);
        memcpy(w->dv + at, m->dv + j * D, (size_t)D * sizeof *m->dv);
    }
}

static void task(struct memory *m, const struct work *w, int64_t g, int64_t range)
{
    const struct m3_attend_back *a = w->a;
    const int64_t D = a->D, wide = a->heads * D, each = (a->spans + w->ranges - 1) / w->ranges;
    const int64_t s0 = m3_min(range * each, a->spans), s1 = m3_min(s0 + each, a->spans);
    struct m3_piece piece;
    for (int64_t s = s0; s < s1 && a->dq; s++)
        for (int64_t t = a->span[s].t; t < a->span[s].t + a->span[s].rows; t++)
            memset(a->dq + t * a->Q * D + g * wide, 0, (size_t)wide * sizeof *a->dq);
    for (int64_t j = 0; j < a->keys; j++) {
        const int64_t at = ((range * a->keys + j) * a->G + g) * D;
        memset(w->dk + at, 0, (size_t)D * sizeof *w->dk);
        memset(w->dv + at, 0, (size_t)D * sizeof *w->dv);
    }
    for (int64_t i = 0; i < a->pieces && s0 < s1; i++) {
        m3_piece_find(&piece, a, i);
        if (piece.n > 0) one_piece(m, w, &piece, g, range, s0, s1);
    }
}

/* sum [n] := the ranges' parts [ranges,n]. */
static void add_ranges(real *sum, const real *parts, int64_t ranges, int64_t n, int team)
{
#pragma omp parallel for num_threads(team)
    for (int64_t i = 0; i < n; i++) {
        real s = parts[i];
        for (int64_t r = 1; r < ranges; r++) s = s + parts[r * n + i];
        sum[i] = s;
    }
}

int m3_attend_back_blas(struct m3_ctx *ctx, const struct m3_attend_back *a)
{
    const int64_t all = a->keys * a->G * a->D;
    const int team = m3_team(ctx, a->T * a->Q * a->D * m3_min(a->keys, a->blocks ? a->N * a->block : a->keys));
    struct work w = { .a = a, .lanes = m3_max(LANES, a->most_rows * a->heads) };
    w.ranges = m3_max(1, m3_min(m3_min(RANGES, TASKS / a->G), a->spans / LEAST));
    const int64_t each = memory_reals(a, w.lanes);

    size_t mark = m3_scratch_mark(ctx);
    w.dk = m3_scratch_take(ctx, w.ranges * all, sizeof *w.dk);
    w.dv = m3_scratch_take(ctx, w.ranges * all, sizeof *w.dv);
    real *memory = m3_scratch_take(ctx, team * each, sizeof *memory);
    int64_t *lists = m3_scratch_take(ctx, team * w.lanes * 3, sizeof *lists);
    const int status = w.dk && w.dv && memory && lists ? M3_OK : M3_INTERNAL;
    openblas_set_num_threads(1);        /* threads are ours: one task each */

    /* The last rows come first: they see most keys. */
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < (status ? 0 : w.ranges * a->G); i++) {
        const int64_t me = omp_get_thread_num();
        struct memory mine = memory_at(memory + me * each, lists + me * 3 * w.lanes, a, w.lanes);
        task(&mine, &w, i % a->G, w.ranges - 1 - i / a->G);
    }
    if (!status && a->dk) add_ranges(a->dk, w.dk, w.ranges, all, team);
    if (!status && a->dv) add_ranges(a->dv, w.dv, w.ranges, all, team);
    m3_scratch_release(ctx, mark);
    return status;
}
