#include "ops/fast/attend_backward.h"

#include "base/minmax.h"
#include "ops/backward.h"
#include "ops/operators.h"

enum { SPAN = 16 };         /* most rows of a span of a segment */

void m3_piece_find(struct m3_piece *piece, const struct m3_attend_back *a, int64_t i)
{
    const int64_t in_block = (a->block + M3_PIECE - 1) / M3_PIECE;
    piece->block = i / in_block;
    const int64_t first = piece->block * a->block + i % in_block * M3_PIECE;
    const int64_t end = m3_min(m3_min(first + M3_PIECE, (piece->block + 1) * a->block), a->keys);
    piece->n = 0;
    for (int64_t j = first; j < end; j++)
        if (!a->seen || a->seen[j]) piece->key[piece->n++] = j;
}

/* Is id in an ascending list that ends with -1? As unsigned, -1 is the largest. */
static int has_block(const int32_t *list, int64_t n, int64_t id)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((uint32_t)list[middle] < (uint32_t)id) low = middle + 1;
        else high = middle;
    }
    return low < n && list[low] == id;
}

int64_t m3_span_sees(int64_t *first, const struct m3_attend_back *a, const struct m3_span *span, int64_t g,
                     const struct m3_piece *piece)
{
    int64_t low = 0, high = piece->n;
    if (high == 0 || span->to <= piece->key[0] || span->from > piece->key[high - 1]) return 0;
    if (a->blocks) {
        const int32_t *lists = a->blocks + span->t * a->G * a->N;
        int chosen = 0;
        for (int64_t i = a->is_union ? 0 : g; !chosen && i < (a->is_union ? a->G : g + 1); i++)
            chosen = has_block(lists + i * a->N, a->N, piece->block);
        if (!chosen) return 0;
    }
    while (piece->key[low] < span->from) low++;
    while (high > low && piece->key[high - 1] >= span->to) high--;
    *first = low;
    return high - low;
}

/* delta = do . o - dlse, in double. */
static void set_delta(const struct m3_attend_back *a, const real *o, const real *dlse, int team)
{
#pragma omp parallel for num_threads(team)
    for (int64_t row = 0; row < a->T * a->Q; row++) {
        const real *o_row = o + row * a->D, *d_o = a->d_o + row * a->D;
        double sum = 0;
        for (int64_t i = 0; i < a->D; i++) sum = sum + (double)d_o[i] * (double)o_row[i];
        a->delta[row] = sum - (dlse ? (double)dlse[row] : 0);
    }
}

/* Takes the scratch memory that all calls need. */
static int take(struct m3_ctx *ctx, struct m3_attend_back *a)
{
    a->heads = a->Q / a->G;
    a->pieces = (a->keys + a->block - 1) / a->block * ((a->block + M3_PIECE - 1) / M3_PIECE);
    a->lse = m3_scratch_take(ctx, a->T * a->Q, sizeof *a->lse);
    a->delta = m3_scratch_take(ctx, a->T * a->Q, sizeof *a->delta);
    a->span = m3_scratch_take(ctx, a->T, sizeof *a->span);
    return a->lse && a->delta && a->span ? M3_OK : M3_INTERNAL;
}

static int finish(struct m3_ctx *ctx, struct m3_attend_back *a, const real *o, const real *dlse)
{
    set_delta(a, o, dlse, m3_team(ctx, a->T * a->Q * a->D));
    return ctx->linear == M3_LINEAR_ORDERED ? m3_attend_back_ordered(ctx, a) : m3_attend_back_blas(ctx, a);
}

/* Causal: each row is a span. */
static int causal(struct m3_ctx *ctx, struct m3_attend_back *a, int64_t p0, const real *dlse, const real *o,
                  const real *lse)
{
    size_t mark = m3_scratch_mark(ctx);
    int status = take(ctx, a);
    if (!status) {
        a->spans = a->T;
        a->most_rows = 1;
        for (int64_t t = 0; t < a->T; t++) a->span[t] = (struct m3_span){ t, 1, 0, p0 + t + 1 };
        for (int64_t row = 0; row < a->T * a->Q; row++) a->lse[row] = (double)lse[row];
        status = finish(ctx, a, o, dlse);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

int m3_fast_attend_full_backward(struct m3_ctx *ctx, real *dq, real *dk, real *dv, const real *d_o, const real *dlse,
                                 const real *q, const real *k, const real *v, const real *o, const real *lse,
                                 const struct m3_attend *d)
{
    struct m3_attend_back a = { .dq = dq,
                                .dk = dk,
                                .dv = dv,
                                .d_o = d_o,
                                .q = q,
                                .k = k,
                                .v = v,
                                .T = d->T,
                                .Q = d->Q,
                                .G = d->G,
                                .D = d->D,
                                .keys = d->p0 + d->T,
                                .seen = d->seen,
                                .block = M3_PIECE };
    return causal(ctx, &a, d->p0, dlse, o, lse);
}

int m3_fast_attend_blocks_backward(struct m3_ctx *ctx, real *dq, real *dk, real *dv, const real *d_o, const real *dlse,
                                   const real *q, const real *k, const real *v, const real *o, const real *lse,
                                   const int32_t *blocks, const struct m3_attend *d)
{
    /* clang-format off */
    struct m3_attend_back a = { .dq = dq, .dk = dk, .dv = dv, .d_o = d_o, .q = q, .k = k, .v = v, .T = d->T, .Q = d->Q,
                                .G = d->G, .D = d->D, .keys = d->p0 + d->T, .seen = d->seen, .blocks = blocks,
                                .block = m3_min(d->block, d->p0 + d->T), .N = d->N,
                                .is_union = d->selection == M3_SELECT_UNION };
    /* clang-format on */
    int status = m3_check_blocks(ctx, blocks, d);
    return status ? status : causal(ctx, &a, d->p0, dlse, o, lse);
}

/* Spans of the rows of each segment. */
static void set_segments(struct m3_attend_back *a, const int64_t *ends, int64_t segments)
{
    a->spans = 0;
    a->most_rows = SPAN;
    for (int64_t s = 0; s < segments; s++) {
        const int64_t first = s ? ends[s - 1] : 0;
        for (int64_t t = first; t < ends[s]; t += SPAN)
            a->span[a->spans++] = (struct m3_span){ t, m3_min(SPAN, ends[s] - t), first, ends[s] };
    }
}

int m3_fast_attend_segments_backward(struct m3_ctx *ctx, real *dq, real *dk, real *dv, const real *d_o, const real *q,
                                     const real *k, const real *v, const int64_t *ends, int64_t segments, int64_t A,
                                     int64_t U)
{
    int status = m3_check_segments(ctx, ends, segments);
    if (status) return status;
    const int64_t P = ends[segments - 1];
    struct m3_attend_back a = { .dq = dq,
                                .dk = dk,
                                .dv = dv,
                                .d_o = d_o,
                                .q = q,
                                .k = k,
                                .v = v,
                                .T = P,
                                .Q = A,
                                .G = A,
                                .D = U,
                                .keys = P,
                                .block = M3_PIECE };
    size_t mark = m3_scratch_mark(ctx);
    real *o = m3_scratch_take(ctx, P * A * U, sizeof *o), *lse = m3_scratch_take(ctx, P * A, sizeof *lse);
    status = o && lse ? take(ctx, &a) : M3_INTERNAL;
    if (!status) status = m3_fast_segments(ctx, o, lse, q, k, v, ends, segments, A, U);
    if (!status) {
        set_segments(&a, ends, segments);
        for (int64_t p = 0; p < P; p++)
            for (int64_t h = 0; h < A; h++) a.lse[p * A + h] = (double)lse[h * P + p];
        status = finish(ctx, &a, o, NULL);
    }
    m3_scratch_release(ctx, mark);
    return status;
}
