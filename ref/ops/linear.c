#include <omp.h>

#include "ops/expand.h"
#include "ops/operators.h"

/* A weight matrix applied to every row. SPEC 5.4
 *
 *     y[t,n] = sum over k of x[t,k] w[n,k] + bias[n]
 *
 * y [T,rows]; x [T,cols]; w [rows,cols] as stored; bias [rows] or NULL.
 * Order: `ordered`, whatever order the context asks for: k ascending, product and sum each rounded, the bias last.
 * Often wrong: x w instead of x w': files store [out,in]. */
int m3_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    int team = m3_team(ctx, T * w->rows * w->cols);
    size_t mark = m3_scratch_mark(ctx);
    real *rows = m3_scratch_take(ctx, team * w->cols, sizeof *rows);
    if (!rows) return M3_INTERNAL;

#pragma omp parallel for num_threads(team)
    for (int64_t n = 0; n < w->rows; n++) {
        real *w_n = rows + omp_get_thread_num() * w->cols;
        m3_expand_row(w_n, w, n);

        for (int64_t t = 0; t < T; t++) {
            const real *x_t = x + t * w->cols;
            real sum = 0;
            for (int64_t k = 0; k < w->cols; k++) sum = sum + w_n[k] * x_t[k];
            y[t * w->rows + n] = bias ? sum + bias[n] : sum;
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
