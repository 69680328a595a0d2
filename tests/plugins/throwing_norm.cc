// A plug-in in C++ whose rms_norm throws.
#include "ops/ops.h"

static int rms_norm(m3_ctx *, real *, const real *, const real *, int64_t, int64_t, real) { throw 1; }

extern "C" {
extern const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(m3_ops *ops)
{
    ops->rms_norm = rms_norm;
    return M3_OK;
}
}
