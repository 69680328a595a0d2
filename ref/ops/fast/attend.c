#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/fast/attend_backward.h"
#include "ops/fast/attend_tile.h"
#include "ops/lists.h"
#include "ops/operators.h"

/* The same bits as ops/attend.c, in tiles. */
enum {
    LANES = 16,                 /* of a strip, at least where there are so many: a vector has as many */
    KEYS = 128,                 /* in a block of attend_full and attend_segments */
    LOGITS = 16 << 20,          /* bytes of a tile's logits, about: fewer strips at a time in long sequences */
};

/* How many strips of `lanes` lanes and `keys` keys a tile has. */
static int64_t strips_of(int64_t lanes, int64_t keys)
{
    return m3_max(1, m3_min(M3_STRIPS, LOGITS / (lanes * keys * (int64_t)sizeof(real))));
}

/* q_t [D,lanes] of the rows from t on, lane r * heads + h. */
static void transpose_queries(real *q_t, const real *q, const struct m3_attend *d, int64_t t, int64_t rows, int64_t g)
{
    int64_t heads = d->Q / d->G, lanes = rows * heads;
    for (int64_t l = 0; l < lanes; l++) {
        const real *q_l = q + ((t + l / heads) * d->Q + g * heads + l % heads) * d->D;
        for (int64_t i = 0; i < d->D; i++) q_t[i * lanes + l] = q_l[i];
    }
}

/* The operands of one call. */
struct call {
    real *o, *lse;
    const real *q, *k, *v;
    const struct m3_attend *d;
};

/* Rows t .. t+rows-1 of group g as a strip that sees all keys. */
static void set_strip(struct m3_strip *strip, const struct call *c, int64_t t, int64_t rows, int64_t g)
{
    const struct m3_attend *d = c->d;
    int64_t heads = d->Q / d->G, at = t * d->Q + g * heads;
    strip->p = d->p0 + t;
    strip->rows = rows;
    strip->heads = heads;
    strip->k = c->k + g * d->D;
    strip->v = c->v + g * d->D;
    strip->list = NULL;
    strip->o = c->o + at * d->D;
    strip->o_row = d->Q * d->D;
    strip->o_head = d->D;
    strip->lse = c->lse + at;
    strip->lse_row = d->Q;
    transpose_queries(strip->q_t, c->q, d, t, rows, g);
}

/* All strips of a call, in the order in which tiles take them. Strips of one group share its keys; where there are few
 * rows, the groups of a row, whose keys lie side by side in memory. */
struct order {
    int64_t blocks, groups;     /* strips are blocks of rows, of each group */
    int64_t strips, tiles;      /* strips of a tile */
    int groups_first;
};

static struct order order_of(int64_t blocks, int64_t groups, int64_t most, int team)
{
    struct order order = { .blocks = blocks, .groups = groups, .strips = most };
    order.groups_first = blocks * groups <= most * team;
    if (order.groups_first) order.strips = (blocks * groups + team - 1) / team;
    order.tiles = (blocks * groups + order.strips - 1) / order.strips;
    return order;
}

/* The i-th strip. The last blocks of rows come first: they have the longest ones, and short tiles fill the gap at the
 * end. */
static void place_of(int64_t *block, int64_t *g, const struct order *order, int64_t i)
{
    *block = order->blocks - 1 - (order->groups_first ? i / order->groups : i % order->blocks);
    *g = order->groups_first ? i % order->groups : i / order->blocks;
}

int m3_fast_attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                        const struct m3_attend *d)
{
    const struct call call = { o, lse, q, k, v, d };
    int64_t heads = d->Q / d->G, keys = d->p0 + d->T;
    int64_t rows = m3_min(d->T, (LANES + heads - 1) / heads), lanes = rows * heads;
    int team = m3_team(ctx, d->T * d->Q * d->D * keys);
    const struct order order = order_of((d->T + rows - 1) / rows, d->G, strips_of(lanes, keys), team);
    int64_t bytes = m3_tile_bytes(order.strips, lanes, keys, d->D), all = order.blocks * order.groups;
    size_t mark = m3_scratch_mark(ctx);
    char *scratch = m3_scratch_take(ctx, team, (size_t)bytes);
    if (!scratch) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < order.tiles; i++) {
        struct m3_tile tile = { .stride = d->G * d->D, .block = KEYS, .seen = d->seen };
        tile.strips = m3_min(order.strips, all - i * order.strips);
        m3_tile_place(&tile, scratch + omp_get_thread_num() * bytes, order.strips, lanes, keys, d->D);
        for (int64_t s = 0; s < tile.strips; s++) {
            int64_t block, g;
            place_of(&block, &g, &order, i * order.strips + s);
            set_strip(&tile.strip[s], &call, block * rows, m3_min(rows, d->T - block * rows), g);
        }
        m3_tile_attend(&tile);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* heads [A,P,U] := x [P,A,U]: a head's rows together, because a tile reads them many times. */
static void split_heads(real *heads, const real *x, int64_t P, int64_t A, int64_t U, int team)
{
#pragma omp parallel for num_threads(team)
    for (int64_t p = 0; p < P; p++)
        for (int64_t h = 0; h < A; h++) memcpy(heads + (h * P + p) * U, x + (p * A + h) * U, (size_t)U * sizeof *x);
}

/* Some rows of one head, over all keys of their segment. Rows of o and q are `stride` apart. A strip's lanes are the
 * rows, which take the place of heads: all see the same keys. */
static void segment_tile(struct m3_tile *tile, real *o, real *lse, const real *q, int64_t stride, int64_t rows,
                         int64_t keys)
{
    tile->strips = (rows + LANES - 1) / LANES;
    for (int64_t s = 0; s < tile->strips; s++) {
        struct m3_strip *strip = &tile->strip[s];
        int64_t at = s * LANES * stride, lanes = m3_min(LANES, rows - s * LANES);
        strip->p = keys - 1;
        strip->rows = 1;
        strip->heads = lanes;
        strip->o = o + at;
        strip->o_head = stride;
        strip->lse = lse ? lse + s * LANES : NULL;
        for (int64_t r = 0; r < lanes; r++)
            for (int64_t i = 0; i < tile->D; i++) strip->q_t[i * lanes + r] = q[at + r * stride + i];
    }
    m3_tile_attend(tile);
}

int m3_fast_segments(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                     const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    int64_t longest = 0, stride = A * U;
    int status = m3_check_segments(ctx, ends, segments);
    if (status) return status;
    for (int64_t s = 0; s < segments; s++) longest = m3_max(longest, ends[s] - (s ? ends[s - 1] : 0));
    int64_t strips = strips_of(LANES, longest), rows = strips * LANES;
    int64_t P = ends[segments - 1], bytes = m3_tile_bytes(strips, LANES, longest, U);
    int team = m3_team(ctx, P * longest * stride);
    size_t mark = m3_scratch_mark(ctx);
    char *scratch = m3_scratch_take(ctx, team, (size_t)bytes);
    real *heads_k = m3_scratch_take(ctx, P * stride, sizeof *heads_k);
    real *heads_v = m3_scratch_take(ctx, P * stride, sizeof *heads_v);
    if (!scratch || !heads_k || !heads_v) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }
    split_heads(heads_k, k, P, A, U, team);
    split_heads(heads_v, v, P, A, U, team);

#pragma omp parallel num_threads(team)
    for (int64_t s = 0; s < segments; s++) {
        int64_t first = s ? ends[s - 1] : 0, keys = ends[s] - first, tiles = (keys + rows - 1) / rows;
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = 0; i < tiles * A; i++) {
            int64_t h = i / tiles, row = i % tiles * rows, at = (first + row) * stride + h * U;
            int64_t head = (h * P + first) * U;
            struct m3_tile tile = { .stride = U, .block = KEYS };
            m3_tile_place(&tile, scratch + omp_get_thread_num() * bytes, strips, LANES, longest, U);
            for (int64_t n = 0; n < strips; n++) {
                tile.strip[n].k = heads_k + head;
                tile.strip[n].v = heads_v + head;
            }
            segment_tile(&tile, o + at, lse ? lse + h * P + first + row : NULL, q + at, stride,
                         m3_min(rows, keys - row), keys);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

int m3_fast_attend_segments(struct m3_ctx *ctx, real *o, const real *q, const real *k, const real *v,
                            const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    return m3_fast_segments(ctx, o, NULL, q, k, v, ends, segments, A, U);
}

/* The union of a row's lists [G,N], ascending, into merged [G*N]. Returns its length. */
static int64_t merge_lists(int32_t *merged, const int32_t *lists, int64_t G, int64_t N)
{
    int64_t n = 0;
    for (int64_t i = 0; i < G * N; i++) {
        int64_t at = 0;
        while (at < n && merged[at] < lists[i]) at++;
        if (lists[i] < 0 || (at < n && merged[at] == lists[i])) continue;
        for (int64_t m = n++; m > at; m--) merged[m] = merged[m - 1];
        merged[at] = lists[i];
    }
    return n;
}

/* The blocks that row t of group g sees: its own list, or the union, into `merged`. */
static void set_list(struct m3_strip *strip, int32_t *merged, const int32_t *blocks, const struct m3_attend *d,
                     int64_t t, int64_t g)
{
    strip->list = blocks + (t * d->G + g) * d->N;
    strip->n = m3_list_length(strip->list, d->N, (d->p0 + t) / d->block);
    if (d->selection != M3_SELECT_UNION) return;
    strip->n = merge_lists(merged, blocks + t * d->G * d->N, d->G, d->N);
    strip->list = merged;
}

int m3_fast_attend_blocks(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                          const int32_t *blocks, const struct m3_attend *d)
{
    const struct call call = { o, lse, q, k, v, d };
    int64_t N = d->N, seen = d->p0 + d->T, block = m3_min(d->block, seen), lanes = d->Q / d->G;
    int64_t width = m3_min((seen + block - 1) / block, d->selection == M3_SELECT_UNION ? d->G * N : N);
    int64_t keys = m3_min(width * block, seen);
    int team = m3_team(ctx, d->T * d->Q * d->D * keys);
    const struct order order = order_of(d->T, d->G, strips_of(lanes, keys), team);
    int64_t bytes = m3_tile_bytes(order.strips, lanes, keys, d->D), all = d->T * d->G;
    int status = m3_check_blocks(ctx, blocks, d);
    if (status) return status;

    size_t mark = m3_scratch_mark(ctx);
    char *scratch = m3_scratch_take(ctx, team, (size_t)bytes);
    int32_t *merged = m3_scratch_take(ctx, team * order.strips * width, sizeof *merged);
    int64_t work = scratch && merged ? order.tiles : 0;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < work; i++) {
        int64_t me = omp_get_thread_num();
        struct m3_tile tile = { .stride = d->G * d->D, .block = d->block, .seen = d->seen };
        tile.strips = m3_min(order.strips, all - i * order.strips);
        m3_tile_place(&tile, scratch + me * bytes, order.strips, lanes, keys, d->D);
        for (int64_t s = 0; s < tile.strips; s++) {
            int64_t t, g;
            place_of(&t, &g, &order, i * order.strips + s);
            set_strip(&tile.strip[s], &call, t, 1, g);
            set_list(&tile.strip[s], merged + (me * order.strips + s) * width, blocks, d, t, g);
        }
        m3_tile_attend(&tile);
    }
    m3_scratch_release(ctx, mark);
    return work ? M3_OK : M3_INTERNAL;
}
