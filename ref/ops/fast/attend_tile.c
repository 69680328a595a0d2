#include "ops/fast/attend_tile.h"

#include <math.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/fast/seen.h"
#include "ops/math.h"

enum { PIECE = 128 };           /* keys at a time */

static int64_t up_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t strip_bytes(int64_t lanes, int64_t keys, int64_t D)
{
    return up_to_line(lanes * ((int64_t)sizeof(double) + (1 + D + keys) * (int64_t)sizeof(real)));
}

int64_t m3_tile_bytes(int64_t strips, int64_t lanes, int64_t keys, int64_t D)
{
    return strips * strip_bytes(lanes, keys, D) + up_to_line(PIECE * lanes * (int64_t)sizeof(real));
}

void m3_tile_place(struct m3_tile *tile, char *memory, int64_t strips, int64_t lanes, int64_t keys, int64_t D)
{
    tile->D = D;
    for (int64_t s = 0; s < strips; s++, memory += strip_bytes(lanes, keys, D)) {
        struct m3_strip *strip = &tile->strip[s];
        strip->sum = (double *)(void *)memory;
        strip->q_t = (real *)(void *)(strip->sum + lanes);
        strip->z = strip->q_t + D * lanes;
        strip->max = strip->z + keys * lanes;
    }
    tile->weights = (real *)(void *)memory;
}

/* The first block after block b that a strip of the tile sees; -1 if there is none. */
static int64_t next_block(struct m3_tile *tile, int64_t b)
{
    int64_t next = INT64_MAX;
    for (int64_t s = 0; s < tile->strips; s++) {
        struct m3_strip *strip = &tile->strip[s];
        while (strip->list && strip->at < strip->n && strip->list[strip->at] <= b) strip->at++;
        if (strip->list && strip->at < strip->n) next = m3_min(next, strip->list[strip->at]);
        if (!strip->list && (b + 1) * tile->block < strip->p + strip->rows) next = m3_min(next, b + 1);
    }
    return next < INT64_MAX ? next : -1;
}

/* How many of the keys j .. j+n-1, which belong to block b, the last row of a strip sees. */
static int64_t visible_to(const struct m3_strip *strip, int64_t b, int64_t j, int64_t n)
{
    if (strip->list && (strip->at >= strip->n || strip->list[strip->at] != b)) return 0;
    return m3_max(0, m3_min(n, strip->p + strip->rows - j));
}

/* The logits of keys j .. j+n-1, and the largest so far. A row does not see the keys after its own place, which only
 * later rows of the strip see: exp(-inf) adds 0 to a sum. */
static void add_logits(const struct m3_tile *tile, struct m3_strip *strip, int64_t j, int64_t n)
{
    const struct m3_kernels *kernels = m3_kernels();
    const int64_t heads = strip->heads, lanes = strip->rows * heads;
    real *z = strip->z + strip->keys * lanes;

    kernels->gemm(z, lanes, tile->k + j * tile->stride, tile->stride, 1, strip->q_t, lanes, n, lanes, tile->D, 0);
    for (int64_t r = 0; r < strip->rows - 1; r++)
        for (int64_t i = m3_max(0, strip->p + r + 1 - j); i < n; i++)
            for (int64_t h = 0; h < heads; h++) z[i * lanes + r * heads + h] = -(real)INFINITY;
    kernels->largest(strip->max, z, n, lanes);
    if (strip->keys == 0) strip->first = j;
    strip->keys += n;
}

/* Weighs the values of keys j .. j+n-1, whose logits come next. */
static void add_values(const struct m3_tile *tile, struct m3_strip *strip, int64_t j, int64_t n)
{
    const struct m3_kernels *kernels = m3_kernels();
    const int64_t heads = strip->heads, lanes = strip->rows * heads;
    const real scale = (real)(1 / sqrt((double)tile->D)), *v = tile->v + j * tile->stride;

    kernels->weigh(tile->weights, strip->sum, strip->z + strip->keys * lanes, strip->max, n, lanes, scale);
    for (int64_t r = 0; r < strip->rows; r++) {
        const int64_t visible = m3_min(n, strip->p + r + 1 - j);
        if (visible > 0)
            kernels->gemm(strip->o + r * strip->o_row, strip->o_head, tile->weights + r * heads, 1, lanes, v,
                          tile->stride, heads, tile->D, visible, strip->keys > 0);
    }
    strip->keys += n;
}

/* Calls `add` for the keys that the strips see, ascending, a piece at a time. */
static void for_keys(struct m3_tile *tile, void (*add)(const struct m3_tile *, struct m3_strip *, int64_t, int64_t))
{
    int64_t end = 0;
    for (int64_t s = 0; s < tile->strips; s++) {
        struct m3_strip *strip = &tile->strip[s];
        strip->at = strip->keys = 0;
        end = m3_max(end, strip->p + strip->rows);
    }
    for (int64_t b = -1; (b = next_block(tile, b)) >= 0;) {
        const int64_t block_end = m3_min((b + 1) * tile->block, end);
        for (int64_t j = b * tile->block, n; (n = m3_seen_run(tile->seen, &j, block_end, PIECE)) > 0; j += n)
            for (int64_t s = 0; s < tile->strips; s++) {
                const int64_t visible = visible_to(&tile->strip[s], b, j, n);
                if (visible > 0) add(tile, &tile->strip[s], j, visible);
            }
    }
}

/* Divides the outputs of row r by the sums. A row that sees no key gives 0 and -inf. */
static void finish_row(const struct m3_strip *strip, int64_t r, int64_t D)
{
    const int is_empty = strip->keys == 0 || strip->p + r < strip->first;
    for (int64_t h = 0; h < strip->heads; h++) {
        const int64_t l = r * strip->heads + h;
        real *o = strip->o + r * strip->o_row + h * strip->o_head, share = (real)(1 / strip->sum[l]);
        for (int64_t i = 0; i < D; i++) o[i] = is_empty ? 0 : o[i] * share;
    }
}

static void finish_lse(const struct m3_strip *strip, int64_t r, real *lse)
{
    const int is_empty = strip->keys == 0 || strip->p + r < strip->first;
    for (int64_t h = 0; h < strip->heads; h++) {
        const int64_t l = r * strip->heads + h;
        lse[h] = is_empty ? -(real)INFINITY : (real)((double)strip->max[l] + m3_log(strip->sum[l]));
    }
}

void m3_tile_attend(struct m3_tile *tile)
{
    const real scale = (real)(1 / sqrt((double)tile->D));
    for (int64_t s = 0; s < tile->strips; s++) {
        struct m3_strip *strip = &tile->strip[s];
        for (int64_t l = 0; l < strip->rows * strip->heads; l++) {
            strip->max[l] = -(real)INFINITY;
            strip->sum[l] = 0;
        }
    }
    for_keys(tile, add_logits);
    /* The largest product is that of the largest logit: rounding keeps the order. */
    for (int64_t s = 0; s < tile->strips; s++)
        for (int64_t l = 0; l < tile->strip[s].rows * tile->strip[s].heads; l++)
            tile->strip[s].max[l] = tile->strip[s].max[l] * scale;
    for_keys(tile, add_values);

    for (int64_t s = 0; s < tile->strips; s++) {
        const struct m3_strip *strip = &tile->strip[s];
        for (int64_t r = 0; r < strip->rows; r++) {
            finish_row(strip, r, tile->D);
            if (strip->lse) finish_lse(strip, r, strip->lse + r * strip->lse_row);
        }
    }
}
