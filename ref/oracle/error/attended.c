#include "oracle/error/private/attended.h"

#include <omp.h>

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
