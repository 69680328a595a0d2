#include "oracle/error/private/attended.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/status.h"

/* A thread's scratch begins with its list of keys. */
static int64_t scratch_size(struct m3_attended_scratch s, int64_t keys) { return (1 + s.per_key) * keys + s.fixed; }

static int64_t *keys_in(double *memory) { return (int64_t *)(void *)memory; }

/* Is a block in the list of group g of a row, or with `any` in the list of any group? lists [G,N]. */
static int is_listed(const int32_t *lists, const struct m3_attend *d, int64_t g, int64_t block)
{
    int any = d->selection == M3_SELECT_UNION;
    for (int64_t i = any ? 0 : g * d->N; i < (any ? d->G : g + 1) * d->N; i++)
        if (lists[i] == block) return 1;
    return 0;
}

int64_t m3_attended_keys(int64_t *keys, const struct m3_attend *d, const int32_t *lists, int64_t t, int64_t g)
{
    int64_t n = 0, end = d->p0 + t + 1, block = lists ? d->block : end;
    for (int64_t first = 0; first < end; first += block) {
        if (lists && !is_listed(lists, d, g, first / block)) continue;
        for (int64_t j = first; j < m3_min(first + block, end); j++)
            if (!d->seen || d->seen[j]) keys[n++] = j;
    }
    return n;
}

int m3_attended_causal(struct m3_ctx *ctx, m3_at_row visit, const void *self, struct m3_attended_scratch scratch,
                       const double *q, const double *k, const double *v, const int32_t *blocks,
                       const struct m3_attend *d)
{
    int64_t S = d->p0 + d->T, heads = d->Q / d->G, size = scratch_size(scratch, S);
    int team = m3_team(ctx, d->T * d->Q * d->D * S);
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, team * size, sizeof *memory);
    if (!memory) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < d->T * d->G; i++) {
        int64_t t = i / d->G, g = i % d->G;
        double *mine = memory + omp_get_thread_num() * size;
        int64_t *keys = keys_in(mine);
        struct m3_attended row = { .k = k + g * d->D,
                                   .v = v + g * d->D,
                                   .keys = keys,
                                   .D = d->D,
                                   .stride = d->G * d->D,
                                   .head = g * d->D,
                                   .scratch = mine + S };
        row.L = m3_attended_keys(keys, d, blocks ? blocks + t * d->G * d->N : NULL, t, g);
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            row.at = t * d->Q + h;
            row.q = q + row.at * d->D;
            visit(self, &row);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

int m3_attended_segments(struct m3_ctx *ctx, m3_at_row visit, const void *self, struct m3_attended_scratch scratch,
                         const double *q, const double *k, const double *v, const int64_t *ends, int64_t segments,
                         int64_t A, int64_t U)
{
    int64_t longest = 0, P = ends[segments - 1];
    for (int64_t s = 0; s < segments; s++) longest = m3_max(longest, ends[s] - (s ? ends[s - 1] : 0));
    int64_t size = scratch_size(scratch, longest);
    int team = m3_team(ctx, P * A * U * longest);
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, team * size, sizeof *memory);
    if (!memory) return M3_INTERNAL;

#pragma omp parallel num_threads(team)
    for (int64_t s = 0; s < segments; s++) {
        int64_t first = s ? ends[s - 1] : 0;
        double *mine = memory + omp_get_thread_num() * size;
        int64_t *keys = keys_in(mine);
        struct m3_attended row = {
            .keys = keys, .L = ends[s] - first, .D = U, .stride = A * U, .scratch = mine + longest
        };
        for (int64_t j = 0; j < row.L; j++) keys[j] = first + j;
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = first * A; i < ends[s] * A; i++) {
            row.at = i;
            row.head = i % A * U;
            row.q = q + i * U;
            row.k = k + row.head;
            row.v = v + row.head;
            visit(self, &row);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

int m3_scored_blocks(struct m3_ctx *ctx, m3_at_block visit, const void *self, struct m3_attended_scratch scratch,
                     const struct m3_index *d)
{
    int64_t pairs = d->T * d->G, longest = m3_min(d->block, d->p0 + d->T), size = scratch_size(scratch, longest);
    int team = m3_team(ctx, pairs * d->X * (d->p0 + d->T));
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, team * size, sizeof *memory);
    if (!memory) return M3_INTERNAL;

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < pairs; i++) {
        double *mine = memory + omp_get_thread_num() * size;
        int64_t *keys = keys_in(mine), end = d->p0 + i / d->G + 1;
        for (int64_t b = 0; b < d->B; b++) {
            struct m3_scored block = { .keys = keys, .pair = i, .block = b, .scratch = mine + longest };
            for (int64_t j = b * d->block; j < m3_min((b + 1) * d->block, end); j++)
                if (!d->seen || d->seen[j]) keys[block.n++] = j;
            visit(self, &block);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* ---- keys, or values, that are equal in a channel have equal errors there, as those of equal tokens have: the errors
 * add up and do not average out */

struct number {
    double x;
    int64_t at;
};

static int by_size(const void *a, const void *b)
{
    const struct number *x = a, *y = b;
    if (x->x != y->x) return (x->x > y->x) - (x->x < y->x);
    return (x->at > y->at) - (x->at < y->at);
}

/* A sum of n equal errors has n^2 times the variance of one: 1 + 3 + 5 + .. + (2 n - 1). So a key counts as often as
 * those before it require, however many keys a row sees; equal weights make it exact. */
static void count_channel(double *variance, struct number *numbers, const double *x, int64_t keys, int64_t stride)
{
    for (int64_t j = 0; j < keys; j++) numbers[j] = (struct number){ x[j * stride], j };
    qsort(numbers, (size_t)keys, sizeof *numbers, by_size);
    for (int64_t j = 0, first = 0; j < keys; j++) {
        if (numbers[j].x != numbers[first].x) first = j;
        variance[numbers[j].at * stride] *= (double)(2 * (j - first) + 1);
    }
}

int m3_equal_keys(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of, int64_t keys,
                  int64_t width)
{
    *out = m3_spread_from(of, 0);
    if (m3_is_exact(of)) return M3_OK;
    const int team = m3_team(ctx, keys * width * 16);
    double *variance = m3_scratch_take(ctx, keys * width, sizeof *variance);
    struct number *numbers = m3_scratch_take(ctx, team * keys, sizeof *numbers);
    if (!variance || !numbers) return M3_INTERNAL;
    memcpy(variance, of->variance, (size_t)(keys * width) * sizeof *variance);
#pragma omp parallel for num_threads(team)
    for (int64_t i = 0; i < width; i++)
        count_channel(variance + i, numbers + omp_get_thread_num() * keys, x + i, keys, width);
    out->variance = variance;
    return M3_OK;
}
