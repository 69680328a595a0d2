#include <string.h>

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
