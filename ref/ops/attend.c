#include <math.h>
#include <omp.h>

#include "ops/backward.h"
#include "ops/brief.h"
#include "ops/lists.h"
#include "ops/math.h"
#include "ops/operators.h"
#include "ops/visible.h"

static real dot(const real *a, const real *b, int64_t n)
{
    real sum = 0;
    for (int64_t i = 0; i < n; i++) sum = sum + a[i] * b[i];
    return sum;
}

/* One query head of one row over its n visible keys, ascending. o, q [D]; *lse; k and v hold rows [D], `stride`
 * elements apart; z [n] is scratch. */
static void attend_head(real *o, real *lse, const real *q, const real *k, const real *v, int64_t stride, int64_t D,
                        const int64_t *keys, int64_t n, real *z)
{
    real scale = (real)(1 / sqrt((double)D)), max = -(real)INFINITY;
    double sum = 0;
    for (int64_t d = 0; d < D; d++) o[d] = 0;
    *lse = -(real)INFINITY;
    if (n == 0) return;

    /* 1. Scores, and the largest of them. */
    for (int64_t i = 0; i < n; i++) {
        z[i] = dot(q, k + keys[i] * stride, D) * scale;
        if (z[i] > max) max = z[i];
    }

    /* 2. Exponentials, and their sum. */
    for (int64_t i = 0; i < n; i++) {
        z[i] = m3_weight_of(z[i] - max);
        sum = sum + (double)z[i];
    }
    *lse = (real)((double)max + m3_log(sum));

    /* 3. Weighted values. The division comes last. */
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < D; d++) o[d] = o[d] + z[i] * v[keys[i] * stride + d];
    for (int64_t d = 0; d < D; d++) o[d] = o[d] * (real)(1 / sum);
}

/* Every row and query head, over the keys that the mask does not hide. lse may be NULL. */
static int attend_rows(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                       const struct m3_attend *d, const struct m3_mask *mask)
{
    int64_t S = d->p0 + d->T, stride = d->G * d->D;
    int team = m3_team(ctx, d->T * d->Q * d->D * S);
    size_t mark = m3_scratch_mark(ctx);
    int64_t *all_keys = m3_scratch_take(ctx, team * S, sizeof *all_keys);
    real *all_z = m3_scratch_take(ctx, team * S, sizeof *all_z);
    if (!all_keys || !all_z) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }

#pragma omp parallel for num_threads(team)
    for (int64_t t = 0; t < d->T; t++) {
        int64_t *keys = all_keys + omp_get_thread_num() * S;
        real *z = all_z + omp_get_thread_num() * S, unused;

        for (int64_t h = 0; h < d->Q; h++) {
            int64_t g = h / (d->Q / d->G), n = 0, row = t * d->Q + h;
            for (int64_t j = 0; j < S; j++)
                if (m3_visible(mask, t, g, j)) keys[n++] = j;
            attend_head(o + row * d->D, lse ? lse + row : &unused, q + row * d->D, k + g * d->D, v + g * d->D, stride,
                        d->D, keys, n, z);
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* Causal attention with grouped query heads. SPEC 5.7
 *
 *     z_j = q . k_j / sqrt(D)  for visible keys j,   lse = max z + ln sum exp(z - max z),   o = sum exp(z_j - lse) v_j
 *
 * o [T,Q,D]; lse [T,Q]; q [T,Q,D]; k, v [p0+T,G,D].  A row that sees no key gives 0 and -inf.
 * Order: logits in real, channels ascending; exp rounded once; its sum in double, keys ascending; o is divided last.
 * Often wrong: key heads tiled (h mod G) instead of repeated (h div Q/G); a scale from H/Q or from the number of
 * rotated channels. */
int m3_attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                   const struct m3_attend *d)
{
    const struct m3_mask mask = { .p0 = d->p0, .seen = d->seen };
    return attend_rows(ctx, o, lse, q, k, v, d, &mask);
}

int m3_check_blocks(struct m3_ctx *ctx, const int32_t *blocks, const struct m3_attend *d)
{
    for (int64_t i = 0; i < d->T * d->G; i++)
        if (m3_list_length(blocks + i * d->N, d->N, (d->p0 + i / d->G) / d->block) < 0)
            return m3_fail_at(ctx, M3_WRONG, "block list not strictly ascending visible ids, then -1", i / d->G,
                              i % d->G, -1);
    return M3_OK;
}

/* Attention over selected blocks of keys. SPEC 5.10
 *
 *     as attend_full, over the visible keys j with j div block in blocks[t,g]
 *
 * o [T,Q,D]; lse [T,Q]; q [T,Q,D]; k, v [p0+T,G,D]; blocks [T,G,N]: visible ids, strictly ascending, then -1.
 * Any other list is an error: a duplicate would count its keys twice.
 * Often wrong: no causal mask inside the row's own block; -1 used as an index. */
int m3_attend_blocks(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                     const int32_t *blocks, const struct m3_attend *d)
{
    const struct m3_mask mask = { .p0 = d->p0,
                                  .seen = d->seen,
                                  .blocks = blocks,
                                  .block = d->block,
                                  .G = d->G,
                                  .N = d->N,
                                  .selection = d->selection };
    int status = m3_check_blocks(ctx, blocks, d);
    return status ? status : attend_rows(ctx, o, lse, q, k, v, d, &mask);
}

/* The operands of a gradient of attention: ops/backward.h. lse and delta [T,Q] in double. */
struct gradient {
    real *dq, *dk, *dv;
    const real *d_o, *q, *k, *v;
    double *lse, *delta;
    const struct m3_attend *d;
    const struct m3_mask *mask;
};

static double wide_dot(const real *a, const real *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum = sum + (double)a[i] * (double)b[i];
    return sum;
}

/* p and ds / sqrt(D) of one query head `row` = t Q + h and one key of its group, `key` = j G + g. */
static double pair_of(double *ds, const struct gradient *a, int64_t row, int64_t key)
{
    const int64_t D = a->d->D;
    const double scale = 1 / sqrt((double)D);
    const double p = m3_exp(wide_dot(a->q + row * D, a->k + key * D, D) * scale - a->lse[row]);
    *ds = p * (wide_dot(a->d_o + row * D, a->v + key * D, D) - a->delta[row]) * scale;
    return p;
}

/* dq of row t, a query head after the other. sum [D] is scratch. */
static void row_gradient(const struct gradient *a, int64_t t, double *sum)
{
    const int64_t Q = a->d->Q, G = a->d->G, D = a->d->D, S = a->d->p0 + a->d->T;
    for (int64_t h = 0; h < Q; h++) {
        const int64_t g = h / (Q / G), row = t * Q + h;
        double ds;
        for (int64_t i = 0; i < D; i++) sum[i] = 0;
        for (int64_t j = 0; j < S; j++) {
            if (!m3_visible(a->mask, t, g, j)) continue;
            pair_of(&ds, a, row, j * G + g);
            for (int64_t i = 0; i < D; i++) sum[i] = sum[i] + ds * (double)a->k[(j * G + g) * D + i];
        }
        for (int64_t i = 0; i < D; i++) a->dq[row * D + i] = (real)sum[i];
    }
}

/* dk and dv of key j and head g: from all rows that see it, and from the query heads that read it. sums [2,D] is
 * scratch. */
static void key_gradient(const struct gradient *a, int64_t j, int64_t g, double *sums)
{
    const int64_t Q = a->d->Q, G = a->d->G, D = a->d->D, key = j * G + g;
    double *dk = sums, *dv = sums + D, ds;
    for (int64_t i = 0; i < 2 * D; i++) sums[i] = 0;
    for (int64_t t = 0; t < a->d->T; t++) {
        if (!m3_visible(a->mask, t, g, j)) continue;
        for (int64_t row = t * Q + g * (Q / G); row < t * Q + (g + 1) * (Q / G); row++) {
            const double p = pair_of(&ds, a, row, key);
            for (int64_t i = 0; i < D; i++) {
                dk[i] = dk[i] + ds * (double)a->q[row * D + i];
                dv[i] = dv[i] + p * (double)a->d_o[row * D + i];
            }
        }
    }
    for (int64_t i = 0; i < D; i++) {
        if (a->dk) a->dk[key * D + i] = (real)dk[i];
        if (a->dv) a->dv[key * D + i] = (real)dv[i];
    }
}

static int attend_gradient(struct m3_ctx *ctx, const struct gradient *a)
{
    const struct m3_attend *d = a->d;
    const int64_t keys = (d->p0 + d->T) * d->G;
    const int team = m3_team(ctx, d->T * d->Q * d->D * (d->p0 + d->T));
    size_t mark = m3_scratch_mark(ctx);
    double *sums = m3_scratch_take(ctx, team * d->D * 2, sizeof *sums);
    if (!sums) return M3_INTERNAL;

#pragma omp parallel for num_threads(team)
    for (int64_t t = 0; t < (a->dq ? d->T : 0); t++) row_gradient(a, t, sums + omp_get_thread_num() * d->D * 2);
#pragma omp parallel for num_threads(team)
    for (int64_t key = 0; key < (a->dk || a->dv ? keys : 0); key++)
        key_gradient(a, key / d->G, key % d->G, sums + omp_get_thread_num() * d->D * 2);
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* lse and delta from the results of the forward pass. */
static int attend_back(struct m3_ctx *ctx, struct gradient *a, const real *dlse, const real *o, const real *lse)
{
    const int64_t rows = a->d->T * a->d->Q, D = a->d->D;
    size_t mark = m3_scratch_mark(ctx);
    a->lse = m3_scratch_take(ctx, rows, sizeof *a->lse);
    a->delta = m3_scratch_take(ctx, rows, sizeof *a->delta);
    int status = a->lse && a->delta ? M3_OK : M3_INTERNAL;
    for (int64_t row = 0; !status && row < rows; row++) {
        a->lse[row] = (double)lse[row];
        a->delta[row] = wide_dot(a->d_o + row * D, o + row * D, D) - (dlse ? (double)dlse[row] : 0);
    }
    if (!status) status = attend_gradient(ctx, a);
    m3_scratch_release(ctx, mark);
    return status;
}

/* Gradient of causal attention. TRAINING 19.6
 *
 *     z_j = q . k_j / sqrt(D),  p_j = exp(z_j - lse),  delta = do . o - dlse,  ds_j = p_j (do . v_j - delta)
 *     dq = sum over j of ds_j k_j / sqrt(D),   dk_j = sum of ds_j q / sqrt(D),   dv_j = sum of p_j do
 *
 * The sums of dk and dv run over the rows that see key j and over the query heads that read its head.
 * dq, do, o, q [T,Q,D]; dk, dv, k, v [p0+T,G,D]; dlse, lse [T,Q].  A row that sees no key, or a key that no row sees,
 * has zeros. In double, rounded once; keys, rows and heads ascend.
 * Often wrong: delta or the scale missing; a mean over the heads of a group instead of the sum. */
int m3_attend_full_backward(struct m3_ctx *ctx, real *dq, real *dk, real *dv, const real *d_o, const real *dlse,
                            const real *q, const real *k, const real *v, const real *o, const real *lse,
                            const struct m3_attend *d)
{
    const struct m3_mask mask = { .p0 = d->p0, .seen = d->seen };
    struct gradient a = { dq, dk, dv, d_o, q, k, v, NULL, NULL, d, &mask };
    return attend_back(ctx, &a, dlse, o, lse);
}

/* Gradient of attention over selected blocks: as above, through the chosen blocks only. TRAINING 19.6
 *
 * blocks [T,G,N] as in attend_blocks. The choice itself has no gradient.
 * Often wrong: all causal keys in the backward pass. */
int m3_attend_blocks_backward(struct m3_ctx *ctx, real *dq, real *dk, real *dv, const real *d_o, const real *dlse,
                              const real *q, const real *k, const real *v, const real *o, const real *lse,
                              const int32_t *blocks, const struct m3_attend *d)
{
    const struct m3_mask mask = { .p0 = d->p0,
                                  .seen = d->seen,
                                  .blocks = blocks,
                                  .block = d->block,
                                  .G = d->G,
                                  .N = d->N,
                                  .selection = d->selection };
    struct gradient a = { dq, dk, dv, d_o, q, k, v, NULL, NULL, d, &mask };
    int status = m3_check_blocks(ctx, blocks, d);
    return status ? status : attend_back(ctx, &a, dlse, o, lse);
}

int m3_check_segments(struct m3_ctx *ctx, const int64_t *ends, int64_t segments)
{
    if (segments < 1) return m3_fail_at(ctx, M3_WRONG, "no segment", -1, -1, -1);
    for (int64_t s = 0; s < segments; s++) {
        int64_t first = s ? ends[s - 1] : 0;
        if (ends[s] <= first) return m3_fail_at(ctx, M3_WRONG, "ends of segments not ascending", first, -1, -1);
    }
    return M3_OK;
}

/* Attention within segments of rows, in both directions. SPEC 5.19
 *
 *     z_j = q . k_j / sqrt(U)  for the keys j of the row's segment,   o = sum softmax(z)_j v_j
 *
 * o, q, k, v [P,A,U]; ends [segments], ascending: segment s ends before row ends[s]; the last entry is P.
 * Order: as attend_full.  Often wrong: one segment for all pictures of a call. */
int m3_attend_segments(struct m3_ctx *ctx, real *o, const real *q, const real *k, const real *v, const int64_t *ends,
                       int64_t segments, int64_t A, int64_t U)
{
    const struct m3_mask mask = { .ends = ends };
    int status = m3_check_segments(ctx, ends, segments);
    if (status) return status;

    const struct m3_attend d = { .T = ends[segments - 1], .Q = A, .G = A, .D = U };
    return attend_rows(ctx, o, NULL, q, k, v, &d, &mask);
}

/* Gradient of attention within segments. TRAINING 19.6
 *
 *     as attend_full, over the keys of the row's segment
 *
 * dq, dk, dv, do, q, k, v [P,A,U].  The forward pass keeps no lse: it is recomputed, and o with it. */
int m3_attend_segments_backward(struct m3_ctx *ctx, real *dq, real *dk, real *dv, const real *d_o, const real *q,
                                const real *k, const real *v, const int64_t *ends, int64_t segments, int64_t A,
                                int64_t U)
{
    const struct m3_mask mask = { .ends = ends };
    int status = m3_check_segments(ctx, ends, segments);
    if (status) return status;
    const struct m3_attend d = { .T = ends[segments - 1], .Q = A, .G = A, .D = U };
    struct gradient a = { dq, dk, dv, d_o, q, k, v, NULL, NULL, &d, &mask };

    size_t mark = m3_scratch_mark(ctx);
    real *o = m3_scratch_take(ctx, d.T * A * U, sizeof *o), *lse = m3_scratch_take(ctx, d.T * A, sizeof *lse);
    status = o && lse ? attend_rows(ctx, o, lse, q, k, v, &d, &mask) : M3_INTERNAL;
    if (!status) status = attend_back(ctx, &a, NULL, o, lse);
    m3_scratch_release(ctx, mark);
    return status;
}
