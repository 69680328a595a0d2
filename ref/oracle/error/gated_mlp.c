#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/private/activation.h"
#include "oracle/error/private/products.h"

enum { ROWS = M3_MLP_ROWS };

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
    double *act;                            /* [T,F]: input of w2 */
    double *act_error;                      /* and its error, with (F + f) |a| for what w2 adds; over u */
    double *act_variance;                   /* times 3 over u^2 */
    double *y, *bound, *walk;               /* [T,H] */
    int64_t H, F;
    struct m3_walk walk1, walk3, walk2;
};

static double steps_of(const struct m3_walk *walk) { return (double)(walk->cols + walk->weight_roundings); }

/* A gate or an up: its value, its bound over u, the square of its walk. */
struct linear_sum {
    double y, error, walk2;
};

static struct linear_sum sum_of(const struct m3_piece *piece, int weight, int64_t at, const struct m3_walk *walk,
                                double u)
{
    const double y = m3_piece_sum(piece, weight, 0, 0)[at], mass = m3_piece_sum(piece, weight, 0, 2)[at];
    const double squares = m3_piece_sum(piece, weight, 0, 1)[at], walked = m3_piece_walked(piece, weight)[at];
    return (struct linear_sum){ y, over_u(mass, steps_of(walk), u), m3_walk2(walk, y, walked, squares, y) };
}

/* Bounds of the activation of a gate and an up that have bounds themselves:
 *
 *     e = |dy/dg| h_g + |dy/du| h_u + (5 + c) B_act       h = n B over u; all over u
 *
 * At a clamp that the error can reach, the steeper side is used. */
static void activate(const struct bounded *mlp, int64_t at, const struct linear_sum *gate, const struct linear_sum *up)
{
    const double z = gate->y, w = up->y, u = mlp->how->u, steps = m3_gate_steps(mlp->how);
    const double own = m3_gate_bound(z, w, mlp->gate, mlp->how);
    const struct m3_gate_slopes s = m3_gate_slopes(z, w, u * gate->error, u * up->error, mlp->gate);
    mlp->act[at] = m3_gate_value(z, w, mlp->gate);
    mlp->act_error[at] = s.by_gate * gate->error + s.by_up * up->error + over_u(own, steps, u) +
                         steps_of(&mlp->walk2) * fabs(mlp->act[at]);
    mlp->act_variance[at] = s.by_gate * s.by_gate * gate->walk2 + s.by_up * s.by_up * up->walk2 + steps * own * own;
}

static void bound_act(const void *self, const struct m3_piece *piece)
{
    const struct bounded *mlp = self;
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const int64_t at = l * piece->stride + t;
            const struct linear_sum gate = sum_of(piece, 0, at, &mlp->walk1, mlp->how->u);
            const struct linear_sum up = sum_of(piece, 1, at, &mlp->walk3, mlp->how->u);
            activate(mlp, (piece->t0 + t) * mlp->F + piece->n0 + l, &gate, &up);
        }
}

/* B = |w2| (e + (F + f) |a|) and the underflow of its steps: the whole allowance over u. */
static void bound_out(const void *self, const struct m3_piece *piece)
{
    const struct bounded *mlp = self;
    const double *y = m3_piece_sum(piece, 0, 0, 0), *squares = m3_piece_sum(piece, 0, 0, 1);
    const double *error = m3_piece_sum(piece, 0, 0, 2), *variance = m3_piece_sum(piece, 0, 0, 3);
    const double *walked = m3_piece_walked(piece, 0), u = mlp->how->u;
    const double underflow = steps_of(&mlp->walk2) * m3_bound_eta(u) / u;
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const int64_t from = l * piece->stride + t, at = (piece->t0 + t) * mlp->H + piece->n0 + l;
            mlp->y[at] = y[from];
            mlp->bound[at] = error[from] + (error[from] > 0 ? underflow : 0);
            mlp->walk[at] = sqrt(variance[from] + m3_walk2(&mlp->walk2, y[from], walked[from], squares[from], y[from]));
        }
}

/* Rows x [T,cols] through w1 and w3, then w2. */
static int bound_rows(struct m3_ctx *ctx, const struct bounded *mlp, const double *x, const struct m3_weight *w1,
                      const struct m3_weight *w3, const struct m3_weight *w2, int64_t T, double *largest)
{
    const double *act = mlp->act;
    const struct m3_products in = {
        .w = w1,
        .second = w3,
        .sums = { { M3_SUM_PRODUCTS, x }, { M3_SUM_SQUARES, x }, { M3_SUM_MASS, x } },
        .count = 3,
        .walks = 1,
    };
    const struct m3_products out = {
        .w = w2,
        .sums = { { M3_SUM_PRODUCTS, act },
                  { M3_SUM_SQUARES, act },
                  { M3_SUM_MASS, mlp->act_error },
                  { M3_SUM_VARIANCE, mlp->act_variance } },
        .count = 4,
        .walks = 1,
    };
    const int status = m3_products(ctx, &in, T, bound_act, mlp);
    for (int64_t i = 0; i < T * mlp->F && largest && !status; i++) *largest = fmax(*largest, fabs(act[i]));
    return status ? status : m3_products(ctx, &out, T, bound_out, mlp);
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
                           .H = H,
                           .F = F,
                           .act = act,
                           .act_error = act + rows * F,
                           .act_variance = act + 2 * rows * F,
                           .walk1 = { w1->cols, m3_bound_weight_roundings(w1, how->u), 0 },
                           .walk3 = { w3->cols, m3_bound_weight_roundings(w3, how->u), 0 },
                           .walk2 = { w2->cols, m3_bound_weight_roundings(w2, how->u), 0 } };
    int status = values && act ? M3_OK : M3_INTERNAL;
    out->n = 0, out->f = 1;
    for (int64_t t = 0; t < T && !status; t += rows) {
        const int64_t n = m3_min(rows, T - t);
        mlp.y = y ? y + t * H : values;
        mlp.bound = out->bound + t * H, mlp.walk = out->walk ? out->walk + t * H : walk;
        status = bound_rows(ctx, &mlp, x + t * w1->cols, w1, w3, w2, n, out->largest);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

static int value(struct m3_recomputing *m)
{
    const struct m3_gate gate = m3_setting_gate(m->setting);
    return m3_bound_gated_mlp(m->ctx, &m->bound, m->y, m->in[0].values, m->w[0], m->w[1], m->w[2], &gate, m->rows,
                              &m->how);
}

/* ---- propagation: linear with storing, gated units with their chain and storing, linear */

struct propagated {
    const double *floors;    /* [T,2] what the smallest steps of the weights cost: error, variance; NULL: nothing */
    struct m3_spread of_act; /* [T,F] */
    double *act;             /* [T,F]; the value */
    int is_exact_x;
    const struct m3_gate *gate;
    const struct m3_mlp_storage *storage;
    int64_t F;
};

/* Gate or up: the errors from x, from the weights and from storing. */
struct linear_spread {
    double y, error, variance;
};

static struct linear_spread spread_of(const struct m3_piece *piece, int weight, int64_t at,
                                      const struct propagated *mlp, const double *floors, double u)
{
    struct linear_spread s = { .y = m3_piece_sum(piece, weight, 0, 0)[at] };
    struct m3_spread own = { &s.error, &s.variance };
    if (!mlp->is_exact_x) {
        s.error = m3_piece_sum(piece, weight, 0, 1)[at];
        s.variance = m3_piece_sum(piece, weight, 0, 2)[at];
    }
    if (floors) s.error += floors[0], s.variance += floors[1];
    m3_propagate_store(&own, &s.y, 1, u, u > 0 ? mlp->storage->floor : 0);
    return s;
}

static void propagate_act(const void *self, const struct m3_piece *piece)
{
    const struct propagated *mlp = self;
    const struct m3_mlp_storage *s = mlp->storage;
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const double *floors = mlp->floors ? mlp->floors + 2 * (piece->t0 + t) : NULL;
            const int64_t from = l * piece->stride + t, at = (piece->t0 + t) * mlp->F + piece->n0 + l;
            struct linear_spread gate = spread_of(piece, 0, from, mlp, floors, s->gate);
            struct linear_spread up = spread_of(piece, 1, from, mlp, floors, s->up);
            const struct m3_spread of_gate = { &gate.error, &gate.variance }, of_up = { &up.error, &up.variance };
            struct m3_spread of_act = m3_spread_from(&mlp->of_act, at);
            const double y = m3_gate_value(gate.y, up.y, mlp->gate);
            m3_propagate_gate(&of_act, 0, gate.y, up.y, &of_gate, &of_up, 0, mlp->gate, s->chain);
            m3_propagate_gate_floor(&of_act, 0, gate.y, up.y, mlp->gate, s->chain > 0 ? s->floor : 0);
            m3_propagate_store(&of_act, &y, 1, s->act, s->act > 0 ? s->floor : 0);
            mlp->act[at] = y;
        }
}

/* The activations of x [T,H] and their errors. floors [T,2] is scratch. */
static int propagate_in(struct m3_ctx *ctx, struct propagated *mlp, double *floors, const double *x,
                        const struct m3_spread *of_x, const struct m3_weight *w1, const struct m3_weight *w3, int64_t T)
{
    const double floor = mlp->storage->weight_floor;
    const struct m3_products in = {
        .w = w1,
        .second = w3,
        .sums = { { M3_SUM_PRODUCTS, x },
                  { M3_SUM_MASS, mlp->is_exact_x ? NULL : of_x->error },
                  { M3_SUM_VARIANCE, mlp->is_exact_x ? NULL : of_x->variance } },
        .count = mlp->is_exact_x ? 1 : 3,
    };
    memset(floors, 0, (size_t)(2 * T) * sizeof *floors);
    for (int64_t t = 0; t < T && floor > 0; t++)
        m3_propagate_weight_floor(&(struct m3_spread){ floors + 2 * t, floors + 2 * t + 1 }, x + t * w1->cols, 1,
                                  w1->cols, 1, floor);
    mlp->floors = floor > 0 ? floors : NULL;
    return m3_products(ctx, &in, T, propagate_act, mlp);
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
    double *floors = m3_scratch_take(ctx, 2 * rows, sizeof *floors);
    int status = memory && floors ? M3_OK : M3_INTERNAL;
    for (int64_t t = 0; t < T && !status && !is_nothing(of_x, storage); t += rows) {
        const int64_t n = m3_min(rows, T - t);
        const struct m3_spread rows_x = m3_spread_from(of_x, t * H), of_act = { memory, memory + rows * F };
        struct m3_spread to = m3_spread_from(out, t * w2->rows);
        struct propagated mlp = { .of_act = of_act,
                                  .act = memory + 2 * rows * F,
                                  .is_exact_x = m3_is_exact(of_x),
                                  .gate = g,
                                  .storage = storage,
                                  .F = F };
        memset(memory, 0, (size_t)(2 * rows * F) * sizeof *memory);
        status = propagate_in(ctx, &mlp, floors, x + t * H, &rows_x, w1, w3, n);
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
    return m3_propagate_gated_mlp(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, m->w[0], m->w[1], m->w[2], &gate,
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
