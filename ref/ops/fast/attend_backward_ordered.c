#include <math.h>
#include <omp.h>

#include "base/minmax.h"
#include "base/status.h"
#include "ops/fast/attend_backward.h"
#include "ops/fast/kernels.h"

/* dq goes through the keys for some spans of rows, dk and dv through the rows for a piece of keys: weights are computed
 * twice, and each sum has one thread and one order. */
enum { SPANS = 16 };        /* whose dq is computed together: they share keys in a near cache */

/* The memory of a thread, in double. */
struct memory {
    double *k, *v;              /* [M3_PIECE,D] */
    double *dk, *dv;            /* [M3_PIECE,D], or dq [SPANS * lanes,D] */
    double *q, *d_o;            /* [lanes,D] */
    double *q_t, *d_o_t;        /* [D,lanes] */
    double *p, *ds;             /* [M3_PIECE,lanes] */
    double *lse, *delta;        /* [lanes] */
};

static int64_t sums_of(int64_t D, int64_t lanes) { return m3_max(2 * D * M3_PIECE, SPANS * lanes * D); }

static int64_t memory_doubles(int64_t D, int64_t lanes)
{
    return 2 * (D + lanes) * M3_PIECE + sums_of(D, lanes) + lanes * (4 * D + 2);
}

static struct memory memory_at(double *x, int64_t D, int64_t lanes)
{
    struct memory m = { .k = x, .v = x + M3_PIECE * D };
    m.dk = m.v + M3_PIECE * D;
    m.dv = m.dk + M3_PIECE * D;
    m.q = m.dk + sums_of(D, lanes);
    m.d_o = m.q + lanes * D;
    m.q_t = m.d_o + lanes * D;
    m.d_o_t = m.q_t + lanes * D;
    m.p = m.d_o_t + lanes * D;
    m.ds = m.p + M3_PIECE * lanes;
    m.lse = m.ds + M3_PIECE * lanes;
    m.delta = m.lse + lanes;
    return m;
}

static void load_keys(const struct memory *m, const struct m3_attend_back *a, const struct m3_piece *piece, int64_t g)
{
    for (int64_t j = 0; j < piece->n; j++)
        for (int64_t i = 0; i < a->D; i++) {
            const int64_t at = (piece->key[j] * a->G + g) * a->D + i;
            m->k[j * a->D + i] = (double)a->k[at];
            m->v[j * a->D + i] = (double)a->v[at];
        }
}

static void load_rows(const struct memory *m, const struct m3_attend_back *a, const struct m3_span *span, int64_t g)
{
    const int64_t heads = a->heads, lanes = span->rows * heads, D = a->D;
    for (int64_t l = 0; l < lanes; l++) {
        const int64_t row = (span->t + l / heads) * a->Q + g * heads + l % heads;
        m->lse[l] = a->lse[row];
        m->delta[l] = a->delta[row];
        for (int64_t i = 0; i < D; i++) {
            m->q[l * D + i] = m->q_t[i * lanes + l] = (double)a->q[row * D + i];
            m->d_o[l * D + i] = m->d_o_t[i * lanes + l] = (double)a->d_o[row * D + i];
        }
    }
}

/* p and ds of n keys, from `first` on, and of all lanes. */
static void weigh(const struct memory *m, int64_t first, int64_t n, int64_t lanes, int64_t D)
{
    const struct m3_wide *wide = m3_kernels()->wide;
    wide->gemm(m->p, lanes, m->k + first * D, D, 1, m->q_t, lanes, n, lanes, D, 0);
    wide->gemm(m->ds, lanes, m->v + first * D, D, 1, m->d_o_t, lanes, n, lanes, D, 0);
    wide->weigh_back(m->p, m->ds, m->lse, m->delta, n, lanes, 1 / sqrt((double)D));
}

/* dq of the spans s0 .. s1-1 of a key head. */
static void some_rows(const struct memory *m, const struct m3_attend_back *a, int64_t g, int64_t s0, int64_t s1)
{
    const int64_t heads = a->heads, most = a->most_rows * heads, D = a->D;
    struct m3_piece piece;
    for (int64_t i = 0; i < (s1 - s0) * most * D; i++) m->dk[i] = 0;
    for (int64_t i = 0; i < a->pieces; i++) {
        int is_loaded = 0;
        m3_piece_find(&piece, a, i);
        for (int64_t s = s0; s < s1; s++) {
            int64_t first, n = m3_span_sees(&first, a, &a->span[s], g, &piece), lanes = a->span[s].rows * heads;
            if (n == 0) continue;
            if (!is_loaded) load_keys(m, a, &piece, g);
            is_loaded = 1;
            load_rows(m, a, &a->span[s], g);
            weigh(m, first, n, lanes, D);
            m3_kernels()->wide->gemm(m->dk + (s - s0) * most * D, D, m->ds, 1, lanes, m->k + first * D, D, lanes, D, n,
                                     1);
        }
    }
    for (int64_t s = s0; s < s1; s++)
        for (int64_t l = 0; l < a->span[s].rows * heads; l++) {
            const int64_t row = (a->span[s].t + l / heads) * a->Q + g * heads + l % heads;
            for (int64_t i = 0; i < D; i++) a->dq[row * D + i] = (real)m->dk[((s - s0) * most + l) * D + i];
        }
}

/* dk and dv of the i-th piece of a key head; those of hidden keys are 0. */
static void some_keys(const struct memory *m, const struct m3_attend_back *a, int64_t g, int64_t i)
{
    const struct m3_wide *wide = m3_kernels()->wide;
    const int64_t D = a->D;
    struct m3_piece piece;
    m3_piece_find(&piece, a, i);
    for (int64_t j = 0; j < 2 * D * M3_PIECE; j++) m->dk[j] = 0;
    load_keys(m, a, &piece, g);
    for (int64_t s = 0; s < a->spans; s++) {
        int64_t first, n = m3_span_sees(&first, a, &a->span[s], g, &piece), lanes = a->span[s].rows * a->heads;
        if (n == 0) continue;
        load_rows(m, a, &a->span[s], g);
        weigh(m, first, n, lanes, D);
        wide->gemm(m->dk + first * D, D, m->ds, lanes, 1, m->q, D, n, D, lanes, 1);
        wide->gemm(m->dv + first * D, D, m->p, lanes, 1, m->d_o, D, n, D, lanes, 1);
    }
    for (int64_t j = 0; j < piece.n; j++)
        for (int64_t c = 0; c < D; c++) {
            const int64_t at = (piece.key[j] * a->G + g) * D + c;
            if (a->dk) a->dk[at] = (real)m->dk[j * D + c];
            if (a->dv) a->dv[at] = (real)m->dv[j * D + c];
        }
}

static void clear_hidden(const struct m3_attend_back *a)
{
    for (int64_t j = 0; j < a->keys; j++)
        for (int64_t i = j * a->G * a->D; i < (a->seen[j] ? 0 : (j + 1) * a->G * a->D); i++) {
            if (a->dk) a->dk[i] = 0;
            if (a->dv) a->dv[i] = 0;
        }
}

int m3_attend_back_ordered(struct m3_ctx *ctx, const struct m3_attend_back *a)
{
    const int64_t lanes = a->most_rows * a->heads, each = memory_doubles(a->D, lanes);
    const int64_t tiles = (a->spans + SPANS - 1) / SPANS;
    const int team = m3_team(ctx, a->T * a->Q * a->D * a->keys);
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, team * each, sizeof *memory);
    if (!memory) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < (a->dq ? tiles * a->G : 0); i++) {
        const struct memory mine = memory_at(memory + omp_get_thread_num() * each, a->D, lanes);
        const int64_t s0 = (tiles - 1 - i / a->G) * SPANS;
        some_rows(&mine, a, i % a->G, s0, m3_min(s0 + SPANS, a->spans));
    }
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < (a->dk || a->dv ? a->pieces * a->G : 0); i++) {
        const struct memory mine = memory_at(memory + omp_get_thread_num() * each, a->D, lanes);
        some_keys(&mine, a, i % a->G, i / a->G);
    }
    if (a->seen) clear_hidden(a);
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
