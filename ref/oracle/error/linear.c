#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "oracle/error/private/products.h"

/* ---- the operands: joined, with noise, and rounded as the profile says */

/* Embedding and hidden state of each row are put side by side; NULL: zeros. */
static void join(double *joined, const double *e, const double *h, int64_t rows, int64_t H)
{
    const size_t bytes = (size_t)H * sizeof *joined;
    for (int64_t r = 0; r < rows; r++) {
        double *to = joined + 2 * r * H;
        memset(to, 0, 2 * bytes);
        if (e) memcpy(to, e + r * H, bytes);
        if (h) memcpy(to + H, h + r * H, bytes);
    }
}

/* Operand 0 becomes the input of eh_proj; then operand 1 becomes the embedding, and operand 2 the hidden state. */
static void join_operands(struct m3_recomputing *m)
{
    const int additive = m->node->adds_input;
    const struct m3_tap_values e = m->in[0], h = m->in[1];
    const int64_t H = m->config->H, n = 2 * m->rows * H;
    const int is_off = (m3_is_off(&e) && !additive) || m3_is_off(&h);
    double *x = m3_recompute_scratch(m, n, sizeof *x);
    double *spread = is_off ? m3_recompute_scratch(m, 2 * n, sizeof *spread) : NULL;
    if (m->status) return;
    join(x, additive ? NULL : e.values, h.values, m->rows, H);
    m->in[0] = (struct m3_tap_values){ .values = x, .width = 2 * H };
    m->in[1] = e;
    m->in[2] = (struct m3_tap_values){ .values = h.values, .width = H };
    if (!spread) return;
    join(spread, additive ? NULL : e.off.error, h.off.error, m->rows, H);
    join(spread + n, additive ? NULL : e.off.variance, h.off.variance, m->rows, H);
    m->in[0].off = (struct m3_spread){ spread, spread + n };
}

static int prepare(struct m3_recomputing *m)
{
    const struct m3_weight *w = m->w[0];
    if (m->tap == M3_TAP_MTP_EH_PROJ) join_operands(m);
    if (m->tap == M3_TAP_ROUTER_LOGITS) m3_recompute_jitter(m);
    m3_recompute_round_input(m, m3_tap_table[m->tap].name);
    m3_recompute_round_weights(m, w, m3_tap_table[m->tap].name);
    return m->status;
}

/* ---- bound, propagation. With mtp_join=additive y = e + W h: one more rounding. */

struct bounded {
    struct m3_bound *out;
    const double *bias;
    int64_t rows;
    struct m3_walk walk;
};

static void bound_piece(const void *self, const struct m3_piece *piece)
{
    const struct bounded *a = self;
    const double *sum = m3_piece_sum(piece, 0, 0, 0), *mass = m3_piece_sum(piece, 0, 0, 1);
    const double *squares = m3_piece_sum(piece, 0, 0, 2), *walked = m3_piece_walked(piece, 0);
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const int64_t n = piece->n0 + l, from = l * piece->stride + t, at = (piece->t0 + t) * a->rows + n;
            const double b = a->bias ? a->bias[n] : 0;
            a->out->bound[at] = mass[from] + fabs(b);
            if (!a->out->walk) continue;
            a->out->walk[at] = sqrt(m3_walk2(&a->walk, sum[from], walked[from], squares[from], sum[from] + b));
        }
}

/* B = sum |w| |x| + |bias|,  steps = cols + (bias) + (a scale that is not a power of two)
 *     walk^2 = max(sum s_k^2 + sum p_k^2, (n/6 + 1) sum p_k^2 + (n/3 + 1) y^2), terms p_k, partial sums s_k */
int m3_bound_linear(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const struct m3_weight *w,
                    const double *bias, int64_t T, const struct m3_arithmetic *how)
{
    const int rounded = m3_bound_weight_roundings(w, how->u);
    const struct bounded linear = { out, bias, w->rows, { w->cols, rounded, bias != NULL } };
    const struct m3_products products = {
        .w = w,
        .sums = { { M3_SUM_PRODUCTS, x }, { M3_SUM_MASS, x }, { M3_SUM_SQUARES, x } },
        .count = 3,
        .walks = 1,
    };
    out->n = w->cols;
    out->f = rounded + (bias != NULL);
    return m3_products(ctx, &products, T, bound_piece, &linear);
}

/* The walk of an additive join is that of the linear; its reduction counts the half that is zero too. */
static int bound(struct m3_recomputing *m)
{
    int status = m3_bound_linear(m->ctx, &m->bound, m->in[0].values, m->w[0], m->vector[1], m->rows, &m->how);
    if (m->node->is_noisy && m->setting->semantics->jitter != 0) m->bound.f += 2;
    if (!m->node->adds_input) return status;
    for (int64_t i = 0; i < m->count; i++) {
        m->bound.bound[i] += fabs(m->in[1].values[i]);
        m->bound.walk[i] = hypot(m->bound.walk[i], m->y[i]);
    }
    m->bound.n = m->config->H;
    m->bound.f++;
    return status;
}

/* To [T,outputs]. */
struct propagated {
    struct m3_spread *out;
    int64_t outputs;
};

static void propagate_piece(const void *self, const struct m3_piece *piece)
{
    const struct propagated *a = self;
    const double *error = m3_piece_sum(piece, 0, 0, 0), *variance = m3_piece_sum(piece, 0, 0, 1);
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const int64_t at = (piece->t0 + t) * a->outputs + piece->n0 + l;
            a->out->error[at] += error[l * piece->stride + t];
            a->out->variance[at] += variance[l * piece->stride + t];
        }
}

static int is_off(const struct m3_spread *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (s->error[i] != 0 || s->variance[i] != 0) return 1;
    return 0;
}

/* error |W| e, variance W^2 v */
int m3_propagate_linear(struct m3_ctx *ctx, struct m3_spread *out, const struct m3_spread *of_x,
                        const struct m3_weight *w, int64_t T)
{
    if (m3_is_exact(of_x) || !is_off(of_x, T * w->cols)) return M3_OK;
    const struct propagated linear = { out, w->rows };
    const struct m3_products products = {
        .w = w,
        .sums = { { M3_SUM_MASS, of_x->error }, { M3_SUM_VARIANCE, of_x->variance } },
        .count = 2,
    };
    return m3_products(ctx, &products, T, propagate_piece, &linear);
}

/* ---- a product in parts: each is rounded, then they are added */

struct in_parts {
    struct m3_spread *out;
    double *y;
    const double *bias;
    int is_exact_x;
    const struct m3_partials *how;
    int64_t outputs;
    double u, stored;
    int rounded;
};

/* The parts of an output: sums, the errors of these, and the share of x in the errors. */
struct parts {
    double sum[M3_RANKS], error[M3_RANKS], given;
};

static void parts_of(struct parts *parts, const struct in_parts *a, const struct m3_piece *piece, int64_t at, int cut)
{
    parts->given = 0;
    for (int r = 0; r < a->how->ranks; r++) {
        const int range = cut * a->how->ranks + r;
        const int64_t *ends = piece->of->ranges[range], n = ends[1] - ends[0];
        const double given = a->is_exact_x ? 0 : m3_piece_sum(piece, 0, range, 2)[at];
        const double mass = m3_piece_sum(piece, 0, range, 1)[at];
        parts->sum[r] = m3_piece_sum(piece, 0, range, 0)[at];
        parts->error[r] = m3_bound_allowed(mass, (double)(n + a->rounded), a->u) + given;
        parts->given += given;
    }
}

/* Results of float sums that are exact, and of any within their bounds. The range covers the orders of addition; what
 * is left to chance is a part that float sums in another order round to its neighbour, at most one step of any part.
 * Under other inputs the roundings are others: then only their size is known, and the truth stays what is expected. */
static void add_output(const struct in_parts *a, int64_t at, const struct parts parts[2], int cuts, double bias)
{
    static const double exact[M3_RANKS];
    const struct m3_partials once = { a->how->ranks, M3_REDUCE_ONE_SHOT, a->how->dtype };
    struct m3_range all = { INFINITY, -INFINITY }, likely = all;
    double variance = 0, y = bias, given = parts[0].given;
    const int is_exact = a->y && given == 0;
    for (int r = 0; r < a->how->ranks; r++) y += parts[0].sum[r];
    for (int c = 0; c < cuts; c++) {
        const double *p = parts[c].sum;
        variance = fmax(variance, m3_partials_variance(p, is_exact ? &once : a->how));
        all = m3_range_join(all, m3_partials_reduce(p, parts[c].error, bias, a->how, a->u));
        if (is_exact) likely = m3_range_join(likely, m3_partials_reduce(p, exact, bias, a->how, a->u));
    }
    if (!isfinite(all.low) || !isfinite(all.high)) return;
    const double half = is_exact ? (likely.high - likely.low) / 2 : 0, s = a->stored;
    if (is_exact) a->y[at] = y = likely.low + half;
    a->out->error[at] += fmax(0, fmax(all.high - y, y - all.low) - given);
    a->out->variance[at] += half * half / 3 + s * s * (variance + bias * bias / 3);
}

static void partials_piece(const void *self, const struct m3_piece *piece)
{
    const struct in_parts *a = self;
    const int cuts = piece->of->range_count / a->how->ranks;
    struct parts parts[2];
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const int64_t n = piece->n0 + l;
            for (int c = 0; c < cuts; c++) parts_of(&parts[c], a, piece, l * piece->stride + t, c);
            add_output(a, (piece->t0 + t) * a->outputs + n, parts, cuts, a->bias ? a->bias[n] : 0);
        }
}

int m3_propagate_partials(struct m3_ctx *ctx, struct m3_spread *out, double *y, const double *x,
                          const struct m3_spread *of_x, const struct m3_weight *w, const double *bias, int64_t T,
                          const struct m3_partials *how, double u)
{
    const int is_exact_x = m3_is_exact(of_x), cuts = w->cols % how->ranks ? 2 : 1;
    const struct in_parts linear = { .out = out,
                                     .y = y,
                                     .bias = bias,
                                     .is_exact_x = is_exact_x,
                                     .how = how,
                                     .outputs = w->rows,
                                     .u = u,
                                     .stored = m3_partials_roundoff(how->dtype),
                                     .rounded = m3_bound_weight_roundings(w, u) };
    int64_t ranges[2 * M3_RANKS][2];
    for (int i = 0; i < cuts * how->ranks; i++)
        m3_partials_cut(&ranges[i][0], &ranges[i][1], w->cols, how->ranks, i % how->ranks, i / how->ranks);
    const struct m3_products products = {
        .w = w,
        .sums = { { M3_SUM_PRODUCTS, x }, { M3_SUM_MASS, x }, { M3_SUM_MASS, is_exact_x ? NULL : of_x->error } },
        .count = is_exact_x ? 2 : 3,
        .ranges = ranges,
        .range_count = cuts * how->ranks,
    };
    return m3_products(ctx, &products, T, partials_piece, &linear);
}

void m3_propagate_weight_floor(struct m3_spread *out, const double *x, int64_t T, int64_t cols, int64_t rows,
                               double floor)
{
    for (int64_t t = 0; t < T && floor > 0; t++) {
        double mass = 0, squares = 0;
        for (int64_t k = t * cols; k < (t + 1) * cols; k++) mass += fabs(x[k]), squares += x[k] * x[k];
        for (int64_t i = t * rows; i < (t + 1) * rows; i++) {
            out->error[i] += floor * mass;
            out->variance[i] += floor * floor * squares / 3;
        }
    }
}

static int propagate(struct m3_recomputing *m)
{
    int status = m3_propagate_linear(m->ctx, &m->spread, &m->in[0].off, m->w[0], m->rows);
    if (!status && m->partials.ranks > 0)
        status = m3_propagate_partials(m->ctx, &m->spread, m->y, m->in[0].values, &m->in[0].off, m->w[0], m->vector[1],
                                       m->rows, &m->partials, m->how.u);
    if (!status)
        m3_propagate_weight_floor(&m->spread, m->in[0].values, m->rows, m->in[0].width, m->width, m->weight_floor);
    if (m->node->adds_input) m3_propagate_add(&m->spread, &m->in[1].off, NULL, m->count);
    return status;
}

const struct m3_error_operator m3_error_linear = {
    .name = "linear",
    .sections = { "5.4 linear" },
    .bound = bound,
    .propagate = propagate,
    .prepare = prepare,
    .in_parts = 1,
};
