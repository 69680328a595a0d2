#include <string.h>

#include "base/minmax.h"
#include "ops/lists.h"
#include "ops/operators.h"

/* The same sums as ops/experts.c, expert by expert over all tokens that selected it: each matrix is read once. */
enum { ROWS = 1024 };       /* tokens of one expert at a time: bounds the scratch memory */

/* The tokens of one expert: the slots t * K + k that name it, ascending. Returns their number. */
static int64_t slots_of(int64_t *slots, const int32_t *ids, int64_t count, int64_t expert)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] == expert) slots[n++] = i;
    return n;
}

/* out [n,H] := w2 act(w1 x, w3 x) for the rows x [n,H]. gate, up [n,F] are scratch. */
static int one_expert(struct m3_ctx *ctx, real *out, const real *x, real *gate, real *up, const struct m3_expert *e,
                      const struct m3_activation *act, int64_t n)
{
    int64_t F = e->w1.rows;
    int status = m3_fast_linear(ctx, gate, x, &e->w1, NULL, n);
    if (!status) status = m3_fast_linear(ctx, up, x, &e->w3, NULL, n);
    if (!status)
        status =
            act->oai ? m3_fast_swiglu_oai(ctx, gate, gate, up, n, F, act) : m3_fast_swiglu(ctx, gate, gate, up, n, F);
    if (!status) status = m3_fast_linear(ctx, out, gate, &e->w2, NULL, n);
    return status;
}

int m3_fast_experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                    const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                    real factor)
{
    int64_t H = experts[0].w1.cols, F = experts[0].w1.rows, rows = m3_min(T, ROWS);
    int64_t bad = m3_bad_experts(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "ids are not distinct experts", bad, -1, -1);

    size_t mark = m3_scratch_mark(ctx);
    int64_t *slots = m3_scratch_take(ctx, T * K, sizeof *slots);
    real *in = m3_scratch_take(ctx, rows * H, sizeof *in), *out = m3_scratch_take(ctx, rows * H, sizeof *out);
    real *gate = m3_scratch_take(ctx, rows * F, sizeof *gate), *up = m3_scratch_take(ctx, rows * F, sizeof *up);
    int status = slots && in && out && gate && up ? M3_OK : M3_INTERNAL;

    memset(routed, 0, (size_t)(T * H) * sizeof *routed);
    for (int64_t e = 0; e < E && !status; e++) {
        int64_t count = slots_of(slots, ids, T * K, e);
        for (int64_t i0 = 0; i0 < count; i0 += rows) {
            int64_t n = m3_min(rows, count - i0);
            for (int64_t i = 0; i < n; i++) memcpy(in + i * H, x + slots[i0 + i] / K * H, (size_t)H * sizeof *in);
            status = one_expert(ctx, out, in, gate, up, &experts[e], act, n);
            if (status) break;

#pragma omp parallel for num_threads(m3_team(ctx, n *H))
            for (int64_t i = 0; i < n; i++) {
                int64_t slot = slots[i0 + i];
                real *routed_t = routed + slot / K * H;
                for (int64_t h = 0; h < H; h++) routed_t[h] = routed_t[h] + p[slot] * out[i * H + h];
                if (each) memcpy(each + slot * H, out + i * H, (size_t)H * sizeof *each);
            }
        }
    }
    for (int64_t i = 0; i < T * H; i++) routed[i] = routed[i] * factor;
    m3_scratch_release(ctx, mark);
    return status;
}
