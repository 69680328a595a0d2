/* The derivatives: forward formulas of SPEC 5 on a tape that differentiates itself, in numbers that carry how far an
 * operator may be from them (near_twin.h). Gradients are added to what is there. They share nothing with ref/; the tests
 * of operators and those of `m3ref op` use them. */
#ifndef M3_TESTS_DERIVATIVE_TWIN_H
#define M3_TESTS_DERIVATIVE_TWIN_H

#include "formula_twin.h"
#include "near_twin.h"

/* ---- the tape: each number with the two it was made of and the slopes by them; number 0 is a constant 0 */

struct tape_entry {
    int a, b, stores; /* stores: its gradient is rounded to `real` before it is passed on */
    struct near by_a, by_b, value, gradient;
};

struct tape {
    struct tape_entry *at;
    int count, room;
};

static inline int t_made(struct tape *t, struct near value, int a, struct near by_a, int b, struct near by_b)
{
    if (t->count + 2 > t->room) {
        t->room = 2 * t->room + 1024;
        t->at = realloc(t->at, (size_t)t->room * sizeof *t->at);
        if (!t->at) abort();
    }
    if (t->count == 0) t->at[t->count++] = (struct tape_entry){ 0 };
    t->at[t->count] = (struct tape_entry){ a, b, 0, by_a, by_b, value, { 0, 0 } };
    return t->count++;
}

static inline struct near t_at(const struct tape *t, int i) { return t->at[i].value; }
static inline int t_of(struct tape *t, struct near value, int a, struct near by)
{
    return t_made(t, value, a, by, 0, near_of(0));
}
static inline int t_input(struct tape *t, double x) { return t_of(t, near_of(x), 0, near_of(0)); }
static inline int t_add(struct tape *t, int a, int b)
{
    return t_made(t, near_plus(t_at(t, a), t_at(t, b)), a, near_of(1), b, near_of(1));
}
static inline int t_multiply(struct tape *t, int a, int b)
{
    return t_made(t, near_times(t_at(t, a), t_at(t, b)), a, t_at(t, b), b, t_at(t, a));
}
static inline int t_times(struct tape *t, int x, struct near by) { return t_of(t, near_times(t_at(t, x), by), x, by); }
static inline int t_plus(struct tape *t, int x, double plus)
{
    return t_of(t, near_plus(t_at(t, x), near_of(plus)), x, near_of(1));
}

static inline struct near near_power(struct near x, double n)
{
    const long double v = powl(x.v, n);
    return (struct near){ v, fabsl(n * v / x.v) * x.e + 4 * near_u * fabsl(v) };
}

static inline int t_power(struct tape *t, int x, double n)
{
    return t_of(t, near_power(t_at(t, x), n), x, near_times(near_of(n), near_power(t_at(t, x), n - 1)));
}
static inline int t_exp(struct tape *t, int x) { return t_of(t, near_exp(t_at(t, x)), x, near_exp(t_at(t, x))); }
static inline int t_log(struct tape *t, int x)
{
    const struct near v = t_at(t, x), log = { logl(v.v), v.e / v.v + 4 * near_u * (1 + fabsl(logl(v.v))) };
    return t_of(t, log, x, near_over(near_of(1), v));
}
/* The slope: sig(x) sig(-x). */
static inline int t_sigmoid(struct tape *t, int x)
{
    const struct near v = t_at(t, x);
    return t_of(t, near_sig(v), x, near_times(near_sig(v), near_sig(near_minus(v))));
}

/* x sig(by x), where the operator may take the slope of sig from 1 - sig. */
static inline int t_swish(struct tape *t, int x, double by)
{
    const int a = t_times(t, x, near_of(by)), made = t_sigmoid(t, a);
    const struct near s = t_at(t, made), one = near_of(1);
    t->at[made].by_a.e = near_times(s, near_plus(one, near_minus(s))).e;
    return t_multiply(t, x, made);
}

/* (1 + erf(x / sqrt 2)) / 2; the tail of erfc is good to some units in the last place. */
static inline int t_half_erfc(struct tape *t, int x)
{
    const long double v = t_at(t, x).v, p = erfcl(-v / sqrtl(2)) / 2, pi = 3.14159265358979323846264338327950288L;
    const struct near square = near_times(t_at(t, x), t_at(t, x)), root = { sqrtl(2 * pi), 0 };
    return t_of(t, (struct near){ p, 16 * near_u * p }, x,
                near_over(near_exp(near_times(near_of(-0.5), square)), root));
}

/* As PyTorch's clamp: at the limits the gradient passes. Nothing is within rounding of them. */
static inline int t_clamp(struct tape *t, int x, long double low, long double high)
{
    const struct near v = t_at(t, x);
    ck_assert(v.e == 0 || (fabsl(v.v - low) > v.e && fabsl(v.v - high) > v.e));
    const int inside = !(v.v < low || v.v > high);
    return t_of(t, inside ? v : (struct near){ v.v < low ? low : high, 0 }, x, near_of(inside));
}

/* Rounded to `real`: the number, or its gradient. */
static inline int t_rounded(struct tape *t, int x) { return t_of(t, near_stored(t_at(t, x)), x, near_of(1)); }
static inline int t_stores(struct tape *t, int x)
{
    const int made = t_of(t, t_at(t, x), x, near_of(1));
    t->at[made].stores = 1;
    return made;
}

static inline int t_off(struct tape *t, int x, long double off)
{
    return t_of(t, (struct near){ t_at(t, x).v, t_at(t, x).e + off }, x, near_of(1));
}

/* n inputs from x on; the first of them. */
static inline int t_inputs(struct tape *t, const double *x, int64_t n)
{
    const int first = t->count ? t->count : 1;
    for (int64_t i = 0; i < n; i++) t_input(t, x[i]);
    return first;
}

static inline int t_dot(struct tape *t, int a, int b, int64_t n)
{
    int sum = t_input(t, 0);
    for (int64_t i = 0; i < n; i++) sum = t_add(t, sum, t_multiply(t, a + (int)i, b + (int)i));
    return sum;
}

static inline void t_seed(struct tape *t, int i, struct near gradient) { t->at[i].gradient = gradient; }

static inline void t_pass(struct tape *t, int to, struct near gradient, struct near by)
{
    if (to) t->at[to].gradient = near_plus(t->at[to].gradient, near_times(gradient, by));
}

static inline void t_backwards(struct tape *t)
{
    for (int i = t->count - 1; i > 0; i--) {
        const struct tape_entry e = t->at[i];
        if (e.gradient.v == 0 && e.gradient.e == 0) continue;
        const struct near gradient = e.stores ? near_stored(e.gradient) : e.gradient;
        t_pass(t, e.a, gradient, e.by_a);
        t_pass(t, e.b, gradient, e.by_b);
    }
}

/* Adds the gradients of n inputs from `first` on. */
static inline void t_take(struct near *to, const struct tape *t, int first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = near_plus(to[i], t->at[first + i].gradient);
}

static inline void t_free(struct tape *t) { free(t->at); }

/* ---- rows */

/* centred: layer_norm, whose db is wanted then. */
static inline void twin_norm_back(struct near *dx, struct near *dw, struct near *db, const double *dy, const double *x,
                                  const double *w, int64_t T, int64_t H, double eps, double offset, int centred)
{
    struct tape t = { 0 };
    int *c = malloc((size_t)H * sizeof *c);
    const struct near part = near_over(near_of(1), near_of((double)H));
    for (int64_t r = 0; r < T; r++) {
        t.count = 0;
        const int xs = t_inputs(&t, x + r * H, H), ws = t_inputs(&t, w, H);
        int mean = t_input(&t, 0), sum = t_input(&t, 0);
        for (int64_t i = 0; i < H && centred; i++) mean = t_add(&t, mean, t_times(&t, xs + (int)i, part));
        for (int64_t i = 0; i < H; i++) {
            c[i] = t_add(&t, xs + (int)i, t_times(&t, mean, near_of(-1)));
            sum = t_add(&t, sum, t_multiply(&t, c[i], c[i]));
        }
        const int scale = t_power(&t, t_plus(&t, t_times(&t, sum, part), eps), -0.5);
        for (int64_t i = 0; i < H; i++) {
            const int y = t_multiply(&t, t_multiply(&t, c[i], scale), t_plus(&t, ws + (int)i, offset));
            t_seed(&t, y, near_of(dy[r * H + i]));
            if (centred) db[i] = near_plus(db[i], near_of(dy[r * H + i]));
        }
        t_backwards(&t);
        t_take(dx + r * H, &t, xs, H);
        t_take(dw, &t, ws, H);
    }
    free(c);
    t_free(&t);
}

/* dbias NULL: none. */
static inline void twin_linear_back(struct near *dx, struct near *dw, struct near *dbias, const double *dy,
                                    const double *x, const double *w, int64_t T, int64_t rows, int64_t cols)
{
    struct tape t = { 0 };
    for (int64_t r = 0; r < T; r++) {
        t.count = 0;
        const int xs = t_inputs(&t, x + r * cols, cols), ws = t_inputs(&t, w, rows * cols);
        for (int64_t o = 0; o < rows; o++) {
            t_seed(&t, t_dot(&t, xs, ws + (int)(o * cols), cols), near_of(dy[r * rows + o]));
            if (dbias) dbias[o] = near_plus(dbias[o], near_of(dy[r * rows + o]));
        }
        t_backwards(&t);
        t_take(dx + r * cols, &t, xs, cols);
        t_take(dw, &t, ws, rows * cols);
    }
    t_free(&t);
}

/* Channels from R on are copied. Each product is rounded. */
static inline void twin_rope_back(struct near *dx, const double *dy, const double *cos, const double *sin, int64_t T,
                                  int64_t heads, int64_t D, int64_t R)
{
    struct tape t = { 0 };
    for (int64_t r = 0; r < T * heads; r++)
        for (int64_t i = 0; i < D; i++) {
            const int64_t half = R / 2, at = r * D + i;
            if (i >= R) dx[at] = near_of(dy[at]);
            if (i >= half) continue;
            const double c = cos[r / heads * half + i], s = sin[r / heads * half + i];
            t.count = 0;
            const int a = t_input(&t, 0), b = t_input(&t, 0);
            t_seed(&t, t_add(&t, t_times(&t, t_stores(&t, a), near_of(c)), t_times(&t, t_stores(&t, b), near_of(-s))),
                   near_of(dy[at]));
            t_seed(&t, t_add(&t, t_times(&t, t_stores(&t, b), near_of(c)), t_times(&t, t_stores(&t, a), near_of(s))),
                   near_of(dy[at + half]));
            t_backwards(&t);
            t_take(dx + at, &t, a, 1);
            t_take(dx + at + half, &t, b, 1);
        }
    t_free(&t);
}

/* ids as numbers. */
static inline void twin_embed_back(struct near *dw, const double *dy, const double *ids, int64_t T, int64_t H)
{
    for (int64_t i = 0; i < T * H; i++) {
        struct near *to = &dw[(int64_t)ids[i / H] * H + i % H];
        *to = near_plus(*to, near_of(dy[i]));
    }
}

/* ---- attention */

/* One row of one head over the keys that `sees` marks; key j is k + j * stride. dlse: with what the errors of o put into
 * it; lse_off: how far lse is off. */
static inline void twin_attend_back(struct tape *t, struct near *dq, struct near *dk, struct near *dv, const double *dy,
                                    struct near dlse, const double *q, const double *k, const double *v,
                                    const unsigned char *sees, int64_t S, int64_t D, int64_t stride,
                                    long double lse_off)
{
    const struct near scale = near_over(near_of(1), near_root(near_of((double)D)));
    int *keys = malloc((size_t)S * sizeof *keys), *z = malloc((size_t)S * sizeof *z);
    long double most = -INFINITY;
    t->count = 0;
    const int qs = t_inputs(t, q, D);
    for (int64_t j = 0; j < S; j++) {
        if (!sees[j]) continue;
        keys[j] = t_inputs(t, k + j * stride, D);
        t_inputs(t, v + j * stride, D);
        z[j] = t_times(t, t_dot(t, qs, keys[j], D), scale);
        most = fmaxl(most, t_at(t, z[j]).v);
    }
    int sum = t_input(t, 0);
    for (int64_t j = 0; j < S; j++)
        if (sees[j]) sum = t_add(t, sum, t_exp(t, t_plus(t, z[j], -(double)most)));
    const int lse = most > -INFINITY ? t_off(t, t_plus(t, t_log(t, sum), (double)most), lse_off) : 0;
    t_seed(t, lse, dlse);
    for (int64_t j = 0; j < S; j++)
        if (sees[j]) z[j] = t_exp(t, t_add(t, z[j], t_times(t, lse, near_of(-1))));
    for (int64_t i = 0; i < D && lse; i++) {
        int o = t_input(t, 0);
        for (int64_t j = 0; j < S; j++)
            if (sees[j]) o = t_add(t, o, t_multiply(t, z[j], keys[j] + (int)(D + i)));
        t_seed(t, o, near_of(dy[i]));
    }
    t_backwards(t);
    t_take(dq, t, qs, D);
    for (int64_t j = 0; j < S; j++) {
        if (!sees[j]) continue;
        t_take(dk + j * stride, t, keys[j], D);
        t_take(dv + j * stride, t, keys[j] + (int)D, D);
    }
    free(keys);
    free(z);
}

/* ---- activations */

static inline int t_gated(struct tape *t, const struct twin_gates *a, int gate, int up)
{
    if (!a->oai) return t_multiply(t, up, t_swish(t, gate, 1));
    const int g = t_clamp(t, gate, a->both ? -a->limit : -INFINITY, a->limit), u = t_clamp(t, up, -a->limit, a->limit);
    return t_multiply(t, t_plus(t, u, 1), t_swish(t, g, a->alpha));
}

static inline void twin_gated_back(struct near *dgate, struct near *dup, const double *dy, const double *gate,
                                   const double *up, int64_t n, const struct twin_gates *act)
{
    struct tape t = { 0 };
    for (int64_t i = 0; i < n; i++) {
        t.count = 0;
        const int g = t_input(&t, gate[i]), u = t_input(&t, up[i]);
        t_seed(&t, t_gated(&t, act, g, u), near_of(dy[i]));
        t_backwards(&t);
        t_take(dgate + i, &t, g, 1);
        t_take(dup + i, &t, u, 1);
    }
    t_free(&t);
}

/* sigmoid, or gelu */
static inline void twin_each_back(struct near *dx, const double *dy, const double *x, int64_t n, int is_gelu)
{
    struct tape t = { 0 };
    for (int64_t i = 0; i < n; i++) {
        t.count = 0;
        const int v = t_input(&t, x[i]), y = is_gelu ? t_multiply(&t, v, t_half_erfc(&t, v)) : t_sigmoid(&t, v);
        t_seed(&t, y, near_of(dy[i]));
        t_backwards(&t);
        t_take(dx + i, &t, v, 1);
    }
    t_free(&t);
}

/* ---- router and experts; ids as numbers */

static inline void twin_route_back(struct near *ds, const double *dp, const double *ids, const double *s, int64_t T,
                                   int64_t E, int64_t K)
{
    struct tape t = { 0 };
    for (int64_t r = 0; r < T; r++) {
        t.count = 0;
        const int first = t_inputs(&t, s + r * E, E);
        int sum = t_input(&t, 0);
        for (int64_t k = 0; k < K; k++) sum = t_add(&t, sum, first + (int)ids[r * K + k]);
        const int over = t_power(&t, sum, -1);
        for (int64_t k = 0; k < K; k++)
            t_seed(&t, t_multiply(&t, first + (int)ids[r * K + k], over), near_of(dp[r * K + k]));
        t_backwards(&t);
        t_take(ds + r * E, &t, first, E);
    }
    t_free(&t);
}

struct twin_moe {
    int64_t T, H, K, F;
    struct twin_gates act;
    double factor;
    const double *dy, *x, *ids, *p, *w1, *w3, *w2;
    struct near *dx, *dp, *dw1, *dw3, *dw2;
};

/* A product as the forward pass adds it up, in `real`. Its gradient is stored. */
static inline int t_real_dot(struct tape *t, const int *a, int b, int64_t n)
{
    int sum = t_input(t, 0);
    for (int64_t i = 0; i < n; i++) sum = t_rounded(t, t_add(t, sum, t_rounded(t, t_multiply(t, a[i], b + (int)i))));
    return t_stores(t, sum);
}

/* gate, up and their value as the forward pass rounds them; alpha g is rounded before the exponential. */
static inline int t_expert_value(struct tape *t, const struct twin_gates *act, int gate, int up)
{
    const int exact = t_gated(t, act, gate, up);
    const struct near v = t_at(t, exact);
    const long double u = twin_roundoff(), alpha = act->oai ? act->alpha : 1;
    const long double off = fabsl(v.v) * u * (4 + 2 * fabsl(alpha * t_at(t, gate).v)) + twin_least();
    return t_stores(t, t_off(t, exact, off));
}

/* One tape for each token and slot. */
static inline void twin_slot_back(struct tape *t, const struct twin_moe *c, int64_t i)
{
    const int64_t H = c->H, F = c->F, row = i / c->K, at = (int64_t)c->ids[i] * F * H;
    int *by_gate = malloc(2 * (size_t)H * sizeof *by_gate), *by_up = by_gate + H;
    int *a = malloc((size_t)F * sizeof *a);
    t->count = 0;
    const int xs = t_inputs(t, c->x + row * H, H), weight = t_input(t, c->p[i]);
    const int g = t_inputs(t, c->w1 + at, F * H), u = t_inputs(t, c->w3 + at, F * H),
              d = t_inputs(t, c->w2 + at, F * H);
    for (int64_t h = 0; h < H; h++) {
        const int x = t_stores(t, xs + (int)h);
        by_gate[h] = t_stores(t, x);
        by_up[h] = t_stores(t, x);
    }
    for (int64_t f = 0; f < F; f++) {
        const int gate = t_real_dot(t, by_gate, g + (int)(f * H), H), up = t_real_dot(t, by_up, u + (int)(f * H), H);
        a[f] = t_stores(t, t_rounded(t, t_multiply(t, t_expert_value(t, &c->act, gate, up), weight)));
    }
    for (int64_t h = 0; h < H; h++) {
        int y = t_input(t, 0);
        for (int64_t f = 0; f < F; f++) y = t_add(t, y, t_multiply(t, a[f], d + (int)(h * F + f)));
        t_seed(t, y, near_stored(near_times(near_of(c->factor), near_of(c->dy[row * H + h]))));
    }
    t_backwards(t);
    t_take(c->dx + row * H, t, xs, H);
    for (int64_t h = 0; h < H; h++) c->dx[row * H + h] = near_stored(c->dx[row * H + h]);
    t_take(c->dp + i, t, weight, 1);
    t_take(c->dw1 + at, t, g, F * H);
    t_take(c->dw3 + at, t, u, F * H);
    t_take(c->dw2 + at, t, d, F * H);
    free(by_gate);
    free(a);
}

static inline void twin_experts_back(const struct twin_moe *c)
{
    struct tape t = { 0 };
    for (int64_t i = 0; i < c->T * c->K; i++) twin_slot_back(&t, c, i);
    t_free(&t);
}

#endif
