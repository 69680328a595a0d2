/* The derivatives of attention, TRAINING 19.6: against the matrix of derivatives of softmax in long double, and in
 * double against slopes of the plain bodies. */
#include "ops/backward.h"
#include "ops/operators.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

#include "near_twin.h"

TIMEOUT(60);

enum kind { FULL, BLOCKS, UNION, SEGMENTS, KINDS };

struct attends {
    enum kind kind;
    struct m3_attend d;
    int32_t *blocks;                    /* [T,G,N] */
    int64_t *ends, segments;
    unsigned char *seen;
    real *q, *k, *v, *o, *lse;          /* o and lse: the twin's, rounded */
    real *d_o, *dlse;
};

struct attend_gradients {
    real *dq, *dk, *dv;
};

static int64_t keys_of(const struct attends *c) { return c->d.p0 + c->d.T; }

/* Lists that keep each visible block with probability 2/3; those of row 1 are empty. */
static void draw_blocks(struct attends *c)
{
    struct m3_attend *d = &c->d;
    d->block = 3;
    d->N = 4;
    d->selection = c->kind == UNION ? M3_SELECT_UNION : M3_SELECT_GROUP;
    c->blocks = near_room(d->T * d->G * d->N, sizeof *c->blocks);
    for (int64_t i = 0; i < d->T * d->G; i++) {
        int64_t n = 0;
        for (int64_t b = 0; b <= (d->p0 + i / d->G) / d->block && n < d->N; b++)
            if (i / d->G != 1 && twin_pick(&near_state, 3)) c->blocks[i * d->N + n++] = (int32_t)b;
        while (n < d->N) c->blocks[i * d->N + n++] = -1;
    }
}

static void draw_segments(struct attends *c)
{
    c->ends = near_room(c->d.T, sizeof *c->ends);
    for (int64_t end = 0; end < c->d.T; c->ends[c->segments++] = end) {
        end += 1 + twin_pick(&near_state, 6);
        if (end > c->d.T) end = c->d.T;
    }
}

static void twin_forward(struct attends *c);

static struct attends draw(enum kind kind, int64_t T, int64_t p0, int64_t ratio, int64_t G, int64_t D, int hides)
{
    struct attends c = { .kind = kind, .d = { .T = T, .p0 = p0, .Q = ratio * G, .G = G, .D = D } };
    const int64_t S = p0 + T, Q = ratio * G;
    if (kind == BLOCKS || kind == UNION) draw_blocks(&c);
    if (kind == SEGMENTS) draw_segments(&c);
    if (hides) {
        c.seen = near_room(S, 1);
        for (int64_t j = 0; j < S; j++) c.seen[j] = twin_pick(&near_state, 3) != 0;
        c.d.seen = c.seen;
    }
    c.q = near_draw(T * Q * D, 2);
    c.k = near_draw(S * G * D, 2);
    c.v = near_draw(S * G * D, 1);
    c.d_o = near_draw(T * Q * D, 1);
    c.dlse = near_draw(T * Q, 1);
    c.o = near_draw(T * Q * D, 1);
    c.lse = near_draw(T * Q, 1);
    twin_forward(&c);
    return c;
}

static void free_case(struct attends *c)
{
    void *all[] = { c->blocks, c->ends, c->seen, c->q, c->k, c->v, c->o, c->lse, c->d_o, c->dlse };
    for (int i = 0; i < 10; i++) free(all[i]);
}

/* ---- the twin */

static int sees(const struct attends *c, int64_t t, int64_t g, int64_t j)
{
    const struct m3_attend *d = &c->d;
    if (c->kind == SEGMENTS) {
        int64_t a = 0, b = 0;
        while (c->ends[a] <= t) a++;
        while (c->ends[b] <= j) b++;
        return a == b;
    }
    if (j > d->p0 + t || (c->seen && !c->seen[j])) return 0;
    for (int64_t h = 0; h < d->G && c->blocks; h++)
        for (int64_t n = 0; n < d->N && (h == g || c->kind == UNION); n++)
            if (c->blocks[(t * d->G + h) * d->N + n] == j / d->block) return 1;
    return !c->blocks;
}

static struct near dot(const real *a, const real *b, int64_t n)
{
    struct near sum = near_of(0);
    for (int64_t i = 0; i < n; i++) sum = near_plus(sum, near_times(near_of((double)a[i]), near_of((double)b[i])));
    return sum;
}

/* One row and query head: z and p [S] of the keys that it sees; elsewhere p is 0. Returns lse, or -inf. */
static long double weights(struct near *z, long double *p, const struct attends *c, int64_t t, int64_t h)
{
    const struct m3_attend *d = &c->d;
    const int64_t g = h / (d->Q / d->G), S = keys_of(c);
    const struct near scale = near_over(near_of(1), near_root(near_of((double)d->D)));
    long double sum = 0;
    for (int64_t j = 0; j < S; j++) {
        p[j] = 0;
        if (!sees(c, t, g, j)) continue;
        z[j] = near_times(dot(c->q + (t * d->Q + h) * d->D, c->k + (j * d->G + g) * d->D, d->D), scale);
        p[j] = expl(z[j].v);
        sum += p[j];
    }
    for (int64_t j = 0; j < S && sum > 0; j++) p[j] /= sum;
    return logl(sum);
}

static void twin_forward(struct attends *c)
{
    const struct m3_attend *d = &c->d;
    const int64_t S = keys_of(c);
    struct near *z = near_room(S, sizeof *z);
    long double *p = near_room(S, sizeof *p);
    for (int64_t row = 0; row < d->T * d->Q; row++) {
        const int64_t g = row % d->Q / (d->Q / d->G);
        c->lse[row] = (real)weights(z, p, c, row / d->Q, row % d->Q);
        for (int64_t i = 0; i < d->D; i++) {
            long double sum = 0;
            for (int64_t j = 0; j < S; j++) sum += p[j] * (long double)c->v[(j * d->G + g) * d->D + i];
            c->o[row * d->D + i] = (real)sum;
        }
    }
    free(z);
    free(p);
}

/* How far lse is from that of the keys: rounded once; segments compute it again with logits in `real`. */
static long double lse_error(const struct attends *c, const struct near *z, const long double *p, int64_t t, int64_t h,
                             long double lse)
{
    const struct m3_attend *d = &c->d;
    const long double u = twin_roundoff();
    long double most = 0;
    for (int64_t j = 0; j < keys_of(c) && c->kind == SEGMENTS; j++) {
        const real *q = c->q + (t * d->Q + h) * d->D, *k = c->k + (j * d->G + h / (d->Q / d->G)) * d->D;
        long double size = 0;
        for (int64_t i = 0; i < d->D; i++) size += fabsl((long double)q[i] * k[i]) / sqrtl(d->D);
        if (p[j] > 0) most = fmaxl(most, u * ((d->D + 2) * size + fabsl(z[j].v) + keys_of(c) + 8));
    }
    return u * fabsl(lse) + most;
}

/* The gradients, summed up over rows; what is allowed comes from lse and o, which are rounded. */
struct want {
    struct near *dq, *dk, *dv;
};

/* Adds what row t and head h give. Values by ds_j = sum over m of dp_m p_m ([j = m] - p_j) + dlse p_j. */
static void add_row(struct want *w, const struct attends *c, int64_t t, int64_t h, struct near *z, long double *p,
                    long double *dp)
{
    const struct m3_attend *d = &c->d;
    const int64_t S = keys_of(c), D = d->D, g = h / (d->Q / d->G), row = t * d->Q + h;
    const real *d_o = c->d_o + row * D;
    const long double u = twin_roundoff(), lse = weights(z, p, c, t, h), off = lse_error(c, z, p, t, h, lse);
    const long double dlse = c->dlse && c->kind != SEGMENTS ? (long double)c->dlse[row] : 0;
    const struct near scale = near_over(near_of(1), near_root(near_of((double)D)));
    long double delta = -dlse, o_error = 0;
    for (int64_t i = 0; i < D; i++)
        o_error += fabsl((long double)d_o[i]) * (u * fabsl((long double)c->o[row * D + i]) + 2 * D * near_u);
    for (int64_t j = 0; j < S; j++) {
        if (p[j] == 0) continue;
        dp[j] = dot(d_o, c->v + (j * d->G + g) * D, D).v;
        delta += p[j] * dp[j];
        for (int64_t i = 0; i < D && c->kind == SEGMENTS; i++)      /* o is computed again, with such weights */
            o_error += fabsl((long double)d_o[i] * c->v[(j * d->G + g) * D + i]) * 2 * off * p[j];
    }
    for (int64_t j = 0; j < S; j++) {
        if (p[j] == 0) continue;
        long double ds = dlse * p[j];
        for (int64_t m = 0; m < S; m++)
            if (p[m] > 0) ds += dp[m] * p[m] * ((j == m) - p[j]);
        const long double p_error = p[j] * (off + z[j].e + 4 * near_u * (1 + fabsl(lse) + fabsl(z[j].v)));
        const struct near a = { p[j], p_error };
        const struct near b = { ds, p_error * fabsl(dp[j] - delta) +
                                        p[j] * (o_error +
                                                4 * D * near_u * (fabsl(dp[j]) + fabsl(delta) + fabsl(dlse) + 1)) };
        for (int64_t i = 0; i < D; i++) {
            const int64_t key = (j * d->G + g) * D + i;
            w->dq[row * D + i] =
                near_plus(w->dq[row * D + i], near_times(near_times(b, scale), near_of((double)c->k[key])));
            w->dk[key] = near_plus(w->dk[key], near_times(near_times(b, scale), near_of((double)c->q[row * D + i])));
            w->dv[key] = near_plus(w->dv[key], near_times(a, near_of((double)d_o[i])));
        }
    }
}

static struct want formula(const struct attends *c)
{
    const int64_t S = keys_of(c), rows = c->d.T * c->d.Q, keys = S * c->d.G;
    struct want w = { near_room(rows * c->d.D, sizeof *w.dq), near_room(keys * c->d.D, sizeof *w.dk),
                      near_room(keys * c->d.D, sizeof *w.dv) };
    struct near *z = near_room(S, sizeof *z);
    long double *p = near_room(S, sizeof *p), *dp = near_room(S, sizeof *dp);
    for (int64_t row = 0; row < rows; row++) add_row(&w, c, row / c->d.Q, row % c->d.Q, z, p, dp);
    free(z);
    free(p);
    free(dp);
    return w;
}

/* ---- one call in guarded buffers. wanted: 1 dq, 2 dk, 4 dv */

static int call(struct m3_ctx *ctx, const struct attends *c, real *dq, real *dk, real *dv)
{
    const struct m3_attend *d = &c->d;
    if (c->kind == FULL)
        return m3_attend_full_backward(ctx, dq, dk, dv, c->d_o, c->dlse, c->q, c->k, c->v, c->o, c->lse, d);
    if (c->kind == SEGMENTS)
        return m3_attend_segments_backward(ctx, dq, dk, dv, c->d_o, c->q, c->k, c->v, c->ends, c->segments, d->Q, d->D);
    return m3_attend_blocks_backward(ctx, dq, dk, dv, c->d_o, c->dlse, c->q, c->k, c->v, c->o, c->lse, c->blocks, d);
}

static struct attend_gradients run(const struct attends *c, int wanted, int threads)
{
    const int64_t n_q = c->d.T * c->d.Q * c->d.D, n_k = keys_of(c) * c->d.G * c->d.D;
    const size_t size_q = (size_t)n_q * sizeof(real), size_k = (size_t)n_k * sizeof(real);
    struct attend_gradients got = { near_room(n_q, sizeof(real)), near_room(n_k, sizeof(real)),
                                    near_room(n_k, sizeof(real)) };
    struct guard zones[8];
    struct attends held = *c;
    real *dq = guard_output(&zones[0], size_q), *dk = guard_output(&zones[1], size_k),
         *dv = guard_output(&zones[2], size_k);
    held.q = guard_input(&zones[3], c->q, size_q);
    held.k = guard_input(&zones[4], c->k, size_k);
    held.v = guard_input(&zones[5], c->v, size_k);
    held.d_o = guard_input(&zones[6], c->d_o, size_q);
    held.o = guard_input(&zones[7], c->o, size_q);
    struct m3_ctx ctx = near_ctx(threads);
    near_done(&ctx, call(&ctx, &held, wanted & 1 ? dq : NULL, wanted & 2 ? dk : NULL, wanted & 4 ? dv : NULL));
    memcpy(got.dq, dq, size_q);
    memcpy(got.dk, dk, size_k);
    memcpy(got.dv, dv, size_k);
    for (int i = 0; i < 8; i++) ck_assert_msg(guard_intact(&zones[i]), "guard or input %d", i);
    return got;
}

static void free_gradients(struct attend_gradients *g)
{
    real *all[] = { g->dq, g->dk, g->dv };
    for (int i = 0; i < 3; i++) free(all[i]);
}

/* ---- tests */

/* Every element; and exactly 0 for rows that see nothing and keys that no row sees. Returns how many of either. */
static int64_t check_case(const struct attends *c, const struct attend_gradients *got)
{
    const struct m3_attend *d = &c->d;
    const int64_t D = d->D, S = keys_of(c);
    struct want w = formula(c);
    int64_t nothing = 0;
    for (int64_t i = 0; i < d->T * d->Q * D; i++) near_check("dq", i / D, i % D, got->dq[i], near_stored(w.dq[i]));
    for (int64_t i = 0; i < S * d->G * D; i++) {
        near_check("dk", i / D, i % D, got->dk[i], near_stored(w.dk[i]));
        near_check("dv", i / D, i % D, got->dv[i], near_stored(w.dv[i]));
    }
    for (int64_t t = 0; t < d->T; t++)
        for (int64_t h = 0; h < d->Q; h++) {
            int64_t keys = 0;
            for (int64_t j = 0; j < S; j++) keys += sees(c, t, h / (d->Q / d->G), j);
            nothing += keys == 0;
            for (int64_t i = 0; i < D && keys == 0; i++) ck_assert(got->dq[(t * d->Q + h) * D + i] == 0);
        }
    for (int64_t key = 0; key < S * d->G; key++) {
        int64_t rows = 0;
        for (int64_t t = 0; t < d->T; t++) rows += sees(c, t, key % d->G, key / d->G);
        nothing += rows == 0;
        for (int64_t i = 0; i < D && rows == 0; i++) ck_assert(got->dk[key * D + i] == 0 && got->dv[key * D + i] == 0);
    }
    free(w.dq);
    free(w.dk);
    free(w.dv);
    return nothing;
}

static int64_t check_drawn(enum kind kind, int64_t T, int64_t p0, int64_t ratio, int64_t G, int64_t D, int hides,
                           int with_dlse)
{
    struct attends c = draw(kind, T, p0, ratio, G, D, hides);
    if (!with_dlse) free(c.dlse), c.dlse = NULL;
    const int64_t n_q = T * ratio * G * D, n_k = keys_of(&c) * G * D;
    struct attend_gradients got = run(&c, 7, 1), four = run(&c, 7, 4);
    const int64_t nothing = check_case(&c, &got);
    ck_assert(near_same(got.dq, four.dq, n_q) && near_same(got.dk, four.dk, n_k) && near_same(got.dv, four.dv, n_k));
    for (int wanted = 1; wanted <= 4; wanted *= 2) {
        struct attend_gradients part = run(&c, wanted, 1);
        ck_assert(wanted != 1 || near_same(got.dq, part.dq, n_q));
        ck_assert(wanted != 2 || near_same(got.dk, part.dk, n_k));
        ck_assert(wanted != 4 || near_same(got.dv, part.dv, n_k));
        free_gradients(&part);
    }
    free_gradients(&got);
    free_gradients(&four);
    free_case(&c);
    return nothing;
}

/* Goal:  dq, dk and dv of every kind of attention.
 * Given: T 1, 2, 11; 0 and 5 places before the first row; 1 and 3 query heads a group; 1 and 2 groups; D 1, 16, 20;
 *        every third key hidden; lists of blocks that differ between rows and groups, those of row 1 empty; dlse given
 *        or not; a size with four threads.
 * Claim: what rounding allows of the matrix of derivatives, with lse and o rounded; exactly 0 for rows that see nothing
 *        and for keys outside the chosen blocks; the same bits with 4 threads and for one output alone.
 * Seen to fail with: delta dropped, the scale dropped, dlse ignored, one query head of a group, all causal keys,
 *        threads that share scratch. */
TEST(formulas)
{
    static const int64_t rows[] = { 1, 2, 11 }, widths[] = { 1, 16, 20 };
    int64_t nothing = 0;
    for (int i = 0; i < KINDS * 3 * 2 * 2 * 2 * 2; i++) {
        const enum kind kind = (enum kind)(i % KINDS);
        const int rest = i / KINDS / 3, alone = kind == SEGMENTS;
        nothing += check_drawn(kind, rows[i / KINDS % 3], alone ? 0 : rest % 2 * 5, alone ? 1 : 1 + rest / 2 % 2 * 2,
                               1 + rest / 4 % 2, widths[i % 3], !alone && rest / 8 % 2, i / 5 % 2);
    }
    for (int kind = 0; kind < KINDS; kind++)
        nothing += check_drawn((enum kind)kind, 67, kind == SEGMENTS ? 0 : 3, kind == SEGMENTS ? 1 : 3, 2, 20, 0, 1);
    ck_assert_int_ge(nothing, 200);
}

static long double loss(void *self)
{
    const struct attends *c = self;
    const struct m3_attend *d = &c->d;
    const int64_t n = d->T * d->Q;
    real *o = near_room(n * d->D, sizeof *o), *lse = near_room(n, sizeof *lse);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, c->kind == FULL ? m3_attend_full(&ctx, o, lse, c->q, c->k, c->v, d)
                    : c->kind == SEGMENTS
                        ? m3_attend_segments(&ctx, o, c->q, c->k, c->v, c->ends, c->segments, d->Q, d->D)
                        : m3_attend_blocks(&ctx, o, lse, c->q, c->k, c->v, c->blocks, d));
    for (int64_t i = 0; i < n * d->D; i++) sum += (long double)c->d_o[i] * o[i];
    for (int64_t i = 0; i < n && c->kind != SEGMENTS && c->dlse; i++)
        if (lse[i] > -(real)INFINITY) sum += (long double)c->dlse[i] * lse[i];
    free(o);
    free(lse);
    return sum;
}

/* Claim: the plain bodies have the slopes of dq, dk and dv, with and without a gradient of lse.
 * Seen to fail with: as formulas, the threads excepted. */
TEST_IF(slopes, sizeof(real) == sizeof(double))
{
    for (int i = 0; i < KINDS * 2; i++) {
        const enum kind kind = (enum kind)(i % KINDS);
        const int alone = kind == SEGMENTS;
        struct attends c = draw(kind, 9, alone ? 0 : 4, alone ? 1 : 3, 2, 8, i / KINDS && !alone);
        if (i / KINDS) free(c.dlse), c.dlse = NULL;
        struct attend_gradients got = run(&c, 7, 1);
        near_check_slopes("dq", c.q, got.dq, 9 * c.d.Q * 8, loss, &c);
        near_check_slopes("dk", c.k, got.dk, keys_of(&c) * 2 * 8, loss, &c);
        near_check_slopes("dv", c.v, got.dv, keys_of(&c) * 2 * 8, loss, &c);
        free_gradients(&got);
        free_case(&c);
    }
    printf("  attention: slopes within %.1Le\n", near_worst_slope);
}

/* Claim: with every visible block chosen, the gradient has the bits of full attention.
 * Seen to fail with: one visible key of each row left out of the mask of blocks. */
TEST(all_blocks)
{
    struct attends c = draw(BLOCKS, 11, 0, 3, 2, 16, 0), full = c;
    for (int64_t i = 0; i < 11 * 2 * 4; i++) c.blocks[i] = (int32_t)(i % 4 <= i / 8 / 3 ? i % 4 : -1);
    full.kind = FULL;
    full.blocks = NULL;
    twin_forward(&c);
    struct attend_gradients got = run(&c, 7, 1), want = run(&full, 7, 1);
    ck_assert(near_same(got.dq, want.dq, 11 * 6 * 16) && near_same(got.dk, want.dk, 11 * 2 * 16) &&
              near_same(got.dv, want.dv, 11 * 2 * 16));
    free_gradients(&got);
    free_gradients(&want);
    free_case(&c);
}

/* Claim: lists of blocks and ends of segments that the forward pass refuses are refused, with the row.
 * Seen to fail with: either check left out. */
TEST(refusals)
{
    struct attends c = draw(BLOCKS, 11, 0, 3, 2, 16, 0);
    real *dq = near_room(11 * 6 * 16, sizeof *dq);
    const int32_t bad[][4] = { { 1, 1, -1, -1 }, { 3, -1, -1, -1 }, { -1, 0, -1, -1 }, { 0, 1, -2, -1 } };
    for (int k = 0; k < 4; k++) {
        memcpy(c.blocks + (7 * 2 + 1) * 4, bad[k], sizeof bad[k]);
        struct m3_ctx ctx = near_ctx(1);
        near_refused(&ctx, call(&ctx, &c, dq, NULL, NULL), M3_WRONG,
                     "block list not strictly ascending visible ids, then -1", 7);
    }
    struct attends s = draw(SEGMENTS, 5, 0, 1, 2, 16, 0);
    struct m3_ctx ctx = near_ctx(1);
    s.segments = 0;
    near_refused(&ctx, call(&ctx, &s, dq, NULL, NULL), M3_WRONG, "no segment", -1);
    ctx = near_ctx(1);
    s.segments = 2;
    s.ends[0] = s.ends[1] = 3;
    near_refused(&ctx, call(&ctx, &s, dq, NULL, NULL), M3_WRONG, "ends of segments not ascending", 3);
    free(dq);
    free_case(&c);
    free_case(&s);
}
