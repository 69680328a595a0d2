#include <string.h>

#include "ops/backward.h"
#include "ops/lists.h"
#include "ops/operators.h"

/* y [H] := w2 act(w1 x, w3 x) for one row x [H]; gate, up [F] are scratch. */
static int one_expert(struct m3_ctx *ctx, real *y, const real *x, real *gate, real *up, const struct m3_expert *e,
                      const struct m3_activation *act)
{
    int64_t F = e->w1.rows;
    int status = m3_linear(ctx, gate, x, &e->w1, NULL, 1);
    if (!status) status = m3_linear(ctx, up, x, &e->w3, NULL, 1);
    if (!status)
        status = act->oai ? m3_swiglu_oai(ctx, gate, gate, up, 1, F, act) : m3_swiglu(ctx, gate, gate, up, 1, F);
    return status ? status : m3_linear(ctx, y, gate, &e->w2, NULL, 1);
}

/* The selected experts of each token, and their weighted sum. SPEC 5.15
 *
 *     each[t,k] = w2 act(w1 x[t], w3 x[t]) of expert ids[t,k],   routed[t] = factor * sum of p[t,k] each[t,k]
 *
 * routed [T,H]; each [T,K,H] or NULL; x [T,H]; ids, p [T,K], ids of a row distinct and below E; experts [E].
 * Order: a token's sum starts from 0 and adds its experts by ascending id; the factor is applied last.
 * Often wrong: the factor missing, or applied to the shared expert too; w1 and w3 exchanged. */
int m3_experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
               const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
               real factor)
{
    int64_t H = experts[0].w1.cols, F = experts[0].w1.rows;
    int64_t bad = m3_bad_experts(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "ids are not distinct experts", bad, -1, -1);

    size_t mark = m3_scratch_mark(ctx);
    real *gate = m3_scratch_take(ctx, F, sizeof *gate), *up = m3_scratch_take(ctx, F, sizeof *up);
    real *y = m3_scratch_take(ctx, H, sizeof *y);
    int status = gate && up && y ? M3_OK : M3_INTERNAL;

    for (int64_t t = 0; t < T && !status; t++) {
        real *routed_t = routed + t * H;
        for (int64_t i = 0; i < H; i++) routed_t[i] = 0;

        for (int64_t e = 0; e < E; e++)
            for (int64_t k = 0; k < K && !status; k++) {
                if (ids[t * K + k] != e) continue;
                status = one_expert(ctx, y, x + t * H, gate, up, &experts[e], act);
                for (int64_t i = 0; i < H && !status; i++) routed_t[i] = routed_t[i] + p[t * K + k] * y[i];
                if (each && !status) memcpy(each + (t * K + k) * H, y, (size_t)H * sizeof *y);
            }
        for (int64_t i = 0; i < H; i++) routed_t[i] = routed_t[i] * factor;
    }
    m3_scratch_release(ctx, mark);
    return status;
}

void m3_experts_sum(real *routed, const real *each, const int32_t *ids, const real *p, int64_t T, int64_t K, int64_t H,
                    real factor)
{
    for (int64_t t = 0; t < T; t++) {
        real *routed_t = routed + t * H;
        for (int64_t i = 0; i < H; i++) routed_t[i] = 0;

        for (int64_t n = 0, last = -1; n < K; n++) {
            int64_t next = -1;          /* the slot with the lowest id that is not yet added */
            for (int64_t k = 0; k < K; k++)
                if (ids[t * K + k] > last && (next < 0 || ids[t * K + k] < ids[t * K + next])) next = k;
            last = ids[t * K + next];
            const real *each_tk = each + (t * K + next) * H;
            for (int64_t i = 0; i < H; i++) routed_t[i] = routed_t[i] + p[t * K + next] * each_tk[i];
        }
        for (int64_t i = 0; i < H; i++) routed_t[i] = routed_t[i] * factor;
    }
}

/* The rows of one expert, gathered, and what its gradient needs. n rows of n <= T. */
struct gathered {
    int64_t *slot;              /* [T] t K + k, ascending */
    real *x, *dy;               /* [T,H] */
    real *gate, *up, *act;      /* [T,F] */
    real *d_act, *d_up;         /* [T,F] v and then the gradients of act and gate; of up */
    real *dx;                   /* [T,H] */
};

static int make(struct m3_ctx *ctx, struct gathered *a, int64_t T, int64_t H, int64_t F)
{
    a->slot = m3_scratch_take(ctx, T, sizeof *a->slot);
    real **const wide[] = { &a->x, &a->dy, &a->dx },
                 **const narrow[] = { &a->gate, &a->up, &a->act, &a->d_act, &a->d_up };
    int missing = !a->slot;
    for (int i = 0; i < 3; i++) missing |= !(*wide[i] = m3_scratch_take(ctx, T * H, sizeof(real)));
    for (int i = 0; i < 5; i++) missing |= !(*narrow[i] = m3_scratch_take(ctx, T * F, sizeof(real)));
    return missing ? M3_INTERNAL : M3_OK;
}

/* gate and up of n rows, and act of them. */
static int activate(struct m3_ctx *ctx, struct gathered *a, const struct m3_expert *e, const struct m3_activation *act,
                    int64_t n)
{
    const int64_t F = e->w1.rows;
    int status = m3_linear(ctx, a->gate, a->x, &e->w1, NULL, n);
    if (!status) status = m3_linear(ctx, a->up, a->x, &e->w3, NULL, n);
    if (status) return status;
    return act->oai ? m3_swiglu_oai(ctx, a->act, a->gate, a->up, n, F, act)
                    : m3_swiglu(ctx, a->act, a->gate, a->up, n, F);
}

/* dp and, of one expert, dw; dx [n,H] of its rows: a->dx. */
static int expert_gradient(struct m3_ctx *ctx, struct gathered *a, real *dp, const struct m3_expert_gradient *dw,
                           const real *p, const struct m3_expert *e, const struct m3_activation *act, int64_t n)
{
    const int64_t H = e->w1.cols, F = e->w1.rows;
    int status = activate(ctx, a, e, act, n);
    if (!status) status = m3_linear_backward(ctx, a->d_act, NULL, NULL, a->dy, a->act, &e->w2, n);
    for (int64_t r = 0; !status && r < n; r++) {
        const double p_r = (double)p[a->slot[r]];
        double sum = 0;
        for (int64_t f = 0; f < F; f++) {
            sum = sum + (double)a->d_act[r * F + f] * (double)a->act[r * F + f];
            a->d_act[r * F + f] = (real)(p_r * (double)a->d_act[r * F + f]);
        }
        if (dp) dp[a->slot[r]] = (real)sum;
        for (int64_t i = 0; i < H; i++) a->dy[r * H + i] = (real)(p_r * (double)a->dy[r * H + i]);
    }
    if (!status && dw) status = m3_linear_backward(ctx, NULL, dw->dw2, NULL, a->dy, a->act, &e->w2, n);
    if (status) return status;
    status = act->oai ? m3_swiglu_oai_backward(ctx, a->d_act, a->d_up, a->d_act, a->gate, a->up, n, F, act)
                      : m3_swiglu_backward(ctx, a->d_act, a->d_up, a->d_act, a->gate, a->up, n, F);
    if (!status) status = m3_linear_backward(ctx, a->dx, dw ? dw->dw1 : NULL, NULL, a->d_act, a->x, &e->w1, n);
    if (!status) status = m3_linear_backward(ctx, a->dy, dw ? dw->dw3 : NULL, NULL, a->d_up, a->x, &e->w3, n);
    for (int64_t i = 0; !status && i < n * H; i++) a->dx[i] = a->dx[i] + a->dy[i];
    return status;
}

/* Gradient of the selected experts. TRAINING 19.10
 *
 *     for each token t and slot k, of expert e = ids[t,k], with a = act(gate, up):
 *     d = factor dy[t],  v = w2' d,  dp[t,k] = v . a,  dw2 += p d a',  dgate and dup of p v by the activation,
 *     dw1 += dgate x',  dw3 += dup x',  dx[t] = sum over its slots of w1' dgate + w3' dup
 *
 * dx, dy, x [T,H]; dp, ids, p [T,K]; dw [E].  Experts ascend, and the rows of an expert ascend; its matrix gradients
 * are sums as in linear_backward, its inputs and results are rounded as in the forward pass. Experts without a row
 * receive nothing.  Often wrong: the factor missing, or applied to the shared expert too; dp from p times the output. */
int m3_experts_backward(struct m3_ctx *ctx, real *dx, real *dp, const struct m3_expert_gradient *dw, const real *dy,
                        const real *x, const int32_t *ids, const real *p, const struct m3_expert *experts,
                        const struct m3_activation *act, int64_t T, int64_t E, int64_t K, real factor)
{
    const int64_t H = experts[0].w1.cols, F = experts[0].w1.rows;
    int64_t bad = m3_bad_experts(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "ids are not distinct experts", bad, -1, -1);

    size_t mark = m3_scratch_mark(ctx);
    struct gathered a;
    int status = make(ctx, &a, T, H, F);
    for (int64_t i = 0; !status && dx && i < T * H; i++) dx[i] = 0;
    for (int64_t e = 0; !status && e < E; e++) {
        int64_t n = 0;
        for (int64_t i = 0; i < T * K; i++) {
            if (ids[i] != e) continue;
            memcpy(a.x + n * H, x + i / K * H, (size_t)H * sizeof *x);
            for (int64_t h = 0; h < H; h++) a.dy[n * H + h] = factor * dy[i / K * H + h];
            a.slot[n++] = i;
        }
        if (n) status = expert_gradient(ctx, &a, dp, dw ? &dw[e] : NULL, p, &experts[e], act, n);
        for (int64_t r = 0; !status && dx && r < n; r++)
            for (int64_t h = 0; h < H; h++) dx[a.slot[r] / K * H + h] = dx[a.slot[r] / K * H + h] + a.dx[r * H + h];
    }
    m3_scratch_release(ctx, mark);
    return status;
}
