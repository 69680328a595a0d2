/* A plug-in with a known mistake: height and width exchanged in the tower's rotary embedding (vision.axis_order). */
#include "ops/ops.h"

static int (*reference)(struct m3_ctx *, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                        double theta, enum m3_rope_angle angle);

static int height_for_width(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                            double theta, enum m3_rope_angle angle)
{
    size_t mark = m3_scratch_mark(ctx);
    int64_t *swapped = m3_scratch_take(ctx, P * 3, sizeof *swapped);
    if (!swapped) return M3_INTERNAL;
    for (int64_t p = 0; p < P; p++) {
        swapped[3 * p] = places[3 * p];
        swapped[3 * p + 1] = places[3 * p + 2];
        swapped[3 * p + 2] = places[3 * p + 1];
    }
    int status = reference(ctx, cos, sin, swapped, P, R, theta, angle);
    m3_scratch_release(ctx, mark);
    return status;
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    reference = ops->rope_table_3d;
    ops->rope_table_3d = height_for_width;
    return M3_OK;
}
