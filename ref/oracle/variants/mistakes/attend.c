/* Mistakes in attention. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <string.h>

#include "ops/math.h"

int64_t m3_listed(const struct m3_query *query, int64_t block)
{
    int64_t times = 0;
    for (int64_t n = 0; n < query->d->N; n++) times += query->blocks[n] == block;
    return times;
}

static int is_in_list(const struct m3_query *query, int64_t j)
{
    return !query->blocks || m3_listed(query, j / query->d->block) > 0;
}

int64_t m3_as_listed(const struct m3_query *query, int64_t j) { return j <= query->p && is_in_list(query, j); }

static double logit(const double *q, const double *k, int64_t D)
{
    double z = 0;
    for (int64_t i = 0; i < D; i++) z += q[i] * k[i];
    return z / sqrt((double)D);
}

/* One row of one head: two passes over its keys, for the largest logit and for the sums. */
static void attend_row(double *o, double *lse, const double *q, const double *k, const double *v, int64_t stride,
                       const struct m3_query *query, m3_times *times)
{
    const int64_t D = query->d->D;
    const unsigned char *seen = query->d->seen;
    double max = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < query->keys; j++)
        if ((!seen || seen[j]) && times(query, j) > 0) max = fmax(max, logit(q, k + j * stride, D));
    memset(o, 0, (size_t)D * sizeof *o);
    for (int64_t j = 0; j < query->keys && max > -(double)INFINITY; j++) {
        const int64_t n = !seen || seen[j] ? times(query, j) : 0;
        if (n == 0) continue;
        const double w = (double)n * m3_exp(logit(q, k + j * stride, D) - max);
        sum += w;
        for (int64_t i = 0; i < D; i++) o[i] += w * v[j * stride + i];
    }
    for (int64_t i = 0; i < D && sum > 0; i++) o[i] /= sum;
    *lse = max + m3_log(sum);
}

static int attend(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                  const int32_t *blocks, const struct m3_attend *d)
{
    const int64_t keys = m3_keys_of(m3_run_of(ctx), d->p0 + d->T), places = m3_places_of(m3_run_of(ctx), d->p0 + d->T);
    m3_times *times = m3_run_of(ctx)->change->times;
#pragma omp parallel for num_threads(m3_team(ctx, d->T * d->Q * d->D * (d->p0 + d->T)))
    for (int64_t i = 0; i < d->T * d->Q; i++) {
        const int64_t t = i / d->Q, g = i % d->Q / (d->Q / d->G);
        const int32_t *list = blocks ? blocks + (t * d->G + g) * d->N : NULL;
        const struct m3_query query = { d, list, d->p0 + t, keys, places };
        attend_row(o + i * d->D, lse + i, q + i * d->D, k + g * d->D, v + g * d->D, d->G * d->D, &query, times);
    }
    return M3_OK;
}

int m3_mistaken_attend_blocks(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                              const int32_t *blocks, const struct m3_attend *d)
{
    return attend(ctx, o, lse, q, k, v, blocks, d);
}

int m3_mistaken_attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                            const struct m3_attend *d)
{
    return attend(ctx, o, lse, q, k, v, NULL, d);
}

/* ---- */

int m3_right_attend(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                    const int32_t *blocks, const struct m3_attend *d)
{
    return blocks ? m3_right()->attend_blocks(ctx, o, lse, q, k, v, blocks, d)
                  : m3_right()->attend_full(ctx, o, lse, q, k, v, d);
}

static int dense(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                 const int32_t *blocks, const struct m3_attend *d)
{
    (void)blocks;
    return m3_right()->attend_full(ctx, o, lse, q, k, v, d);
}

/* Dense attention as long as two lists would hold all keys. */
static int64_t dense_until(const struct m3_query *query, int64_t j)
{
    const int64_t few = query->p + 1 < 2 * query->d->N * query->d->block;
    return few ? j <= query->p : m3_as_listed(query, j);
}

static int64_t whole_own_block(const struct m3_query *query, int64_t j)
{
    return m3_listed(query, j / query->d->block) > 0;
}

/* A row that sees nothing else sees itself. */
static int64_t earlier(const struct m3_query *query, int64_t j)
{
    return (j < query->p || query->p == 0) && m3_as_listed(query, j);
}

static int64_t next_too(const struct m3_query *query, int64_t j) { return j <= query->p + 1 && is_in_list(query, j); }

/* Attends to each block separately, its output rounded to bf16; then merges them by their log-sum-exp. */
static int partial_bf16(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                        const int32_t *blocks, const struct m3_attend *d)
{
    const int64_t rows = d->T * d->Q, lists = d->T * d->G;
    const size_t mark = m3_scratch_mark(ctx);
    int32_t *one = m3_scratch_take(ctx, lists * d->N, sizeof *one);
    real *part = m3_scratch_take(ctx, rows * d->D, sizeof *part), *part_lse = m3_scratch_take(ctx, rows, sizeof *part);
    if (!one || !part || !part_lse) return M3_INTERNAL;
    int status = m3_right()->attend_blocks(ctx, o, lse, q, k, v, blocks, d);
    memset(o, 0, (size_t)(rows * d->D) * sizeof *o);
    for (int64_t n = 0; n < d->N && !status; n++) {
        for (int64_t i = 0; i < lists * d->N; i++) one[i] = i % d->N == 0 ? blocks[i + n] : -1;
        status = m3_right()->attend_blocks(ctx, part, part_lse, q, k, v, one, d);
        for (int64_t i = 0; i < rows * d->D && !status; i++)
            o[i] += m3_exp(part_lse[i / d->D] - lse[i / d->D]) * m3_round_bits(part[i], 8);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

/* y[t, to(h)] := x[t, h]: reorders heads as if key heads were tiled (h mod G), not repeated (h div Q/G); or back. */
static void tile_heads(real *y, const real *x, int64_t T, int64_t Q, int64_t G, int64_t D, int back)
{
    for (int64_t i = 0; i < T * Q; i++) {
        const int64_t h = i % Q, tiled = i - h + h % G * (Q / G) + h / G;
        memcpy(y + (back ? i : tiled) * D, x + (back ? tiled : i) * D, (size_t)D * sizeof *y);
    }
}

static int tiled(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                 const int32_t *blocks, const struct m3_attend *d)
{
    const int64_t n = d->T * d->Q;
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, n * (2 * d->D + 1), sizeof *mine);
    if (!mine) return M3_INTERNAL;
    real *out = mine + n * d->D, *out_lse = out + n * d->D;
    tile_heads(mine, q, d->T, d->Q, d->G, d->D, 0);
    int status = m3_right_attend(ctx, out, out_lse, mine, k, v, blocks, d);
    tile_heads(o, out, d->T, d->Q, d->G, d->D, 1);
    tile_heads(lse, out_lse, d->T, d->Q, d->G, 1, 1);
    m3_scratch_release(ctx, mark);
    return status;
}

static int tiled_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                      const struct m3_attend *d)
{
    return tiled(ctx, o, lse, q, k, v, NULL, d);
}

/* Logits times D^(1/2) n^(-1/2) for n channels: queries are multiplied by it. */
static int scaled(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                  const int32_t *blocks, const struct m3_attend *d)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const double n = (double)run->change->channels(&run->model.config);
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, d->T * d->Q * d->D, sizeof *mine);
    if (!mine) return M3_INTERNAL;
    for (int64_t i = 0; i < d->T * d->Q * d->D; i++) mine[i] = q[i] * sqrt((double)d->D / n);
    int status = m3_right_attend(ctx, o, lse, mine, k, v, blocks, d);
    m3_scratch_release(ctx, mark);
    return status;
}

static int scaled_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                       const struct m3_attend *d)
{
    return scaled(ctx, o, lse, q, k, v, NULL, d);
}

static int64_t rotated(const struct m3_config *c) { return c->R; }
static int64_t hidden(const struct m3_config *c) { return c->H / c->Q; }

/* One of two ranks has the first half of the heads. */
static int heads_of_rank(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    const struct m3_config *c = &m3_run_of(ctx)->model.config;
    const int64_t own = (c->Q + 1) / 2 * c->D;
    for (int64_t i = 0; i < T * cols; i++) mine[i] = i % cols < own ? x[i] : 0;
    return M3_OK;
}

static int base_two(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                    struct m3_error *error)
{
    double *lse = data;
    (void)layer, (void)row, (void)error;
    for (int64_t i = 0; tap == M3_TAP_ATTN_LSE && i < rows * run->model.config.Q; i++) lse[i] /= m3_log(2);
    return M3_OK;
}

static const struct m3_mistake all[] = {
    { "attn.dense", "sparse layers attend to all keys", "*.attn_lse", M3_OP_ATTEND, M3_NEEDS_CHOICE, NULL, NULL,
      M3_CHANGE(.ops.attend_blocks = dense) },
    { "attn.dense_until", "sparse layers attend to all keys until there are twice as many as a list holds",
      "*.attn_lse", M3_OP_ATTEND, M3_NEEDS_CHOICE, NULL, NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .times = dense_until) },
    { "attn.block_noncausal", "keys to come of the own block are not masked", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_SPARSE, "a row inside its block", NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .times = whole_own_block) },
    { "attn.no_own_key", "a row does not see its own key", "*.attn_lse", M3_OP_ATTEND, 0, "a position other than 0",
      NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .ops.attend_full = m3_mistaken_attend_full,
                .times = earlier) },
    { "attn.next_key", "a row sees the key after its own too", "*.attn_lse", M3_OP_ATTEND, 0, "a second row", NULL,
      M3_CHANGE(.ops.attend_blocks = m3_mistaken_attend_blocks, .ops.attend_full = m3_mistaken_attend_full,
                .times = next_too) },
    { "attn.partial_bf16", "outputs of single blocks are rounded to bf16 before they are combined", "*.attn",
      M3_OP_ATTEND, M3_NEEDS_SPARSE, NULL, NULL, M3_CHANGE(.ops.attend_blocks = partial_bf16) },
    { "gqa.tile", "key heads are tiled (h mod G), not repeated", "*.attn_lse", M3_OP_ATTEND, M3_NEEDS_GROUPS, NULL,
      NULL, M3_CHANGE(.ops.attend_blocks = tiled, .ops.attend_full = tiled_full) },
    { "attn.scale", "logits are scaled by the rotated channels, R^(-1/2)", "*.attn_lse", M3_OP_ATTEND, 0, NULL, NULL,
      M3_CHANGE(.ops.attend_blocks = scaled, .ops.attend_full = scaled_full, .channels = rotated) },
    { "attn.scale:hidden", "logits are scaled by (H/Q)^(-1/2)", "*.attn_lse", M3_OP_ATTEND, 0, NULL, NULL,
      M3_CHANGE(.ops.attend_blocks = scaled, .ops.attend_full = scaled_full, .channels = hidden) },
    { "attn.no_reduce", "the second half of the heads is lost: the sum over two ranks is missing", "*.attn_out",
      M3_OP_LINEAR, 0, "a second query head", NULL,
      M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = heads_of_rank, .reader = M3_TAP_ATTN_OUT) },
    { "lse.base", "the log-sum-exp is in base 2", "*.attn_lse", M3_OP_ATTEND, 0, NULL, NULL,
      M3_CHANGE(.force = base_two) },
};

const struct m3_mistake_section m3_mistakes_attend = { all, sizeof all / sizeof all[0] };
