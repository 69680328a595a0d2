/* Block scores: bounds (SPEC 7.1) and propagation (7.4). */
#include "propagate_twin.h"

#include "model/engine.h"

TIMEOUT(60);

/* ---- bound */

struct bounded {
    const double *q, *k;
    struct m3_index index;
    struct m3_arithmetic how;
};

static int call(struct m3_ctx *ctx, struct m3_bound *out, const void *in)
{
    const struct bounded *i = in;
    return m3_bound_block_scores(ctx, out, i->q, i->k, &i->index, &i->how);
}

/* B of one block by definition. */
static long double twin_score(long double *value, const double *q, const double *k, int64_t X, int64_t first,
                              int64_t end, const unsigned char *seen, int scaled)
{
    const long double u = 0x1p-24L, factor = scaled ? 1 / sqrtl(X) : 1;
    long double floor = -HUGE_VALL, bound = 0;
    *value = -HUGE_VALL;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = first; j < end; j++) {
            long double s = 0, mass = 0;
            if (seen && !seen[j]) continue;
            for (int64_t i = 0; i < X; i++) s += (long double)q[i] * k[j * X + i], mass += fabsl(q[i] * k[j * X + i]);
            const long double e = (X + 2) * u * mass * factor;
            if (pass == 0) floor = fmaxl(floor, s * factor - e), *value = fmaxl(*value, s * factor);
            else if (s * factor + e >= floor) bound = fmaxl(bound, mass * factor);
        }
    return bound;
}

/* Goal:  B of a block is that of the largest key, or of any that could be it; correct scores pass; wrong ones do not.
 * Given: T = 21 after p0 = 5, G = 3, X = 128, blocks of 8; a mask; both scales; a near tie: a key that is
 *        below another by 1.4 of the other's error, but within its own, as its products are larger.
 * Claim: equal to long double; blocks of the future 0; ours without a tier. Scores pooled over the future too, or of
 *        the next key head: FAIL. pool=lse: ours passes, pool=max under it fails.
 * Seen to fail with keys left out that only their own error, or only another's, lets be the largest; with future or
 * hidden keys counted; without the scale. */
TEST(block_scores)
{
    enum { T = 21, P0 = 5, S = P0 + T, G = 3, X = 128, BLOCK = 8, B = 5, O = T * G * B };
    static float q[T * G * X], k[S * X], m[O];
    static double qd[T * G * X], kd[S * X], bound[O], walk[O], truth[O], got[O];
    static unsigned char seen[S];
    uint64_t state = 116;
    fill(q, T * G * X, MIXED, &state);
    fill(k, S * X, MIXED, &state);
    for (int i = 0; i < X; i++) k[9 * X + i] = k[8 * X + i] * 4;
    for (int i = 0; i < S; i++) seen[i] = i % 7 != 3;
    for (int i = 0; i < X; i++) k[17 * X + i] = k[16 * X + i];
    k[17 * X] += 50, k[17 * X + 1] -= 50 + 9e-4f;
    for (int i = 0; i < T * G * X; i++)
        if (i % X < 2) q[i] = 1;
    widen(qd, q, T * G * X);
    widen(kd, k, S * X);
    for (int c = 0; c < 8; c++) {
        struct m3_semantics semantics = { .index_scale = c & 1 ? M3_INDEX_SCALE_RSQRT : M3_INDEX_SCALE_1 };
        semantics.pool = c & 4 ? M3_POOL_LSE : M3_POOL_MAX;
        struct bounded in = { .q = qd, .k = kd, .how = m3_arithmetic_f32() };
        in.index = (struct m3_index){ .T = T,
                                      .p0 = P0,
                                      .G = G,
                                      .X = X,
                                      .block = BLOCK,
                                      .B = B,
                                      .seen = c & 2 ? seen : NULL,
                                      .semantics = &semantics };
        const struct m3_bound out = run_bound(bound, walk, call, &in, O);
        ck_assert(out.n == X && out.f == 2);
        struct m3_ctx ctx;
        ck_assert_int_eq(m3_ctx_init(&ctx, 2, M3_LINEAR_BLAS), 0);
        ck_assert_int_eq(m3_engine_f32()->ops->block_scores(&ctx, m, q, k, &in.index), 0);
        ck_assert_int_eq(m3_engine_f64()->ops->block_scores(&ctx, (void *)got, (void *)qd, (void *)kd, &in.index), 0);
        m3_ctx_free(&ctx);
        for (int i = 0; i < O; i++) {
            const int64_t first = i % B * BLOCK, p = P0 + i / B / G;
            const int64_t end = p + 1 < first + BLOCK ? p + 1 : first + BLOCK;
            long double value, want = twin_score(&value, qd + i / B * X, kd, X, first, end, in.index.seen, c & 1);
            truth[i] = c & 4 ? got[i] : (double)value;
            if (!(c & 4)) near("bound", i, bound[i], want, 1e-11);
            ck_assert((value == -HUGE_VALL) == (bound[i] == 0));
        }
        struct m3_tier_result r = judge_floats(truth, m, &out, O);
        no_alarm("block scores", &r, ~0);
        printf("block scores, case %d: |d|/HARD %.3f\n", c, r.headroom);
        for (int i = 0; i < O; i++) {                                   /* the whole block, whoever sees it */
            long double value;
            const int64_t first = i % B * BLOCK, end = first + BLOCK < S ? first + BLOCK : S;
            twin_score(&value, qd + i / B * X, kd, X, first, end, in.index.seen, c & 1);
            m[i] = first <= P0 + i / B / G ? (float)value : -INFINITY;
        }
        r = judge_floats(truth, m, &out, O);
        ck_assert_int_eq(r.verdict, M3_VERDICT_FAIL);
        for (int i = 0; i < O; i++) m[i] = (float)truth[(i + B) % O];
        r = judge_floats(truth, m, &out, O);
        ck_assert_int_eq(r.verdict, M3_VERDICT_FAIL);
    }
}

/* ---- propagation */

enum { T = 6, P0 = 4, G = 2, X = 5, BLOCK = 3, B = 4, S = P0 + T, Q = T * G * X, OUT = T * G * B };

struct scores {
    struct m3_index d;
    double u;
};

static int propagate(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                     const void *self)
{
    const struct scores *a = self;
    const struct m3_spread k = slice(of, Q);
    return m3_propagate_block_scores(ctx, out, x, x + Q, of, &k, &a->d, a->u);
}

/* Blocks without a visible key: 0 here, because nothing moves. */
static void scores(long double *y, const long double *x, const struct scores *a, int stored)
{
    const int scaled = a->d.semantics->index_scale == M3_INDEX_SCALE_RSQRT;
    for (int64_t i = 0; i < OUT; i++) {
        const int64_t pair = i / B;
        long double most = -HUGE_VALL, all[BLOCK], sum = 0;
        int64_t n = 0;
        for (int64_t j = i % B * BLOCK; j < S && j < (i % B + 1) * BLOCK; j++) {
            if (j > P0 + pair / G || (a->d.seen && !a->d.seen[j])) continue;
            long double s = 0;
            for (int64_t d = 0; d < X; d++) s += x[pair * X + d] * x[Q + j * X + d];
            if (stored) s = to_bf16(s);
            if (scaled) s /= sqrtl(X);
            if (stored && scaled) s = to_bf16(s);
            all[n++] = s;
            most = fmaxl(most, s);
        }
        for (int64_t j = 0; j < n; j++) sum += expl(all[j] - most);
        y[i] = n == 0 ? 0 : a->d.semantics->pool == M3_POOL_LSE ? most + logl(sum) : most;
    }
}

static void formula(long double *y, const long double *x, const void *self) { scores(y, x, self, 0); }
static void rounded(long double *y, const long double *x, const void *self) { scores(y, x, self, 1); }

static const unsigned char seen[S] = { 0, 0, 0, 1, 1, 1, 0, 1, 1, 1 };

/* Four readings: scaled or not, largest or logarithm; with a mask that hides the first block every other time. */
static struct scores reading(int c, struct m3_semantics *semantics)
{
    *semantics = (struct m3_semantics){ .pool = c & 1 ? M3_POOL_LSE : M3_POOL_MAX,
                                        .index_scale = c & 2 ? M3_INDEX_SCALE_RSQRT : M3_INDEX_SCALE_1 };
    return (struct scores){ { T, P0, G, X, BLOCK, B, 2, c & 4 ? seen : NULL, semantics }, 0 };
}

static struct spread_case new_case(const struct scores *a, uint64_t *state)
{
    struct spread_case c = spread_new("scores", Q + S * X, OUT, propagate, formula, a);
    for (int64_t i = 0; i < c.in; i++) c.x[i] = (double)to_bf16(normal(state));
    return c;
}

/* (sum p_j sqrt(v_j))^2 of element i, whose logarithm is lse. */
static double logarithm_variance(const struct spread_case *c, const struct scores *a, int64_t i, long double lse)
{
    const int64_t pair = i / B;
    const double factor = a->d.semantics->index_scale == M3_INDEX_SCALE_RSQRT ? 1 / sqrt(X) : 1;
    double sum = 0;
    for (int64_t j = i % B * BLOCK; j < S && j < (i % B + 1) * BLOCK; j++) {
        double s = 0, v = 0;
        if (j > P0 + pair / G || (a->d.seen && !a->d.seen[j])) continue;
        for (int64_t d = 0; d < X; d++) {
            const int64_t q = pair * X + d, k = Q + j * X + d;
            s += c->x[q] * c->x[k];
            v += c->x[q] * c->x[q] * c->v[k] + c->v[q] * c->x[k] * c->x[k] + c->v[q] * c->v[k];
        }
        sum += exp(factor * s - (double)lse) * factor * sqrt(v);
    }
    return sum * sum;
}

/* Goal:  where one key is the largest by far, errors are those of its score; logarithms are bounded.
 * Given: 6 rows after 4, 2 groups, blocks of 3 with a partial one, a mask, both scales.
 * Claim: spread_check at share 1 for the largest. For the logarithm no input within reach moves it beyond the error;
 *        sample deviations are at most 1.2 times the root of the variance, in the mean at least half of it; the
 *        variance is (sum p_j sqrt(v_j))^2.
 * Seen to fail with e_q |k| left out, without the factor in the error, with the factor for its square, any key for
 * those within reach, p^2 for p in the logarithm's error and in its variance. */
TEST(slopes)
{
    uint64_t state = 4500;
    for (int c = 0; c < 8; c++) {
        struct m3_semantics semantics;
        const struct scores a = reading(c, &semantics);
        struct spread_case p = new_case(&a, &state);
        spread_errors(&p, 1e-9, &state);
        spread_nothing(&p);
        if (!(c & 1)) {
            spread_check(&p, 1, &state);
            spread_free(&p);
            continue;
        }
        spread_run(&p);
        long double *y = spread_values(&p, NULL);
        double by[Q + S * X], squares[OUT] = { 0 }, most = 0, used = 0;
        for (int n = 0; n < 400; n++) {
            for (int i = 0; i < p.in; i++) by[i] = twin_draw(&state) < 0 ? -p.e[i] : p.e[i];
            most = fmax(most, spread_within(&p, y, by));
            for (int i = 0; i < p.in; i++) by[i] = sqrt(3 * p.v[i]) * twin_fine(&state);
            long double *moved = spread_values(&p, by);
            for (int i = 0; i < OUT; i++) squares[i] += (double)((moved[i] - y[i]) * (moved[i] - y[i])) / 400;
            free(moved);
        }
        int counted = 0;
        for (int i = 0; i < OUT; i++) {
            near("logarithm", i, p.variance[i], logarithm_variance(&p, &a, i, y[i]), 1e-9);
            ck_assert(sqrt(squares[i]) <= 1.2 * sqrt(p.variance[i]));
            if (p.variance[i] > 0) used += sqrt(squares[i] / p.variance[i]), counted++;
        }
        ck_assert_msg(most >= 0.5 && used / counted >= 0.5, "%g, %g", most, used / counted);
        free(y);
        spread_free(&p);
    }
}

/* Goal:  ties, and what is nearly one: any key that can be the largest counts with its own error.
 * Given: two keys of one block with scores 1 and 1 + gap, of errors e1 and e2; a query that is exact.
 * Claim: gap 0: the larger error; gap beyond both errors and a float's own: that of the larger score; between: no less
 *        than anything within reach does.
 * Seen to fail with any key, and with the largest score in place of the largest less its reach. */
TEST(ties)
{
    struct m3_semantics semantics = { .pool = M3_POOL_MAX };
    const double q[1] = { 1 }, gaps[] = { 0, 1e-5, 1e-4, 2.05e-4, 3e-4, 1e-3 }, u = 0x1p-24;
    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS), 0);
    for (int i = 0; i < 6; i++)
        for (int order = 0; order < 2; order++) {
            double k[2] = { 1, 1 }, e[2] = { 1e-5, 1e-5 }, v[2] = { 1e-12, 1e-12 }, error = 0, variance = 0;
            k[order] += gaps[i];
            e[!order] = 2e-4, v[!order] = 1e-10;
            const struct m3_index d = { 1, 1, 1, 1, 2, 1, 1, NULL, &semantics };
            const struct m3_spread none = { NULL, NULL }, of_k = { e, v };
            struct m3_spread out = { &error, &variance };
            ck_assert_int_eq(m3_propagate_block_scores(&ctx, &out, q, k, &none, &of_k, &d, 0), 0);
            const int far = gaps[i] > 2.1e-4 + 6 * u + 1e-9;
            ck_assert_msg(error == (far ? 1e-5 : 2e-4), "gap %g: %g", gaps[i], error);
            ck_assert(variance == (far ? 1e-12 : 1e-10));
        }
    m3_ctx_free(&ctx);
}

/* Goal:  stored scores are covered.
 * Claim: spread_stored, at least 0.4 of the error in use.
 * Seen to fail with one rounding of scaled scores. */
TEST(storage)
{
    uint64_t state = 4520;
    for (int c = 0; c < 8; c++) {
        struct m3_semantics semantics;
        struct scores a = reading(c, &semantics);
        a.u = 0x1p-8;
        struct spread_case p = new_case(&a, &state);
        spread_stored(&p, rounded, 0.4);
        spread_free(&p);
    }
}
