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
