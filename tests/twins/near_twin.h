/* Twins of the derivatives: numbers in long double that carry how far the operator may be from them, slopes by finite
 * differences, and calls. derivative_twin.h has the formulas. */
#ifndef M3_TESTS_NEAR_TWIN_H
#define M3_TESTS_NEAR_TWIN_H

#include "op_driver.h"

#include "ops/backward.h"

/* ---- a value v, and an allowed error e, to first order. Each operation adds the rounding of one in double. */

struct near {
    long double v, e;
};

static const long double near_u = 0x1p-53L;

static inline struct near near_of(double x) { return (struct near){ x, 0 }; }

static inline struct near near_minus(struct near a)
{
    a.v = -a.v;
    return a;
}

static inline struct near near_plus(struct near a, struct near b)
{
    const long double v = a.v + b.v;
    return (struct near){ v, a.e + b.e + near_u * fabsl(v) };
}

static inline struct near near_times(struct near a, struct near b)
{
    const long double v = a.v * b.v;
    return (struct near){ v, fabsl(a.v) * b.e + fabsl(b.v) * a.e + a.e * b.e + near_u * fabsl(v) };
}

static inline struct near near_over(struct near a, struct near b)
{
    const long double v = a.v / b.v;
    return (struct near){ v, (a.e + fabsl(v) * b.e) / fabsl(b.v) + near_u * fabsl(v) };
}

static inline struct near near_root(struct near a)
{
    const long double v = sqrtl(a.v);
    return (struct near){ v, a.e / (2 * v) + near_u * v };
}

static inline struct near near_exp(struct near a)
{
    const long double v = expl(a.v);
    return (struct near){ v, v * (a.e + 2 * near_u) + 0x1p-1070L };    /* below the normal numbers, units */
}

static inline struct near near_sig(struct near a)
{
    const struct near one = { 1, 0 };
    return near_over(one, near_plus(one, near_exp(near_minus(a))));
}

/* Rounded to `real`. */
static inline struct near near_stored(struct near a)
{
    a.e += (long double)twin_roundoff() * (fabsl(a.v) + a.e) + (long double)twin_least();
    return a;
}

static inline void near_check(const char *what, int64_t row, int64_t i, real got, struct near want)
{
    twin_check(what, row, i, got, want.v, want.e);
}

/* ---- operands */

static uint64_t near_state = 19;

static inline real *near_draw(int64_t n, double size) { return drawn(n, size, &near_state); }

static inline struct m3_weight near_weight(const real *data, int64_t rows, int64_t cols)
{
    struct m3_weight w = { .data = data, .dtype = sizeof(real) == 8 ? M3_F64 : M3_F32, .rows = rows, .cols = cols };
    return w;
}

static inline const struct m3_backward_ops *back_of(int plain)
{
    return plain ? &m3_plain_backward_ops : M3_ENGINE()->back;
}

static inline double *widened_ids(const int32_t *ids, int64_t n)
{
    double *wide = room(n, sizeof *wide);
    for (int64_t i = 0; i < n; i++) wide[i] = (double)ids[i];
    return wide;
}

static inline struct near *near_zeros(int64_t n) { return room(n, sizeof(struct near)); }

/* got [n], rows of `cols`: `before`, or NULL, and what was added, rounded once. */
static inline void near_check_all(const char *what, const real *got, const struct near *want, const real *before,
                                  int64_t n, int64_t cols)
{
    for (int64_t i = 0; i < n; i++) {
        const struct near sum = before ? near_plus(near_of((double)before[i]), want[i]) : want[i];
        near_check(what, i / cols, i % cols, got[i], near_stored(sum));
    }
}

/* ---- slopes */

/* The loss as a function of operands that the test moves. */
typedef long double near_loss(void *self);

enum { NEAR_STEPS = 3, NEAR_DIRECTIONS = 5 };

/* The derivative of the loss where x [n] moves along `direction`: central differences of three steps, extrapolated, so
 * that what remains is of the sixth order. */
static inline long double near_slope(real *x, const real *direction, int64_t n, near_loss *loss, void *self)
{
    long double table[NEAR_STEPS];
    const int mark = room_count;
    const real *at = memcpy(reals(n), x, (size_t)n * sizeof *x);
    for (int s = 0; s < NEAR_STEPS; s++) {
        const double h = ldexp(1, -6 - s);
        long double ends[2];
        for (int sign = 0; sign < 2; sign++) {
            for (int64_t i = 0; i < n; i++) x[i] = at[i] + (real)((sign ? -h : h) * (double)direction[i]);
            ends[sign] = loss(self);
            rooms_free(mark + 1);
        }
        table[s] = (ends[0] - ends[1]) / (2 * (long double)h);
        for (int order = 1, i = s - 1; i >= 0; i--, order++)
            table[i] = table[i + 1] + (table[i + 1] - table[i]) / (powl(4, order) - 1);
    }
    memcpy(x, at, (size_t)n * sizeof *x);
    rooms_free(mark);
    return table[0];
}

static long double near_worst_slope;    /* as a part of what a gradient of this size could give at most */

/* dx [n] is the gradient of the loss by x: along random directions, and along single elements, slope and gradient
 * agree within 1e-9 of the sum of |dx| |direction|. Only in double. */
static inline void near_check_slopes(const char *what, real *x, const real *dx, int64_t n, near_loss *loss, void *self)
{
    real *direction = reals(n);
    for (int k = 0; k < 2 * NEAR_DIRECTIONS; k++) {
        const int64_t only = k < NEAR_DIRECTIONS ? -1 : twin_pick(&near_state, n);
        long double want = 0, size = 0;
        for (int64_t i = 0; i < n; i++) {
            direction[i] = only < 0 ? (real)twin_draw(&near_state) : i == only;
            want += (long double)dx[i] * direction[i];
            size += fabsl((long double)dx[i]) * (only < 0 ? fabsl((long double)direction[i]) : 1);
        }
        const long double got = near_slope(x, direction, n, loss, self);
        if (!(fabsl(got - want) <= 1e-9L * size + 1e-13L))
            ck_abort_msg("%s, direction %d: slope %.17Lg, gradient %.17Lg", what, k, got, want);
        if (size > 0) near_worst_slope = fmaxl(near_worst_slope, fabsl(got - want) / size);
    }
}

/* The loss sum dy y over the outputs of a forward pass, by its plain body; dy NULL: not of this output. What is -inf for
 * want of keys does not move. */
struct near_forward {
    struct call call;
    const real *dy[2];
};

static inline long double near_forward_loss(void *self)
{
    struct near_forward *f = self;
    long double sum = 0;
    call_ok(&f->call, (struct how){ .threads = 1, .plain = 1 });
    for (int k = 0; k < f->call.outputs; k++) {
        const real *y = f->call.p[k].at;
        for (size_t i = 0; f->dy[k] && i < f->call.p[k].size / sizeof *y; i++)
            if (y[i] != -(real)INFINITY) sum += (long double)f->dy[k][i] * y[i];
    }
    return sum;
}

/* Operand k of the forward pass moves. */
static inline void near_check_forward(const char *what, struct near_forward *f, int k, const real *dx)
{
    const struct operand *p = &f->call.p[k];
    near_check_slopes(what, p->at, dx, (int64_t)(p->size / sizeof *dx), near_forward_loss, f);
}

#endif
