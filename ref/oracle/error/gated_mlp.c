#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/private/activation.h"
#include "oracle/error/private/dot.h"

enum { LANES = M3_DOT_LANES, ROWS = 64 };       /* rows at a time: bounds the scratch memory */

int m3_prepare_gated_mlp(struct m3_recomputing *m)
{
    const struct m3_input_rounding rule = m3_recompute_input_rounding(m, m3_tap_table[m->tap].name);
    const struct m3_expert *expert = m->node->op == M3_OP_EXPERT ? (const void *)m->w[0] : NULL;
    const struct m3_weight *w2 = expert ? &expert->w2 : m->w[2];
    if (!m3_has_wide_error(&rule))
        m->stored[3] += m3_input_roundoff(&rule);        /* `act` is rounded once more as input of the last product */
    m->stored[3] += m3_recompute_weight_roundoff(m, w2, m3_tap_table[m->tap].name);
    m->act_input = rule;
    m->bound.largest = &m->largest;
    m3_recompute_jitter(m);
    m3_recompute_jitter_spread(m);
    m3_recompute_round_input(m, m->op->points[0]);
    m3_recompute_round_weights(m, m->w[0], m->op->points[0]);   /* those of gate and up have one rule */
    return m->status;
}

struct m3_mlp_storage m3_mlp_storage_of(const struct m3_recomputing *m)
{
    const struct m3_input_rounding *rule = &m->act_input;
    struct m3_mlp_storage s = { m->stored[0],
                                m->stored[1],
                                m->stored[2],
                                m->stored[3],
                                .partials = m->partials,
                                .u = m->how.u,
                                .weight_floor = m->weight_floor,
                                .largest = m->largest };
    for (int i = 0; i < M3_POINTS; i++) s.floor = fmax(s.floor, m->floor[i]);
    if (m3_has_wide_error(rule)) s.act_input = *rule;
    if (rule->codes == M3_CODES_E4M3 && rule->group != M3_GROUP_BLOCK)
        s.act_floor[rule->group == M3_GROUP_TENSOR] = 0x1p-10 / 448;
    return s;
}

/* ---- value and bound, in one pass over the weights */

/* An allowance over u, underflow included. */
static double over_u(double bound, double steps, double u)
{
    return steps * (bound + (bound > 0 ? m3_bound_eta(u) / u : 0));
}

/* The state of some rows of y = w2 act(w1 x, w3 x). */
struct bounded {
    const struct m3_gate *gate;
    const struct m3_arithmetic *how;
    const double *x;
    double *act, *act_error, *act_variance; /* [T,F]: input of w2; error over u, variance times 3 over u^2 */
    double *y, *bound, *walk; /* [T,H] */
    int64_t H, F;
    int rounded1, rounded3, rounded2;
};

/* Bounds of the activation of a gate and an up that have bounds themselves:
 *
 *     e = |dy/dg| h_g + |dy/du| h_u + (5 + c) B_act       h = n B over u; all over u
 *
 * At a clamp that the error can reach, the steeper side is used. */
static void activate(const struct bounded *mlp, int64_t at, const struct m3_dots *gate, const struct m3_dots *up,
                     int64_t l)
{
    double z = gate->sum[l], w = up->sum[l], u = mlp->how->u, steps = m3_gate_steps(mlp->how);
    double own = m3_gate_bound(z, w, mlp->gate, mlp->how);
    double h_g = over_u(gate->mass[l], (double)(mlp->H + mlp->rounded1), u);
    double h_u = over_u(up->mass[l], (double)(mlp->H + mlp->rounded3), u);
    struct m3_gate_slopes s = m3_gate_slopes(z, w, u * h_g, u * h_u, mlp->gate);
    double gate_walk2 = m3_dot_walk2(gate, l, mlp->H, mlp->rounded1, 0, z);
    double up_walk2 = m3_dot_walk2(up, l, mlp->H, mlp->rounded3, 0, w);

    mlp->act[at] = m3_gate_value(z, w, mlp->gate);
    mlp->act_error[at] = s.by_gate * h_g + s.by_up * h_u + over_u(own, steps, u);
    mlp->act_variance[at] = s.by_gate * s.by_gate * gate_walk2 + s.by_up * s.by_up * up_walk2 + steps * own * own;
}

static void bound_act(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct bounded *mlp = self;
    struct m3_dots gate, up;
    m3_dots(&gate, mlp->x + t * mlp->H, panel->values, mlp->H);
    m3_dots(&up, mlp->x + t * mlp->H, panel->second, mlp->H);
    for (int64_t l = 0; l < panel->lanes; l++) activate(mlp, t * mlp->F + panel->n0 + l, &gate, &up, l);
}

/* B = |w2| e + (F + f) |w2| |a|: the whole allowance over u. */
static void bound_out(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct bounded *mlp = self;
    int64_t F = mlp->F;
    double error[LANES], variance[LANES];
    struct m3_dots dots;
    m3_dots(&dots, mlp->act + t * F, panel->values, F);
    m3_dot_spread(error, variance, mlp->act_error + t * F, mlp->act_variance + t * F, panel->values, F);
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t at = t * mlp->H + panel->n0 + l;
        mlp->y[at] = dots.sum[l];
        mlp->bound[at] = error[l] + over_u(dots.mass[l], (double)(F + mlp->rounded2), mlp->how->u);
        mlp->walk[at] = sqrt(variance[l] + m3_dot_walk2(&dots, l, F, mlp->rounded2, 0, dots.sum[l]));
    }
}

int m3_bound_gated_mlp(struct m3_ctx *ctx, struct m3_bound *out, double *y, const double *x, const struct m3_weight *w1,
                       const struct m3_weight *w3, const struct m3_weight *w2, const struct m3_gate *g, int64_t T,
                       const struct m3_arithmetic *how)
{
    const int64_t H = w2->rows, F = w1->rows, rows = m3_min(T, ROWS);
    const size_t mark = m3_scratch_mark(ctx);
    double *values = m3_scratch_take(ctx, 2 * rows * H, sizeof *values), *walk = values + rows * H;
    double *act = m3_scratch_take(ctx, 3 * rows * F, sizeof *act);
    struct bounded mlp = { .gate = g,
                           .how = how,
                           .H = w1->cols,
                           .F = F,
                           .act = act,
                           .act_error = act + rows * F,
                           .act_variance = act + 2 * rows * F,
                           .rounded1 = m3_bound_weight_roundings(w1, how->u),
                           .rounded3 = m3_bound_weight_roundings(w3, how->u),
                           .rounded2 = m3_bound_weight_roundings(w2, how->u) };
    int status = values && act ? M3_OK : M3_INTERNAL;
    out->n = 0, out->f = 1;
    for (int64_t t = 0; t < T && !status; t += rows) {
        const int64_t n = m3_min(rows, T - t);
        mlp.x = x + t * w1->cols, mlp.y = y ? y + t * H : values;
        mlp.bound = out->bound + t * H, mlp.walk = out->walk ? out->walk + t * H : walk;
        status = m3_dot_panels(ctx, bound_act, &mlp, w1, w3, n);
        for (int64_t i = 0; i < n * F && out->largest && !status; i++)
            *out->largest = fmax(*out->largest, fabs(act[i]));
        if (!status) status = m3_dot_panels(ctx, bound_out, &mlp, w2, NULL, n);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

static int value(struct m3_recomputing *m)
{
    const struct m3_gate gate = m3_setting_gate(m->setting);
    return m3_bound_gated_mlp(m->ctx, &m->bound, m->y, m->in[0].x, m->w[0], m->w[1], m->w[2], &gate, m->rows, &m->how);
}

/* ---- propagation: linear with storing, gated units with their chain and storing, linear */

struct propagated {
    const double *x;
    const struct m3_spread *of_x;
    struct m3_spread of_act; /* [T,F] */
    double *act;             /* [T,F]; the value */
    const struct m3_gate *gate;
    const struct m3_mlp_storage *storage;
    int64_t H, F;
};

/* The smallest steps of the weights' format. */
static void add_weight_floor(double *error, double *variance, const struct propagated *mlp, int64_t t)
{
    const double floor = mlp->storage->weight_floor;
    struct m3_spread lane = { error, variance };
    for (int l = 0; l < LANES && floor > 0; l++) {
        m3_propagate_weight_floor(&lane, mlp->x + t * mlp->H, 1, mlp->H, 1, floor);
        lane.error++, lane.variance++;
    }
}

/* Gate or up of LANES channels: the errors from x and from storing. */
static void linear_spread(double *sum, double *error, double *variance, const struct propagated *mlp, int64_t t,
                          const double *panel, double u)
{
    int64_t at = t * mlp->H;
    struct m3_dots dots;
    struct m3_spread spread = { error, variance };
    m3_dots(&dots, mlp->x + at, panel, mlp->H);
    memcpy(sum, dots.sum, sizeof dots.sum);
    memset(error, 0, sizeof dots.sum);
    memset(variance, 0, sizeof dots.sum);
    if (!m3_is_exact(mlp->of_x))
        m3_dot_spread(error, variance, mlp->of_x->error + at, mlp->of_x->variance + at, panel, mlp->H);
    add_weight_floor(error, variance, mlp, t);
    m3_propagate_store(&spread, sum, LANES, u, u > 0 ? mlp->storage->floor : 0);
}

static void propagate_act(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct propagated *mlp = self;
    const struct m3_mlp_storage *s = mlp->storage;
    double gate[LANES], up[LANES], errors[2][LANES], variances[2][LANES];
    linear_spread(gate, errors[0], variances[0], mlp, t, panel->values, s->gate);
    linear_spread(up, errors[1], variances[1], mlp, t, panel->second, s->up);
    struct m3_spread of_gate = { errors[0], variances[0] }, of_up = { errors[1], variances[1] };
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t at = t * mlp->F + panel->n0 + l;
        struct m3_spread of_act = { mlp->of_act.error + at, mlp->of_act.variance + at };
        double y = m3_gate_value(gate[l], up[l], mlp->gate);
        m3_propagate_gate(&of_act, 0, gate[l], up[l], &of_gate, &of_up, l, mlp->gate, s->chain);
        m3_propagate_gate_floor(&of_act, 0, gate[l], up[l], mlp->gate, s->chain > 0 ? s->floor : 0);
        m3_propagate_store(&of_act, &y, 1, s->act, s->act > 0 ? s->floor : 0);
        mlp->act[at] = y;
    }
}

/* Half a step of `act` where its scale is that of a row, or of all rows. The candidate's largest number may be larger
 * by its error. */
static void add_act_floor(const struct propagated *mlp, int64_t T)
{
    const double *share = mlp->storage->act_floor;
    for (int64_t t = 0; t < T && (share[0] > 0 || share[1] > 0); t++) {
        double largest = 0, off = 0;
        for (int64_t i = t * mlp->F; i < (t + 1) * mlp->F; i++) {
            largest = fmax(largest, fabs(mlp->act[i]));
            off = fmax(off, mlp->of_act.error[i]);
        }
        const double floor = share[0] * (largest + off) + share[1] * (mlp->storage->largest + off);
        for (int64_t i = t * mlp->F; i < (t + 1) * mlp->F; i++) {
            mlp->of_act.error[i] += floor;
            mlp->of_act.variance[i] += floor * floor / 3;
        }
    }
}

/* What codes cost whose error is a share of the largest number: the most for numbers that are off as far as they can be,
 * the variance for numbers of their usual size. more [5,T,F] is scratch. */
static void add_act_input(const struct propagated *mlp, double *more, int64_t T)
{
    const struct m3_input_rounding *rule = &mlp->storage->act_input;
    const int64_t n = T * mlp->F;
    double *most = more, *usual = more + n, off = 0;
    struct m3_spread worst = { more + 2 * n, more + 3 * n }, of_act = mlp->of_act;
    if (!m3_has_codes(rule)) return;
    memset(worst.error, 0, (size_t)(3 * n) * sizeof *more);
    for (int64_t i = 0; i < n; i++) {
        most[i] = fabs(mlp->act[i]) + of_act.error[i];
        usual[i] = sqrt(mlp->act[i] * mlp->act[i] + of_act.variance[i]);
        off = fmax(off, of_act.error[i]);
    }
    m3_round_inputs(&worst, most, T, mlp->F, mlp->storage->largest + off, rule);
    memset(worst.variance, 0, (size_t)n * sizeof *more);
    m3_round_inputs(&(struct m3_spread){ more + 4 * n, worst.variance }, usual, T, mlp->F, mlp->storage->largest, rule);
    m3_propagate_add(&of_act, &worst, NULL, n);
}

static int is_nothing(const struct m3_spread *of_x, const struct m3_mlp_storage *s)
{
    return m3_is_exact(of_x) && s->gate == 0 && s->up == 0 && s->chain == 0 && s->act == 0 && s->partials.ranks == 0 &&
           s->weight_floor == 0 && !m3_has_codes(&s->act_input);
}

int m3_propagate_gated_mlp(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                           const struct m3_weight *w1, const struct m3_weight *w3, const struct m3_weight *w2,
                           const struct m3_gate *g, int64_t T, const struct m3_mlp_storage *storage)
{
    const int64_t H = w1->cols, F = w1->rows, rows = m3_min(T, ROWS);
    const size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, (m3_has_codes(&storage->act_input) ? 8 : 3) * rows * F, sizeof *memory);
    int status = memory ? M3_OK : M3_INTERNAL;
    for (int64_t t = 0; t < T && !status && !is_nothing(of_x, storage); t += rows) {
        const int64_t n = m3_min(rows, T - t);
        const struct m3_spread rows_x = m3_spread_from(of_x, t * H), of_act = { memory, memory + rows * F };
        struct m3_spread to = m3_spread_from(out, t * w2->rows);
        const struct propagated mlp = { x + t * H, &rows_x, of_act, memory + 2 * rows * F, g, storage, H, F };
        memset(memory, 0, (size_t)(2 * rows * F) * sizeof *memory);
        status = m3_dot_panels(ctx, propagate_act, &mlp, w1, w3, n);
        if (!status) add_act_floor(&mlp, n);
        if (!status) add_act_input(&mlp, memory + 3 * rows * F, n);
        if (!status) status = m3_propagate_linear(ctx, &to, &of_act, w2, n);
        if (!status) m3_propagate_weight_floor(&to, mlp.act, n, F, w2->rows, storage->weight_floor);
        if (!status && storage->partials.ranks > 0)
            status =
                m3_propagate_partials(ctx, &to, NULL, mlp.act, &of_act, w2, NULL, n, &storage->partials, storage->u);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

static int propagate(struct m3_recomputing *m)
{
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_mlp_storage storage = m3_mlp_storage_of(m);
    return m3_propagate_gated_mlp(m->ctx, &m->spread, m->in[0].x, &m->in[0].off, m->w[0], m->w[1], m->w[2], &gate,
                                  m->rows, &storage);
}

const struct m3_error_operator m3_error_gated_mlp = {
    .name = "gated_mlp",
    .sections = { "6. The forward pass" },
    .value = value,
    .propagate = propagate,
    .roundings = 1,
    .prepare = m3_prepare_gated_mlp,
    .linears = 2,
    .in_parts = 1,
    .points = { "moe.shared.gate", "moe.shared.up", "moe.shared.chain", "moe.shared.act" },
};
