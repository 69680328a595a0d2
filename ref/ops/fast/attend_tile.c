#include "ops/fast/attend_tile.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/fast/prefetch.h"
#include "ops/fast/seen.h"
#include "ops/math.h"

enum { PIECE = 64 };            /* keys at a time; those of the next piece are prefetched meanwhile */

static int64_t up_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t strip_bytes(int64_t lanes, int64_t keys, int64_t D)
{
    return up_to_line(lanes * ((int64_t)sizeof(double) + (1 + D + keys) * (int64_t)sizeof(real)));
}

int64_t m3_tile_bytes(int64_t strips, int64_t lanes, int64_t keys, int64_t D)
{
    return strips * strip_bytes(lanes, keys, D) + up_to_line(PIECE * lanes * (int64_t)sizeof(real)) +
           up_to_line(PIECE * D * (int64_t)sizeof(real));
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
    tile->values = (real *)(void *)(memory + up_to_line(PIECE * lanes * (int64_t)sizeof(real)));
}

/* Keys of a block that are handled together: j .. j+n-1. */
struct piece {
    int64_t block, j, n;
};

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

/* Moves on to the next keys, below `end`, that some strip may see; n = 0: there are none. Starts from { -1, 0, 0 }. */
static void next_piece(struct piece *piece, struct m3_tile *tile, int64_t end)
{
    for (piece->j += piece->n;;) {
        const int64_t block_end = m3_min((piece->block + 1) * tile->block, end);
        piece->n = m3_seen_run(tile->seen, &piece->j, block_end, PIECE);
        if (piece->n > 0) return;
        piece->block = next_block(tile, piece->block);
        if (piece->block < 0) return;
        piece->j = piece->block * tile->block;
    }
}

/* How many keys of a piece the last row of a strip sees. The pieces ascend. */
static int64_t visible_to(struct m3_strip *strip, const struct piece *piece)
{
    while (strip->list && strip->here < strip->n && strip->list[strip->here] < piece->block) strip->here++;
    if (strip->list && (strip->here == strip->n || strip->list[strip->here] != piece->block)) return 0;
    return m3_max(0, m3_min(piece->n, strip->p + strip->rows - piece->j));
}

/* The keys or values x of the next piece, from place `next` on. A product over logits has a tile for 8 keys and a step
 * for each channel, one over values a tile for 16 channels and a step for each key. Strips whose keys lie side by side
 * divide whole rows among them: one after the other, as the memory likes it. */
static struct m3_ask ask_for(const struct m3_tile *tile, const struct m3_strip *strip, const real *x, int64_t next,
                             int64_t n, int of_values)
{
    const int64_t side = tile->side_by_side, s = strip - tile->strip, size = (int64_t)sizeof *x;
    const uint64_t row = (uint64_t)(tile->D * size), apart = (uint64_t)(tile->stride * size), few = 8 * (uint64_t)size;
    struct m3_ask ask = { .first = (uintptr_t)x + (uintptr_t)next * apart, .pace = few };
    if (side > 1) {
        ask.first -= (uintptr_t)s * row;
        ask.first += (uintptr_t)(s * n) * row;
        ask.of_tile = of_values ? (uint64_t)n * 64 : 8 * row;
        ask.jump = of_values ? 64 : few;
        return ask;
    }
    ask.of_tile = of_values ? 64 : 8 * apart;
    ask.jump = apart;
    while (!of_values && ((uint64_t)2 << ask.shift) * few <= row) ask.shift++;
    return ask;
}

/* The logits of the first n keys of a piece, and the largest so far; the keys from `next` on follow. A row does not see
 * the keys after its own place, which only later rows of the strip see: exp(-inf) adds 0 to a sum. */
static void add_logits(struct m3_tile *tile, struct m3_strip *strip, const struct piece *piece, int64_t n, int64_t next)
{
    const struct m3_kernels *kernels = m3_kernels();
    const int64_t heads = strip->heads, lanes = strip->rows * heads, stride = tile->stride, j = piece->j;
    const real *k = strip->k + j * stride;
    real *z = strip->z + strip->keys * lanes;

    if (strip->is_first) {
        const struct m3_ask ask = ask_for(tile, strip, strip->k, next, n, 0);
        kernels->gemm_asking(z, lanes, k, stride, 1, strip->q_t, lanes, n, lanes, tile->D, 0, &ask);
    } else {
        kernels->gemm(z, lanes, k, stride, 1, strip->q_t, lanes, n, lanes, tile->D, 0);
    }
    for (int64_t r = 0; r < strip->rows - 1; r++)
        for (int64_t i = m3_max(0, strip->p + r + 1 - j); i < n; i++)
            for (int64_t h = 0; h < heads; h++) z[i * lanes + r * heads + h] = -(real)INFINITY;
    kernels->largest(strip->max, z, n, lanes);
    if (strip->keys == 0) strip->first = j;
    strip->keys += n;
}

/* The values of a piece, copied side by side: rows of one group that lie far apart share a few places in the near
 * caches. Consecutive strips of one group share the copy. */
static const real *values_of_piece(struct m3_tile *tile, const struct m3_strip *strip, const struct piece *piece)
{
    const int64_t D = tile->D;
    const real *v = strip->v + piece->j * tile->stride;
    if (tile->stride == D) return v;
    if (tile->copied != v)
        for (int64_t i = 0; i < piece->n; i++)
            memcpy(tile->values + i * D, v + i * tile->stride, (size_t)D * sizeof *v);
    tile->copied = v;
    return tile->values;
}

/* Weighs the values of the first n keys of a piece, whose logits come next. */
static void add_values(struct m3_tile *tile, struct m3_strip *strip, const struct piece *piece, int64_t n, int64_t next)
{
    const struct m3_kernels *kernels = m3_kernels();
    const int64_t heads = strip->heads, lanes = strip->rows * heads, ldo = strip->o_head;
    const real scale = (real)(1 / sqrt((double)tile->D)), *w = tile->weights;
    const real *v = values_of_piece(tile, strip, piece);

    kernels->weigh(tile->weights, strip->sum, strip->z + strip->keys * lanes, strip->max, n, lanes, scale);
    for (int64_t r = 0; r < strip->rows; r++, w += heads) {
        const int64_t visible = m3_min(n, strip->p + r + 1 - piece->j), add = strip->keys > 0;
        real *o = strip->o + r * strip->o_row;
        if (visible <= 0) continue;
        if (strip->is_first && r == 0) {
            const struct m3_ask ask = ask_for(tile, strip, strip->v, next, n, 1);
            kernels->gemm_asking(o, ldo, w, 1, lanes, v, tile->D, heads, tile->D, visible, add, &ask);
        } else {
            kernels->gemm(o, ldo, w, 1, lanes, v, tile->D, heads, tile->D, visible, add);
        }
    }
    strip->keys += n;
}

typedef void step(struct m3_tile *tile, struct m3_strip *strip, const struct piece *piece, int64_t n, int64_t next);

/* Calls `add` for the keys that the strips see, ascending, a piece at a time. */
static void for_keys(struct m3_tile *tile, step *add)
{
    int64_t end = 0;
    tile->side_by_side = tile->strips;
    tile->copied = NULL;
    for (int64_t s = 0; s < tile->strips; s++) {
        struct m3_strip *strip = &tile->strip[s];
        strip->at = strip->here = strip->keys = 0;
        strip->is_first = s == 0 || strip->k != strip[-1].k;
        if (strip->list || strip->p != tile->strip->p || strip->k != tile->strip->k + s * tile->D)
            tile->side_by_side = 1;
        end = m3_max(end, strip->p + strip->rows);
    }
    struct piece piece = { -1, 0, 0 }, next;
    for (next_piece(&piece, tile, end); piece.n > 0; piece = next) {
        next = piece;
        next_piece(&next, tile, end);
        for (int64_t s = 0; s < tile->strips; s++) {
            const int64_t visible = visible_to(&tile->strip[s], &piece);
            if (visible > 0) add(tile, &tile->strip[s], &piece, visible, next.n > 0 ? next.j : piece.j);
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
