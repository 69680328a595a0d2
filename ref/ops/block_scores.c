#include <math.h>

#include "base/minmax.h"
#include "ops/math.h"
#include "ops/operators.h"
#include "ops/visible.h"

/* q . k of one index query and one index key [X]; divided by sqrt(X) under index_scale=rsqrt. */
static real score(const real *q, const real *k, const struct m3_index *d)
{
    real sum = 0;
    for (int64_t x = 0; x < d->X; x++) sum = sum + q[x] * k[x];
    return d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? sum * (real)(1 / sqrt((double)d->X)) : sum;
}

/* The pooled score of block b for one index query q [X] of row t. NaN if any visible score is NaN; -inf if no key is
 * visible. */
static real block_score(const real *q, const real *k, const struct m3_index *d, const struct m3_mask *mask, int64_t t,
                        int64_t g, int64_t b)
{
    int64_t first = b * d->block, end = m3_min(first + d->block, d->p0 + d->T);
    real max = -(real)INFINITY;
    for (int64_t j = first; j < end; j++) {
        if (!m3_visible(mask, t, g, j)) continue;
        real s = score(q, k + j * d->X, d);
        if (s > max || s != s) max = s;
    }
    if (d->semantics->pool == M3_POOL_MAX || max != max || isinf(max)) return max;

    double sum = 0;
    for (int64_t j = first; j < end; j++)
        if (m3_visible(mask, t, g, j)) sum = sum + m3_exp((double)score(q, k + j * d->X, d) - (double)max);
    return (real)((double)max + m3_log(sum));
}

/* Scores of the blocks of keys, for every row and index head. SPEC 5.8
 *
 *     s_j = q[t,g] . k[j],   m[t,g,b] = max of s_j over the visible keys j <= p of block b;  -inf if there are none
 *
 * m [T,G,B]; q [T,G,X]; k [p0+T,X], one key head for all index heads.  Unscaled: no 1/sqrt(X), no ReLU, no softmax.
 * NaN in any visible score is an error that names the first row, group and block.
 * Often wrong: the mask after pooling; one score for all groups; a padded tail that counts as 0. */
int m3_block_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    const struct m3_mask mask = { .p0 = d->p0, .seen = d->seen };

#pragma omp parallel for num_threads(m3_team(ctx, d->T * d->G * d->X * (d->p0 + d->T)))
    for (int64_t t = 0; t < d->T; t++)
        for (int64_t g = 0; g < d->G; g++)
            for (int64_t b = 0; b < d->B; b++)
                m[(t * d->G + g) * d->B + b] = block_score(q + (t * d->G + g) * d->X, k, d, &mask, t, g, b);

    for (int64_t i = 0; i < d->T * d->G * d->B; i++)
        if (m[i] != m[i])
            return m3_fail_at(ctx, M3_WRONG, "NaN in a block score", i / d->B / d->G, i / d->B % d->G, i % d->B);
    return M3_OK;
}
