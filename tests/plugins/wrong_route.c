/* A plug-in with a known mistake, router.no_bias: experts are chosen, and weighed, without the correction bias, by the
 * squares of their scores. Nothing but the choice and its weights differs. */
#include "ops/ops.h"

static int route_without_bias(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T,
                              int64_t E, int64_t K)
{
    (void)ctx, (void)bias;
    for (int64_t t = 0; t < T; t++) {
        const real *s_t = s + t * E;
        real sum = 0;
        for (int64_t k = 0; k < K; k++) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; e++) {
                int taken = 0;
                for (int64_t i = 0; i < k; i++) taken |= ids[t * K + i] == e;
                if (!taken && (best < 0 || s_t[e] > s_t[best])) best = e;
            }
            ids[t * K + k] = (int32_t)best;
            p[t * K + k] = s_t[best] * s_t[best];
            sum += p[t * K + k];
        }
        for (int64_t k = 0; k < K; k++) p[t * K + k] /= sum;
    }
    return M3_OK;
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    ops->route = route_without_bias;
    return M3_OK;
}
