#include <math.h>
#include <omp.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/math.h"
#include "ops/operators.h"
#include "ops/fast/seen.h"

/* The same bits as ops/block_scores.c, by tiles of pairs and pieces of blocks. */
enum {
    LANES = 32,         /* (row, group) pairs of a tile, side by side, */
    FEW_LANES = 4,      /* or that many: a single token has no more groups */
    BLOCKS = 64,        /* blocks of a piece of work: a single token's keys are shared out too */
};

/* The number of keys of block b that the row at place p sees. */
static int64_t visible_keys(const struct m3_index *d, int64_t p, int64_t b)
{
    return m3_min(d->block, p + 1 - b * d->block);
}

/* The pooled score of s [n], scaled, elements `stride` apart, over the keys that `seen` [n] does not hide. NaN if any of
 * them is NaN; -inf if there are none. */
static real pool(const real *s, int64_t stride, int64_t n, const unsigned char *seen, enum m3_pool kind)
{
    real best = -(real)INFINITY;
    for (int64_t j = 0, run; (run = m3_seen_run(seen, &j, n, n)) > 0; j += run)
        for (int64_t i = j; i < j + run; i++)
            if (s[i * stride] > best || s[i * stride] != s[i * stride]) best = s[i * stride];
    if (kind == M3_POOL_MAX || best != best || isinf(best)) return best;

    double sum = 0;
    for (int64_t j = 0, run; (run = m3_seen_run(seen, &j, n, n)) > 0; j += run)
        for (int64_t i = j; i < j + run; i++) sum += m3_exp((double)s[i * stride] - (double)best);
    return (real)((double)best + m3_log(sum));
}

/* The first (row, group) pair and block with a NaN score; pair INT64_MAX: none. */
struct nan_place {
    int64_t pair, block;
};

static struct nan_place earlier(struct nan_place a, struct nan_place b)
{
    return b.pair < a.pair || (b.pair == a.pair && b.block < a.block) ? b : a;
}

/* Scores the pairs i0 .. i0 + n, pair = t * G + g, over blocks b0 .. b1. The pairs lie side by side as lanes because
 * all groups read the same keys. q_t [X,lanes] and s [block,lanes] are scratch. */
static struct nan_place score_tile(real *m, const real *q, const real *k, const struct m3_index *d, int64_t i0,
                                   int64_t n, int64_t lanes, int64_t b0, int64_t b1, real *q_t, real *s)
{
    const struct m3_kernels *kernels = m3_kernels();
    int64_t first = d->p0 + i0 / d->G, last = d->p0 + (i0 + n - 1) / d->G;
    real best[LANES];
    struct nan_place bad = { INT64_MAX, 0 };
    real scale = d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? (real)(1 / sqrt((double)d->X)) : 1;

    for (int64_t x = 0; x < d->X; x++)
        for (int64_t l = 0; l < lanes; l++) q_t[x * lanes + l] = l < n ? q[(i0 + l) * d->X + x] : 0;

    for (int64_t b = b0; b < b1; b++) {
        int64_t keys = visible_keys(d, last, b);
        if (keys > 0) kernels->gemm(s, lanes, k + b * d->block * d->X, d->X, 1, q_t, lanes, keys, lanes, d->X, 0);
        /* Where all rows see all keys, the lanes are pooled side by side. */
        const int together =
            keys > 0 && d->semantics->pool == M3_POOL_MAX && !d->seen && keys == visible_keys(d, first, b);
        if (keys > 0 && scale != 1)
            for (int64_t i = 0; i < keys * lanes; i++) s[i] = s[i] * scale;
        if (together) kernels->largest_or_nan(best, s, keys, lanes);
        for (int64_t l = 0; l < n; l++) {
            int64_t keys_l = visible_keys(d, d->p0 + (i0 + l) / d->G, b);
            real *m_b = m + (i0 + l) * d->B + b;
            *m_b = together ? best[l]
                            : pool(s + l, lanes, keys_l, d->seen ? d->seen + b * d->block : NULL, d->semantics->pool);
            if (*m_b != *m_b) bad = earlier(bad, (struct nan_place){ i0 + l, b });
        }
    }
    return bad;
}

int m3_fast_block_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    int64_t pairs = d->T * d->G, keys = d->p0 + d->T, lanes = pairs <= FEW_LANES ? FEW_LANES : LANES;
    int64_t each = (d->X + m3_min(d->block, keys)) * lanes, pieces = (d->B + BLOCKS - 1) / BLOCKS;
    int64_t tiles = (pairs + lanes - 1) / lanes;
    struct nan_place bad = { INT64_MAX, 0 };
    int team = (int)m3_min(m3_team(ctx, pairs * d->X * keys), tiles * pieces);
    size_t mark = m3_scratch_mark(ctx);
    real *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < tiles * pieces; i++) {
        int64_t i0 = i / pieces * lanes, b0 = i % pieces * BLOCKS;
        real *q_t = scratch + omp_get_thread_num() * each, *s = q_t + d->X * lanes;
        struct nan_place place =
            score_tile(m, q, k, d, i0, m3_min(lanes, pairs - i0), lanes, b0, m3_min(b0 + BLOCKS, d->B), q_t, s);
        if (place.pair == INT64_MAX) continue;
#pragma omp critical(m3_fast_block_scores)
        bad = earlier(bad, place);
    }
    m3_scratch_release(ctx, mark);
    if (bad.pair == INT64_MAX) return M3_OK;
    return m3_fail_at(ctx, M3_WRONG, "NaN in a block score", bad.pair / d->G, bad.pair % d->G, bad.block);
}
