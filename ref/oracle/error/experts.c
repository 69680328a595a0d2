#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

/* ---- tokens grouped by the expert that they selected */

enum { ROWS = M3_MLP_ROWS };    /* tokens of an expert at a time */

/* Slots t K + k of ids [T,K] that selected an expert, ascending from `first` on, at most ROWS. Returns their number. */
static int64_t slots_of(int64_t *slots, int64_t *first, const int32_t *ids, int64_t count, int64_t expert)
{
    int64_t n = 0;
    for (; *first < count && n < ROWS; ++*first)
        if (ids[*first] == expert) slots[n++] = *first;
    return n;
}

/* to [n,H] := rows slots[i] / K of x. */
static void gather_tokens(double *to, const double *x, const int64_t *slots, int64_t n, int64_t K, int64_t H)
{
    for (int64_t i = 0; i < n; i++) memcpy(to + i * H, x + slots[i] / K * H, (size_t)H * sizeof *to);
}

/* ---- each expert's output: a gated MLP; value and bound in one pass over the weights */

int m3_bound_experts(struct m3_ctx *ctx, struct m3_bound *each, double *y, const double *x, const int32_t *ids,
                     const struct m3_expert *experts, const struct m3_gate *g, int64_t T, int64_t E, int64_t K,
                     const struct m3_arithmetic *how)
{
    const int64_t H = experts[0].w1.cols, size = ROWS * H;
    const size_t mark = m3_scratch_mark(ctx), bytes = (size_t)H * sizeof(double);
    double *in = m3_scratch_take(ctx, 4 * size, sizeof *in), *out = in + size;
    struct m3_bound bound = { .bound = in + 2 * size, .walk = in + 3 * size, .largest = each->largest };
    int status = in ? m3_check_experts(ctx, ids, T * K, E, K) : M3_INTERNAL;
    int64_t slots[ROWS];
    each->n = 0, each->f = 1;
    for (int64_t e = 0; e < E; e++)
        for (int64_t first = 0, n; !status && (n = slots_of(slots, &first, ids, T * K, e)) > 0;) {
            const struct m3_expert *w = &experts[e];
            gather_tokens(in, x, slots, n, K, H);
            status = m3_bound_gated_mlp(ctx, &bound, out, in, &w->w1, &w->w3, &w->w2, g, n, how);
            for (int64_t i = 0; i < n && !status; i++) {
                if (y) memcpy(y + slots[i] * H, out + i * H, bytes);
                memcpy(each->bound + slots[i] * H, bound.bound + i * H, bytes);
                if (each->walk) memcpy(each->walk + slots[i] * H, bound.walk + i * H, bytes);
            }
        }
    m3_scratch_release(ctx, mark);
    return status;
}

static const struct m3_expert *experts_of(const struct m3_recomputing *m)
{
    return (const struct m3_expert *)(const void *)m->w[0];
}

/* The routing weights by which an engine multiplies the activations; NULL: it weights the outputs. */
static const double *weights_of(const struct m3_recomputing *m) { return m->in[2].values; }

static int value(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const double *p = weights_of(m);
    int status = m3_bound_experts(m->ctx, &m->bound, m->y, m->in[0].values, m->in[1].ids, experts_of(m), &gate, m->rows,
                                  c->E, c->K, &m->how);
    for (int64_t i = 0; p && i < m->count; i++) {
        const double weight = p[i / c->H];
        m->y[i] *= weight;
        m->bound.bound[i] *= fabs(weight);
        m->bound.walk[i] *= fabs(weight);
    }
    return status;
}

/* With weights: they may be stored like the activations, and each product with one is. */
static int prepare(struct m3_recomputing *m)
{
    const double u = m->stored[3];
    int status = m3_prepare_gated_mlp(m);
    if (weights_of(m)) m->stored[3] += 2 * u;
    return status;
}

int m3_propagate_experts(struct m3_ctx *ctx, struct m3_spread *each, const double *x, const struct m3_spread *of_x,
                         const int32_t *ids, const struct m3_expert *experts, const struct m3_gate *g, int64_t T,
                         int64_t E, int64_t K, const struct m3_mlp_storage *storage)
{
    const int64_t H = experts[0].w1.cols, size = ROWS * H;
    const size_t mark = m3_scratch_mark(ctx);
    double *in = m3_scratch_take(ctx, 5 * size, sizeof *in);
    struct m3_spread off = { in + size, in + 2 * size }, out = { in + 3 * size, in + 4 * size };
    int status = in ? m3_check_experts(ctx, ids, T * K, E, K) : M3_INTERNAL;
    int64_t slots[ROWS];
    for (int64_t e = 0; e < E; e++)
        for (int64_t first = 0, n; !status && (n = slots_of(slots, &first, ids, T * K, e)) > 0;) {
            const struct m3_expert *w = &experts[e];
            gather_tokens(in, x, slots, n, K, H);
            if (!m3_is_exact(of_x)) gather_tokens(off.error, of_x->error, slots, n, K, H);
            if (!m3_is_exact(of_x)) gather_tokens(off.variance, of_x->variance, slots, n, K, H);
            memset(out.error, 0, (size_t)(2 * size) * sizeof *out.error);
            status = m3_propagate_gated_mlp(ctx, &out, in, m3_is_exact(of_x) ? NULL : &off, &w->w1, &w->w3, &w->w2, g,
                                            n, storage);
            for (int64_t i = 0; i < n && !status; i++) {
                struct m3_spread to = m3_spread_from(each, slots[i] * H), from = m3_spread_from(&out, i * H);
                m3_propagate_add(&to, &from, NULL, H);
            }
        }
    m3_scratch_release(ctx, mark);
    return status;
}

static int propagate(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_mlp_storage storage = m3_mlp_storage_of(m);
    const double *p = weights_of(m);
    int status = m3_propagate_experts(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, m->in[1].ids, experts_of(m),
                                      &gate, m->rows, c->E, c->K, &storage);
    for (int64_t i = 0; p && i < m->count; i++) {
        const double weight = fabs(p[i / c->H]), y = weight > 0 ? m->y[i] / weight : 0;
        m->spread.error[i] *= weight;
        m->spread.variance[i] *= weight * weight;
        if (!m3_is_off(&m->in[2])) continue;
        m->spread.error[i] += m->in[2].off.error[i / c->H] * fabs(y);
        m->spread.variance[i] += m->in[2].off.variance[i / c->H] * y * y;
    }
    return status;
}

const struct m3_error_operator m3_error_expert = {
    .name = "expert",
    .sections = { "5.15 experts" },
    .value = value,
    .propagate = propagate,
    .roundings = 1,
    .prepare = prepare,
    .linears = 2,
    .in_parts = 1,
    .points = { "moe.expert.gate", "moe.expert.up", "moe.expert.chain", "moe.expert.act" },
};

/* ---- the weighted sum of given outputs */

/* Outputs that are weighted already are only added. */
static int routed_prepare(struct m3_recomputing *m)
{
    const int64_t n = m->rows * m->config->K;
    if (!m3_setting_weighs_first(m->setting, m->layer)) return m->status;
    double *ones = m3_recompute_scratch(m, n, sizeof *ones);
    for (int64_t i = 0; ones && i < n; i++) ones[i] = 1;
    m->in[1].values = ones;
    m->in[1].off = (struct m3_spread){ NULL, NULL };
    return m->status;
}

static int routed_value(struct m3_recomputing *m)
{
    const int64_t K = m->config->K, H = m->config->H;
    const double *each = m->in[0].values, *p = m->in[1].values;
    for (int64_t r = 0; r < m->rows; r++) {
        double *y = m->y + r * H;
        memset(y, 0, (size_t)H * sizeof *y);
        for (int64_t k = r * K; k < (r + 1) * K; k++)
            for (int64_t i = 0; i < H; i++) y[i] += p[k] * each[k * H + i];
        for (int64_t i = 0; i < H; i++) y[i] *= m->config->routed_scaling;
    }
    return M3_OK;
}

/* B = factor sum |p| |each|, steps = K + 1, or K + 2 if factor is not a power of 2; walk^2 = steps B^2 */
int m3_bound_routed(struct m3_ctx *ctx, struct m3_bound *out, const double *each, const double *p, int64_t T, int64_t K,
                    int64_t H, double factor)
{
    out->n = K;
    out->f = m3_is_power_of_two(factor) ? 1 : 2;
#pragma omp parallel for num_threads(m3_team(ctx, T * K * H))
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < H; i++) {
            double mass = 0;
            for (int64_t k = 0; k < K; k++) mass += fabs(p[t * K + k] * each[(t * K + k) * H + i]);
            out->bound[t * H + i] = fabs(factor) * mass;
            if (out->walk) out->walk[t * H + i] = sqrt((double)(out->n + out->f)) * fabs(factor) * mass;
        }
    return M3_OK;
}

static int routed_bound(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    return m3_bound_routed(m->ctx, &m->bound, m->in[0].values, m->in[1].values, m->rows, c->K, c->H, c->routed_scaling);
}

/* error = factor sum (|p| e + e_p |each| + e_p e) + u (K + 1) factor sum |p each|
 *
 * In a coarser type the products, all sums except the first, and the last product are rounded: K + 1 roundings. */
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

static int routed_propagate(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const struct m3_tap_values *each = &m->in[0], *p = &m->in[1];
    const double steps = (double)(c->K + 1), floor = m->floor[0] * fmax(1, fabs(c->routed_scaling));
    for (int64_t i = 0; i < m->count && floor > 0; i++) {
        m->spread.error[i] += steps * floor;
        m->spread.variance[i] += steps * floor * floor / 3;
    }
    return m3_propagate_routed(m->ctx, &m->spread, each->values, p->values, &each->off, &p->off, m->rows, c->K, c->H,
                               c->routed_scaling, m->stored[0]);
}

const struct m3_error_operator m3_error_routed = {
    .name = "routed",
    .sections = { "5.15 experts" },
    .value = routed_value,
    .bound = routed_bound,
    .roundings = 1,
    .propagate = routed_propagate,
    .prepare = routed_prepare,
    .points = { "moe.routed.sum" },
};
