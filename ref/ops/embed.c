#include "ops/backward.h"
#include "ops/expand.h"
#include "ops/operators.h"

/* Embedding rows. SPEC 5.1
 *
 *     y[t] = w[ids[t]]
 *
 * y [T,H]; ids [T]; w [V,H].  Often wrong: a factor sqrt(H), copied from Gemma with its norm. M3 has none. */
int m3_embed(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    int64_t H = w->cols;

    for (int64_t t = 0; t < T; t++)
        if (ids[t] < 0 || ids[t] >= w->rows)
            return m3_fail_at(ctx, M3_BAD_INPUT, "id outside the vocabulary", t, -1, -1);

#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) m3_expand_row(y + t * H, w, ids[t]);
    return M3_OK;
}

/* next [T] := the next row with the same id, -1 after the last; first [T] := 1 where no earlier row has it. seen [V] is
 * scratch. */
static void link_rows(int64_t *next, unsigned char *first, int64_t *seen, const int32_t *ids, int64_t T, int64_t V)
{
    for (int64_t v = 0; v < V; v++) seen[v] = -1;
    for (int64_t t = T - 1; t >= 0; t--) {
        next[t] = seen[ids[t]];
        first[t] = 1;
        if (next[t] >= 0) first[next[t]] = 0;
        seen[ids[t]] = t;
    }
}

/* Gradient of the embedding rows. TRAINING 19.2
 *
 *     dw[v] += sum over the rows t with ids[t] = v of dy[t]
 *
 * dw [V,H]; dy [T,H]; ids [T].  Rows ascend. Often wrong: a row stored instead of added, where an id comes twice. */
int m3_embed_backward(struct m3_ctx *ctx, real *dw, const real *dy, const int32_t *ids, int64_t T, int64_t V, int64_t H)
{
    for (int64_t t = 0; t < T; t++)
        if (ids[t] < 0 || ids[t] >= V) return m3_fail_at(ctx, M3_BAD_INPUT, "id outside the vocabulary", t, -1, -1);

    size_t mark = m3_scratch_mark(ctx);
    int64_t *next = m3_scratch_take(ctx, T, sizeof *next), *seen = m3_scratch_take(ctx, V, sizeof *seen);
    unsigned char *first = m3_scratch_take(ctx, T, sizeof *first);
    if (!next || !seen || !first) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }
    link_rows(next, first, seen, ids, T, V);

#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) {
        real *dw_t = dw + ids[t] * H;
        for (int64_t i = 0; first[t] && i < H; i++) {
            double sum = 0;
            for (int64_t u = t; u >= 0; u = next[u]) sum = sum + (double)dy[u * H + i];
            dw_t[i] = (real)((double)dw_t[i] + sum);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
