/* Bounds of attention and of block scores (SPEC 5.7, 5.8, 5.10, 5.19, 7.1): formulas, honest results, defects. */
#include "bounds_twin.h"

#include "model/engine.h"

enum op { FULL, BLOCKS, SEGMENTS, SCORES };

struct in {
    enum op op;
    const double *q, *k, *v;
    const int32_t *blocks;
    const int64_t *ends;
    int64_t segments, A, U;
    struct m3_attend attend;
    struct m3_index index;
    struct m3_bound *lse;       /* what becomes of lse, or NULL */
    struct m3_arithmetic how;
    double *suspect;
};

static int call(struct m3_ctx *ctx, struct m3_bound *out, const void *in)
{
    const struct in *i = in;
    out->suspect = i->suspect;
    const int32_t *blocks = i->op == BLOCKS ? i->blocks : NULL;
    if (i->op == FULL || i->op == BLOCKS)
        return m3_bound_attend(ctx, out, i->lse, i->q, i->k, i->v, blocks, &i->attend, &i->how);
    if (i->op == SEGMENTS)
        return m3_bound_attend_segments(ctx, out, i->q, i->k, i->v, i->ends, i->segments, i->A, i->U, &i->how);
    return m3_bound_block_scores(ctx, out, i->q, i->k, &i->index, &i->how);
}

/* What section 4 of numerics.md gives for one row, in long double: o, its HARD, walk and SUSPECT over u; then lse's. */
struct row {
    long double *o, *hard, *walk, *suspect, lse[4];
};

static void twin_row(struct row *r, const double *q, const double *k, const double *v, const int64_t *keys, int64_t L,
                     int64_t D, int64_t stride, const struct m3_arithmetic *how)
{
    const long double u = how->u, c = how->c, lambda = how->lambda, R = (L + 15) / 16, n = D, l = L;
    long double *s = need(5 * L, sizeof *s), *a = s + L, *p = a + L, *eps = p + L, *eps2 = eps + L;
    long double m = -HUGE_VALL, sum = 0, most = 0;
    for (int64_t j = 0; j < L; j++) {
        for (int64_t i = 0; i < D; i++) {
            s[j] += q[i] * (long double)k[keys[j] * stride + i];
            a[j] += fabsl(q[i] * (long double)k[keys[j] * stride + i]);
        }
        s[j] /= sqrtl(n);
        a[j] /= sqrtl(n);
        m = fmaxl(m, s[j]);
        most = fmaxl(most, fabsl(s[j]));
    }
    for (int64_t j = 0; j < L; j++) sum += expl(s[j] - m);
    const long double lse = m + logl(sum), S = fabsl(lse) + most;
    long double of_lse = 0, of_walk = 0, of_suspect = 0;
    for (int64_t j = 0; j < L; j++) {
        p[j] = expl(s[j] - lse);
        eps[j] = (n + 4) * a[j] + (m - s[j]) + c * (R + 1);
        eps2[j] = (lambda * sqrtl(n) + 4) * a[j] + (m - s[j]) + c * (R + 1);
        if (u * eps[j] > 0.01L) eps[j] = expm1l(u * eps[j]) / u;
        if (u * eps2[j] > 0.01L) eps2[j] = expm1l(u * eps2[j]) / u;
        const long double typical = sqrtl(n) * a[j] + (m - s[j]) + c;
        of_lse += p[j] * eps[j];
        of_walk += p[j] * typical * p[j] * typical;
        of_suspect += p[j] * eps2[j] * p[j] * eps2[j];
    }
    const long double rest = 2 * R + c + c * logl(l + 1) + fabsl(lse) + S + 4;
    r->lse[0] = lse;
    r->lse[1] = of_lse + 2 * l + rest;
    r->lse[2] = sqrtl(of_walk + 2 * l + (fabsl(lse) + S + 8) * (fabsl(lse) + S + 8));
    r->lse[3] = sqrtl(of_suspect) + lambda * sqrtl(2 * l) + rest;
    for (int64_t i = 0; i < D; i++) {
        long double o = 0, mass = 0, top = 0, hard = 0, walk = 0, suspect = 0;
        for (int64_t j = 0; j < L; j++) {
            const long double v_j = v[keys[j] * stride + i];
            o += p[j] * v_j;
            mass += p[j] * fabsl(v_j);
            top = fmaxl(top, fabsl(v_j));
        }
        for (int64_t j = 0; j < L; j++) {
            const long double away = fabsl(v[keys[j] * stride + i] - o);
            const long double typical = sqrtl(n) * a[j] + (m - s[j]) + c;
            hard += p[j] * eps[j] * away;
            walk += p[j] * typical * away * p[j] * typical * away;
            suspect += p[j] * eps2[j] * away * p[j] * eps2[j] * away;
        }
        r->o[i] = o;
        r->hard[i] = hard + (2 * l + 2 * R + 2 * S + 12) * mass + l * 0x1p-126L * top / u;
        r->walk[i] = sqrtl(walk + (2 * l + 2 * S * S + 8) * mass * mass);
        r->suspect[i] = sqrtl(suspect) + (lambda * sqrtl(2 * l) + 2 * R + 2 * S + 12) * mass + l * 0x1p-126L * top / u;
    }
    free(s);
}

static struct row new_row(int64_t D)
{
    long double *memory = need(4 * D, sizeof *memory);
    return (struct row){ .o = memory, .hard = memory + D, .walk = memory + 2 * D, .suspect = memory + 3 * D };
}

/* The keys of place p and group g by definition. Returns how many. */
static int64_t keys_of(int64_t *keys, const struct m3_attend *d, const int32_t *lists, int64_t t, int64_t g)
{
    int64_t n = 0;
    for (int64_t j = 0; j <= d->p0 + t; j++) {
        int in = !lists;
        for (int64_t i = 0; lists && i < d->G * d->N; i++)
            in |= lists[t * d->G * d->N + i] == j / d->block && (i / d->N == g || d->selection == M3_SELECT_UNION);
        if (in && (!d->seen || d->seen[j])) keys[n++] = j;
    }
    return n;
}

/* Goal:  bounds of o and lse are the formulas, over the keys that are attended.
 * Given: T = 23 behind p0 = 9; Q = 6 heads of G = 2; blocks of 4; lists that differ; a mask; an empty list; union;
 *        logits of size 1 and of size 3000, where a float's error in them is above 0.01.
 * Claim: equal to long double within 1e-9; the same bits for any number of threads.
 * Seen to fail with |v| for |v - o|; S without max |s|; expm1 left out; heads tiled; own block without causality; union
 * read as group. */
START_TEST(formulas)
{
    enum { T = 23, P0 = 9, Q = 6, G = 2, D = 5, S = P0 + T, N = 3, BLOCK = 4, O = T * Q * D };
    static double q[O], k[S * G * D], v[S * G * D], bound[O], walk[O], suspect[O], lses[3][T * Q];
    static unsigned char seen[S];
    static int32_t blocks[T * G * N];
    uint64_t state = 111;
    for (int i = 0; i < S; i++) seen[i] = i % 5 != 1;
    for (int i = 0; i < T * G * N; i++) {
        const int own = (P0 + i / G / N) / BLOCK, at = i % N;
        blocks[i] = at == 0 ? i / N % 2 : at == 1 && own > 2 ? own - (i / N % 3 == 0) : -1;
        if (i / N == 7) blocks[i] = -1;
    }
    for (int c = 0; c < 12; c++) {
        const double size = c % 2 ? 60 : 1;
        for (int i = 0; i < O; i++) q[i] = size * normal(&state);
        for (int i = 0; i < S * G * D; i++) k[i] = size * normal(&state), v[i] = normal(&state) + i % D;
        struct m3_bound lse = { .bound = lses[0], .walk = lses[1], .suspect = lses[2] };
        struct in in = { .op = c < 4 ? FULL : BLOCKS, .q = q, .k = k, .v = v, .blocks = blocks, .lse = &lse,
                         .how = m3_arithmetic_f32(), .suspect = suspect };
        in.attend = (struct m3_attend){ T, P0, Q, G, D, c % 4 > 1 ? seen : NULL, BLOCK, N,
                                        c > 7 ? M3_SELECT_UNION : M3_SELECT_GROUP };
        const struct m3_bound out = run_bound(bound, walk, call, &in, O);
        ck_assert(out.n == 0 && out.f == 1 && lse.n == 0 && lse.f == 1);
        struct row row = new_row(D);
        for (int64_t h = 0; h < T * Q; h++) {
            int64_t keys[S], g = h % Q / (Q / G);
            int64_t L = keys_of(keys, &in.attend, c < 4 ? NULL : blocks, h / Q, g);
            if (L == 0) {
                for (int i = 0; i < D; i++) ck_assert(bound[h * D + i] == 0 && suspect[h * D + i] == 0);
                ck_assert(lses[0][h] == 0 && lses[1][h] == 0 && lses[2][h] == 0);
                continue;
            }
            twin_row(&row, q + h * D, k + g * D, v + g * D, keys, L, D, G * D, &in.how);
            for (int i = 0; i < D; i++) near("bound", h * D + i, bound[h * D + i], row.hard[i], 1e-9);
            for (int i = 0; i < D; i++) near("walk", h * D + i, walk[h * D + i], row.walk[i], 1e-9);
            for (int i = 0; i < D; i++) near("suspect", h * D + i, suspect[h * D + i], row.suspect[i], 1e-9);
            for (int i = 0; i < 3; i++) near("lse", h, lses[i][h], row.lse[i + 1], 1e-9);
        }
        free(row.o);
    }
}
END_TEST

/* Goal:  the same of segments: each row over its own, both ways.
 * Claim: equal to long double within 1e-9.
 * Seen to fail with every segment from row 0 on. */
START_TEST(segments)
{
    enum { P = 24, A = 3, U = 7, O = P * A * U };
    static const int64_t ends[] = { 1, 3, 8, 24 };
    static double q[O], k[O], v[O], bound[O], walk[O];
    uint64_t state = 112;
    for (int i = 0; i < O; i++) q[i] = normal(&state), k[i] = normal(&state), v[i] = normal(&state);
    const struct in in = { .op = SEGMENTS, .q = q, .k = k, .v = v, .ends = ends, .segments = 4, .A = A, .U = U,
                           .how = m3_arithmetic_f32() };
    run_bound(bound, walk, call, &in, O);
    struct row row = new_row(U);
    for (int64_t i = 0; i < P * A; i++) {
        int64_t keys[P], s = 0, L = 0;
        while (ends[s] <= i / A) s++;
        for (int64_t j = s ? ends[s - 1] : 0; j < ends[s]; j++) keys[L++] = j;
        twin_row(&row, q + i * U, k + i % A * U, v + i % A * U, keys, L, U, A * U, &in.how);
        for (int d = 0; d < U; d++) near("bound", i * U + d, bound[i * U + d], row.hard[d], 1e-9);
        for (int d = 0; d < U; d++) near("walk", i * U + d, walk[i * U + d], row.walk[d], 1e-9);
    }
    free(row.o);
}
END_TEST

/* ---- one query over L keys, as float implementations do it */

enum way { TWO_PASS, ONLINE, SPLIT, EXP_LSE, EXP2, ZEROS, MEAN, BF16_SUM, KEY_DROPPED, BF16_P, SCALE_OFF, WAYS };
static const char *const way_names[] = { "two passes", "online", "split keys", "exp(s - lse)", "exp2", "zeros",
                                         "mean of v", "bf16 denominator", "a key dropped", "bf16 p", "scale 2% off" };

enum { HEAD = 128, MOST_KEYS = 2048 };

static float logit(const float *q, const float *k, enum way way)
{
    float s = 0;
    for (int i = 0; i < HEAD; i++) s = s + q[i] * k[i];
    return s * (way == SCALE_OFF ? 1.02f : 1) * 0.08838834764f;
}

/* o [HEAD] unnormalised, their sum and largest logit, over keys first .. end, in tiles of 16 that are rescaled. */
static void online(float *o, float *sum, float *most, const float *s, const float *v, int first, int end)
{
    *sum = 0, *most = -INFINITY;
    for (int i = 0; i < HEAD; i++) o[i] = 0;
    for (int j0 = first; j0 < end; j0 += 16) {
        float top = *most;
        for (int j = j0; j < j0 + 16 && j < end; j++) top = fmaxf(top, s[j]);
        const float scale = *most == -INFINITY ? 0 : expf(*most - top);
        *sum = *sum * scale;
        for (int i = 0; i < HEAD; i++) o[i] = o[i] * scale;
        for (int j = j0; j < j0 + 16 && j < end; j++) {
            const float e = expf(s[j] - top);
            *sum = *sum + e;
            for (int i = 0; i < HEAD; i++) o[i] = o[i] + e * v[j * HEAD + i];
        }
        *most = top;
    }
}

static void split_keys(float *o, float *lse, const float *s, const float *v, int L)
{
    float part[HEAD], sums[4], most[4], all = 0, top = -INFINITY, parts[4][HEAD];
    for (int c = 0; c < 4; c++) {
        online(part, &sums[c], &most[c], s, v, L * c / 4, L * (c + 1) / 4);
        for (int i = 0; i < HEAD; i++) parts[c][i] = L * c / 4 < L * (c + 1) / 4 ? part[i] / sums[c] : 0;
        top = fmaxf(top, most[c]);
    }
    for (int c = 0; c < 4; c++)
        if (sums[c] > 0) all = all + expf(most[c] + logf(sums[c]) - top);
    *lse = top + logf(all);
    for (int i = 0; i < HEAD; i++) o[i] = 0;
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < HEAD && sums[c] > 0; i++)
            o[i] = o[i] + expf(most[c] + logf(sums[c]) - *lse) * parts[c][i];
}

static void plain(float *o, float *lse, const float *s, const float *v, int L, enum way way)
{
    float most = -INFINITY, sum = 0;
    const int last = way == KEY_DROPPED ? L / 2 : -1;
    for (int j = 0; j < L; j++) most = fmaxf(most, s[j]);
    for (int j = 0; j < L; j++) {
        const float e = way == EXP2 ? exp2f((s[j] - most) * 1.44269504f) : expf(s[j] - most);
        if (j == last) continue;
        sum = way == BF16_SUM ? (float)to_bits((double)sum + (double)e, 8) : sum + e;
    }
    *lse = most + logf(sum);
    for (int i = 0; i < HEAD; i++) o[i] = 0;
    for (int j = 0; j < L; j++) {
        float p = way == EXP_LSE ? expf(s[j] - *lse) : expf(s[j] - most) / sum;
        if (way == BF16_P) p = (float)to_bits((double)p, 8);
        if (way == MEAN) p = 1 / (float)L;
        for (int i = 0; i < HEAD && j != last; i++) o[i] = o[i] + p * v[j * HEAD + i];
    }
    for (int i = 0; i < HEAD && way == ZEROS; i++) o[i] = 0;
}

static void attend(float *o, float *lse, const float *q, const float *k, const float *v, int L, enum way way)
{
    static float s[MOST_KEYS];
    float sum, most;
    for (int j = 0; j < L; j++) s[j] = logit(q, k + j * HEAD, way);
    if (way == SPLIT) {
        split_keys(o, lse, s, v, L);
    } else if (way == ONLINE) {
        online(o, &sum, &most, s, v, 0, L);
        for (int i = 0; i < HEAD; i++) o[i] = o[i] / sum;
        *lse = most + logf(sum);
    } else {
        plain(o, lse, s, v, L, way);
    }
}

/* Verdicts on o and lse of the last QUERIES rows of a sequence of L keys, one head; values offset + spread N. */
struct verdicts { struct m3_tier_result o, lse; };

enum { QUERIES = 4 };

static struct verdicts judge_way(enum way way, int L, double offset, double spread, uint64_t seed)
{
    static float q[QUERIES * HEAD], k[MOST_KEYS * HEAD], v[MOST_KEYS * HEAD], o[QUERIES * HEAD], lse[QUERIES];
    static double qd[QUERIES * HEAD], kd[MOST_KEYS * HEAD], vd[MOST_KEYS * HEAD];
    static double truth[QUERIES * HEAD], truths[QUERIES], bounds[3][QUERIES * HEAD], lses[3][QUERIES];
    uint64_t state = seed;
    const int queries = L < QUERIES ? L : QUERIES;
    fill(q, queries * HEAD, MIXED, &state);
    fill(k, (int64_t)L * HEAD, MIXED, &state);
    for (int i = 0; i < L * HEAD; i++) v[i] = (float)(offset + spread * normal(&state));
    widen(qd, q, queries * HEAD), widen(kd, k, (int64_t)L * HEAD), widen(vd, v, (int64_t)L * HEAD);
    struct m3_bound out = { .bound = bounds[0], .walk = bounds[1] };
    struct m3_bound of_lse = { .bound = lses[0], .walk = lses[1], .suspect = lses[2] };
    struct in in = { .op = FULL, .q = qd, .k = kd, .v = vd, .lse = &of_lse, .how = m3_arithmetic_f32() };
    in.suspect = bounds[2];
    in.how.lambda = m3_lambda(queries * HEAD);
    in.attend = (struct m3_attend){ .T = queries, .p0 = L - queries, .Q = 1, .G = 1, .D = HEAD };
    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, 2, M3_LINEAR_BLAS), 0);
    ck_assert_int_eq(call(&ctx, &out, &in), 0);
    if (way == WAYS)
        ck_assert_int_eq(m3_engine_f32()->ops->attend_full(&ctx, o, lse, q, k, v, &in.attend), 0);
    m3_ctx_free(&ctx);
    struct row row = new_row(HEAD);
    for (int t = 0; t < queries; t++) {
        static int64_t keys[MOST_KEYS];
        for (int j = 0; j < L; j++) keys[j] = j;
        const int visible = L - queries + t + 1;
        twin_row(&row, qd + t * HEAD, kd, vd, keys, visible, HEAD, HEAD, &in.how);
        for (int i = 0; i < HEAD; i++) truth[t * HEAD + i] = (double)row.o[i];
        truths[t] = (double)row.lse[0];
        if (way < WAYS) attend(o + t * HEAD, lse + t, q + t * HEAD, k, v, visible, way);
    }
    free(row.o);
    return (struct verdicts){ judge_floats(truth, o, &out, queries * HEAD),
                              judge_floats(truths, lse, &of_lse, queries) };
}

/* Goal:  honest attention passes, o and lse.
 * Given: L = 1, 16, 129, 2048 keys; D = 128; ours, two passes, online in tiles, split keys, exp(s - lse), exp2; values
 *        of mean 0 and of mean 100 with spread 0.01.
 * Claim: no tier; shares of HARD and SUSPECT small (numerics.md, section 14: 0.15).
 * Seen to fail with the term of |v| left out. */
START_TEST(honest)
{
    static const int lengths[] = { 1, 16, 129, 2048 };
    double worst = 0, worst_lse = 0, worst_z = 0;
    for (int i = 0; i < 4; i++)
        for (int shifted = 0; shifted < 2; shifted++)
            for (int w = 0; w <= EXP2 + 1; w++) {
                const enum way way = w <= EXP2 ? (enum way)w : WAYS;
                char what[80];
                snprintf(what, sizeof what, "L %d, way %d, shifted %d", lengths[i], (int)way, shifted);
                const struct verdicts r = judge_way(way, lengths[i], shifted ? 100 : 0, shifted ? 0.01 : 1, 113);
                no_alarm(what, &r.o, ~0);
                no_alarm(what, &r.lse, ~0);
                worst = fmax(worst, r.o.headroom);
                worst_lse = fmax(worst_lse, r.lse.headroom);
                worst_z = fmax(worst_z, fmax(r.o.largest_z, r.lse.largest_z));
            }
    printf("attention, honest: |d|/HARD o %.3f, lse %.3f, |d|/sigma %.2f\n", worst, worst_lse, worst_z);
}
END_TEST

/* Goal:  wrong attention is seen as numerics.md, section 14, says: at 2048 keys, in units of HARD, zeros 390, mean of v
 *        330, a bf16 denominator 360, an average key dropped 6.4, p in bf16 0.74 and beyond SUSPECT.
 * Claim: FAIL all but bf16 p, which is suspect. With values 100 + 0.01 N a dropped key is seen in lse, not in o.
 * Seen to fail with 32 L for 2L in o, with 200 L in lse. */
START_TEST(defects)
{
    for (enum way way = ZEROS; way < WAYS; way++) {
        const struct verdicts r = judge_way(way, 2048, 0, 1, 114);
        printf("%-18s |d|/HARD o %8.3g, lse %8.3g; suspect %4d of %d, walk %4d\n", way_names[way], r.o.headroom,
               r.lse.headroom, (int)r.o.suspect, (int)r.o.judged, (int)r.o.walk);
        if (way == BF16_P) ck_assert(r.o.verdict == M3_VERDICT_SUSPECT && r.o.suspect > 0);
        else ck_assert_int_eq(r.o.verdict, M3_VERDICT_FAIL);
        if (way == BF16_SUM || way == KEY_DROPPED || way == SCALE_OFF) ck_assert_int_eq(r.lse.verdict, M3_VERDICT_FAIL);
    }
    const struct verdicts r = judge_way(KEY_DROPPED, 2048, 100, 0.01, 115);
    printf("a key dropped, values 100 + 0.01 N: o %.3g, lse %.3g\n", r.o.headroom, r.lse.headroom);
    ck_assert(r.o.hard == 0 && r.lse.headroom > r.o.headroom);
    ck_assert(r.lse.verdict != M3_VERDICT_PASS);
}
END_TEST

/* ---- block scores */

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

/* Goal:  B of a block is that of the largest key, or of any that could be it; honest scores pass; wrong ones do not.
 * Given: T = 21 behind p0 = 5, G = 3, X = 128, blocks of 8; a mask; both scales; a near tie: a key that is
 *        below another by 1.4 of the other's error, but within its own, for it has far larger products.
 * Claim: equal to long double; blocks of the future 0; ours without a tier. Scores pooled over the future too, or of
 *        the next key head: FAIL. pool=lse: ours passes, pool=max under it fails.
 * Seen to fail with keys left out that only their own error, or only another's, lets be the largest; with future or
 * hidden keys counted; without the scale. */
START_TEST(block_scores)
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
        struct in in = { .op = SCORES, .q = qd, .k = kd, .how = m3_arithmetic_f32() };
        in.index = (struct m3_index){ .T = T, .p0 = P0, .G = G, .X = X, .block = BLOCK, .B = B,
                                      .seen = c & 2 ? seen : NULL, .semantics = &semantics };
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
END_TEST

Suite *m3_suite(void);
Suite *m3_suite(void)
{
    Suite *suite = suite_create("bounds_attend");
    TCase *test = tcase_create("bounds_attend");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, formulas);
    tcase_add_test(test, segments);
    tcase_add_test(test, honest);
    tcase_add_test(test, defects);
    tcase_add_test(test, block_scores);
    suite_add_tcase(suite, test);
    return suite;
}
