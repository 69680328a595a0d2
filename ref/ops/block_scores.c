#include <math.h>
#include <omp.h>

#include "base/minmax.h"
#include "ops/hot.h"
#include "ops/math.h"
#include "ops/operators.h"

enum { LANES = 32 };    /* (row, group) pairs of a tile, side by side */

/* The keys of block b that the row at place p sees. */
static int64_t visible_keys(const struct m3_index *d, int64_t p, int64_t b)
{
    return m3_min(d->block, p + 1 - b * d->block);
}

/* Pools s [keys], `stride` apart, n >= 1 keys of it. NaN if any of them is. */
static real pool(const real *s, int64_t stride, int64_t n, real scale, enum m3_pool kind)
{
    real best = s[0] * scale;
    for (int64_t j = 1; j < n; j++) {
        real s_j = s[j * stride] * scale;
        if (s_j > best || s_j != s_j) best = s_j;
    }
    if (kind == M3_POOL_MAX || best != best || isinf(best)) return best;

    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += m3_exp((double)(s[j * stride] * scale) - (double)best);
    return (real)((double)best + m3_log(sum));
}

/* The (row, group) pairs i0 .. i0 + n, pair = t * G + g: they stand side by side as lanes, for all groups read the
 * same keys. q_t [X,LANES] and s [block,LANES] are scratch. Returns the first pair with a NaN and its block, or -1. */
static int64_t score_tile(real *m, const real *q, const real *k, const struct m3_index *d, int64_t i0, int64_t n,
                          real *q_t, real *s, int64_t *bad_block)
{
    const struct m3_hot *hot = m3_hot();
    int64_t last = d->p0 + (i0 + n - 1) / d->G, bad = -1;
    real scale = d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? (real)(1 / sqrt((double)d->X)) : 1;

    for (int64_t x = 0; x < d->X; x++)
        for (int64_t l = 0; l < LANES; l++) q_t[x * LANES + l] = l < n ? q[(i0 + l) * d->X + x] : 0;

    for (int64_t b = 0; b < d->B; b++) {
        int64_t keys = visible_keys(d, last, b);
        if (keys > 0) hot->gemm(s, LANES, k + b * d->block * d->X, d->X, 1, q_t, LANES, keys, LANES, d->X, 0);
        for (int64_t l = 0; l < n; l++) {
            int64_t seen = visible_keys(d, d->p0 + (i0 + l) / d->G, b);
            real *m_b = m + (i0 + l) * d->B + b;
            *m_b = seen > 0 ? pool(s + l, LANES, seen, scale, d->semantics->pool) : -(real)INFINITY;
            if (*m_b != *m_b && (bad < 0 || i0 + l < bad)) bad = i0 + l, *bad_block = b;
        }
    }
    return bad;
}

/* Scores of blocks of keys for every row and index head. SPEC 5.8
 *
 *     s_j = q[t,g] . k[j],   m[t,g,b] = max of s_j over the keys j <= p of block b;  -inf where there are none
 *
 * m [T,G,B]; q [T,G,X]; k [p0+T,X], one key head for all index heads.  Unscaled: no 1/sqrt(X), no ReLU, no softmax.
 * NaN in any visible score is an error that names the first row, group and block.
 * Often wrong: the mask after pooling; one score for all groups; a padded tail that counts as 0. */
int m3_block_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    int64_t pairs = d->T * d->G, keys = d->p0 + d->T, each = (d->X + m3_min(d->block, keys)) * LANES;
    int64_t bad = INT64_MAX, bad_block = -1;
    int team = m3_team(ctx, pairs * d->X * keys);
    size_t mark = m3_scratch_mark(ctx);
    real *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i0 = 0; i0 < pairs; i0 += LANES) {
        real *q_t = scratch + omp_get_thread_num() * each, *s = q_t + d->X * LANES;
        int64_t block = -1, pair = score_tile(m, q, k, d, i0, m3_min(LANES, pairs - i0), q_t, s, &block);
        if (pair < 0) continue;
#pragma omp critical(m3_block_scores)
        if (pair < bad) bad = pair, bad_block = block;
    }
    m3_scratch_release(ctx, mark);
    if (bad == INT64_MAX) return M3_OK;
    return m3_fail_at(ctx, M3_WRONG, "NaN in a block score", bad / d->G, bad % d->G, bad_block);
}
