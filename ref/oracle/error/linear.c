#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "oracle/error/private/dot.h"

enum { LANES = M3_DOT_LANES };

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

/* Operand 0 becomes the input of eh_proj; then operand 1 becomes the embedding. */
static void join_operands(struct m3_recomputing *m)
{
    const int additive = m->node->adds_input;
    const struct m3_given e = m->in[0], h = m->in[1];
    const int64_t H = m->config->H, n = 2 * m->rows * H;
    const int is_off = (m3_is_off(&e) && !additive) || m3_is_off(&h);
    double *x = m3_recompute_scratch(m, n, sizeof *x);
    double *spread = is_off ? m3_recompute_scratch(m, 2 * n, sizeof *spread) : NULL;
    if (m->status) return;
    join(x, additive ? NULL : e.x, h.x, m->rows, H);
    m->in[0] = (struct m3_given){ .x = x, .width = 2 * H };
    m->in[1] = e;
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

/* ---- value, bound, propagation. With mtp_join=additive y = e + W h: one more rounding. */

static int value(struct m3_recomputing *m)
{
    int status = m->ops->linear(m->ctx, m->y, m->in[0].x, m->w[0], m->vector[1], m->rows);
    const double *e = m->node->adds_input ? m->in[1].x : NULL;
    for (int64_t i = 0; e && i < m->count; i++) m->y[i] += e[i];
    return status;
}

struct bounded {
    struct m3_bound *out;
    const double *x, *bias;
    int64_t rows, cols;
    int rounded;
};

static void bound_place(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct bounded *a = self;
    struct m3_dots dots;
    m3_dots(&dots, a->x + t * a->cols, panel->values, a->cols);
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t n = panel->n0 + l, at = t * a->rows + n;
        double b = a->bias ? a->bias[n] : 0;
        a->out->bound[at] = dots.mass[l] + fabs(b);
        if (!a->out->walk) continue;
        a->out->walk[at] = sqrt(m3_dot_walk2(&dots, l, a->cols, a->rounded, a->bias != NULL, dots.sum[l] + b));
    }
}

/* B = sum |w| |x| + |bias|,  steps = cols + (bias) + (a scale that is not a power of two)
 *     walk^2 = max(sum s_k^2 + sum p_k^2, (n/6 + 1) sum p_k^2 + (n/3 + 1) y^2), terms p_k, partial sums s_k */
int m3_bound_linear(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const struct m3_weight *w,
                    const double *bias, int64_t T, const struct m3_arithmetic *how)
{
    struct bounded linear = { out, x, bias, w->rows, w->cols, m3_bound_weight_roundings(w, how->u) };
    out->n = w->cols;
    out->f = linear.rounded + (bias != NULL);
    return m3_dot_panels(ctx, bound_place, &linear, w, NULL, T);
}

/* The walk of an additive join is that of the linear; its reduction counts the half that is zero too. */
static int bound(struct m3_recomputing *m)
{
    int status = m3_bound_linear(m->ctx, &m->bound, m->in[0].x, m->w[0], m->vector[1], m->rows, &m->how);
    if (m->node->is_noisy && m->setting->semantics->jitter != 0) m->bound.f += 2;
    if (!m->node->adds_input) return status;
    for (int64_t i = 0; i < m->count; i++) {
        m->bound.bound[i] += fabs(m->in[1].x[i]);
        m->bound.walk[i] = hypot(m->bound.walk[i], m->y[i]);
    }
    m->bound.n = m->config->H;
    m->bound.f++;
    return status;
}

struct propagated {
    struct m3_spread *out;
    const struct m3_spread *of_x;
    const int64_t *rows;            /* the rows of x that may have an error */
    int64_t outputs, cols;
};

static void propagate_place(const void *self, int64_t i, const struct m3_panel *panel)
{
    const struct propagated *a = self;
    double error[LANES], variance[LANES];
    int64_t t = a->rows[i];
    m3_dot_spread(error, variance, a->of_x->error + t * a->cols, a->of_x->variance + t * a->cols, panel->values,
                  a->cols);
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t at = t * a->outputs + panel->n0 + l;
        a->out->error[at] += error[l];
        a->out->variance[at] += variance[l];
    }
}

static int is_off(const struct m3_spread *s, int64_t at, int64_t n)
{
    for (int64_t i = at; i < at + n; i++)
        if (s->error[i] != 0 || s->variance[i] != 0) return 1;
    return 0;
}

/* error |W| e, variance W^2 v */
int m3_propagate_linear(struct m3_ctx *ctx, struct m3_spread *out, const struct m3_spread *of_x,
                        const struct m3_weight *w, int64_t T)
{
    if (m3_is_exact(of_x)) return M3_OK;
    int64_t cols = w->cols, count = 0;
    size_t mark = m3_scratch_mark(ctx);
    int64_t *rows = m3_scratch_take(ctx, T, sizeof *rows);
    if (!rows) return M3_INTERNAL;
    for (int64_t t = 0; t < T; t++)
        if (is_off(of_x, t * cols, cols)) rows[count++] = t;
    struct propagated linear = { out, of_x, rows, w->rows, cols };
    int status = count ? m3_dot_panels(ctx, propagate_place, &linear, w, NULL, count) : M3_OK;
    m3_scratch_release(ctx, mark);
    return status;
}

/* ---- a product in parts: each is rounded, then they are added */

struct in_parts {
    struct m3_spread *out;
    double *y;
    const double *x, *bias;
    const struct m3_spread *of_x;
    const struct m3_partials *how;
    int64_t outputs, cols;
    double u, stored;
    int rounded;
};

/* The parts of LANES outputs: sums, the errors of these, and the share of x in the errors. */
struct parts {
    double sum[M3_RANKS][LANES], error[M3_RANKS][LANES], given[LANES];
};

static void cut_product(struct parts *parts, const struct in_parts *a, int64_t t, const struct m3_panel *panel,
                        int even)
{
    memset(parts->given, 0, sizeof parts->given);
    for (int r = 0; r < a->how->ranks; r++) {
        double given[LANES] = { 0 }, variance[LANES];
        struct m3_dots dots;
        int64_t first, end;
        m3_partials_cut(&first, &end, a->cols, a->how->ranks, r, even);
        const double *w = panel->values + first * LANES;
        const int64_t at = t * a->cols + first, n = end - first;
        m3_dots(&dots, a->x + at, w, n);
        if (!m3_is_exact(a->of_x)) m3_dot_spread(given, variance, a->of_x->error + at, a->of_x->variance + at, w, n);
        for (int l = 0; l < LANES; l++) {
            const double own = m3_bound_allowed(dots.mass[l], (double)(n + a->rounded), a->u);
            parts->sum[r][l] = dots.sum[l];
            parts->error[r][l] = own + given[l];
            parts->given[l] += given[l];
        }
    }
}

/* The bias belongs to the first rank's part, or is added to the sum. */
static struct m3_range reduced(const double *p, const double *h, const struct in_parts *a, double bias)
{
    double with[M3_RANKS];
    struct m3_range late = m3_partials_reduce(p, h, a->how, a->u);
    if (bias == 0) return late;
    memcpy(with, p, (size_t)a->how->ranks * sizeof *with);
    with[0] += bias;
    late.low = m3_rounded_to(late.low + bias, a->how->dtype),
    late.high = m3_rounded_to(late.high + bias, a->how->dtype);
    return m3_range_join(late, m3_partials_reduce(with, h, a->how, a->u));
}

/* Results of float sums that are exact, and of any within their bounds. The range covers the orders of addition; what
 * is left to chance is a part that float sums in another order round to its neighbour, at most one step of any part.
 * Under other inputs the roundings are others: then only their size is known, and the truth stays what is expected. */
static void add_lane(const struct in_parts *a, int64_t at, const struct parts parts[2], int cuts, int l, double bias)
{
    static const double exact[M3_RANKS];
    const struct m3_partials once = { a->how->ranks, M3_REDUCE_ONE_SHOT, a->how->dtype };
    struct m3_range all = { INFINITY, -INFINITY }, likely = all;
    double p[M3_RANKS], h[M3_RANKS], variance = 0, y = bias, given = parts[0].given[l];
    const int is_exact = a->y && given == 0;
    for (int r = 0; r < a->how->ranks; r++) y += parts[0].sum[r][l];
    for (int c = 0; c < cuts; c++) {
        for (int r = 0; r < a->how->ranks; r++) p[r] = parts[c].sum[r][l], h[r] = parts[c].error[r][l];
        variance = fmax(variance, m3_partials_variance(p, is_exact ? &once : a->how));
        all = m3_range_join(all, reduced(p, h, a, bias));
        if (is_exact) likely = m3_range_join(likely, reduced(p, exact, a, bias));
    }
    if (!isfinite(all.low) || !isfinite(all.high)) return;
    const double half = is_exact ? (likely.high - likely.low) / 2 : 0, s = a->stored;
    if (is_exact) a->y[at] = y = likely.low + half;
    a->out->error[at] += fmax(0, fmax(all.high - y, y - all.low) - given);
    a->out->variance[at] += half * half / 3 + s * s * (variance + bias * bias / 3);
}

static void partials_place(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct in_parts *a = self;
    const int cuts = a->cols % a->how->ranks ? 2 : 1;
    struct parts parts[2];
    for (int c = 0; c < cuts; c++) cut_product(&parts[c], a, t, panel, c);
    for (int l = 0; l < panel->lanes; l++) {
        const int64_t n = panel->n0 + l;
        add_lane(a, t * a->outputs + n, parts, cuts, l, a->bias ? a->bias[n] : 0);
    }
}

int m3_propagate_partials(struct m3_ctx *ctx, struct m3_spread *out, double *y, const double *x,
                          const struct m3_spread *of_x, const struct m3_weight *w, const double *bias, int64_t T,
                          const struct m3_partials *how, double u)
{
    const struct in_parts linear = { .out = out,
                                     .y = y,
                                     .x = x,
                                     .bias = bias,
                                     .of_x = of_x,
                                     .how = how,
                                     .outputs = w->rows,
                                     .cols = w->cols,
                                     .u = u,
                                     .stored = m3_partials_roundoff(how->dtype),
                                     .rounded = m3_bound_weight_roundings(w, u) };
    return m3_dot_panels(ctx, partials_place, &linear, w, NULL, T);
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
        status = m3_propagate_partials(m->ctx, &m->spread, m->y, m->in[0].x, &m->in[0].off, m->w[0], m->vector[1],
                                       m->rows, &m->partials, m->how.u);
    if (!status) m3_propagate_weight_floor(&m->spread, m->in[0].x, m->rows, m->in[0].width, m->width, m->weight_floor);
    if (m->node->adds_input) m3_propagate_add(&m->spread, &m->in[1].off, NULL, m->count);
    return status;
}

const struct m3_error_operator m3_error_linear = {
    .name = "linear",
    .sections = { "5.4 linear" },
    .value = value,
    .bound = bound,
    .propagate = propagate,
    .prepare = prepare,
    .in_parts = 1,
};
