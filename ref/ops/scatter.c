#include <string.h>

#include "ops/backward.h"
#include "ops/operators.h"

/* Picture features into the token stream. SPEC 5.21
 *
 *     y[t] = f[k] if ids[t] = id, the k-th such t;  otherwise x[t]
 *
 * y [T,H] may be x; x [T,H]; ids [T]; f [M,H].  It is an error if the number of such rows is not M.
 * Often wrong: features added to the placeholder's embedding instead of put in its place. */
int m3_scatter(struct m3_ctx *ctx, real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T,
               int64_t M, int64_t H)
{
    int64_t k = 0;
    for (int64_t t = 0; t < T; t++) k += ids[t] == id;
    if (k != M) return m3_fail_at(ctx, M3_BAD_INPUT, "not as many placeholder ids as picture features", -1, -1, -1);

    if (y != x) memcpy(y, x, (size_t)(T * H) * sizeof(real));
    k = 0;
    for (int64_t t = 0; t < T; t++)
        if (ids[t] == id) memcpy(y + t * H, f + k++ * H, (size_t)H * sizeof(real));
    return M3_OK;
}

/* Gradient of the scatter. TRAINING 19.14
 *
 *     df[k] = dy[t],  dx[t] = 0   if ids[t] = id, the k-th such t;   otherwise dx[t] = dy[t]
 *
 * dx [T,H] may be dy; df [M,H]; dy [T,H]; ids [T].  It is an error if the number of such rows is not M.
 * Often wrong: a gradient for the placeholder's embedding, which nobody reads. */
int m3_scatter_backward(struct m3_ctx *ctx, real *dx, real *df, const real *dy, const int32_t *ids, int32_t id,
                        int64_t T, int64_t M, int64_t H)
{
    int64_t k = 0;
    for (int64_t t = 0; t < T; t++) k += ids[t] == id;
    if (k != M) return m3_fail_at(ctx, M3_BAD_INPUT, "not as many placeholder ids as picture features", -1, -1, -1);

    k = 0;
    for (int64_t t = 0; df && t < T; t++)
        if (ids[t] == id) memcpy(df + k++ * H, dy + t * H, (size_t)H * sizeof(real));
    if (dx && dx != dy) memcpy(dx, dy, (size_t)(T * H) * sizeof(real));
    for (int64_t t = 0; dx && t < T; t++)
        if (ids[t] == id) memset(dx + t * H, 0, (size_t)H * sizeof(real));
    return M3_OK;
}
