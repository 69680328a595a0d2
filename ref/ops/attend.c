#include <math.h>
#include <omp.h>

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
    /* clang-format off */
    const struct m3_mask mask = { .p0 = d->p0, .seen = d->seen, .blocks = blocks, .block = d->block, .G = d->G,
                                  .N = d->N, .selection = d->selection };
    /* clang-format on */
    int status = m3_check_blocks(ctx, blocks, d);
    return status ? status : attend_rows(ctx, o, lse, q, k, v, d, &mask);
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
