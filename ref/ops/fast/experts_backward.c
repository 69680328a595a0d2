#include <string.h>

#include "base/minmax.h"
#include "ops/backward.h"
#include "ops/lists.h"
#include "ops/operators.h"

/* The same sums as ops/experts.c, by the fast bodies of the products. */
enum { ROWS = 1024 };       /* rows of one expert at a time: bounds the scratch memory */

/* Some rows of one expert, gathered. */
struct gathered {
    int64_t *slot;              /* t K + k of all of its rows, ascending */
    real *x, *dy, *dx;          /* [rows,H] */
    real *gate, *up, *act;      /* [rows,F] */
    real *d_act, *d_up;         /* [rows,F] of act and then of gate; of up */
};

static int make(struct m3_ctx *ctx, struct gathered *a, int64_t slots, int64_t rows, int64_t H, int64_t F)
{
    real **const wide[] = { &a->x, &a->dy, &a->dx },
                 **const narrow[] = { &a->gate, &a->up, &a->act, &a->d_act, &a->d_up };
    a->slot = m3_scratch_take(ctx, slots, sizeof *a->slot);
    int missing = !a->slot;
    for (int i = 0; i < 3; i++) missing |= !(*wide[i] = m3_scratch_take(ctx, rows * H, sizeof(real)));
    for (int i = 0; i < 5; i++) missing |= !(*narrow[i] = m3_scratch_take(ctx, rows * F, sizeof(real)));
    return missing ? M3_INTERNAL : M3_OK;
}

/* How many rows the busiest expert has. */
static int64_t most_rows(int64_t *counts, const int32_t *ids, int64_t slots, int64_t E)
{
    int64_t most = 1;
    memset(counts, 0, (size_t)E * sizeof *counts);
    for (int64_t i = 0; i < slots; i++) most = m3_max(most, ++counts[ids[i]]);
    return most;
}

static int activate(struct m3_ctx *ctx, struct gathered *a, const struct m3_expert *e, const struct m3_activation *act,
                    int64_t n)
{
    const int64_t F = e->w1.rows;
    int status = m3_fast_linear(ctx, a->gate, a->x, &e->w1, NULL, n);
    if (!status) status = m3_fast_linear(ctx, a->up, a->x, &e->w3, NULL, n);
    if (status) return status;
    return act->oai ? m3_fast_swiglu_oai(ctx, a->act, a->gate, a->up, n, F, act)
                    : m3_fast_swiglu(ctx, a->act, a->gate, a->up, n, F);
}

/* dp of the rows; then d_act and dy times p. */
static void weigh(struct m3_ctx *ctx, struct gathered *a, const int64_t *slot, real *dp, const real *p, int64_t n,
                  int64_t H, int64_t F)
{
#pragma omp parallel for num_threads(m3_team(ctx, n *(H + F)))
    for (int64_t r = 0; r < n; r++) {
        const double p_r = (double)p[slot[r]];
        real *d_act = a->d_act + r * F, *dy = a->dy + r * H;
        double sum = 0;
        for (int64_t f = 0; f < F; f++) {
            sum = sum + (double)d_act[f] * (double)a->act[r * F + f];
            d_act[f] = (real)(p_r * (double)d_act[f]);
        }
        if (dp) dp[slot[r]] = (real)sum;
        for (int64_t h = 0; h < H; h++) dy[h] = (real)(p_r * (double)dy[h]);
    }
}

/* Of n gathered rows: dp, and what they add to dw; dx: a->dx. */
static int some_rows(struct m3_ctx *ctx, struct gathered *a, const int64_t *slot, real *dp,
                     const struct m3_expert_gradient *dw, const real *p, const struct m3_expert *e,
                     const struct m3_activation *act, int64_t n)
{
    const int64_t H = e->w1.cols, F = e->w1.rows;
    int status = activate(ctx, a, e, act, n);
    if (!status) status = m3_fast_linear_backward(ctx, a->d_act, NULL, NULL, a->dy, a->act, &e->w2, n);
    if (status) return status;
    weigh(ctx, a, slot, dp, p, n, H, F);
    if (dw) status = m3_fast_linear_backward(ctx, NULL, dw->dw2, NULL, a->dy, a->act, &e->w2, n);
    if (status) return status;
    status = act->oai ? m3_swiglu_oai_backward(ctx, a->d_act, a->d_up, a->d_act, a->gate, a->up, n, F, act)
                      : m3_swiglu_backward(ctx, a->d_act, a->d_up, a->d_act, a->gate, a->up, n, F);
    if (!status) status = m3_fast_linear_backward(ctx, a->dx, dw ? dw->dw1 : NULL, NULL, a->d_act, a->x, &e->w1, n);
    if (!status) status = m3_fast_linear_backward(ctx, a->dy, dw ? dw->dw3 : NULL, NULL, a->d_up, a->x, &e->w3, n);
    return status;
}

/* The rows of one expert: `most` at a time. */
static int one_expert(struct m3_ctx *ctx, struct gathered *a, real *dx, real *dp, const struct m3_expert_gradient *dw,
                      const real *dy, const real *x, const real *p, const struct m3_expert *e,
                      const struct m3_activation *act, int64_t count, int64_t most, int64_t K, real factor)
{
    const int64_t H = e->w1.cols;
    int status = M3_OK;
    for (int64_t i0 = 0; !status && i0 < count; i0 += most) {
        const int64_t n = m3_min(most, count - i0), *slot = a->slot + i0;
#pragma omp parallel for num_threads(m3_team(ctx, n *H))
        for (int64_t r = 0; r < n; r++) {
            memcpy(a->x + r * H, x + slot[r] / K * H, (size_t)H * sizeof *x);
            for (int64_t h = 0; h < H; h++) a->dy[r * H + h] = factor * dy[slot[r] / K * H + h];
        }
        status = some_rows(ctx, a, slot, dp, dw, p, e, act, n);
#pragma omp parallel for num_threads(m3_team(ctx, n *H))
        for (int64_t r = 0; r < (status || !dx ? 0 : n); r++) {
            real *dx_t = dx + slot[r] / K * H;
            for (int64_t h = 0; h < H; h++) dx_t[h] = dx_t[h] + (a->dx[r * H + h] + a->dy[r * H + h]);
        }
    }
    return status;
}

/* An `ordered` sum over the rows of an expert is rounded once: they are not cut. */
int m3_fast_experts_backward(struct m3_ctx *ctx, real *dx, real *dp, const struct m3_expert_gradient *dw,
                             const real *dy, const real *x, const int32_t *ids, const real *p,
                             const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E,
                             int64_t K, real factor)
{
    const int64_t H = experts[0].w1.cols, F = experts[0].w1.rows;
    int64_t bad = m3_bad_experts(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "ids are not distinct experts", bad, -1, -1);

    size_t mark = m3_scratch_mark(ctx);
    struct gathered a;
    int64_t *counts = m3_scratch_take(ctx, E, sizeof *counts);
    int64_t most = counts ? most_rows(counts, ids, T * K, E) : 0;
    if (ctx->linear != M3_LINEAR_ORDERED) most = m3_min(most, ROWS);
    int status = counts ? make(ctx, &a, T, most, H, F) : M3_INTERNAL;
    if (!status && dx) memset(dx, 0, (size_t)(T * H) * sizeof *dx);
    for (int64_t e = 0; !status && e < E; e++) {
        int64_t count = 0;
        for (int64_t i = 0; i < T * K && counts[e]; i++)
            if (ids[i] == e) a.slot[count++] = i;
        status = one_expert(ctx, &a, dx, dp, dw ? &dw[e] : NULL, dy, x, p, &experts[e], act, count, most, K, factor);
    }
    m3_scratch_release(ctx, mark);
    return status;
}
