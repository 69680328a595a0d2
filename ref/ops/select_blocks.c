#include <math.h>
#include <omp.h>

#include "base/minmax.h"
#include "ops/operators.h"

/* The best N so far, best first. */
struct best {
    real *score;
    int32_t *id;
    int64_t n;
};

static int contains(const int32_t *ids, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return 1;
    return 0;
}

/* Writes the forced blocks of a row whose own block is `own` to ids, at most N: the own block, the local blocks before
 * it, nearest first, then the initial blocks. Returns how many. */
static int64_t force(int32_t *ids, int64_t N, int64_t own, const struct m3_semantics *semantics)
{
    int64_t local =
        semantics->local_rule == M3_LOCAL_OWN ? m3_min(1, semantics->local_blocks) : semantics->local_blocks;
    int64_t n = 0;
    for (int64_t b = own; b > own - local && b >= 0 && n < N; b--) ids[n++] = (int32_t)b;
    for (int64_t b = 0; b < semantics->init_blocks && b <= own && n < N; b++)
        if (!contains(ids, n, b)) ids[n++] = (int32_t)b;
    return n;
}

/* The lower id wins a tie: ids arrive in ascending order, and an equal score does not move ahead. */
static void consider(struct best *best, int64_t limit, int32_t id, real score)
{
    int64_t at = best->n;
    while (at > 0 && score > best->score[at - 1]) at--;
    if (at >= limit) return;
    best->n = m3_min(best->n + 1, limit);
    for (int64_t i = best->n - 1; i > at; i--) {
        best->score[i] = best->score[i - 1];
        best->id[i] = best->id[i - 1];
    }
    best->score[at] = score;
    best->id[at] = id;
}

static void sort_ascending(int32_t *ids, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && ids[j - 1] > ids[j]; j--) {
            int32_t id = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = id;
        }
}

/* The score used for block b: the group's own, or with selection=shared the largest of all groups. */
static real score_of(const real *m_t, const struct m3_index *d, int64_t g, int64_t b)
{
    if (d->semantics->selection != M3_SELECT_SHARED) return m_t[g * d->B + b];
    real best = m_t[b];
    for (int64_t h = 1; h < d->G; h++)
        if (m_t[h * d->B + b] > best) best = m_t[h * d->B + b];
    return best;
}

/* The lowest visible block with a NaN score in any group of the row, and that group; -1 if there is none. */
static int64_t nan_block(const real *m_t, const struct m3_index *d, int64_t own, int64_t *group)
{
    for (int64_t g = 0; g < d->G; g++)
        for (int64_t b = 0; b <= own; b++)
            if (m_t[g * d->B + b] != m_t[g * d->B + b]) {
                *group = g;
                return b;
            }
    return -1;
}

static void select_row(int32_t *ids, real *score, const real *m_t, const struct m3_index *d, int64_t own, int64_t g)
{
    int64_t forced = force(ids, d->N, own, d->semantics);
    struct best best = { score, ids + forced, 0 };

    for (int64_t b = 0; b <= own; b++) {
        real s = score_of(m_t, d, g, b);
        if (s > -(real)INFINITY && !contains(ids, forced, b)) consider(&best, d->N - forced, (int32_t)b, s);
    }
    int64_t n = forced + best.n;
    sort_ascending(ids, n);
    for (int64_t i = n; i < d->N; i++) ids[i] = -1;
}

/* The blocks that each row and group attends to. SPEC 5.9
 *
 *     ids[t,g] = the N best of the visible blocks: forced ones first, then by score; the lower id wins a tie
 *
 * ids [T,G,N], strictly ascending, then -1; m [T,G,B].  The N blocks include the forced ones. A visible block that is
 * not forced and scores -inf is not chosen. NaN in a visible score is an error. Often wrong: one list for all groups;
 * the own block of the last row instead of the row's. */
int m3_select_blocks(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    for (int64_t t = 0; t < d->T; t++) {
        int64_t g = -1, b = nan_block(m + t * d->G * d->B, d, (d->p0 + t) / d->block, &g);
        if (b >= 0) return m3_fail_at(ctx, M3_WRONG, "NaN in a block score", t, g, b);
    }
    int team = m3_team(ctx, d->T * d->G * d->B);
    size_t mark = m3_scratch_mark(ctx);
    real *scores = m3_scratch_take(ctx, team * d->N, sizeof *scores);
    if (!scores) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic, 16)
    for (int64_t i = 0; i < d->T * d->G; i++) {
        int64_t t = i / d->G;
        select_row(ids + i * d->N, scores + omp_get_thread_num() * d->N, m + t * d->G * d->B, d, (d->p0 + t) / d->block,
                   i % d->G);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
