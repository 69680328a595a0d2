#include "base/generator.h"
#include "ops/operators.h"

/* Noise on the input of the mixture of experts while M2 is trained. SPEC 5.22
 *
 *     y[t,i] = x[t,i] (1 + eps (2 u - 1)),   u = draw(key, p H + i, 2^32) / 2^32, uniform in [0, 1)
 *
 * y [T,H] may be x; x [T,H].  Rows are places p0 .. p0+T-1: a token's noise does not depend on how a text is cut.
 * Order: the factor in double, rounded once to real; one product.
 * Often wrong: noise on the router's input only; the experts and the shared expert read the noisy input too. */
int m3_jitter(struct m3_ctx *ctx, real *y, const real *x, int64_t T, int64_t H, int64_t p0, double eps, uint64_t key)
{
    int team = m3_team(ctx, T * H);
#pragma omp parallel for num_threads(team)
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < H; i++) {
            double u = (double)m3_draw(key, (uint64_t)((p0 + t) * H + i), (uint64_t)1 << 32) * 0x1p-32;
            y[t * H + i] = x[t * H + i] * (real)(1 + eps * (2 * u - 1));
        }
    return M3_OK;
}
