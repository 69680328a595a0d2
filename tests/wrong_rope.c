/* A plug-in with a known mistake, rope.full: all channels of a head are turned, with the table's angles repeated. */
#include "ops/ops.h"

static int rope_full(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                     int64_t heads, int64_t D, int64_t R)
{
    (void)ctx;
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < D / 2; i++) {
                int64_t at = (t * heads + h) * D + i, angle = t * (R / 2) + i % (R / 2);
                real a = x[at], b = x[at + D / 2];
                y[at] = a * cos[angle] - b * sin[angle];
                y[at + D / 2] = b * cos[angle] + a * sin[angle];
            }
    return M3_OK;
}

int m3_plugin(struct m3_ops *ops);

int m3_plugin(struct m3_ops *ops)
{
    if (ops->abi_version != M3_OPS_ABI || ops->real_bytes != (int)sizeof(real)) return M3_UNAVAILABLE;
    ops->rope = rope_full;
    return M3_OK;
}
