/* A kernel of the operator that softcap.patch adds: y := limit tanh(x / limit); WRONG: without the limit, and its
 * derivative is that of the right one. */
#include <math.h>

#include "ops/ops.h"

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

static int softcap(struct m3_ctx *ctx, real *y, const real *x, int64_t n, real limit)
{
    (void)ctx;
#ifdef WRONG
    limit = 1;
#endif
    for (int64_t i = 0; i < n; i++) y[i] = limit * tanhf(x[i] / limit);
    return M3_OK;
}

int m3_plugin(struct m3_ops *ops)
{
    ops->softcap = softcap;
    return M3_OK;
}
