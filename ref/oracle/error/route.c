#include "oracle/error/private/recompute.h"

#include <math.h>

int m3_check_experts(struct m3_ctx *ctx, const int32_t *ids, int64_t count, int64_t E, int64_t K)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= E) return m3_fail_at(ctx, M3_BAD_INPUT, "expert out of range", i / K, -1, -1);
    return M3_OK;
}

/* The weights of given expert ids. */
static int value(struct m3_recomputing *m)
{
    const int64_t K = m->config->K, E = m->config->E;
    const double *s = m->in[0].values;
    const int32_t *ids = m->in[1].ids;
    if (m3_check_experts(m->ctx, ids, m->count, E, K)) return M3_BAD_INPUT;
    for (int64_t r = 0; r < m->rows; r++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += s[r * E + ids[r * K + k]];
        for (int64_t k = 0; k < K; k++) m->y[r * K + k] = s[r * E + ids[r * K + k]] / sum;
    }
    return M3_OK;
}

/* B = p, steps = K + 1, walk^2 = (K + 1) p^2 */

int m3_bound_route(struct m3_ctx *ctx, struct m3_bound *out, const double *s, const int32_t *ids, int64_t T, int64_t E,
                   int64_t K)
{
    out->n = K;
    out->f = 1;
    if (m3_check_experts(ctx, ids, T * K, E, K)) return M3_BAD_INPUT;
    for (int64_t t = 0; t < T; t++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += s[t * E + ids[t * K + k]];
        for (int64_t k = 0; k < K; k++) {
            double p = s[t * E + ids[t * K + k]] / sum;
            out->bound[t * K + k] = fabs(p);
            if (out->walk) out->walk[t * K + k] = sqrt((double)(K + 1)) * fabs(p);
        }
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    return m3_bound_route(m->ctx, &m->bound, m->in[0].values, m->in[1].ids, m->rows, m->config->E, m->config->K);
}

/* One row: p_k = s_k / S. With E' the errors of the other selected scores, exactly
 *
 *     |p' - p| <= ((1 - p_k) e_k + p_k E') / (S - |E' - e_k|)
 *     variance  = ((1 - p_k)^2 v_k + p_k^2 sum of the others' v) / S^2 */
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
    if (m3_check_experts(ctx, ids, T * K, E, K)) return M3_BAD_INPUT;
    for (int64_t t = 0; t < T && !m3_is_exact(of_s); t++) weights(out, t * K, s + t * E, of_s, t * E, ids + t * K, K);
    return M3_OK;
}

static int propagate(struct m3_recomputing *m)
{
    const struct m3_tap_values *s = &m->in[0];
    if (m->stored[0] > 0) m3_propagate_store(&m->spread, m->y, m->count, m->stored[0], 0);      /* of the sum */
    return m3_propagate_route(m->ctx, &m->spread, s->values, &s->off, m->in[1].ids, m->rows, m->config->E,
                              m->config->K);
}

const struct m3_error_operator m3_error_route = {
    .name = "route",
    .sections = { "5.14 route" },
    .value = value,
    .bound = bound,
    .propagate = propagate,
    .roundings = 1,
    .points = { "moe.weights.sum" },
};

/* ---- the ids themselves, selected from given scores */

const struct m3_error_operator m3_error_select_experts = {
    .name = "route",
    .sections = { "5.14 route" },
    .points = { "moe.experts.sum" },
};
