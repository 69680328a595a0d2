/* Mistakes in caches of keys and values: what stands at which place, and who sees it. */
#include "oracle/variants/private/mistakes.h"

#include <string.h>

#include "base/minmax.h"

/* ---- what stands at a place */

/* The rows of x [keys,width] as the mistake has them, in scratch memory; x itself if all stand at their places. NULL if
 * memory is short. */
static const real *gather(struct m3_ctx *ctx, const real *x, int64_t end, int64_t width, m3_place *at)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const int64_t keys = m3_keys_of(run, end), places = m3_places_of(run, end);
    if (!at) return x;
    real *mine = m3_scratch_take(ctx, keys * width, sizeof *mine);
    for (int64_t j = 0; mine && j < keys; j++) {
        const int64_t from = at(j, places, run->model.config.block);
        if (from >= 0) memcpy(mine + j * width, x + from * width, (size_t)width * sizeof *mine);
        else memset(mine + j * width, 0, (size_t)width * sizeof *mine);
    }
    return mine;
}

static int misplaced(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                     const int32_t *blocks, const struct m3_attend *d)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const int64_t end = d->p0 + d->T, width = d->G * d->D;
    const size_t mark = m3_scratch_mark(ctx);
    const real *keys = gather(ctx, k, end, width, run->change->key_at);
    const real *values = gather(ctx, v, end, width, run->change->value_at);
    int status = keys && values ? m3_right_attend(ctx, o, lse, q, keys, values, blocks, d) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}

static int misplaced_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                          const struct m3_attend *d)
{
    return misplaced(ctx, o, lse, q, k, v, NULL, d);
}

static int misplaced_index(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const size_t mark = m3_scratch_mark(ctx);
    const real *keys = gather(ctx, k, d->p0 + d->T, d->X, run->change->key_at);
    int status = keys ? m3_right()->block_scores(ctx, m, q, keys, d) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}

/* A machine that decodes has the index keys of its own rows alone: of the second half. */
static int unsent_index(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    const int64_t keys = m3_keys_of(m3_run_of(ctx), d->p0 + d->T), width = d->G * d->B;
    const int64_t half = m3_min(keys, m3_places_of(m3_run_of(ctx), d->p0 + d->T) / 2);
    const int64_t right = m3_max(0, m3_min(half - d->p0, d->T));
    const size_t mark = m3_scratch_mark(ctx);
    real *received = m3_scratch_take(ctx, keys * d->X, sizeof *received),
         *all = m3_scratch_take(ctx, d->T * width, sizeof *all);
    int status = received && all ? m3_right()->block_scores(ctx, m, q, k, d) : M3_INTERNAL;
    if (!status) memset(received, 0, (size_t)(half * d->X) * sizeof *received);
    if (!status) memcpy(received + half * d->X, k + half * d->X, (size_t)((keys - half) * d->X) * sizeof *received);
    if (!status) status = m3_right()->block_scores(ctx, all, q, received, d);
    if (!status) memcpy(m + right * width, all + right * width, (size_t)((d->T - right) * width) * sizeof *all);
    m3_scratch_release(ctx, mark);
    return status;
}

static int64_t before(int64_t j, int64_t places, int64_t block)
{
    (void)places, (void)block;
    return j - 1;
}

static int64_t last_is_first(int64_t j, int64_t places, int64_t block)
{
    (void)block;
    return j == places - 1 ? 0 : j;
}

static int64_t first_is_before(int64_t j, int64_t places, int64_t block)
{
    (void)places;
    return j > 0 && block > 0 && j % block == 0 ? j - 1 : j;
}

/* ---- who sees it */

enum { STEP = 4 };      /* rows of a step that verifies drafts: the last ones */

static int64_t blind_step(const struct m3_query *query, int64_t j)
{
    const int64_t step = query->places - STEP;
    return (j == query->p || j < step || query->p < step) && m3_as_listed(query, j);
}

/* A prefix of half a block was kept; later blocks do not see what has filled its block since. */
static int64_t kept_prefix(const struct m3_query *query, int64_t j)
{
    const int64_t block = query->d->block;
    return (query->p < block || j >= block || j < block / 2) && m3_as_listed(query, j);
}

/* All rows of the step have the list of its first. */
static int one_list(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                    struct m3_error *error)
{
    const int64_t width = run->model.config.G * run->model.config.N;
    int32_t *ids = data;
    const int64_t step = rows + run->later - STEP;
    (void)layer, (void)row, (void)error;
    for (int64_t t = step + 1; tap == M3_TAP_INDEX_BLOCKS && step >= 0 && t < rows; t++)
        memcpy(ids + t * width, ids + step * width, (size_t)width * sizeof *ids);
    return M3_OK;
}

static const struct m3_mistake all[] = {
    { "cache.one_late", "keys and values stand one place late in the cache", "*.attn_lse", M3_OP_ATTEND, 0, NULL, NULL,
      M3_CHANGE(.ops.attend_blocks = misplaced, .ops.attend_full = misplaced_full, .key_at = before,
                .value_at = before) },
    { "cache.values_late", "values stand one place late in the cache, keys at theirs", "*.attn", M3_OP_ATTEND, 0, NULL,
      NULL, M3_CHANGE(.ops.attend_blocks = misplaced, .ops.attend_full = misplaced_full, .value_at = before) },
    { "cache.index_late", "index keys stand one place late in their cache, keys at theirs", "*.index.block_scores",
      M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE, NULL, NULL,
      M3_CHANGE(.ops.block_scores = misplaced_index, .key_at = before) },
    { "cache.index_lost", "index keys of the first half of the rows did not reach the machine that computes the second",
      "*.index.block_scores", M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE, NULL, NULL,
      M3_CHANGE(.ops.block_scores = unsent_index) },
    { "cache.overwritten", "the last place was overwritten, as by slot -1: key and value are those of the first row",
      "*.attn_lse", M3_OP_ATTEND, 0, "a second row", NULL,
      M3_CHANGE(.ops.attend_blocks = misplaced, .ops.attend_full = misplaced_full, .key_at = last_is_first,
                .value_at = last_is_first) },
    { "cache.stale_key", "the first key of a block is that of the place before, its value right", "*.attn_lse",
      M3_OP_ATTEND, M3_NEEDS_SPARSE, "a second block", NULL,
      M3_CHANGE(.ops.attend_blocks = misplaced, .ops.attend_full = misplaced_full, .key_at = first_is_before) },
    { "cache.stale_value", "the first value of a block is that of the place before, its key right", "*.attn",
      M3_OP_ATTEND, M3_NEEDS_SPARSE, "a second block", NULL,
      M3_CHANGE(.ops.attend_blocks = misplaced, .ops.attend_full = misplaced_full, .value_at = first_is_before) },
    { "cache.blind_step", "the last four rows, a step that verifies drafts, do not see each other", "*.attn_lse",
      M3_OP_ATTEND, 0, "a second row", NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .ops.attend_full = m3_mistaken_attend_full,
                .times = blind_step) },
    { "cache.step_list", "the last four rows, a step that verifies drafts, have the list of blocks of the first",
      "*.index.blocks", M3_OP_NONE, M3_NEEDS_CHOICE, "lists that differ", NULL,
      M3_CHANGE(.force = one_list, .ops.attend_blocks = m3_mistaken_attend_blocks, .times = m3_as_listed) },
    { "cache.prefix_part", "a reused prefix ends inside the first block: later blocks do not see the rest of it",
      "*.attn_lse", M3_OP_ATTEND, M3_NEEDS_SPARSE, "a second block", NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .times = kept_prefix) },
};

const struct m3_mistake_section m3_mistakes_cache = { all, sizeof all / sizeof all[0] };
