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
