#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/bounds.h"
#include "oracle/error/private/bounds_activation.h"
#include "oracle/error/private/bounds_dot.h"
#include "oracle/error/private/bounds_experts.h"

enum { LANES = M3_DOT_LANES, ROWS = M3_CHOSEN };

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

int m3_factor_steps(double factor)
{
    int exponent;
    return frexp(fabs(factor), &exponent) == 0.5 ? 1 : 2;
}

/* The weighted sum of given outputs: B = factor sum |p| |each|, steps = K + 1, or K + 2 if factor is no power of 2. */
int m3_bound_routed(struct m3_ctx *ctx, struct m3_bound *out, const double *each, const double *p, int64_t T, int64_t K,
                    int64_t H, double factor)
{
    out->n = K;
    out->f = m3_factor_steps(factor);
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

/* Rows of a gated MLP on their way. */
struct mlp {
    const struct inner *inner;
    const struct m3_gate *gate;
    const struct m3_arithmetic *how;
    const double *x;
    double *y, *bound, *walk;                   /* [T,H] */
    int64_t H, F;
    int rounded1, rounded3, rounded2;
};

/* A gate and an up, with bounds of their own, through the activation:
 *
 *     e = |dy/dg| h_g + |dy/du| h_u + (5 + c) B_act       h = n B over u; all over u
 *
 * At a clamp that the error can reach, the steeper side counts. */
static void activate(const struct mlp *mlp, int64_t at, const struct m3_dots *gate, const struct m3_dots *up, int64_t l)
{
    double z = gate->sum[l], w = up->sum[l], u = mlp->how->u, steps = m3_gate_steps(mlp->how);
    double own = m3_gate_bound(z, w, mlp->gate, mlp->how);
    double h_g = over_u(gate->mass[l], (double)(mlp->H + mlp->rounded1), u);
    double h_u = over_u(up->mass[l], (double)(mlp->H + mlp->rounded3), u);
    struct m3_gate_slopes s = m3_gate_slopes(z, w, u * h_g, u * h_u, mlp->gate);
    double gate_walk2 = m3_dot_walk2(gate, l, mlp->H, mlp->rounded1, 0, z);
    double up_walk2 = m3_dot_walk2(up, l, mlp->H, mlp->rounded3, 0, w);

    mlp->inner->value[at] = m3_gate_value(z, w, mlp->gate);
    mlp->inner->error[at] = s.by_gate * h_g + s.by_up * h_u + over_u(own, steps, u);
    mlp->inner->variance[at] = s.by_gate * s.by_gate * gate_walk2 + s.by_up * s.by_up * up_walk2 + steps * own * own;
}

static void first_half(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct mlp *mlp = self;
    struct m3_dots gate, up;
    m3_dots(&gate, mlp->x + t * mlp->H, panel->values, mlp->H);
    m3_dots(&up, mlp->x + t * mlp->H, panel->second, mlp->H);
    for (int64_t l = 0; l < panel->lanes; l++) activate(mlp, t * mlp->F + panel->n0 + l, &gate, &up, l);
}

/* B = |w2| e + (F + f) |w2| |a|: the whole allowance over u. */
static void second_half(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct mlp *mlp = self;
    const struct inner *inner = mlp->inner;
    int64_t F = mlp->F;
    double error[LANES], variance[LANES];
    struct m3_dots dots;
    m3_dots(&dots, inner->value + t * F, panel->values, F);
    m3_dot_spread(error, variance, inner->error + t * F, inner->variance + t * F, panel->values, F);
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t at = t * mlp->H + panel->n0 + l;
        mlp->y[at] = dots.sum[l];
        mlp->bound[at] = error[l] + over_u(dots.mass[l], (double)(F + mlp->rounded2), mlp->how->u);
        mlp->walk[at] = sqrt(variance[l] + m3_dot_walk2(&dots, l, F, mlp->rounded2, 0, dots.sum[l]));
    }
}

/* y, bound, walk [T,H] of x [T,H], T <= ROWS. */
static int gated_mlp(struct m3_ctx *ctx, double *y, double *bound, double *walk, const double *x,
                     const struct m3_weight *w1, const struct m3_weight *w3, const struct m3_weight *w2,
                     const struct m3_gate *g, int64_t T, const struct m3_arithmetic *how)
{
    int64_t F = w1->rows;
    size_t mark = m3_scratch_mark(ctx);
    struct inner inner = { m3_scratch_take(ctx, T * F, sizeof(double)), m3_scratch_take(ctx, T * F, sizeof(double)),
                           m3_scratch_take(ctx, T * F, sizeof(double)) };
    struct mlp mlp = { &inner, g, how, x, y, bound, walk, w1->cols, F, m3_bound_weight_roundings(w1, how->u),
                       m3_bound_weight_roundings(w3, how->u), m3_bound_weight_roundings(w2, how->u) };
    int status = inner.value && inner.error && inner.variance ? M3_OK : M3_INTERNAL;
    if (!status) status = m3_dot_panels(ctx, first_half, &mlp, w1, w3, T);
    if (!status) status = m3_dot_panels(ctx, second_half, &mlp, w2, NULL, T);
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

/* Slots of one expert from `first` on, at most ROWS. Returns how many. */
static int64_t slots_of(int64_t *slots, int64_t *first, const int32_t *ids, int64_t count, int64_t expert)
{
    int64_t n = 0;
    for (; *first < count && n < ROWS; ++*first)
        if (ids[*first] == expert) slots[n++] = *first;
    return n;
}

int m3_each_expert(struct m3_ctx *ctx, m3_at_expert visit, const void *self, const int32_t *ids, int64_t T, int64_t E,
                   int64_t K)
{
    int64_t slots[ROWS];
    int status = M3_OK;
    for (int64_t i = 0; i < T * K; i++)
        if (ids[i] < 0 || ids[i] >= E) return m3_fail_at(ctx, M3_BAD_INPUT, "expert out of range", i / K, -1, -1);
    for (int64_t e = 0; e < E; e++)
        for (int64_t first = 0, n; !status && (n = slots_of(slots, &first, ids, T * K, e)) > 0;)
            status = visit(ctx, self, e, slots, n);
    return status;
}

void m3_gather_tokens(double *to, const double *x, const int64_t *slots, int64_t n, int64_t K, int64_t H)
{
    for (int64_t i = 0; i < n; i++) memcpy(to + i * H, x + slots[i] / K * H, (size_t)H * sizeof *to);
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
    double steps = (double)(K + m3_factor_steps(factor)), size = fabs(factor);
    out->n = 0;
    out->f = 1;
    for (int64_t i = 0; i < n; i++) {
        out->bound[i] = size * (sums->error[i] + over_u(sums->mass[i], steps, u));
        if (out->walk) out->walk[i] = size * sqrt(sums->variance[i] + steps * sums->mass[i] * sums->mass[i]);
    }
}

struct experts {
    struct m3_bound *each;              /* or NULL */
    const struct sums *sums;            /* or NULL */
    double *y;                          /* or NULL */
    const double *x, *p;
    const struct m3_expert *experts;
    const struct m3_gate *gate;
    const struct m3_arithmetic *how;
    int64_t K, H;
    double *in, *made, *bound, *walk;   /* [ROWS,H]: the rows of one expert */
};

static int bound_expert(struct m3_ctx *ctx, const void *self, int64_t expert, const int64_t *slots, int64_t n)
{
    const struct experts *a = self;
    const struct m3_expert *w = &a->experts[expert];
    size_t bytes = (size_t)a->H * sizeof(double);
    m3_gather_tokens(a->in, a->x, slots, n, a->K, a->H);
    int status = gated_mlp(ctx, a->made, a->bound, a->walk, a->in, &w->w1, &w->w3, &w->w2, a->gate, n, a->how);
    for (int64_t i = 0; i < n && !status; i++) {
        int64_t to = slots[i] * a->H, from = i * a->H;
        if (a->y) memcpy(a->y + to, a->made + from, bytes);
        if (a->each) memcpy(a->each->bound + to, a->bound + from, bytes);
        if (a->each && a->each->walk) memcpy(a->each->walk + to, a->walk + from, bytes);
    }
    if (a->sums && !status) add_to_sums(a->sums, slots, n, a->K, a->H, a->p, a->made, a->bound, a->walk);
    return status;
}

int m3_bound_experts(struct m3_ctx *ctx, struct m3_bound *each, struct m3_bound *routed, double *y, const double *x,
                     const int32_t *ids, const double *p, const struct m3_expert *experts, const struct m3_gate *g,
                     int64_t T, int64_t E, int64_t K, double factor, const struct m3_arithmetic *how)
{
    int64_t H = experts[0].w1.cols, total = routed ? T * H : 0;
    size_t mark = m3_scratch_mark(ctx);
    double *made = m3_scratch_take(ctx, 4 * ROWS * H, sizeof *made);
    double *memory = m3_scratch_take(ctx, 3 * total, sizeof *memory);
    struct sums sums = { memory, memory + total, memory + 2 * total };
    struct experts all = { each, routed ? &sums : NULL, y, x, p, experts, g, how, K, H,
                           made, made + ROWS * H, made + 2 * ROWS * H, made + 3 * ROWS * H };
    int status = made && memory ? M3_OK : M3_INTERNAL;
    if (each) each->n = 0, each->f = 1;
    if (!status) memset(memory, 0, (size_t)(3 * total) * sizeof *memory);
    if (!status) status = m3_each_expert(ctx, bound_expert, &all, ids, T, E, K);
    if (routed && !status) finish_routed(routed, &sums, total, K, factor, how->u);
    m3_scratch_release(ctx, mark);
    return status;
}
