#include <string.h>

#include "base/minmax.h"
#include "oracle/error/parameters/private/derivatives.h"
#include "oracle/error/private/kernels.h"
#include "oracle/error/private/products.h"

typedef double by(double gate, double up, const struct m3_gate_form *g);

/* ---- through w2 of y = w2 act(w1 x, w3 x): dy = w2 dact */

struct passed {
    by *derivative;
    const struct m3_gate_form *gate;
    double *act, *y;            /* [T,F], [T,H] */
    int64_t H, F;
};

static void at_act(const void *self, const struct m3_piece *piece)
{
    const struct passed *p = self;
    const double *gate = m3_piece_sum(piece, 0, 0, 0), *up = m3_piece_sum(piece, 1, 0, 0);
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++) {
            const int64_t at = l * piece->stride + t;
            p->act[(piece->t0 + t) * p->F + piece->n0 + l] = p->derivative(gate[at], up[at], p->gate);
        }
}

static void at_out(const void *self, const struct m3_piece *piece)
{
    const struct passed *p = self;
    const double *sum = m3_piece_sum(piece, 0, 0, 0);
    for (int64_t t = 0; t < piece->rows; t++)
        for (int64_t l = 0; l < piece->lanes; l++)
            p->y[(piece->t0 + t) * p->H + piece->n0 + l] = sum[l * piece->stride + t];
}

enum { ROWS = M3_MLP_ROWS };

/* Limits are seldom reached: then no derivative by them has to pass. */
static int has_any(const double *act, int64_t n)
{
    int64_t i = 0;
    while (i < n && act[i] == 0) i++;
    return i < n;
}

/* y [T,H] of x [T,H], T at most ROWS. */
static int through(struct m3_recomputing *m, double *y, const double *x, const struct m3_weight *w1,
                   const struct m3_weight *w3, const struct m3_weight *w2, int64_t T, by *derivative)
{
    const struct m3_gate own = m3_setting_gate(m->setting);
    const struct m3_gate_form gate = m3_gate_form(&own);
    const size_t mark = m3_scratch_mark(m->ctx);
    double *act = m3_scratch_take(m->ctx, T * w1->rows, sizeof *act);
    const struct passed p = { derivative, &gate, act, y, w1->cols, w1->rows };
    const struct m3_products in = { .w = w1, .second = w3, .sums = { { M3_SUM_PRODUCTS, x } }, .count = 1 };
    const struct m3_products out = { .w = w2, .sums = { { M3_SUM_PRODUCTS, act } }, .count = 1 };
    int status = act ? m3_products(m->ctx, &in, T, at_act, &p) : M3_INTERNAL;
    if (!status && has_any(act, T * w1->rows)) status = m3_products(m->ctx, &out, T, at_out, &p);
    else memset(y, 0, (size_t)(T * w2->rows) * sizeof *y);
    m3_scratch_release(m->ctx, mark);
    return status;
}

/* Of row r of those recomputed, from `first` on. */
static void give(const struct m3_recomputing *m, int64_t r, int64_t first, const double *values, int64_t n)
{
    const struct m3_visit *visit = m->setting->visit;
    if (!visit) memcpy(m->y + r * m->width + first, values, (size_t)n * sizeof *values);
    for (int64_t i = 0; i < n && visit; i += M3_VISITED)
        visit->at(visit->self, m->numbers[r], first + i, values + i, m3_min(M3_VISITED, n - i));
}

static int through_shared(struct m3_recomputing *m, by *derivative)
{
    const int64_t H = m->width;
    double *y = m3_recompute_scratch(m, ROWS * H, sizeof *y);
    for (int64_t r = 0, n; r < m->rows && !m->status; r += n) {
        n = m3_min(ROWS, m->rows - r);
        m->status = through(m, y, m->in[0].values + r * H, m->w[0], m->w[1], m->w[2], n, derivative);
        for (int64_t i = 0; i < n && !m->status; i++) give(m, r + i, 0, y + i * H, H);
    }
    return m->status;
}

static int through_experts(struct m3_recomputing *m, by *derivative)
{
    const struct m3_expert *experts = (const struct m3_expert *)(const void *)m->w[0];
    const int64_t K = m->config->K, H = m->config->H, count = m->rows * K;
    double *x = m3_recompute_scratch(m, 2 * H * ROWS, sizeof *x), *y = x + ROWS * H;
    int64_t slots[ROWS];
    int status = m->status ? m->status : m3_check_experts(m->ctx, m->in[1].ids, count, m->config->E, K);
    for (int64_t e = 0; e < m->config->E; e++)
        for (int64_t at = 0, n; at < count && !status;) {
            for (n = 0; at < count && n < ROWS; at++)
                if (m->in[1].ids[at] == e) slots[n++] = at;
            for (int64_t i = 0; i < n; i++)
                memcpy(x + i * H, m->in[0].values + slots[i] / K * H, (size_t)H * sizeof *x);
            const struct m3_expert *w = &experts[e];
            if (n > 0) status = through(m, y, x, &w->w1, &w->w3, &w->w2, n, derivative);
            for (int64_t i = 0; i < n && !status; i++) give(m, slots[i] / K, slots[i] % K * H, y + i * H, H);
        }
    return status;
}

/* Of rows [rows,width], in pieces. */
static int visit_each(struct m3_recomputing *m, m3_gate_kernel *derivative, const struct m3_gate_form *form)
{
    const struct m3_visit *visit = m->setting->visit;
    double values[M3_VISITED];
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t i = 0; i < m->width; i += M3_VISITED) {
            const int64_t n = m3_min(M3_VISITED, m->width - i), at = r * m->width + i;
            derivative(values, m->in[0].values + at, m->in[1].values + at, n, form);
            visit->at(visit->self, m->numbers[r], i, values, n);
        }
    return M3_OK;
}

static int at_each(struct m3_recomputing *m, m3_gate_kernel *derivative)
{
    enum { PIECE = 4096 };
    const struct m3_gate gate = m3_setting_gate(m->setting);
    const struct m3_gate_form form = m3_gate_form(&gate);
    if (m->setting->visit) return visit_each(m, derivative, &form);
#pragma omp parallel for num_threads(m3_team(m->ctx, m->count * 16))
    for (int64_t i = 0; i < m->count; i += PIECE)
        derivative(m->y + i, m->in[0].values + i, m->in[1].values + i, m3_min(PIECE, m->count - i), &form);
    return M3_OK;
}

static int derive(struct m3_recomputing *m, by *derivative, m3_gate_kernel *kernel)
{
    if (m->tap != M3_TAP_SHARED && m->tap != M3_TAP_EXPERT_OUT) return at_each(m, kernel);
    /* Rounding to E4M3 moves inputs to one side where they are large. */
    if (m3_is_off(&m->in[0])) {
        m3_recompute_missing(m->out, "exact inputs");
        return M3_OK;
    }
    return m->tap == M3_TAP_SHARED ? through_shared(m, derivative) : through_experts(m, derivative);
}

int m3_by_alpha(struct m3_recomputing *m) { return derive(m, m3_gate_by_alpha, m3_error_kernels()->by_alpha); }

int m3_by_beta(struct m3_recomputing *m) { return derive(m, m3_gate_by_beta, m3_error_kernels()->by_beta); }

int m3_by_limit_of_up(struct m3_recomputing *m)
{
    return derive(m, m3_gate_by_limit_of_up, m3_error_kernels()->by_limit_of_up);
}

int m3_by_limit_of_gate(struct m3_recomputing *m)
{
    return derive(m, m3_gate_by_limit_of_gate, m3_error_kernels()->by_limit_of_gate);
}
