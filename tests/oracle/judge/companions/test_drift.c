/* Errors inherited through weights that are not there (SPEC 7.8): the formulas, and chains of layers judged by them. */
#include "propagate_twin.h"

#include "oracle/judge/companions/drift.h"

TIMEOUT(60);

/* ---- formulas */

/* Goal:  length, share along x and rest of a drift; what they become.
 * Given: rows of 1 to 40 channels in one and two parts; dx = 0, along x, square to x, mixed; x = 0; a NaN.
 * Claim: as in long double; nothing along x remains across; error and variance by the formula, added; a NaN is told.
 * Seen to fail with 0 / 0 for x = 0, a root of less than 0, 1 for 1.5, the bias left in, n not divided by, the last
 * part's n, x c for x dx, = for +=, gain for its square, a NaN of dx not told. */
TEST(formulas)
{
    uint64_t state = 4700;
    for (int n = 1; n <= 40; n += 3) {
        for (int kind = 0; kind < 5; kind++) {
            double x[40], c[40], gain[7], r[7], bias[7], error[9] = { 1, 1 }, variance[9] = { 2, 2 };
            long double xx = 0, xd = 0, dd = 0, rest = 0;
            for (int i = 0; i < n; i++) {
                x[i] = kind == 4 ? 0 : normal(&state);
                c[i] = x[i] + (kind == 0 ? 0 : kind == 1 ? 0.25 * x[i] : 0.01 * normal(&state));
            }
            if (kind == 2 && n > 1) c[1] = x[1], c[0] = x[0] + 0.1 * x[1], c[1] = x[1] - 0.1 * x[0];
            for (int i = 2; i < n && kind == 2; i++) c[i] = x[i];
            for (int i = 0; i < n; i++) {
                const long double d = (long double)c[i] - x[i];
                xx += (long double)x[i] * x[i];
                xd += x[i] * d;
                dd += d * d;
            }
            const long double along = xx > 0 ? xd / xx : 0;
            for (int i = 0; i < n; i++) {
                const long double d = (long double)c[i] - x[i] - along * x[i];
                rest += d * d;
            }
            struct m3_drift drift = { 0 };
            m3_drift_add(&drift, x, c, n / 3);
            m3_drift_add(&drift, x + n / 3, c + n / 3, n - n / 3);
            ck_assert(drift.n == n && m3_drift_is_known(&drift));
            ck_assert(fabsl(m3_drift_along(&drift) - along) <= 1e-14);
            ck_assert(fabsl(m3_drift_length(&drift) - sqrtl(dd)) <= 1e-14 * sqrtl(dd));
            ck_assert(fabsl(m3_drift_across(&drift) - sqrtl(rest)) <= 1e-7 * sqrtl(dd));
            ck_assert(kind != 1 || fabsl(along - 0.25) <= 1e-15);

            for (int i = 0; i < 7; i++) gain[i] = fabs(normal(&state)), r[i] = normal(&state), bias[i] = normal(&state);
            for (int bends = 0; bends < 2; bends++) {
                struct m3_drift_row row = { r, bends ? NULL : bias, gain, 7, bends };
                memset(error + 2, 0, 7 * sizeof *error), memset(variance + 2, 0, 7 * sizeof *variance);
                m3_drift_propagate(&(struct m3_spread){ error, variance }, 2, &drift, &row);
                m3_drift_propagate(&(struct m3_spread){ error, variance }, 2, &drift, &row);
                for (int i = 0; i < 7; i++) {
                    const long double by_size = along * (r[i] - (bends ? 0 : bias[i]));
                    const long double v = by_size * by_size + gain[i] * gain[i] * rest / n;
                    near("error", i, error[2 + i], 2 * gain[i] * sqrtl(dd) * (bends ? 1.5L : 1), 1e-13);
                    ck_assert(fabsl(variance[2 + i] - 2 * v) <= 1e-12 * v + 1e-15 * dd);
                }
                ck_assert(error[0] == 1 && error[1] == 1 && variance[0] == 2 && variance[1] == 2);
            }
            c[n - 1] = NAN;
            m3_drift_add(&drift, x, c, n);
            ck_assert(!m3_drift_is_known(&drift));
        }
    }
}

/* ---- one matrix */

/* Goal:  the error is the most that a drift of that length can do; the variance is what it mostly does.
 * Given: 60 outputs of 50 channels with a bias; drifts in random directions, along x, and along a row of the matrix.
 * Claim: never beyond the error; along row i output i reaches 0.999 of it; over 200 drifts the mean square is the
 *        variance within 15 %, with random drifts and with such along x.
 * Seen to fail without the part along x, with what is across for the length, the bias left in, n not divided by. */
TEST(matrix)
{
    enum { N = 50, OUT = 60, DRIFTS = 200 };
    uint64_t state = 4710;
    static double w[OUT][N];
    double bias[OUT], x[N], r[OUT], gain[OUT];
    for (int o = 0; o < OUT; o++) {
        bias[o] = 3 * normal(&state);
        gain[o] = 0;
        for (int i = 0; i < N; i++) w[o][i] = normal(&state), gain[o] += w[o][i] * w[o][i];
        gain[o] = sqrt(gain[o]);
    }
    for (int kind = 0; kind < 3; kind++) {
        double squares = 0;
        for (int n = 0; n < DRIFTS; n++) {
            double c[N], error[OUT] = { 0 }, variance[OUT] = { 0 };
            for (int i = 0; i < N; i++) x[i] = normal(&state);
            for (int i = 0; i < N; i++)
                c[i] = x[i] + 1e-3 * (kind == 0 ? normal(&state) : kind == 1 ? x[i] : w[n % OUT][i]);
            for (int o = 0; o < OUT; o++) {
                r[o] = bias[o];
                for (int i = 0; i < N; i++) r[o] += w[o][i] * x[i];
            }
            struct m3_drift drift = { 0 };
            struct m3_drift_row row = { r, bias, gain, OUT, 0 };
            m3_drift_add(&drift, x, c, N);
            m3_drift_propagate(&(struct m3_spread){ error, variance }, 0, &drift, &row);
            for (int o = 0; o < OUT; o++) {
                double moved = 0;
                for (int i = 0; i < N; i++) moved += w[o][i] * (c[i] - x[i]);
                ck_assert_msg(fabs(moved) <= error[o] * (1 + 1e-12), "output %d: %g beyond %g", o, moved, error[o]);
                if (kind == 2 && o == n % OUT) ck_assert(fabs(moved) >= 0.999 * error[o]);
                squares += moved * moved / variance[o] / (DRIFTS * OUT);
            }
        }
        ck_assert_msg(kind == 2 || fabs(squares - 1) <= 0.15, "kind %d: mean square %g", kind, squares);
    }
}

/* ---- chains: x := w1 x + b, normalised, then w2 act(w3 x, w4 x), three times; the candidate's own arithmetic */

enum { T = 24, N = 40, F = 32, LAYERS = 3 };

static const struct m3_gate gate = { 1, 1.702, 7, M3_GATE_CLAMP_UPPER };

struct layer {
    float w1[N][N], b[N], w2[N][F], w3[F][N], w4[F][N];
};

enum defect { HONEST, DROPPED, NO_ONE };

static float stored(float x, int bf16) { return bf16 ? (float)to_bits(x, 8) : x; }

/* The linear half of a row and the MLP's, in float; `bf16`: what is stored is rounded. */
static void float_linear(double *y, const double *x, const struct layer *l, int bf16, enum defect defect)
{
    for (int o = 0; o < N; o++) {
        float s = 0;
        for (int i = 0; i < (defect == DROPPED ? N - 1 : N); i++) s += l->w1[o][i] * (float)x[i];
        y[o] = stored(s + l->b[o], bf16);
    }
}

static long double act(long double z, long double w, long double one)
{
    if (z > 7) z = 7;
    w = w > 7 ? 7 : w < -7 ? -7 : w;
    return (w + one) * z / (1 + expl(-1.702L * z));
}

static void float_mlp(double *y, const double *x, const struct layer *l, int bf16, enum defect defect)
{
    float a[F];
    for (int f = 0; f < F; f++) {
        float z = 0, w = 0;
        for (int i = 0; i < N; i++) z += l->w3[f][i] * (float)x[i], w += l->w4[f][i] * (float)x[i];
        a[f] = (float)act(z, w, defect == NO_ONE ? 0 : 1);
    }
    for (int o = 0; o < N; o++) {
        float s = 0;
        for (int f = 0; f < F; f++) s += l->w2[o][f] * a[f];
        y[o] = stored(s, bf16);
    }
}

static void true_mlp(long double *y, const double *x, const struct layer *l)
{
    long double a[F];
    for (int f = 0; f < F; f++) {
        long double z = 0, w = 0;
        for (int i = 0; i < N; i++) z += (long double)l->w3[f][i] * x[i], w += (long double)l->w4[f][i] * x[i];
        a[f] = act(z, w, 1);
    }
    for (int o = 0; o < N; o++) {
        y[o] = 0;
        for (int f = 0; f < F; f++) y[o] += l->w2[o][f] * a[f];
    }
}

/* Rows of mean square 1; floats on the candidate's side. */
static void normalise(double *x, int as_float)
{
    double sum = 0;
    for (int i = 0; i < N; i++) sum += x[i] * x[i];
    for (int i = 0; i < N; i++) x[i] = as_float ? (double)(float)(x[i] / sqrt(sum / N)) : x[i] / sqrt(sum / N);
}

/* Lengths of the rows of d mlp / dx, by difference quotients. */
static void mlp_gain(double *gain, const double *x, const struct layer *l)
{
    long double low[N], high[N];
    double at[N], squares[N] = { 0 };
    memcpy(at, x, sizeof at);
    for (int i = 0; i < N; i++) {
        at[i] = x[i] + 1e-5, true_mlp(high, at, l);
        at[i] = x[i] - 1e-5, true_mlp(low, at, l);
        at[i] = x[i];
        for (int o = 0; o < N; o++) squares[o] += (double)((high[o] - low[o]) * (high[o] - low[o]));
    }
    for (int o = 0; o < N; o++) gain[o] = sqrt(squares[o]) / 2e-5;
}

/* One tap of the chain: inputs and outputs of both sides, [T,N] each, and what its own arithmetic may do. */
struct side {
    double x[T * N], y[T * N];
};

static struct m3_tier_result judge(const struct side *ref, const struct side *got, const struct layer *l, int is_mlp,
                                   int bf16, int with_drift)
{
    static double bound[T * N], walk[T * N], error[T * N], variance[T * N];
    double gain[N], bias[N];
    struct m3_ctx ctx;
    struct m3_arithmetic how = m3_arithmetic_f32();
    struct m3_bound out = { .bound = bound, .walk = walk };
    struct m3_spread extra = { error, variance };
    const struct m3_weight w1 = { .data = l->w1, .dtype = M3_F32, .rows = N, .cols = N, .id = 1 };
    const struct m3_weight w2 = { .data = l->w2, .dtype = M3_F32, .rows = N, .cols = F, .id = 2 };
    const struct m3_weight w3 = { .data = l->w3, .dtype = M3_F32, .rows = F, .cols = N, .id = 3 };
    const struct m3_weight w4 = { .data = l->w4, .dtype = M3_F32, .rows = F, .cols = N, .id = 4 };
    widen(bias, l->b, N);
    memset(error, 0, sizeof error), memset(variance, 0, sizeof variance);
    ck_assert_int_eq(m3_ctx_init(&ctx, 2, M3_LINEAR_BLAS), 0);
    if (is_mlp) ck_assert_int_eq(m3_bound_gated_mlp(&ctx, &out, NULL, ref->x, &w3, &w4, &w2, &gate, T, &how), 0);
    else ck_assert_int_eq(m3_bound_linear(&ctx, &out, ref->x, &w1, bias, T, &how), 0);
    for (int t = 0; t < T && with_drift; t++) {
        struct m3_drift drift = { 0 };
        struct m3_drift_row row = { ref->y + t * N, is_mlp ? NULL : bias, gain, N, is_mlp };
        for (int o = 0; o < N && !is_mlp; o++) {
            gain[o] = 0;
            for (int i = 0; i < N; i++) gain[o] += (double)l->w1[o][i] * l->w1[o][i];
            gain[o] = sqrt(gain[o]);
        }
        if (is_mlp) mlp_gain(gain, ref->x + t * N, l);
        m3_drift_add(&drift, ref->x + t * N, got->x + t * N, N);
        m3_drift_propagate(&extra, t * N, &drift, &row);
    }
    if (bf16) m3_propagate_store(&extra, ref->y, T * N, 0x1p-8, 0);
    m3_ctx_free(&ctx);
    const struct m3_two_sides tap = { .reference = ref->y,
                                      .candidate = got->y,
                                      .bound = bound,
                                      .walk = walk,
                                      .extra = error,
                                      .extra_variance = variance,
                                      .count = T * N,
                                      .n = out.n,
                                      .f = out.f,
                                      .u = 0x1p-24,
                                      .stored = bf16 ? M3_BF16 : M3_F32 };
    return m3_verdict_of(&tap);
}

/* Goal:  correct candidates pass at every tap of a chain, though they drift; a defect is seen where it is.
 * Given: three layers of a matrix with bias, a norm and a gated MLP, 24 rows of 40; floats, and floats stored as bf16;
 *        in the middle layer the matrix without its last product, or the MLP without the 1 of up + 1.
 * Claim: correct: no tier objects, mean d^2 / sigma^2 from 0.3 to 1.5, in the last layer above 3 without the drift; a
 *        defect: not passed at its tap, passed at every other.
 * Seen to fail with n not divided by, x c for x dx, gain for its square. */
TEST(chains)
{
    uint64_t state = 4720;
    for (int c = 0; c < 12; c++) {
        static struct layer l[LAYERS];
        static struct side ref, got;
        const int bf16 = c % 2;
        const enum defect defect = c < 6 ? HONEST : c < 9 ? DROPPED : NO_ONE;
        for (int k = 0; k < LAYERS; k++) {
            float *all = &l[k].w1[0][0];
            for (size_t i = 0; i < sizeof l[k] / sizeof *all; i++) all[i] = (float)(normal(&state) / 6);
        }
        for (int i = 0; i < T * N; i++) ref.x[i] = got.x[i] = (double)to_bf16(normal(&state));
        for (int tap = 0; tap < 2 * LAYERS; tap++) {
            const struct layer *at = &l[tap / 2];
            const enum defect here = tap / 2 == 1 ? defect : HONEST;
            const int is_mlp = tap % 2, wrong = (here == DROPPED && !is_mlp) || (here == NO_ONE && is_mlp);
            for (int t = 0; t < T; t++) {
                long double y[N];
                if (is_mlp) {
                    true_mlp(y, ref.x + t * N, at);
                    float_mlp(got.y + t * N, got.x + t * N, at, bf16, here);
                } else {
                    float_linear(got.y + t * N, got.x + t * N, at, bf16, here);
                    for (int o = 0; o < N; o++) {
                        y[o] = at->b[o];
                        for (int i = 0; i < N; i++) y[o] += (long double)at->w1[o][i] * ref.x[t * N + i];
                    }
                }
                for (int o = 0; o < N; o++) ref.y[t * N + o] = (double)y[o];
            }
            struct m3_tier_result r = judge(&ref, &got, at, is_mlp, bf16, 1);
            if (wrong)
                ck_assert_msg(r.verdict != M3_VERDICT_PASS, "case %d, tap %d: defect passed, z2 %g", c, tap, r.z2);
            else no_alarm("chain", &r, M3_TIER_HARD | M3_TIER_SUSPECT | M3_TIER_WALK);
            ck_assert_msg(wrong || (r.z2 >= 0.3 && r.z2 <= 1.5), "case %d, tap %d: z2 %g", c, tap, r.z2);
            if (tap == 2 * LAYERS - 1) {
                r = judge(&ref, &got, at, is_mlp, bf16, 0);
                ck_assert_msg(r.z2 >= 3, "case %d: no drift worth the name", c);
            }
            memcpy(ref.x, ref.y, sizeof ref.x), memcpy(got.x, got.y, sizeof got.x);
            for (int t = 0; t < T && !is_mlp; t++) normalise(ref.x + t * N, 0), normalise(got.x + t * N, 1);
        }
    }
}
