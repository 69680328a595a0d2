#include <math.h>

#include "oracle/error/private/bounds_experts.h"
#include "oracle/error/propagate.h"

/* One row: p_k = s_k / S. With E' the errors of the other chosen scores, exactly
 *
 *     |p' - p| <= ((1 - p_k) e_k + p_k E') / (S - |E' - e_k|)
 *     variance  = ((1 - p_k)^2 v_k + p_k^2 sum of the others' v) / S^2                                         */
static void weights(struct m3_spread *out, int64_t at, const double *s, const struct m3_spread *of_s, int64_t at_s,
                    const int32_t *ids, int64_t K)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++) sum += s[ids[k]];
    for (int64_t k = 0; k < K; k++) {
        double p = s[ids[k]] / sum, e = of_s->error[at_s + ids[k]], v = of_s->variance[at_s + ids[k]];
        double others_e = 0, others_v = 0;
        for (int64_t i = 0; i < K; i++) {
            if (i == k) continue;
            others_e += of_s->error[at_s + ids[i]];
            others_v += of_s->variance[at_s + ids[i]];
        }
        double least = sum - fabs(others_e - e), error = ((1 - p) * e + p * others_e) / least, most = fmax(p, 1 - p);
        out->error[at + k] += least <= 0 || error > most ? most : error;
        out->variance[at + k] += ((1 - p) * (1 - p) * v + p * p * others_v) / (sum * sum);
    }
}

int m3_propagate_route(struct m3_ctx *ctx, struct m3_spread *out, const double *s, const struct m3_spread *of_s,
                  const int32_t *ids, int64_t T, int64_t E, int64_t K)
{
    for (int64_t i = 0; i < T * K; i++)
        if (ids[i] < 0 || ids[i] >= E) return m3_fail_at(ctx, M3_BAD_INPUT, "expert out of range", i / K, -1, -1);
    for (int64_t t = 0; t < T && !m3_is_exact(of_s); t++) weights(out, t * K, s + t * E, of_s, t * E, ids + t * K, K);
    return M3_OK;
}

/* error = factor sum (|p| e + e_p |each| + e_p e) + u (K + 1) factor sum |p each|
 *
 * In a coarser type the products are rounded, all sums but the first, and the last product: K + 1 roundings. */
int m3_propagate_routed(struct m3_ctx *ctx, struct m3_spread *out, const double *each, const double *p,
                   const struct m3_spread *of_each, const struct m3_spread *of_p, int64_t T, int64_t K, int64_t H,
                   double factor, double u_sum)
{
    int each_off = !m3_is_exact(of_each), p_off = !m3_is_exact(of_p);
    if (!each_off && !p_off && u_sum == 0) return M3_OK;
    double steps = (double)(K + 1), size = fabs(factor);
#pragma omp parallel for num_threads(m3_team(ctx, T * K * H))
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            double error = 0, variance = 0, mass = 0;
            for (int64_t i = t * K; i < (t + 1) * K; i++) {
                double y = each[i * H + h], w = p[i], e_y = each_off ? of_each->error[i * H + h] : 0;
                double v_y = each_off ? of_each->variance[i * H + h] : 0, e_w = p_off ? of_p->error[i] : 0;
                double v_w = p_off ? of_p->variance[i] : 0;
                error += fabs(w) * e_y + e_w * fabs(y) + e_w * e_y;
                variance += w * w * v_y + v_w * y * y + v_w * v_y;
                mass += fabs(w * y);
            }
            out->error[t * H + h] += size * (error + u_sum * steps * mass);
            out->variance[t * H + h] += size * size * (variance + steps * (u_sum * mass) * (u_sum * mass) / 3);
        }
    return M3_OK;
}
