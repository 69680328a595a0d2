/* Mistakes in the selection of blocks. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int m3_mistaken_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const int64_t keys = m3_keys_of(run, d->p0 + d->T);
    const size_t mark = m3_scratch_mark(ctx);
    real *s = m3_scratch_take(ctx, keys, sizeof *s);
    if (!s) return M3_INTERNAL;
    for (int64_t i = 0; i < d->T * d->G; i++) {
        for (int64_t j = 0; j < keys; j++) {
            s[j] = 0;
            for (int64_t x = 0; x < d->X; x++) s[j] += q[i * d->X + x] * k[j * d->X + x];
        }
        run->change->pool(m + i * d->B, s, d->p0 + i / d->G, keys, d);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* ---- whose scores */

/* m[t,g,b] := (of the groups' scores) by the change */
static int scores_then(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d,
                       double (*of)(const double *m_b, int64_t g, const struct m3_index *d))
{
    const size_t mark = m3_scratch_mark(ctx);
    real *right = m3_scratch_take(ctx, d->T * d->G * d->B, sizeof *right);
    if (!right) return M3_INTERNAL;
    int status = m3_right()->block_scores(ctx, right, q, k, d);
    for (int64_t i = 0; i < d->T * d->G * d->B && !status; i++)
        m[i] = of(right + i / (d->G * d->B) * d->G * d->B + i % d->B, i / d->B % d->G, d);
    m3_scratch_release(ctx, mark);
    return status;
}

static double mean_of_groups(const double *m_b, int64_t g, const struct m3_index *d)
{
    double sum = 0;
    (void)g;
    for (int64_t h = 0; h < d->G; h++) sum += m_b[h * d->B];
    return sum / (double)d->G;
}

static double next_group(const double *m_b, int64_t g, const struct m3_index *d) { return m_b[(g + 1) % d->G * d->B]; }

static int mean_heads(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    return scores_then(ctx, m, q, k, d, mean_of_groups);
}

static int head_map(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    return scores_then(ctx, m, q, k, d, next_group);
}

/* ---- how a block is pooled */

static double max_of(const double *s, int64_t from, int64_t end)
{
    double best = -(double)INFINITY;
    for (int64_t j = from; j < end; j++) best = fmax(best, s[j]);
    return best;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void mean_pool(double *m, const double *s, int64_t p, int64_t keys, const struct m3_index *d)
{
    (void)keys;
    for (int64_t b = 0; b < d->B; b++) {
        const int64_t from = b * d->block, end = least(from + d->block, p + 1);
        m[b] = from < end ? 0 : -(double)INFINITY;
        for (int64_t j = from; j < end; j++) m[b] += s[j] / (double)(end - from);
    }
}

/* Takes the block's maximum first, later keys included; then masks whole blocks. */
static void mask_after_pool(double *m, const double *s, int64_t p, int64_t keys, const struct m3_index *d)
{
    for (int64_t b = 0; b < d->B; b++)
        m[b] = b * d->block > p ? -(double)INFINITY : max_of(s, b * d->block, least((b + 1) * d->block, keys));
}

/* The padding of the last block scores 0, after the causal mask: rows that do not see the block may select it. */
static void pad_zero(double *m, const double *s, int64_t p, int64_t keys, const struct m3_index *d)
{
    for (int64_t b = 0; b < d->B; b++) {
        m[b] = max_of(s, b * d->block, least((b + 1) * d->block, p + 1));
        if ((b + 1) * d->block > keys) m[b] = fmax(m[b], 0);
    }
}

/* ---- blocks that begin one key early: aligned to slots of a cache that begins with a slot of padding */

static void slot_pool(double *m, const double *s, int64_t p, int64_t keys, const struct m3_index *d)
{
    (void)keys;
    for (int64_t b = 0; b < d->B; b++)
        m[b] = max_of(s, b == 0 ? 0 : b * d->block - 1, least((b + 1) * d->block - 1, p + 1));
}

static int slot_select(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    struct m3_index shifted = *d, last = *d;
    const int last_is_beyond = (d->p0 + d->T) / d->block >= d->B;       /* its own block has no score */
    shifted.p0++;
    shifted.T -= last_is_beyond;
    last.p0 += d->T - 1;
    last.T = 1;
    int status = shifted.T > 0 ? m3_right()->select_blocks(ctx, ids, m, &shifted) : M3_OK;
    if (!status && last_is_beyond)
        status = m3_right()->select_blocks(ctx, ids + shifted.T * d->G * d->N, m + shifted.T * d->G * d->B, &last);
    return status;
}

static int64_t slot_times(const struct m3_query *query, int64_t j)
{
    return j <= query->p && m3_listed(query, (j + 1) / query->d->block) > 0;
}

/* ---- the lists */

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < 0 || y < 0 ? (x < 0) - (y < 0) : (x > y) - (x < y);
}

static int holds(const int32_t *ids, int64_t N, int64_t id)
{
    for (int64_t n = 0; n < N; n++)
        if (ids[n] == id) return 1;
    return 0;
}

/* The last block of the sequence is forced for all rows, instead of the row's own. */
static int local_last(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    struct m3_semantics none = *d->semantics;
    struct m3_index others = *d;
    none.local_blocks = 0;
    others.semantics = &none;
    int status = m3_right()->select_blocks(ctx, ids, m, &others);
    for (int64_t i = 0; i < d->T * d->G && !status; i++) {
        int32_t *list = ids + i * d->N, last = (int32_t)(d->B - 1);
        int64_t worst = 0;
        for (int64_t n = 0; n < d->N; n++)
            if (list[n] < 0 || (list[worst] >= 0 && m[i * d->B + list[n]] < m[i * d->B + list[worst]])) worst = n;
        if (!holds(list, d->N, last)) list[worst] = last;
        qsort(list, (size_t)d->N, sizeof *list, ascending);
    }
    return status;
}

/* An entry that scored -inf keeps its block instead of -1. */
static int future_blocks(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    int status = m3_right()->select_blocks(ctx, ids, m, d);
    for (int64_t i = 0; i < d->T * d->G * d->N && !status; i++) {
        int32_t *list = ids + i / d->N * d->N, next = 0;
        while (holds(list, d->N, next)) next++;
        if (ids[i] < 0 && next < d->B) ids[i] = next;
    }
    return status;
}

/* The blocks to come are read too: those in the list, and as many as the list has free places. */
static int64_t with_blocks_to_come(const struct m3_query *query, int64_t j)
{
    const int64_t block = j / query->d->block, later = block - query->p / query->d->block;
    return later <= 0 ? m3_as_listed(query, j) : m3_listed(query, block) > 0 || later <= m3_listed(query, -1);
}

/* The own block, then the best of blocks 0 .. last that do not score -inf; on a tie the lower id, or the higher. */
static void choose(int32_t *list, const real *m_i, int64_t own, int64_t last, int64_t N, int higher)
{
    int64_t n = 1;
    list[0] = (int32_t)own;
    for (; n < N; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i <= last; i++) {
            const int64_t b = higher ? last - i : i;
            if (m_i[b] > -(real)INFINITY && !holds(list, n, b) && (best < 0 || m_i[b] > m_i[best])) best = b;
        }
        if (best < 0) break;
        list[n] = (int32_t)best;
    }
    for (; n < N; n++) list[n] = -1;
    qsort(list, (size_t)N, sizeof *list, ascending);
}

static int higher_id(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    (void)ctx;
    for (int64_t i = 0; i < d->T * d->G; i++) {
        const int64_t own = (d->p0 + i / d->G) / d->block;
        choose(ids + i * d->N, m + i * d->B, own, own, d->N, 1);
    }
    return M3_OK;
}

/* Later blocks are recognised only by their scores. */
static int by_score(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    (void)ctx;
    for (int64_t i = 0; i < d->T * d->G; i++)
        choose(ids + i * d->N, m + i * d->B, (d->p0 + i / d->G) / d->block, d->B - 1, d->N, 0);
    return M3_OK;
}

/* [T,G,N] is read as [G,T,N]. */
static int layout(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                  struct m3_error *error)
{
    const int64_t G = run->model.config.G, N = run->model.config.N;
    int32_t *ids = data;
    (void)layer, (void)row;
    if (tap != M3_TAP_INDEX_BLOCKS) return M3_OK;
    int32_t *stored = malloc((size_t)(rows * G * N) * sizeof *stored);
    if (!stored) return m3_fail_memory(error, "block lists", (size_t)(rows * G * N) * sizeof *stored);
    memcpy(stored, ids, (size_t)(rows * G * N) * sizeof *stored);
    for (int64_t i = 0; i < rows * G; i++)
        memcpy(ids + i * N, stored + (i % G * rows + i / G) * N, (size_t)N * sizeof *ids);
    free(stored);
    return M3_OK;
}

/* The lists of the first sparse layer are used by all later ones. */
static int layer_reuse(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row,
                       int64_t rows, struct m3_error *error)
{
    const int64_t count = rows * run->model.config.G * run->model.config.N;
    (void)layer, (void)row;
    if (tap != M3_TAP_INDEX_BLOCKS) return M3_OK;
    if (!run->kept) {
        run->kept = m3_own(run, count, sizeof(int32_t), error);
        if (!run->kept) return M3_INTERNAL;
        memcpy(run->kept, data, (size_t)count * sizeof(int32_t));
    }
    memcpy(data, run->kept, (size_t)count * sizeof(int32_t));
    return M3_OK;
}

/* The dumped list then has another shape; the first tap that differs is attention's. */
static int one_place_more(struct m3_mistaken_run *run, struct m3_error *error)
{
    (void)error;
    run->model.config.N++;
    return M3_OK;
}

/* ---- how lists are read */

/* An id is the number of a page, and a page holds one key. */
static int64_t page_of_one(const struct m3_query *query, int64_t j) { return j <= query->p && m3_listed(query, j) > 0; }

/* -1, at the end of a short list, is read as the own block. */
static int64_t sentinel(const struct m3_query *query, int64_t j)
{
    const int64_t b = j / query->d->block, own = query->p / query->d->block;
    return j > query->p ? 0 : m3_listed(query, b) + (b == own ? m3_listed(query, -1) : 0);
}

/* Only the block listed last is masked, but the own block is first. */
static int64_t own_first(const struct m3_query *query, int64_t j)
{
    int64_t blocks = 0;
    for (int64_t n = 0; n < query->d->N; n++) blocks += query->blocks[n] >= 0;
    return m3_listed(query, j / query->d->block) > 0 && (j <= query->p || blocks > 1);
}

static const struct m3_mistake all[] = {
    { "select.shared_heads", "one list of blocks for all groups: the maximum over index heads before the choice",
      "*.index.blocks", M3_OP_NONE, M3_NEEDS_CHOICE | M3_NEEDS_GROUPS, NULL, "selection=shared", NULL },
    { "select.mean_heads", "one list of blocks for all groups: the mean over index heads before the choice",
      "*.index.block_scores", M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE | M3_NEEDS_GROUPS, NULL, NULL,
      M3_CHANGE(.ops.block_scores = mean_heads) },
    { "select.union", "every group attends to the blocks of all groups", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_CHOICE | M3_NEEDS_GROUPS, NULL, "selection=union", NULL },
    { "select.head_map", "a group takes the scores of the next group's index head", "*.index.block_scores",
      M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE | M3_NEEDS_GROUPS, NULL, NULL, M3_CHANGE(.ops.block_scores = head_map) },
    { "select.layout", "lists are written by row and read by group", "*.index.blocks", M3_OP_NONE,
      M3_NEEDS_SPARSE | M3_NEEDS_GROUPS, NULL, NULL,
      M3_CHANGE(.force = layout, .ops.attend_blocks = m3_mistaken_attend_blocks, .times = m3_as_listed) },
    { "select.page_size", "ids of blocks are read as pages of one key", "*.attn_lse", M3_OP_ATTEND, M3_NEEDS_SPARSE,
      NULL, NULL, M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .times = page_of_one) },
    { "select.no_local", "the own block is not forced", "*.index.blocks", M3_OP_NONE, M3_NEEDS_CHOICE, NULL,
      "local_blocks=0", NULL },
    { "select.local_last", "the last block of the sequence is forced, not each row's own", "*.index.blocks", M3_OP_NONE,
      M3_NEEDS_SPARSE, "a second block", NULL,
      M3_CHANGE(.ops.select_blocks = local_last, .ops.attend_blocks = m3_mistaken_attend_blocks,
                .times = m3_as_listed) },
    { "select.local_extra", "the own block comes on top of the N best", "*.index.blocks", M3_OP_NONE, M3_NEEDS_CHOICE,
      NULL, NULL, M3_CHANGE(.prepare = one_place_more) },
    { "select.local_multi", "of several local blocks only the own one is forced", "*.index.blocks", M3_OP_NONE,
      M3_NEEDS_CHOICE | M3_NEEDS_LOCAL_BLOCKS, NULL, "local_rule=own", NULL },
    { "select.init_block", "the first block is forced too", "*.index.blocks", M3_OP_NONE, M3_NEEDS_CHOICE, NULL,
      "init_blocks=1", NULL },
    { "select.lse", "scores of a block are pooled by log-sum-exp", "*.index.block_scores", M3_OP_BLOCK_SCORES,
      M3_NEEDS_SPARSE, NULL, "pool=lse", NULL },
    { "select.mean_pool", "scores of a block are pooled by their mean", "*.index.block_scores", M3_OP_BLOCK_SCORES,
      M3_NEEDS_SPARSE, NULL, NULL, M3_CHANGE(.ops.block_scores = m3_mistaken_scores, .pool = mean_pool) },
    { "select.mask_after_pool", "a block's maximum is taken over keys to come as well", "*.index.block_scores",
      M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE, "a row inside its block", NULL,
      M3_CHANGE(.ops.block_scores = m3_mistaken_scores, .pool = mask_after_pool) },
    { "select.future_blocks", "short lists are filled up with blocks to come, and attention reads these", "*.attn_lse",
      M3_OP_ATTEND, M3_NEEDS_SPARSE, "a second block", NULL,
      M3_CHANGE(.ops.select_blocks = future_blocks, .ops.attend_blocks = m3_mistaken_attend_blocks,
                .times = with_blocks_to_come) },
    { "select.pad_zero", "what fills up the last block scores 0, not -inf", "*.index.block_scores", M3_OP_BLOCK_SCORES,
      M3_NEEDS_SPARSE | M3_NEEDS_PART_BLOCK, NULL, NULL,
      M3_CHANGE(.ops.block_scores = m3_mistaken_scores, .pool = pad_zero, .ops.select_blocks = by_score,
                .ops.attend_blocks = m3_mistaken_attend_blocks, .times = m3_as_listed) },
    { "select.slot_anchor", "blocks are counted from a slot of padding, not from the first token",
      "*.index.block_scores", M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE | M3_NEEDS_PART_BLOCK, NULL, NULL,
      M3_CHANGE(.ops.block_scores = m3_mistaken_scores, .pool = slot_pool, .ops.select_blocks = slot_select,
                .ops.attend_blocks = m3_mistaken_attend_blocks, .times = slot_times) },
    { "select.sentinel", "-1 in a list is used as an id: the own block counts again", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_SPARSE, NULL, NULL, M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .times = sentinel) },
    { "select.tie", "of equal scores the higher id wins", "*.index.blocks", M3_OP_NONE, M3_NEEDS_CHOICE, "equal scores",
      NULL, M3_CHANGE(.ops.select_blocks = higher_id) },
    { "select.layer_reuse", "the lists of the first sparse layer serve the later ones", "*.index.blocks", M3_OP_NONE,
      M3_NEEDS_CHOICE | M3_NEEDS_TWO_SPARSE, NULL, NULL,
      M3_CHANGE(.force = layer_reuse, .keeps = M3_TAP_INDEX_BLOCKS) },
    { "select.order", "the own block stands first, and only the last one listed is masked", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_SPARSE, "a row inside its block, after another block", NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .times = own_first) },
};

const struct m3_mistake_section m3_mistakes_select = { all, sizeof all / sizeof all[0] };
