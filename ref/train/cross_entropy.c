#include "ops/math.h"
#include "train/losses.h"

/* The largest logit, and the sum of exp(z - largest). */
static double sum_of(double *largest, const real *z, int64_t V)
{
    double sum = 0;
    *largest = (double)z[0];
    for (int64_t v = 1; v < V; v++)
        if ((double)z[v] > *largest) *largest = (double)z[v];
    for (int64_t v = 0; v < V; v++) sum = sum + m3_exp((double)z[v] - *largest);
    return sum;
}

/* Cross-entropy of the rows that have a target, and its gradient. TRAINING 19.15
 *
 *     loss = sum over t of (ln sum exp z[t] - z[t, target]) / divisor
 *     dz[t,v] = (softmax(z[t])[v] - [v = target]) weight / divisor;   0 in rows without a target
 *
 * z, dz [T,V], dz may be z; targets [T].  Often wrong: divided by all rows; a mean of the means of sequences. */
int m3_cross_entropy(struct m3_ctx *ctx, double *loss, real *dz, const real *z, const int32_t *targets, int64_t T,
                     int64_t V, double divisor, double weight)
{
    for (int64_t t = 0; t < T; t++)
        if (targets[t] >= V) return m3_fail_at(ctx, M3_BAD_INPUT, "a label beyond the vocabulary", t, -1, -1);

    size_t mark = m3_scratch_mark(ctx);
    double *of_row = m3_scratch_take(ctx, T, sizeof *of_row);
    if (!of_row) return M3_INTERNAL;

#pragma omp parallel for num_threads(m3_team(ctx, T * V * 16))
    for (int64_t t = 0; t < T; t++) {
        const real *z_t = z + t * V;
        double largest = 0, sum = targets[t] < 0 ? 1 : sum_of(&largest, z_t, V);
        of_row[t] = targets[t] < 0 ? 0 : m3_log(sum) + largest - (double)z_t[targets[t]];
        for (int64_t v = 0; v < V; v++) {
            const double p = targets[t] < 0 ? 0 : m3_exp((double)z_t[v] - largest) / sum - (v == targets[t]);
            dz[t * V + v] = (real)(p * weight / divisor);
        }
    }
    for (int64_t t = 0; t < T; t++) *loss = *loss + of_row[t] / divisor;
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
