/* Additions and storing: propagation (SPEC 5.16, 7.4). */
#include "propagate_twin.h"

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
 * Claim: spread_check at share 1; no rounding beyond the error, 0.9 of it (E4M3: 0.8) reached; 0 adds nothing.
 * Seen to fail with a floor on zeros, no floor, half of u, one of the two inputs. */
TEST(sums)
{
    enum { N = 400 };
    const int64_t n = 31;
    uint64_t state = 4220;
    struct spread_case c = spread_new("add", 2 * n, n, call_add, add, &n);
    for (int i = 0; i < 2 * n; i++) c.x[i] = normal(&state);
    spread_errors(&c, 1e-2, &state);
    spread_nothing(&c);
    spread_check(&c, 1, &state);
    double error[N] = { 0 }, variance[N] = { 0 }, y[N];
    const struct m3_spread b = slice(&(struct m3_spread){ c.e, c.v }, 0), none = { NULL, NULL };
    m3_propagate_add(&(struct m3_spread){ error, variance }, &none, &b, n);
    for (int i = 0; i < n; i++) ck_assert(error[i] == c.e[i] && variance[i] == c.v[i]);
    spread_free(&c);

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
