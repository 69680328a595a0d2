#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/fast/kernels.h"
#include "ops/lists.h"
#include "ops/math.h"
#include "ops/operators.h"
#include "ops/fast/seen.h"

/* The same bits as ops/attend.c, in tiles: some rows of one group, whose Q/G heads read the same keys and lie side by
 * side as lanes. A sum never depends on the tile: channels ascend in a logit, keys ascend in an output. */
enum {
    FULL_LANES = 64,            /* heads times rows of a tile of attend_full, about */
    FULL_BYTES = 4 << 20,       /* its logits, about: fewer rows at a time in long sequences, */
    LEAST_LANES = 16,           /* but no fewer lanes than a vector has */
    FULL_KEYS = 256,            /* values at a time: they stay in a near cache while the tile's rows read them */
};

/* A thread's buffers for a tile. */
struct tile {
    double *sum;                /* [lanes] of exp(z - max) */
    real *max;                  /* [lanes] */
    real *q_t;                  /* [D, lanes], the queries transposed */
    real *z;                    /* [keys, lanes], logits, then exp(z - max) */
};

static int64_t tile_bytes(int64_t lanes, int64_t keys, int64_t D)
{
    int64_t bytes = lanes * ((int64_t)sizeof(double) + (1 + D + keys) * (int64_t)sizeof(real));
    return (bytes + 63) / 64 * 64;
}

static struct tile tile_in(char *memory, int64_t lanes, int64_t D)
{
    struct tile tile = { .sum = (double *)(void *)memory };
    tile.max = (real *)(void *)(tile.sum + lanes);
    tile.q_t = tile.max + lanes;
    tile.z = tile.q_t + D * lanes;
    return tile;
}

static void transpose_queries(real *q_t, const real *q, const struct m3_attend *d, int64_t t0, int64_t rows, int64_t g)
{
    int64_t heads = d->Q / d->G, lanes = rows * heads;
    for (int64_t l = 0; l < lanes; l++) {
        const real *q_l = q + ((t0 + l / heads) * d->Q + g * heads + l % heads) * d->D;
        for (int64_t i = 0; i < d->D; i++) q_t[i * lanes + l] = q_l[i];
    }
}

/* The result of a row that sees no key. */
static void empty_row(real *o, real *lse, int64_t heads, int64_t D)
{
    for (int64_t i = 0; i < heads * D; i++) o[i] = 0;
    for (int64_t r = 0; r < heads; r++) lse[r] = -(real)INFINITY;
}

/* o [heads,D] holds the sums of exp(z - max) v of one row's heads; max, sum [heads]. Divides o, writes the logarithm
 * of the sum to lse. */
static void finish_row(real *o, real *lse, const real *max, const double *sum, int64_t heads, int64_t D)
{
    for (int64_t r = 0; r < heads; r++) {
        real share = (real)(1 / sum[r]);
        for (int64_t i = 0; i < D; i++) o[r * D + i] = o[r * D + i] * share;
        lse[r] = (real)((double)max[r] + m3_log(sum[r]));
    }
}

/* The keys after a row's own place, which only later rows of the tile see: exp(-inf) adds 0 to a sum. */
static void hide_later_keys(real *z, const unsigned char *seen, int64_t p, int64_t rows, int64_t heads)
{
    const int64_t keys = m3_seen_count(seen, p + rows), lanes = rows * heads;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = m3_seen_count(seen, p + r + 1); j < keys; j++)
            for (int64_t h = 0; h < heads; h++) z[j * lanes + r * heads + h] = -(real)INFINITY;
}

static void full_tile(real *o, real *lse, const real *q, const real *k, const real *v, const struct m3_attend *d,
                      int64_t t0, int64_t rows, int64_t g, char *memory)
{
    const struct m3_kernels *kernels = m3_kernels();
    int64_t heads = d->Q / d->G, lanes = rows * heads, p = d->p0 + t0, stride = d->G * d->D;
    struct tile tile = tile_in(memory, lanes, d->D);
    const real *k_g = k + g * d->D, *v_g = v + g * d->D;

    transpose_queries(tile.q_t, q, d, t0, rows, g);
    for (int64_t j = 0, n, keys = 0; (n = m3_seen_run(d->seen, &j, p + rows, p + rows)) > 0; j += n, keys += n)
        kernels->gemm(tile.z + keys * lanes, lanes, k_g + j * stride, stride, 1, tile.q_t, lanes, n, lanes, d->D, 0);
    int64_t keys = m3_seen_count(d->seen, p + rows);
    hide_later_keys(tile.z, d->seen, p, rows, heads);
    if (keys > 0) kernels->softmax(tile.z, lanes, tile.max, tile.sum, keys, lanes, (real)(1 / sqrt((double)d->D)));

    keys = 0;
    for (int64_t j = 0, n; (n = m3_seen_run(d->seen, &j, p + rows, FULL_KEYS)) > 0; j += n, keys += n) {
        for (int64_t r = 0; r < rows; r++) {
            int64_t visible = m3_min(n, p + r + 1 - j);
            if (visible > 0)
                kernels->gemm(o + ((t0 + r) * d->Q + g * heads) * d->D, d->D, tile.z + keys * lanes + r * heads, 1,
                              lanes, v_g + j * stride, stride, heads, d->D, visible, keys > 0);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        real *o_r = o + ((t0 + r) * d->Q + g * heads) * d->D, *lse_r = lse + (t0 + r) * d->Q + g * heads;
        if (m3_seen_count(d->seen, p + r + 1) == 0) empty_row(o_r, lse_r, heads, d->D);
        else finish_row(o_r, lse_r, tile.max + r * heads, tile.sum + r * heads, heads, d->D);
    }
}

int m3_fast_attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                        const struct m3_attend *d)
{
    int64_t heads = d->Q / d->G, keys = d->p0 + d->T;
    int64_t rows = m3_max((LEAST_LANES + heads - 1) / heads,
                          m3_min(FULL_LANES / heads, FULL_BYTES / (keys * heads * (int64_t)sizeof(real))));
    rows = m3_max(1, m3_min(rows, d->T));
    int64_t tiles = (d->T + rows - 1) / rows, bytes = tile_bytes(rows * heads, keys, d->D);
    int team = m3_team(ctx, d->T * d->Q * d->D * keys);
    size_t mark = m3_scratch_mark(ctx);
    char *scratch = m3_scratch_take(ctx, team, (size_t)bytes);
    if (!scratch) return M3_INTERNAL;

    /* The longest tiles first: the last rows have the longest ones, and a short tile fills the gap at the end. */
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < tiles * d->G; i++) {
        int64_t t0 = (tiles - 1 - i / d->G) * rows;
        full_tile(o, lse, q, k, v, d, t0, m3_min(rows, d->T - t0), i % d->G, scratch + omp_get_thread_num() * bytes);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* One head of some rows, over the keys and values [keys,U] of their segment; rows of o and q are `stride` apart. */
static void segment_tile(real *o, const real *q, const real *k, const real *v, int64_t stride, int64_t rows,
                         int64_t keys, int64_t U, char *memory)
{
    const struct m3_kernels *kernels = m3_kernels();
    struct tile tile = tile_in(memory, rows, U);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < U; i++) tile.q_t[i * rows + r] = q[r * stride + i];
    kernels->gemm(tile.z, rows, k, U, 1, tile.q_t, rows, keys, rows, U, 0);
    kernels->softmax(tile.z, rows, tile.max, tile.sum, keys, rows, (real)(1 / sqrt((double)U)));
    for (int64_t j = 0; j < keys; j += FULL_KEYS)
        kernels->gemm(o, stride, tile.z + j * rows, 1, rows, v + j * U, U, rows, U, m3_min(FULL_KEYS, keys - j), j > 0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < U; i++) o[r * stride + i] = o[r * stride + i] * (real)(1 / tile.sum[r]);
}

/* heads [A,P,U] := x [P,A,U]: a head's rows together, because a tile reads them many times. */
static void split_heads(real *heads, const real *x, int64_t P, int64_t A, int64_t U, int team)
{
#pragma omp parallel for num_threads(team)
    for (int64_t p = 0; p < P; p++)
        for (int64_t h = 0; h < A; h++) memcpy(heads + (h * P + p) * U, x + (p * A + h) * U, (size_t)U * sizeof *x);
}

int m3_fast_attend_segments(struct m3_ctx *ctx, real *o, const real *q, const real *k, const real *v,
                            const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    int64_t longest = 0, stride = A * U;
    int status = m3_check_segments(ctx, ends, segments);
    if (status) return status;
    for (int64_t s = 0; s < segments; s++) longest = m3_max(longest, ends[s] - (s ? ends[s - 1] : 0));
    int64_t rows = m3_max(1, m3_min(FULL_LANES, FULL_BYTES / (longest * (int64_t)sizeof(real))));
    int64_t P = ends[segments - 1], bytes = tile_bytes(rows, longest, U);
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
            segment_tile(o + at, q + at, heads_k + head, heads_v + head, stride, m3_min(rows, keys - row), keys, U,
                         scratch + omp_get_thread_num() * bytes);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* One row and group, over the blocks in a list [n]. */
static void blocks_tile(real *o, real *lse, const real *q, const real *k, const real *v, const int32_t *list, int64_t n,
                        const struct m3_attend *d, int64_t t, int64_t g, char *memory)
{
    const struct m3_kernels *kernels = m3_kernels();
    int64_t heads = d->Q / d->G, p = d->p0 + t, stride = d->G * d->D, keys = 0;
    struct tile tile = tile_in(memory, heads, d->D);
    real *o_tg = o + (t * d->Q + g * heads) * d->D, *lse_tg = lse + t * d->Q + g * heads;

    transpose_queries(tile.q_t, q, d, t, 1, g);
    for (int64_t i = 0; i < n; i++) {
        int64_t end = m3_min(list[i] * d->block + d->block, p + 1);
        for (int64_t j = list[i] * d->block, run; (run = m3_seen_run(d->seen, &j, end, end)) > 0; j += run, keys += run)
            kernels->gemm(tile.z + keys * heads, heads, k + j * stride + g * d->D, stride, 1, tile.q_t, heads, run,
                          heads, d->D, 0);
    }
    if (keys == 0) {
        empty_row(o_tg, lse_tg, heads, d->D);
        return;
    }
    kernels->softmax(tile.z, heads, tile.max, tile.sum, keys, heads, (real)(1 / sqrt((double)d->D)));

    keys = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t end = m3_min(list[i] * d->block + d->block, p + 1);
        for (int64_t j = list[i] * d->block, run; (run = m3_seen_run(d->seen, &j, end, end)) > 0; j += run, keys += run)
            kernels->gemm(o_tg, d->D, tile.z + keys * heads, 1, heads, v + j * stride + g * d->D, stride, heads, d->D,
                          run, keys > 0);
    }
    finish_row(o_tg, lse_tg, tile.max, tile.sum, heads, d->D);
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

int m3_fast_attend_blocks(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                          const int32_t *blocks, const struct m3_attend *d)
{
    int64_t G = d->G, N = d->N, all = d->p0 + d->T, block = m3_min(d->block, all), seen = (all + block - 1) / block;
    int64_t width = m3_min(seen, d->selection == M3_SELECT_UNION ? G * N : N), keys = m3_min(width * block, all);
    int64_t bytes = tile_bytes(d->Q / G, keys, d->D);
    int team = m3_team(ctx, d->T * d->Q * d->D * keys);
    int status = m3_check_blocks(ctx, blocks, d);
    if (status) return status;

    size_t mark = m3_scratch_mark(ctx);
    char *scratch = m3_scratch_take(ctx, team, (size_t)bytes);
    int32_t *merged = m3_scratch_take(ctx, team * width, sizeof *merged);
    int64_t rows = scratch && merged ? d->T * G : 0;

    /* Pieces of 16 keep the threads' memory apart; the groups of a single token are one piece each. */
    int64_t piece = m3_max(1, m3_min(16, rows / team));
#pragma omp parallel for num_threads(team) schedule(dynamic, piece)
    for (int64_t i = 0; i < rows; i++) {
        int64_t t = i / G, g = i % G;
        const int32_t *list = blocks + i * N;
        int64_t n = m3_list_length(list, N, (d->p0 + t) / d->block);
        if (d->selection == M3_SELECT_UNION) {
            int32_t *mine = merged + omp_get_thread_num() * width;
            n = merge_lists(mine, blocks + t * G * N, G, N);
            list = mine;
        }
        blocks_tile(o, lse, q, k, v, list, n, d, t, g, scratch + omp_get_thread_num() * bytes);
    }
    m3_scratch_release(ctx, mark);
    return rows ? M3_OK : M3_INTERNAL;
}
