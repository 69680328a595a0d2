#include <string.h>

#include "base/minmax.h"
#include "oracle/error/private/bounds_activation.h"
#include "oracle/error/private/bounds_dot.h"
#include "oracle/error/private/bounds_experts.h"
#include "oracle/error/private/propagate_activation.h"

enum { LANES = M3_DOT_LANES };

/* Rows of a gated MLP on their way: y = w2 act(w1 x, w3 x). */
struct mlp {
    struct m3_spread *out;                      /* [T,H] */
    const double *x;
    const struct m3_spread *of_x;
    struct m3_spread of_act;                    /* [T,F] */
    const struct m3_gate *gate;
    const struct m3_mlp_storage *storage;
    int64_t H, F;
};

/* Gate or up of LANES channels: what x is off by, and storing. */
static void linear(double *sum, double *error, double *variance, const struct mlp *mlp, int64_t t, const double *panel,
                   double u)
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
    m3_propagate_store(&spread, sum, LANES, u, 0);
}

static void first_half(const void *self, int64_t t, const struct m3_panel *panel)
{
    const struct mlp *mlp = self;
    const struct m3_mlp_storage *s = mlp->storage;
    double gate[LANES], up[LANES], errors[2][LANES], variances[2][LANES];
    linear(gate, errors[0], variances[0], mlp, t, panel->values, s->gate);
    linear(up, errors[1], variances[1], mlp, t, panel->second, s->up);
    struct m3_spread of_gate = { errors[0], variances[0] }, of_up = { errors[1], variances[1] };
    for (int64_t l = 0; l < panel->lanes; l++) {
        int64_t at = t * mlp->F + panel->n0 + l;
        struct m3_spread of_act = { mlp->of_act.error + at, mlp->of_act.variance + at };
        double y = m3_gate_value(gate[l], up[l], mlp->gate);
        m3_propagate_gate(&of_act, 0, gate[l], up[l], &of_gate, &of_up, l, mlp->gate, s->chain);
        m3_propagate_store(&of_act, &y, 1, s->act, 0);
    }
}

static int is_nothing(const struct m3_spread *of_x, const struct m3_mlp_storage *s)
{
    return m3_is_exact(of_x) && s->gate == 0 && s->up == 0 && s->chain == 0 && s->act == 0;
}

/* T <= M3_CHOSEN rows. */
static int few_rows(struct m3_ctx *ctx, struct mlp mlp, const struct m3_weight *w1, const struct m3_weight *w3,
                    const struct m3_weight *w2, int64_t T)
{
    int64_t n = T * mlp.F;
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, 2 * n, sizeof *memory);
    int status = memory ? M3_OK : M3_INTERNAL;
    mlp.of_act = (struct m3_spread){ memory, memory + n };
    if (!status) memset(memory, 0, (size_t)(2 * n) * sizeof *memory);
    if (!status) status = m3_dot_panels(ctx, first_half, &mlp, w1, w3, T);
    if (!status) status = m3_propagate_linear(ctx, mlp.out, &mlp.of_act, w2, T);
    m3_scratch_release(ctx, mark);
    return status;
}

/* A spread from element `at` on. */
static struct m3_spread from(const struct m3_spread *s, int64_t at)
{
    if (m3_is_exact(s)) return (struct m3_spread){ NULL, NULL };
    return (struct m3_spread){ s->error + at, s->variance + at };
}

int m3_propagate_gated_mlp(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                      const struct m3_weight *w1, const struct m3_weight *w3, const struct m3_weight *w2,
                      const struct m3_gate *g, int64_t T, const struct m3_mlp_storage *storage)
{
    int64_t H = w1->cols;
    int status = M3_OK;
    for (int64_t t = 0; t < T && !status && !is_nothing(of_x, storage); t += M3_CHOSEN) {
        struct m3_spread rows_out = from(out, t * w2->rows), rows_x = from(of_x, t * H);
        struct mlp mlp = { .out = &rows_out, .x = x + t * H, .of_x = &rows_x, .gate = g, .storage = storage, .H = H,
                           .F = w1->rows };
        status = few_rows(ctx, mlp, w1, w3, w2, m3_min(M3_CHOSEN, T - t));
    }
    return status;
}

struct experts {
    struct m3_spread *each;
    const double *x;
    const struct m3_spread *of_x;
    const struct m3_expert *experts;
    const struct m3_gate *gate;
    const struct m3_mlp_storage *storage;
    int64_t K, H;
    double *in;                                 /* [5, M3_CHOSEN, H]: x, its spread, the result's */
};

static int push_expert(struct m3_ctx *ctx, const void *self, int64_t expert, const int64_t *slots, int64_t n)
{
    const struct experts *a = self;
    const struct m3_expert *w = &a->experts[expert];
    int64_t size = M3_CHOSEN * a->H;
    double *error = a->in + 3 * size, *variance = a->in + 4 * size;
    struct m3_spread of_x = { NULL, NULL }, out = { error, variance };
    m3_gather_tokens(a->in, a->x, slots, n, a->K, a->H);
    if (!m3_is_exact(a->of_x)) {
        of_x = (struct m3_spread){ a->in + size, a->in + 2 * size };
        m3_gather_tokens(of_x.error, a->of_x->error, slots, n, a->K, a->H);
        m3_gather_tokens(of_x.variance, a->of_x->variance, slots, n, a->K, a->H);
    }
    memset(error, 0, (size_t)(2 * size) * sizeof *error);
    int status = m3_propagate_gated_mlp(ctx, &out, a->in, &of_x, &w->w1, &w->w3, &w->w2, a->gate, n, a->storage);
    for (int64_t i = 0; i < n && !status; i++)
        for (int64_t h = 0; h < a->H; h++) {
            a->each->error[slots[i] * a->H + h] += error[i * a->H + h];
            a->each->variance[slots[i] * a->H + h] += variance[i * a->H + h];
        }
    return status;
}

int m3_propagate_experts(struct m3_ctx *ctx, struct m3_spread *each, const double *x, const struct m3_spread *of_x,
                    const int32_t *ids, const struct m3_expert *experts, const struct m3_gate *g, int64_t T, int64_t E,
                    int64_t K, const struct m3_mlp_storage *storage)
{
    if (is_nothing(of_x, storage)) return M3_OK;
    int64_t H = experts[0].w1.cols;
    size_t mark = m3_scratch_mark(ctx);
    double *in = m3_scratch_take(ctx, 5 * M3_CHOSEN * H, sizeof *in);
    struct experts all = { each, x, of_x, experts, g, storage, K, H, in };
    int status = in ? m3_each_expert(ctx, push_expert, &all, ids, T, E, K) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}
