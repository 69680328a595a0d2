/* Errors carried through linear operators, sums, rotations and storing (SPEC 5.4, 5.6, 5.16, 7.4). */
#include "propagate_twin.h"

#include "stored_twin.h"

/* ---- linear */

struct linear {
    int64_t T;
    const struct stored *w;
};

static int call_linear(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                       const void *self)
{
    const struct linear *a = self;
    (void)x;
    return m3_propagate_linear(ctx, out, of, &a->w->weight, a->T);
}

static void linear(long double *y, const long double *x, const void *self)
{
    const struct linear *a = self;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t n = 0; n < a->w->rows; n++) {
            y[t * a->w->rows + n] = 0;
            for (int64_t k = 0; k < a->w->cols; k++)
                y[t * a->w->rows + n] += stored_value(a->w, n, k) * x[t * a->w->cols + k];
        }
}

/* Goal:  errors of linear are |W| e, variances W^2 v, for every stored type.
 * Given: sides 1, odd, prime, beyond a panel; the second row of x is exact.
 * Claim: what push_check says, at share 1; an exact row stays exact.
 * Seen to fail with w for |w|, |w| for w^2, rows taken one after the other, = for +=. */
START_TEST(matrices)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 17, 5 }, { 2, 9, 37 }, { 4, 8, 11 } };
    uint64_t state = 4200;
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++)
        for (int i = 0; i < 4; i++) {
            const int64_t T = shapes[i][0], rows = shapes[i][1], cols = shapes[i][2];
            struct stored s;
            stored_make(&s, kind, rows, cols);
            stored_random(&s, &state);
            stored_give(&s, i % 4);
            const struct linear a = { T, &s };
            struct push_case c = push_new(stored_types[kind].name, T * cols, T * rows, call_linear, linear, &a);
            for (int64_t k = 0; k < T * cols; k++) c.x[k] = normal(&state);
            push_errors(&c, 1e-3, &state);
            for (int64_t k = 0; k < cols && T > 1; k++) c.e[cols + k] = c.v[cols + k] = 0;
            push_nothing(&c);
            push_check(&c, 1, &state);
            for (int64_t n = 0; n < rows && T > 1; n++) ck_assert(c.error[rows + n] == 0 && c.variance[rows + n] == 0);
            push_free(&c);
            ck_assert(stored_intact(&s));
        }
}
END_TEST

/* ---- rope */

struct rope {
    int64_t T, heads, D, R;
    const double *cos, *sin;
    double u_turn, u_product;
};

static int call_rope(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                     const void *self)
{
    const struct rope *a = self;
    return m3_propagate_rope(ctx, out, x, of, a->cos, a->sin, a->T, a->heads, a->D, a->R, a->u_turn, a->u_product);
}

/* A rounding to bf16 of what is stored there. */
static long double kept(long double x, double u) { return u > 0 ? to_bf16(x) : x; }

static void turn(long double *y, const long double *x, const struct rope *a, double u_turn, double u_product)
{
    const int64_t half = a->R / 2;
    for (int64_t row = 0; row < a->T * a->heads; row++)
        for (int64_t i = 0; i < a->D; i++) {
            const long double *x_h = x + row * a->D;
            if (i >= a->R) {
                y[row * a->D + i] = x_h[i];
                continue;
            }
            const long double c = kept(a->cos[row / a->heads * half + i % half], u_turn);
            const long double s = kept(a->sin[row / a->heads * half + i % half], u_turn);
            const long double other = i < half ? -x_h[i + half] : x_h[i - half];
            y[row * a->D + i] = kept(kept(x_h[i] * c, u_product) + kept(other * s, u_product), u_product);
        }
}

static void rope(long double *y, const long double *x, const void *self) { turn(y, x, self, 0, 0); }

static void rounded_rope(long double *y, const long double *x, const void *self)
{
    const struct rope *a = self;
    turn(y, x, a, a->u_turn, a->u_product);
}

/* Goal:  a rotation carries errors by |cos| and |sin|, and the storage points inside cover what they are for.
 * Given: 5 rows of 2 heads of 9 channels, 6 of them turned; tables, products or both in bf16.
 * Claim: push_check at share 1, push_stored with at least 0.35 of the error in use.
 * Seen to fail with a's error under sine, -sin for sin, the products' or the table's roundings on |y| alone, copied
 * channels left out. */
START_TEST(rotations)
{
    enum { T = 5, HEADS = 2, D = 9, R = 6, N = T * HEADS * D };
    double cosines[T * R / 2], sines[T * R / 2];
    uint64_t state = 4210;
    for (int i = 0; i < T * R / 2; i++) cosines[i] = cos(i * i), sines[i] = sin(i * i);
    for (int c = 0; c < 4; c++) {
        const struct rope a = { T, HEADS, D, R, cosines, sines, c & 1 ? 0x1p-8 : 0, c & 2 ? 0x1p-8 : 0 };
        struct push_case p = push_new("rope", N, N, call_rope, rope, &a);
        for (int i = 0; i < N; i++) p.x[i] = (double)to_bf16(normal(&state));
        if (c == 0) push_errors(&p, 1e-3, &state), push_nothing(&p), push_check(&p, 1, &state);
        else push_stored(&p, rounded_rope, 0.35);
        for (int i = 0; i < N && c; i++) {
            const int at = i / D / HEADS * R / 2 + i % D % (R / 2), first = i % D < R / 2;
            const double turned = p.x[i] * cosines[at], other = (first ? -p.x[i + R / 2] : p.x[i - R / 2]) * sines[at];
            const double products = fabs(turned) + fabs(other);
            const double error = a.u_turn * products + a.u_product * (products + fabs(turned + other));
            near("stored inside", i, p.error[i], i % D < R ? error : 0, 1e-12);
        }
        push_free(&p);
    }
}
END_TEST

/* ---- sums and storing */

static int call_add(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                    const void *self)
{
    const int64_t n = *(const int64_t *)self;
    const struct m3_spread a = slice(of, 0), b = slice(of, n);
    (void)ctx, (void)x;
    m3_propagate_add(out, &a, &b, n);
    return 0;
}

static void add(long double *y, const long double *x, const void *self)
{
    const int64_t n = *(const int64_t *)self;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i + n];
}

/* Goal:  sums add errors and variances; storing covers a rounding, also below the normal range, and keeps zeros.
 * Given: 31 sums; 400 numbers to bf16; 400 to the E4M3 grid, subnormal ones among them; one NULL spread.
 * Claim: push_check at share 1; no rounding beyond the error, 0.9 of it (E4M3: 0.8) reached; 0 adds nothing.
 * Seen to fail with a floor on zeros, no floor, half of u, one of the two inputs. */
START_TEST(sums)
{
    enum { N = 400 };
    const int64_t n = 31;
    uint64_t state = 4220;
    struct push_case c = push_new("add", 2 * n, n, call_add, add, &n);
    for (int i = 0; i < 2 * n; i++) c.x[i] = normal(&state);
    push_errors(&c, 1e-2, &state);
    push_nothing(&c);
    push_check(&c, 1, &state);
    double error[N] = { 0 }, variance[N] = { 0 }, y[N];
    const struct m3_spread b = slice(&(struct m3_spread){ c.e, c.v }, 0), none = { NULL, NULL };
    m3_propagate_add(&(struct m3_spread){ error, variance }, &none, &b, n);
    for (int i = 0; i < n; i++) ck_assert(error[i] == c.e[i] && variance[i] == c.v[i]);
    push_free(&c);

    for (int fp8 = 0; fp8 < 2; fp8++) {
        const double u = fp8 ? 0x1p-4 : 0x1p-8, floor = fp8 ? 0x1p-10 : 0;
        double most = 0, squares = 0;
        memset(error, 0, sizeof error), memset(variance, 0, sizeof variance);
        for (int i = 0; i < N; i++) y[i] = i % 9 == 4 ? 0 : normal(&state) * (i % 3 ? 1 : 0x1p-7);
        m3_propagate_store(&(struct m3_spread){ error, variance }, y, N, u, floor);
        for (int i = 0; i < N; i++) {
            const int small = fp8 && fabs(y[i]) < 0x1p-6;
            const double kept = small ? nearbyint(y[i] * 0x1p9) * 0x1p-9 : to_bits(y[i], fp8 ? 4 : 8), d = kept - y[i];
            ck_assert(fabs(d) <= error[i] && (y[i] != 0) == (error[i] > 0) && (y[i] != 0) == (variance[i] > 0));
            if (y[i] == 0) continue;
            most = fmax(most, fabs(d) / error[i]);
            squares += d * d / variance[i] / N;
        }
        ck_assert_msg(most >= (fp8 ? 0.8 : 0.9) && squares <= 1 && squares >= 0.2, "%g, %g", most, squares);
    }
}
END_TEST

Suite *m3_suite(void);
Suite *m3_suite(void)
{
    Suite *suite = suite_create("push_linear");
    TCase *test = tcase_create("push_linear");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, matrices);
    tcase_add_test(test, rotations);
    tcase_add_test(test, sums);
    suite_add_tcase(suite, test);
    return suite;
}
