#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/bounds.h"
#include "oracle/bounds_activation.h"
#include "oracle/bounds_dot.h"

enum { LANES = M3_DOT_LANES, ROWS = 64 };       /* tokens of a gated MLP at a time: bounds the scratch memory */

/* Weights of the chosen experts: B = p, steps = K + 1. */
int m3_bound_route(struct m3_ctx *ctx, struct m3_bound *out, const double *s, const int32_t *ids, int64_t T, int64_t E,
                   int64_t K)
{
    out->n = K;
    out->f = 1;
    for (int64_t t = 0; t < T; t++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) {
            int32_t id = ids[t * K + k];
            if (id < 0 || id >= E) return m3_fail_at(ctx, M3_BAD_INPUT, "expert out of range", t, -1, -1);
            sum += s[t * E + id];
        }
        for (int64_t k = 0; k < K; k++) {
            double p = s[t * E + ids[t * K + k]] / sum;
            out->bound[t * K + k] = fabs(p);
            if (out->walk) out->walk[t * K + k] = sqrt((double)(K + 1)) * fabs(p);
        }
    }
    return M3_OK;
}

static int factor_steps(double factor)
{
    int exponent;
    return frexp(fabs(factor), &exponent) == 0.5 ? 1 : 2;
}

/* The weighted sum of given outputs: B = factor sum |p| |each|, steps = K + 1, or K + 2 if factor is no power of 2. */
int m3_bound_routed(struct m3_ctx *ctx, struct m3_bound *out, const double *each, const double *p, int64_t T, int64_t K,
                    int64_t H, double factor)
{
    out->n = K;
    out->f = factor_steps(factor);
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

/* What goes into w2, of T rows: value, error over u, variance times 3 over u^2. Each [T,F]. */
struct inner {
    double *value, *error, *variance;
};

/* An allowance over u, underflow included. */
static double over_u(double bound, double steps, double u)
{
    return steps * (bound + (bound > 0 ? m3_bound_eta(u) / u : 0));
}

/* A gate and an up, with bounds of their own, through the activation:
 *
 *     e = |dy/dg| h_g + |dy/du| h_u + (5 + c) B_act       h = n B over u; all over u
 *
 * At a clamp that the error can reach, the steeper side counts. */
static void activate(const struct inner *inner, int64_t at, const struct m3_dots *gate, const struct m3_dots *up,
                     int64_t l, int64_t cols, int gate_rounded, int up_rounded, const struct m3_gate *g,
                     const struct m3_arithmetic *how)
{
    double z = gate->sum[l], w = up->sum[l], steps = m3_gate_steps(how), own = m3_gate_bound(z, w, g, how);
    double h_g = over_u(gate->mass[l], (double)(cols + gate_rounded), how->u);
    double h_u = over_u(up->mass[l], (double)(cols + up_rounded), how->u);
    double low = m3_up_clamped(w - how->u * h_u, g), high = m3_up_clamped(w + how->u * h_u, g);
    double one = g->oai ? 1 : 0, largest = fmax(fabs(low + one), fabs(high + one));
    double unit = m3_gate_value(z, 1 - one, g);                     /* g' sig(alpha g') */
    double by_gate = largest * m3_gate_slope(z, how->u * h_g, g), by_up = low < high ? fabs(unit) : 0;
    double gate_walk2 = m3_dot_walk2(gate, l, cols, gate_rounded, 0, z);
    double up_walk2 = m3_dot_walk2(up, l, cols, up_rounded, 0, w);

    inner->value[at] = m3_gate_value(z, w, g);
    inner->error[at] = by_gate * h_g + by_up * h_u + over_u(own, steps, how->u);
    inner->variance[at] = by_gate * by_gate * gate_walk2 + by_up * by_up * up_walk2 + steps * own * own;
}

/* inner [T,F] of x [T,H]. Panels [2 team] of H. */
static void first_half(const struct inner *inner, const double *x, const struct m3_weight *w1,
                       const struct m3_weight *w3, const struct m3_gate *g, int64_t T, int team, double *scratch,
                       const struct m3_arithmetic *how)
{
    int64_t F = w1->rows, H = w1->cols, each = H * (2 * LANES + 1);
    int rounded1 = m3_bound_weight_roundings(w1, how->u), rounded3 = m3_bound_weight_roundings(w3, how->u);

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n0 = 0; n0 < F; n0 += LANES) {
        int64_t lanes = m3_min(LANES, F - n0);
        double *gates = scratch + omp_get_thread_num() * each, *ups = gates + H * LANES, *row = ups + H * LANES;
        m3_dot_panel(gates, row, w1, n0, lanes);
        m3_dot_panel(ups, row, w3, n0, lanes);
        for (int64_t t = 0; t < T; t++) {
            struct m3_dots gate, up;
            m3_dots(&gate, x + t * H, gates, H);
            m3_dots(&up, x + t * H, ups, H);
            for (int64_t l = 0; l < lanes; l++)
                activate(inner, t * F + n0 + l, &gate, &up, l, H, rounded1, rounded3, g, how);
        }
    }
}

/* |w2| e and w2^2 var of one lane. */
static void push_through(double *error, double *variance, const double *panel, int64_t l, const struct inner *inner,
                         int64_t at, int64_t F)
{
    double e = 0, v = 0;
    for (int64_t k = 0; k < F; k++) {
        double w = panel[k * LANES + l];
        e += fabs(w) * inner->error[at + k];
        v += w * w * inner->variance[at + k];
    }
    *error = e;
    *variance = v;
}

/* B = |w2| e + (F + f) |w2| |a|: the whole allowance over u. y, bound, walk [T,H] (bound, walk: squares apart). */
static void second_half(double *y, double *bound, double *walk, const struct inner *inner, const struct m3_weight *w2,
                        int64_t T, int team, double *scratch, const struct m3_arithmetic *how)
{
    int64_t H = w2->rows, F = w2->cols, each = F * (LANES + 1);
    int rounded = m3_bound_weight_roundings(w2, how->u);

#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n0 = 0; n0 < H; n0 += LANES) {
        int64_t lanes = m3_min(LANES, H - n0);
        double *panel = scratch + omp_get_thread_num() * each;
        m3_dot_panel(panel, panel + F * LANES, w2, n0, lanes);
        for (int64_t t = 0; t < T; t++) {
            struct m3_dots dots;
            m3_dots(&dots, inner->value + t * F, panel, F);
            for (int64_t l = 0; l < lanes; l++) {
                int64_t at = t * H + n0 + l;
                double error, variance;
                push_through(&error, &variance, panel, l, inner, t * F, F);
                y[at] = dots.sum[l];
                bound[at] = error + over_u(dots.mass[l], (double)(F + rounded), how->u);
                walk[at] = sqrt(variance + m3_dot_walk2(&dots, l, F, rounded, 0, dots.sum[l]));
            }
        }
    }
}

/* y, bound, walk [T,H] of x [T,H], T <= ROWS. */
static int gated_mlp(struct m3_ctx *ctx, double *y, double *bound, double *walk, const double *x,
                     const struct m3_weight *w1, const struct m3_weight *w3, const struct m3_weight *w2,
                     const struct m3_gate *g, int64_t T, const struct m3_arithmetic *how)
{
    int64_t F = w1->rows, H = w1->cols, each = m3_max(H * (2 * LANES + 1), F * (LANES + 1));
    int team = m3_team(ctx, T * F * H);
    size_t mark = m3_scratch_mark(ctx);
    double *scratch = m3_scratch_take(ctx, team * each, sizeof *scratch);
    struct inner inner = { m3_scratch_take(ctx, T * F, sizeof(double)), m3_scratch_take(ctx, T * F, sizeof(double)),
                           m3_scratch_take(ctx, T * F, sizeof(double)) };
    int status = scratch && inner.value && inner.error && inner.variance ? M3_OK : M3_INTERNAL;
    if (!status) {
        first_half(&inner, x, w1, w3, g, T, team, scratch, how);
        second_half(y, bound, walk, &inner, w2, T, team, scratch, how);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

int m3_bound_gated_mlp(struct m3_ctx *ctx, struct m3_bound *out, double *y, const double *x, const struct m3_weight *w1,
                       const struct m3_weight *w3, const struct m3_weight *w2, const struct m3_gate *g, int64_t T,
                       const struct m3_arithmetic *how)
{
    int64_t H = w2->rows, rows = m3_min(T, ROWS);
    out->n = 0;
    out->f = 1;
    size_t mark = m3_scratch_mark(ctx);
    double *values = m3_scratch_take(ctx, rows * H, sizeof *values);
    double *walk = m3_scratch_take(ctx, rows * H, sizeof *walk);
    int status = values && walk ? M3_OK : M3_INTERNAL;
    for (int64_t t0 = 0; t0 < T && !status; t0 += rows) {
        int64_t n = m3_min(rows, T - t0);
        status = gated_mlp(ctx, y ? y + t0 * H : values, out->bound + t0 * H, out->walk ? out->walk + t0 * H : walk,
                           x + t0 * w1->cols, w1, w3, w2, g, n, how);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

/* Where the tokens of one expert stand: slots t K + k from `first` on, at most ROWS. Returns how many. */
static int64_t slots_of(int64_t *slots, int64_t *first, const int32_t *ids, int64_t count, int64_t expert)
{
    int64_t n = 0;
    for (; *first < count && n < ROWS; ++*first)
        if (ids[*first] == expert) slots[n++] = *first;
    return n;
}

/* Sums over the experts of a token, in ascending id. */
struct sums {
    double *error, *mass, *variance;        /* [T,H] */
};

static void add_to_sums(const struct sums *sums, const int64_t *slots, int64_t n, int64_t K, int64_t H, const double *p,
                        const double *y, const double *bound, const double *walk)
{
    for (int64_t i = 0; i < n; i++) {
        double weight = fabs(p[slots[i]]);
        int64_t at = slots[i] / K * H;
        for (int64_t h = 0; h < H; h++) {
            double w = weight * walk[i * H + h];
            sums->error[at + h] += weight * bound[i * H + h];
            sums->mass[at + h] += weight * fabs(y[i * H + h]);
            sums->variance[at + h] += w * w;
        }
    }
}

/* routed of experts that are not known: what each may be off, and the roundings of their sum. */
static void finish_routed(struct m3_bound *out, const struct sums *sums, int64_t n, int64_t K, double factor, double u)
{
    double steps = (double)(K + factor_steps(factor)), size = fabs(factor);
    out->n = 0;
    out->f = 1;
    for (int64_t i = 0; i < n; i++) {
        out->bound[i] = size * (sums->error[i] + over_u(sums->mass[i], steps, u));
        if (out->walk) out->walk[i] = size * sqrt(sums->variance[i] + steps * sums->mass[i] * sums->mass[i]);
    }
}

static int bad_row(const int32_t *ids, int64_t T, int64_t E, int64_t K)
{
    for (int64_t i = 0; i < T * K; i++)
        if (ids[i] < 0 || ids[i] >= E) return (int)(i / K);
    return -1;
}

int m3_bound_experts(struct m3_ctx *ctx, struct m3_bound *each, struct m3_bound *routed, double *y, const double *x,
                     const int32_t *ids, const double *p, const struct m3_expert *experts, const struct m3_gate *g,
                     int64_t T, int64_t E, int64_t K, double factor, const struct m3_arithmetic *how)
{
    int64_t H = experts[0].w1.cols, total = routed ? T * H : 0, slots[ROWS], bad = bad_row(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_BAD_INPUT, "expert out of range", bad, -1, -1);
    size_t mark = m3_scratch_mark(ctx), bytes = (size_t)H * sizeof(double);
    double *in = m3_scratch_take(ctx, ROWS * H, sizeof *in), *made = m3_scratch_take(ctx, 3 * ROWS * H, sizeof *made);
    double *memory = m3_scratch_take(ctx, 3 * total, sizeof *memory);
    struct sums sums = { memory, memory + total, memory + 2 * total };
    double *bound = made + ROWS * H, *walk = bound + ROWS * H;
    int status = in && made && memory ? M3_OK : M3_INTERNAL;
    if (!status) memset(memory, 0, (size_t)(3 * total) * sizeof *memory);
    if (each) each->n = 0, each->f = 1;

    for (int64_t e = 0; e < E && !status; e++) {
        for (int64_t first = 0, n; !status && (n = slots_of(slots, &first, ids, T * K, e)) > 0;) {
            for (int64_t i = 0; i < n; i++) memcpy(in + i * H, x + slots[i] / K * H, bytes);
            status = gated_mlp(ctx, made, bound, walk, in, &experts[e].w1, &experts[e].w3, &experts[e].w2, g, n, how);
            if (status) break;
            for (int64_t i = 0; i < n; i++) {
                if (y) memcpy(y + slots[i] * H, made + i * H, bytes);
                if (each) memcpy(each->bound + slots[i] * H, bound + i * H, bytes);
                if (each && each->walk) memcpy(each->walk + slots[i] * H, walk + i * H, bytes);
            }
            if (routed) add_to_sums(&sums, slots, n, K, H, p, made, bound, walk);
        }
    }
    if (routed && !status) finish_routed(routed, &sums, total, K, factor, how->u);
    m3_scratch_release(ctx, mark);
    return status;
}
