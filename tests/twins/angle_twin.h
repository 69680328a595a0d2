/* What the tests of the two tables of rotary angles share: one call, the angle as SPEC forms it, and how near cosines and
 * sines must be. A place has `axes` numbers; R/2 columns are divided among them. Include in one test file. */
#ifndef M3_TESTS_ANGLE_TWIN_H
#define M3_TESTS_ANGLE_TWIN_H

#include "op_driver.h"

#include "formula_twin.h"

struct angles {
    int axes;
    int64_t rows, R;
    double theta;
    enum m3_rope_angle mode;
    const int64_t *places; /* [rows,axes] */
    real *cosines, *sines; /* [rows,R/2] */
};

static inline int angle_table(struct m3_ctx *ctx, void *const *p, const void *table, int plain)
{
    const struct angles *t = table;
    const struct m3_ops *ops = ops_of(plain);
    if (t->axes == 3) return ops->rope_table_3d(ctx, p[0], p[1], p[2], t->rows, t->R, t->theta, t->mode);
    return ops->rope_table(ctx, p[0], p[1], p[2], t->rows, t->R, t->theta, t->mode);
}

static inline struct call angle_call(const struct angles *t)
{
    const int64_t n = t->rows * (t->R / 2);
    return (struct call)CALL(angle_table, t, 2, 1, OPERAND(t->cosines, n), OPERAND(t->sines, n),
                             OPERAND(t->places, t->rows * t->axes));
}

static inline void angle_run(const struct angles *t)
{
    struct call c = angle_call(t);
    call_all(&c);
}

static inline long double ulp_of_real(long double x)
{
    int exponent;
    frexpl(x, &exponent);
    return fmaxl(ldexpl(1, exponent - (sizeof(real) == 4 ? 24 : 53)), twin_least());
}

/* The angle as "Order" forms it, from this frequency. */
static inline double formed(int64_t pos, double frequency, enum m3_rope_angle mode)
{
    return twin_angle((double)pos, frequency, mode == M3_ANGLE_F32);
}

/* What the angle of exact arithmetic allows: SPEC's tolerance, for R a power of two and for others. */
static inline long double angle_allowed(const struct angles *t, long double angle)
{
    const int64_t R = t->R / t->axes;
    long double relative = t->mode == M3_ANGLE_F32 ? 3 * 0x1p-24L : 0x1p-52L;
    if (R & (R - 1)) relative += 0x1p-53L * logl(t->theta);
    return twin_roundoff() + relative * fabsl(angle);
}

/* Are both within an ulp of the cosine and sine of this angle? */
static inline int angle_fits(real cosine, real sine, double angle)
{
    const long double c = cosl(angle), s = sinl(angle);
    return twin_within(cosine, c, ulp_of_real(c)) && twin_within(sine, s, ulp_of_real(s));
}

/* Are the columns i of all axes within an ulp of cosine and sine of the angles that this frequency forms? */
static inline int angle_columns_fit(const struct angles *t, int64_t i, double frequency)
{
    const int64_t half = t->R / 2, axes = t->axes;
    for (int64_t n = 0; n < t->rows * axes; n++) {
        const int64_t at = n / axes * half + n % axes * (half / axes) + i;
        if (!angle_fits(t->cosines[at], t->sines[at], formed(t->places[n], frequency, t->mode))) return 0;
    }
    return 1;
}

/* Every element within SPEC's tolerance of the formula; and for every i there is one frequency, at most an ulp of double
 * from the power (none for i = 0), that forms the angles of all rows and axes. */
static inline void angle_check(const struct angles *t)
{
    const int64_t half = t->R / 2, axes = t->axes, R = t->R / axes;
    for (int64_t i = 0; i < half / axes; i++) {
        const long double frequency = powl(t->theta, -2.0L * i / R);
        for (int64_t n = 0; n < t->rows * axes; n++) {
            const long double angle = t->places[n] * frequency, allowed = angle_allowed(t, angle);
            const int64_t row = n / axes, column = n % axes * (half / axes) + i;
            twin_check("cos", row, column, t->cosines[row * half + column], cosl(angle), allowed);
            twin_check("sin", row, column, t->sines[row * half + column], sinl(angle), allowed);
        }
        /* The exponent is rounded to double first. */
        const double nearest = (double)powl(t->theta, (long double)(-2.0 * (double)i / (double)R));
        const int fits = angle_columns_fit(t, i, nearest) ||
                         (i > 0 && angle_columns_fit(t, i, nextafter(nearest, 0))) ||
                         (i > 0 && angle_columns_fit(t, i, nextafter(nearest, 1)));
        ck_assert_msg(fits, "R %d, i %d, mode %d: beyond an ulp", (int)t->R, (int)i, (int)t->mode);
    }
}

#endif
