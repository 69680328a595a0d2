#include <string.h>

#include "base/minmax.h"
#include "oracle/error/parameters/private/derivatives.h"
#include "oracle/error/private/dot.h"
#include "oracle/error/private/kernels.h"

typedef double by(double gate, double up, const struct m3_gate_form *g);

/* ---- through w2 of y = w2 act(w1 x, w3 x): dy = w2 dact */

struct passed {
    by *derivative;
    const struct m3_gate_form *gate;
    const double *x;
    double *act, *y;            /* [T,F], [T,H] */
    int64_t H, F;
};

static void at_act(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct passed *p = self;
    struct m3_dots gate, up;
    m3_dots(&gate, p->x + t * p->H, panel->values, p->H);
    m3_dots(&up, p->x + t * p->H, panel->second, p->H);
    for (int64_t l = 0; l < panel->lanes; l++)
        p->act[t * p->F + panel->n0 + l] = p->derivative(gate.sum[l], up.sum[l], p->gate);
}

static void at_out(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct passed *p = self;
    struct m3_dots dots;
    m3_dots(&dots, p->act + t * p->F, panel->values, p->F);
    for (int64_t l = 0; l < panel->lanes; l++) p->y[t * p->H + panel->n0 + l] = dots.sum[l];
}

enum { ROWS = 64 };             /* at a time: bounds the scratch memory */

/* y [T,H] of x [T,H], T at most ROWS. */
static int through(struct m3_recomputing *m, double *y, const double *x, const struct m3_weight *w1,
                   const struct m3_weight *w3, const struct m3_weight *w2, int64_t T, by *derivative)
{
    const struct m3_gate own = m3_setting_gate(m->setting);
    const struct m3_gate_form gate = m3_gate_form(&own);
    const size_t mark = m3_scratch_mark(m->ctx);
    double *act = m3_scratch_take(m->ctx, T * w1->rows, sizeof *act);
    const struct passed p = { derivative, &gate, x, act, y, w1->cols, w1->rows };
    int status = act ? m3_dot_panels(m->ctx, at_act, &p, w1, w3, T) : M3_INTERNAL;
    if (!status) status = m3_dot_panels(m->ctx, at_out, &p, w2, NULL, T);
    m3_scratch_release(m->ctx, mark);
    return status;
}

static int through_shared(struct m3_recomputing *m, by *derivative)
{
    const int64_t H = m->width;
    int status = M3_OK;
    for (int64_t r = 0; r < m->rows && !status; r += ROWS)
        status = through(m, m->y + r * H, m->in[0].x + r * H, m->w[0], m->w[1], m->w[2], m3_min(ROWS, m->rows - r),
                         derivative);
    return status;
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
            for (int64_t i = 0; i < n; i++) memcpy(x + i * H, m->in[0].x + slots[i] / K * H, (size_t)H * sizeof *x);
            const struct m3_expert *w = &experts[e];
            if (n > 0) status = through(m, y, x, &w->w1, &w->w3, &w->w2, n, derivative);
            for (int64_t i = 0; i < n && !status; i++) memcpy(m->y + slots[i] * H, y + i * H, (size_t)H * sizeof *y);
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
            derivative(values, m->in[0].x + at, m->in[1].x + at, n, form);
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
        derivative(m->y + i, m->in[0].x + i, m->in[1].x + i, m3_min(PIECE, m->count - i), &form);
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

int m3_by_limit_of_up(struct m3_recomputing *m)
{
    return derive(m, m3_gate_by_limit_of_up, m3_error_kernels()->by_limit_of_up);
}

int m3_by_limit_of_gate(struct m3_recomputing *m)
{
    return derive(m, m3_gate_by_limit_of_gate, m3_error_kernels()->by_limit_of_gate);
}
