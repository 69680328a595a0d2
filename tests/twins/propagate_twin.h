/* Shared by the tests of error propagation. A case is a function in long double, written in the test without using
 * ref/, and a call of propagate.h that must bound the errors of that function's results. Inputs are stored flat, one
 * after another, and so are outputs. */
#ifndef M3_TESTS_PROPAGATE_TWIN_H
#define M3_TESTS_PROPAGATE_TWIN_H

#include "oracle/error/propagate.h"

#include "bounds_twin.h"

/* `of` is the spread of x. */
typedef int (*spread_call)(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                           const void *self);
typedef void (*spread_formula)(long double *y, const long double *x, const void *self);

struct spread_case {
    const char *name;
    int64_t in, out;
    spread_call call;
    spread_formula formula;
    const void *self;
    double *x, *e, *v; /* [in] */
    double *error, *variance; /* [out] what the call gave */
};

static inline struct m3_spread slice(const struct m3_spread *s, int64_t at)
{
    return s->error ? (struct m3_spread){ s->error + at, s->variance + at } : (struct m3_spread){ NULL, NULL };
}

static inline struct spread_case spread_new(const char *name, int64_t in, int64_t out, spread_call call,
                                            spread_formula formula, const void *self)
{
    return (struct spread_case){ name,        in,          out,         call,         formula,     self,
                                 doubles(in), doubles(in), doubles(in), doubles(out), doubles(out) };
}

static inline void spread_free(struct spread_case *c)
{
    free(c->x), free(c->e), free(c->v), free(c->error), free(c->variance);
}

/* Errors of about `size` |x|, one in seven 0; variances of even distributions that reach 0.35 to 1 of them. */
static inline void spread_errors(struct spread_case *c, double size, uint64_t *state)
{
    for (int64_t i = 0; i < c->in; i++) {
        const double part = 0.675 + 0.325 * twin_draw(state);
        c->e[i] = i % 7 == 3 ? 0 : size * (1.1 + twin_draw(state)) * (fabs(c->x[i]) + 0.1);
        c->v[i] = c->e[i] * c->e[i] * part * part / 3;
    }
}

/* The call with outputs that hold these numbers, guarded; inputs guarded too. */
static inline void spread_once(const struct spread_case *c, double *error, double *variance, int threads, int exact)
{
    struct guard guards[5];
    struct m3_ctx ctx;
    const size_t in = (size_t)c->in * sizeof(double), out = (size_t)c->out * sizeof(double);
    ck_assert_int_eq(m3_ctx_init(&ctx, threads, M3_LINEAR_BLAS), 0);
    const double *x = guard_input(&guards[0], c->x, in);
    struct m3_spread of = { guard_input(&guards[1], c->e, in), guard_input(&guards[2], c->v, in) };
    struct m3_spread to = { guard_output(&guards[3], out), guard_output(&guards[4], out) };
    if (exact) of = (struct m3_spread){ NULL, NULL };
    memcpy(to.error, error, out);
    memcpy(to.variance, variance, out);
    ck_assert_int_eq(c->call(&ctx, &to, x, &of, c->self), 0);
    memcpy(error, to.error, out);
    memcpy(variance, to.variance, out);
    for (int i = 0; i < 5; i++) ck_assert_msg(guard_intact(&guards[i]), "%s: guard %d", c->name, i);
    m3_ctx_free(&ctx);
}

/* c->error and c->variance: the same bits with any number of threads; a second call adds as much again. */
static inline void spread_run(struct spread_case *c)
{
    double *error = doubles(c->out), *variance = doubles(c->out);
    const size_t size = (size_t)c->out * sizeof(double);
    memset(c->error, 0, size), memset(c->variance, 0, size);
    spread_once(c, c->error, c->variance, 1, 0);
    for (int i = 1; i < TWIN_TEAMS; i++) {
        memset(error, 0, size), memset(variance, 0, size);
        spread_once(c, error, variance, twin_threads[i], 0);
        ck_assert_msg(memcmp(error, c->error, size) == 0 && memcmp(variance, c->variance, size) == 0, "%s: %d threads",
                      c->name, twin_threads[i]);
    }
    spread_once(c, error, variance, 2, 0);
    for (int64_t i = 0; i < c->out; i++) {
        near(c->name, i, error[i], 2 * (long double)c->error[i], 1e-13);
        near(c->name, i, variance[i], 2 * (long double)c->variance[i], 1e-13);
    }
    free(error), free(variance);
}

/* Inputs that are exact, or off by 0, add nothing. For cases that store nothing. */
static inline void spread_nothing(const struct spread_case *c)
{
    double *error = doubles(c->out), *variance = doubles(c->out);
    struct spread_case zeros = *c;
    zeros.e = doubles(c->in), zeros.v = doubles(c->in);
    spread_once(c, error, variance, 2, 1);
    spread_once(&zeros, error, variance, 2, 0);
    for (int64_t i = 0; i < c->out; i++)
        ck_assert_msg(error[i] == 0 && variance[i] == 0, "%s [%lld]: exact inputs", c->name, (long long)i);
    free(error), free(variance), free(zeros.e), free(zeros.v);
}

static inline long double *spread_values(const struct spread_case *c, const double *by)
{
    long double *x = need(c->in, sizeof *x), *y = need(c->out, sizeof *y);
    for (int64_t i = 0; i < c->in; i++) x[i] = (long double)c->x[i] + (by ? by[i] : 0);
    c->formula(y, x, c->self);
    free(x);
    return y;
}

/* slopes [in,out] by difference quotients. */
static inline long double *spread_slopes(const struct spread_case *c)
{
    const long double step = 1e-6L;
    long double *slopes = need(c->in * c->out, sizeof *slopes), *x = need(c->in, sizeof *x);
    long double *low = need(c->out, sizeof *low), *high = need(c->out, sizeof *high);
    for (int64_t i = 0; i < c->in; i++) x[i] = c->x[i];
    for (int64_t i = 0; i < c->in; i++) {
        x[i] = c->x[i] + step;
        c->formula(high, x, c->self);
        x[i] = c->x[i] - step;
        c->formula(low, x, c->self);
        x[i] = c->x[i];
        for (int64_t o = 0; o < c->out; o++) slopes[i * c->out + o] = (high[o] - low[o]) / (2 * step);
    }
    free(x), free(low), free(high);
    return slopes;
}

/* f(x + by) - f(x) is never beyond the error, by a thousandth of it for second orders. Returns the largest share. */
static inline double spread_within(const struct spread_case *c, const long double *y, const double *by)
{
    long double *moved = spread_values(c, by);
    double most = 0;
    for (int64_t o = 0; o < c->out; o++) {
        const double d = (double)fabsl(moved[o] - y[o]);
        if (!(d <= c->error[o] * (1 + 1e-3) + 1e-16))
            ck_abort_msg("%s [%lld]: moved by %.9g, said to be at most %.9g", c->name, (long long)o, d, c->error[o]);
        if (c->error[o] > 0) most = fmax(most, d / c->error[o]);
    }
    free(moved);
    return most;
}

/* For a function that is smooth within reach:
 *   error    at least sum |slope| e, and at most 1 / share of it; 0 where no input that is off moves the output
 *   worst    the signs of the slopes move an output by at least 0.99 share of its error; nothing moves it beyond
 *   variance sum slope^2 v, and the sample deviation of 400 random inputs within 20 %
 * Returns the mean of sum |slope| e over the error. */
static inline double spread_check(struct spread_case *c, double share, uint64_t *state)
{
    enum { SAMPLES = 400, SIGNS = 40, WORST = 25 };
    const long double blur = 1e-11L; /* of a difference quotient */
    spread_run(c);
    long double *slopes = spread_slopes(c), *y = spread_values(c, NULL);
    double *by = doubles(c->in), *squares = doubles(c->out), used = 0;
    for (int64_t o = 0; o < c->out; o++) {
        long double error = 0, variance = 0, errors = 0, variances = 0;
        for (int64_t i = 0; i < c->in; i++) {
            errors += c->e[i];
            variances += c->v[i];
            const long double slope = slopes[i * c->out + o];
            error += fabsl(slope) * c->e[i];
            variance += slope * slope * c->v[i];
        }
        const long double around = blur * errors, low = error * (1 - 1e-6L) - around;
        const long double high = error * (1 + 1e-3L) / share + around;
        if (error == 0)
            ck_assert_msg(c->error[o] == 0 && c->variance[o] == 0, "%s [%lld]: nothing moves it", c->name,
                          (long long)o);
        if (!(c->error[o] >= low && c->error[o] <= high))
            ck_abort_msg("%s [%lld]: error %.9g, slopes give %.9Lg", c->name, (long long)o, c->error[o], error);
        used += c->error[o] > 0 ? (double)(error / c->error[o]) / (double)c->out : 1 / (double)c->out;
        if (!(fabsl(sqrtl(c->variance[o]) - sqrtl(variance)) <= 1e-4L * sqrtl(variance) + blur * sqrtl(variances)))
            ck_abort_msg("%s [%lld]: variance %.9g, slopes give %.9Lg", c->name, (long long)o, c->variance[o],
                         variance);
    }
    for (int64_t n = 0; n < WORST; n++) {
        const int64_t o = n * c->out / WORST;
        for (int64_t i = 0; i < c->in; i++) by[i] = slopes[i * c->out + o] < 0 ? -c->e[i] : c->e[i];
        spread_within(c, y, by);
        long double *moved = spread_values(c, by);
        if (!(fabsl(moved[o] - y[o]) >= 0.99L * share * c->error[o] - 1e-16L))
            ck_abort_msg("%s [%lld]: error %.9g, at worst %.9Lg", c->name, (long long)o, c->error[o], moved[o] - y[o]);
        free(moved);
    }
    for (int64_t n = 0; n < SIGNS; n++) {
        for (int64_t i = 0; i < c->in; i++) by[i] = twin_draw(state) < 0 ? -c->e[i] : c->e[i];
        spread_within(c, y, by);
    }
    for (int64_t n = 0; n < SAMPLES; n++) {
        for (int64_t i = 0; i < c->in; i++) by[i] = sqrt(3 * c->v[i]) * twin_fine(state);
        long double *moved = spread_values(c, by);
        for (int64_t o = 0; o < c->out; o++) squares[o] += (double)((moved[o] - y[o]) * (moved[o] - y[o]));
        free(moved);
    }
    for (int64_t o = 0; o < c->out; o++) near(c->name, o, sqrt(squares[o] / SAMPLES), sqrtl(c->variance[o]), 0.2);
    free(slopes), free(y), free(by), free(squares);
    return used;
}

/* Compares results computed with intermediate roundings with the function itself: within the error; the largest share
 * of it that is seen at least `seen`; mean square at most the variance, and at least a twentieth. */
static inline void spread_stored(struct spread_case *c, spread_formula rounded, double seen)
{
    long double *y = spread_values(c, NULL), *x = need(c->in, sizeof *x), *got = need(c->out, sizeof *got);
    double most = 0, squares = 0;
    int64_t counted = 0;
    spread_run(c);
    for (int64_t i = 0; i < c->in; i++) x[i] = c->x[i];
    rounded(got, x, c->self);
    for (int64_t o = 0; o < c->out; o++) {
        const double d = (double)fabsl(got[o] - y[o]);
        if (!(d <= c->error[o]))
            ck_abort_msg("%s [%lld]: off by %.9g, said to be at most %.9g", c->name, (long long)o, d, c->error[o]);
        if (!(c->error[o] > 0)) continue;
        most = fmax(most, d / c->error[o]);
        squares += d * d / c->variance[o];
        counted++;
    }
    ck_assert_msg(counted > 0 && most >= seen, "%s: at most %.3g of what is allowed", c->name, most);
    squares /= (double)counted;
    ck_assert_msg(squares <= 1.1 && squares >= 0.05, "%s: mean square %.3g of the variance", c->name, squares);
    free(y), free(x), free(got);
}

static inline long double to_bf16(long double x) { return to_bits((double)x, 8); }

#endif
