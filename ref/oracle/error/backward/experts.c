#include <math.h>
#include <string.h>

#include "oracle/error/backward/backward.h"
#include "oracle/error/backward/slope.h"

/* One expert's matrices in double, and what one row makes of them, each with its error. */
struct expert {
    double *w1, *w3, *w2;       /* [F,H], [F,H], [H,F] */
    double *gate, *up, *e_gate, *e_up;          /* [F] */
    double *v, *e_v, *size_v;                   /* [F] w2' dy, and the sum of |w2 dy| */
    double *e_dgate, *e_dup, *dgate, *dup;      /* [F] */
    double *a, *e_a;                            /* [F] */
    double roundings;           /* of a stored weight on its way to a float */
};

enum { OF_F = 13 };

static int make(struct m3_ctx *ctx, struct expert *e, int64_t F, int64_t H)
{
    double **const of_f[OF_F] = { &e->gate,    &e->up,    &e->e_gate, &e->e_up, &e->v, &e->e_v, &e->size_v,
                                  &e->e_dgate, &e->e_dup, &e->dgate,  &e->dup,  &e->a, &e->e_a };
    double **const matrices[] = { &e->w1, &e->w3, &e->w2 };
    int missing = 0;
    for (int i = 0; i < OF_F; i++) missing |= !(*of_f[i] = m3_scratch_take(ctx, F, sizeof(double)));
    for (int i = 0; i < 3; i++) missing |= !(*matrices[i] = m3_scratch_take(ctx, F * H, sizeof(double)));
    return missing ? M3_INTERNAL : M3_OK;
}

static void expand(double *to, const struct m3_weight *w)
{
    for (int64_t i = 0; i < w->rows; i++) m3_expand_f64(to + i * w->cols, w, i, 0, w->cols);
}

/* gate, up and v = w2' d of one row x, d [H] */
static void multiply(struct expert *e, const double *x, const double *d, int64_t F, int64_t H,
                     const struct m3_backward_arithmetic *how)
{
    const double of_sum = how->u * ((double)H + 2 + e->roundings);
    for (int64_t f = 0; f < F; f++) {
        double gate = 0, up = 0, v = 0, of_gate = 0, of_up = 0, of_v = 0;
        for (int64_t h = 0; h < H; h++) {
            const double g = e->w1[f * H + h] * x[h], u = e->w3[f * H + h] * x[h], o = e->w2[h * F + f] * d[h];
            gate += g, up += u, v += o;
            of_gate += fabs(g), of_up += fabs(u), of_v += fabs(o);
        }
        e->gate[f] = gate, e->up[f] = up, e->v[f] = v, e->size_v[f] = of_v;
        e->e_gate[f] = of_sum * of_gate + how->act * fabs(gate);
        e->e_up[f] = of_sum * of_up + how->act * fabs(up);
        e->e_v[f] = (of_sum + how->act) * of_v;
    }
}

/* The activation and its two slopes, whose inputs are off: the largest change among the corners of what they may be. A
 * corner beyond a clamp has the slope 0. */
static void differentiate(struct expert *e, int64_t f, double p, const struct m3_gate *act,
                          const struct m3_backward_arithmetic *how)
{
    const struct m3_gate_slope k = m3_gate_slope(e->gate[f], e->up[f], act);
    const struct m3_slope_errors own = m3_gate_errors(&k, how);
    const double most = 6 * (how->u + how->act), da = fabs(p * e->v[f]);
    double by_gate = 0, by_up = 0, e_y = 0;
    for (int corner = 0; corner < 9; corner++) {
        const int of_gate = corner % 3 - 1, of_up = corner / 3 - 1;        /* -1, 0 or 1 */
        const double gate = e->gate[f] + of_gate * e->e_gate[f], up = e->up[f] + of_up * e->e_up[f];
        const struct m3_gate_slope there = m3_gate_slope(gate, up, act);
        by_gate = fmax(by_gate, fabs(there.by_gate - k.by_gate));
        by_up = fmax(by_up, fabs(there.by_up - k.by_up));
        e_y = fmax(e_y, fabs(there.y - k.y));
    }
    /* The slopes change a little more inside than at the corners. */
    by_gate = 1.1 * by_gate + k.size * (own.s * own.e_h + own.h * (own.e_s + most * own.s));
    by_up = 1.1 * by_up + fabs(k.g) * (own.e_s + most * own.s);
    const double e_da = p * e->e_v[f] + (2 * how->u + how->act) * da;
    e->a[f] = k.y;
    e->e_a[f] = 1.1 * e_y + k.size * fabs(k.g) * (own.e_s + most * own.s);
    e->dgate[f] = da * fabs(k.by_gate), e->dup[f] = da * fabs(k.by_up);
    e->e_dgate[f] = da * by_gate + e_da * (fabs(k.by_gate) + by_gate);
    e->e_dup[f] = da * by_up + e_da * (fabs(k.by_up) + by_up);
}

/* What one row adds, which has slot `at` of expert number `number`; n rows share the expert. */
static void add_row(const struct m3_experts_errors *to, const struct expert *e, const struct m3_experts_operands *x,
                    const struct m3_backward_arithmetic *how, int64_t at, int64_t number, int64_t n)
{
    const int64_t H = x->H, F = x->F, t = at / x->K;
    const double u = how->u, p = fabs(x->p[at]), rows = u * (double)(n + 3);
    const double of_dx = u * (double)(2 * F + x->K + 2) + u * e->roundings + how->expert;
    double of_dp = 0;
    for (int64_t f = 0; f < F; f++) {
        const double a = fabs(e->a[f]);
        of_dp += fabs(e->v[f]) * e->e_a[f] + a * e->e_v[f] + (u * (double)(F + H + 4) + how->expert) * e->size_v[f] * a;
        for (int64_t h = 0; h < H; h++) {
            const double d = fabs(x->factor * x->dy[t * H + h]), in = fabs(x->x[t * H + h]);
            if (to->dw2) to->dw2[(number * H + h) * F + f] += p * d * (e->e_a[f] + (rows + how->expert) * a);
            if (to->dw1) to->dw1[(number * F + f) * H + h] += in * (e->e_dgate[f] + rows * e->dgate[f]);
            if (to->dw3) to->dw3[(number * F + f) * H + h] += in * (e->e_dup[f] + rows * e->dup[f]);
            if (to->dx)
                to->dx[t * H + h] += fabs(e->w1[f * H + h]) * (e->e_dgate[f] + of_dx * e->dgate[f]) +
                                     fabs(e->w3[f * H + h]) * (e->e_dup[f] + of_dx * e->dup[f]);
        }
    }
    if (to->dp) to->dp[at] = of_dp;
}

static void clear(double *x, int64_t n)
{
    if (x) memset(x, 0, (size_t)n * sizeof *x);
}

int m3_error_experts_backward(struct m3_ctx *ctx, const struct m3_experts_errors *to,
                              const struct m3_experts_operands *x, const struct m3_backward_arithmetic *how)
{
    const int64_t H = x->H, F = x->F;
    size_t mark = m3_scratch_mark(ctx);
    struct expert e;
    double *d = m3_scratch_take(ctx, H, sizeof *d);
    int status = d ? make(ctx, &e, F, H) : M3_INTERNAL;
    clear(to->dx, x->T * H), clear(to->dp, x->T * x->K);
    clear(to->dw1, x->E * F * H), clear(to->dw3, x->E * F * H), clear(to->dw2, x->E * F * H);
    for (int64_t number = 0; !status && number < x->E; number++) {
        int64_t n = 0;
        for (int64_t i = 0; i < x->T * x->K; i++) n += x->ids[i] == number;
        if (n == 0) continue;
        const struct m3_expert *w = &x->experts[number];
        expand(e.w1, &w->w1), expand(e.w3, &w->w3), expand(e.w2, &w->w2);
        e.roundings = m3_bound_weight_roundings(&w->w1, how->u);
        for (int64_t i = 0; i < x->T * x->K; i++) {
            if (x->ids[i] != number) continue;
            for (int64_t h = 0; h < H; h++) d[h] = x->factor * x->dy[i / x->K * H + h];
            multiply(&e, x->x + i / x->K * H, d, F, H, how);
            for (int64_t f = 0; f < F; f++) differentiate(&e, f, x->p[i], x->gate, how);
            add_row(to, &e, x, how, i, number, n);
        }
    }
    m3_scratch_release(ctx, mark);
    return status;
}
