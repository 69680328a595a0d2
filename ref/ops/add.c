#include "ops/backward.h"
#include "ops/operators.h"

/* Sum of two arrays: residuals, routed + shared. SPEC 5.16
 *
 *     y = a + b
 *
 * y [n] may be a or b. */
int m3_add(struct m3_ctx *ctx, real *y, const real *a, const real *b, int64_t n)
{
#pragma omp parallel for num_threads(m3_team(ctx, n))
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
    return M3_OK;
}

/* Gradient of a sum: both inputs receive all of it. TRAINING 19.11
 *
 * da, db [n], one of which may be dy; dy [n]. */
int m3_add_backward(struct m3_ctx *ctx, real *da, real *db, const real *dy, int64_t n)
{
#pragma omp parallel for num_threads(m3_team(ctx, n))
    for (int64_t i = 0; i < n; i++) {
        real dy_i = dy[i];
        if (da) da[i] = dy_i;
        if (db) db[i] = dy_i;
    }
    return M3_OK;
}
