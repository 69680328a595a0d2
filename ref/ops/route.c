#include "ops/backward.h"
#include "ops/lists.h"
#include "ops/operators.h"

/* The index of the largest s + bias that is not yet taken; the lower index wins a tie. */
static int64_t best_left(const real *s, const real *bias, const int32_t *taken, int64_t n, int64_t E)
{
    int64_t best = -1;
    for (int64_t e = 0; e < E; e++) {
        int is_taken = 0;
        for (int64_t i = 0; i < n; i++) is_taken |= taken[i] == e;
        if (!is_taken && (best < 0 || s[e] + bias[e] > s[best] + bias[best])) best = e;
    }
    return best;
}

static int64_t nan_expert(const real *s, const real *bias, int64_t E)
{
    for (int64_t e = 0; e < E; e++)
        if (s[e] + bias[e] != s[e] + bias[e]) return e;
    return -1;
}

/* The experts of each token and their weights. SPEC 5.14
 *
 *     ids = the K largest of s + bias, largest first, the lower id first on a tie;  p[k] = s[ids[k]] / sum over k
 *
 * ids [T,K]; p [T,K], before the scaling factor; s [T,E] without bias; bias [E].
 * NaN in s + bias is an error that names the row and the expert; selected scores with sum 0 are an error that names
 * the row. Often wrong: weights that include the bias; a softmax; no division by the sum. */
int m3_route(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
             int64_t K)
{
    for (int64_t t = 0; t < T; t++) {
        const real *s_t = s + t * E;
        int32_t *ids_t = ids + t * K;
        real *p_t = p + t * K, sum = 0;

        int64_t bad = nan_expert(s_t, bias, E);
        if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "NaN in an expert's score", t, -1, bad);

        for (int64_t k = 0; k < K; k++) {
            ids_t[k] = (int32_t)best_left(s_t, bias, ids_t, k, E);
            sum = sum + s_t[ids_t[k]];
        }
        if (!(sum > 0)) return m3_fail_at(ctx, M3_WRONG, "scores of the chosen experts sum to 0", t, -1, -1);
        for (int64_t k = 0; k < K; k++) p_t[k] = s_t[ids_t[k]] / sum;
    }
    return M3_OK;
}

/* Gradient of the chosen experts' weights. TRAINING 19.9
 *
 *     ds[ids[k]] = (dp[k] - sum over m of dp[m] p[m]) / S,   p = s[ids] / S,  S = sum of s[ids];   0 for all others
 *
 * ds, s [T,E]; dp, ids [T,K].  In double, rounded once. Chosen scores with sum 0 are an error that names the row.
 * Often wrong: the second term missing; scores with the bias; a gradient for the bias, or through the choice. */
int m3_route_backward(struct m3_ctx *ctx, real *ds, const real *dp, const int32_t *ids, const real *s, int64_t T,
                      int64_t E, int64_t K)
{
    int64_t bad = m3_bad_experts(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "ids are not distinct experts", bad, -1, -1);

    for (int64_t t = 0; t < T; t++) {
        const real *s_t = s + t * E, *dp_t = dp + t * K;
        const int32_t *ids_t = ids + t * K;
        real *ds_t = ds + t * E;
        double sum = 0, mean = 0;

        for (int64_t k = 0; k < K; k++) sum = sum + (double)s_t[ids_t[k]];
        if (!(sum > 0)) return m3_fail_at(ctx, M3_WRONG, "scores of the chosen experts sum to 0", t, -1, -1);
        for (int64_t k = 0; k < K; k++) mean = mean + (double)dp_t[k] * ((double)s_t[ids_t[k]] / sum);

        for (int64_t e = 0; e < E; e++) ds_t[e] = 0;
        for (int64_t k = 0; k < K; k++) ds_t[ids_t[k]] = (real)(((double)dp_t[k] - mean) / sum);
    }
    return M3_OK;
}
