/* A plug-in with a known mistake, rope.full: all channels of a head are turned, with the table's angles repeated. It
 * takes what base/ offers an operator: threads, scratch memory, the place of a failure. */
#include <string.h>

#include "ops/ops.h"

static int rope_full(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                     int64_t heads, int64_t D, int64_t R)
{
    size_t mark = m3_scratch_mark(ctx);
    real *copy = m3_scratch_take(ctx, T * heads * D, sizeof *copy);     /* y may be x */
    if (!copy) return M3_INTERNAL;
    if (D % 2) return m3_fail_at(ctx, M3_UNAVAILABLE, "an odd number of channels", 0, -1, -1);
    memcpy(copy, x, (size_t)(T * heads * D) * sizeof *copy);

#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D))
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < D / 2; i++) {
                int64_t at = (t * heads + h) * D + i, angle = t * (R / 2) + i % (R / 2);
                real a = copy[at], b = copy[at + D / 2];
                y[at] = a * cos[angle] - b * sin[angle];
                y[at + D / 2] = b * cos[angle] + a * sin[angle];
            }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    ops->rope = rope_full;
    return M3_OK;
}
