/* Errors propagated through the choice's weights, experts and their sum (SPEC 5.14, 5.15, 7.4). */
#include "propagate_twin.h"

#include "stored_twin.h"

TIMEOUT(120);

enum what { ROUTE, ROUTED, MLP, EXPERTS };

enum { T = 5, E = 4, K = 2, H = 9, F = 13, MANY = 70 };

static const struct m3_gate gates[] = {
    { 1, 1.702, 7, M3_GATE_CLAMP_UPPER },
    { 1, 1.702, 7, M3_GATE_CLAMP_BOTH },
    { 0, 0, 0, M3_GATE_CLAMP_UPPER },
};

struct layer {
    enum what what;
    int64_t T, H, F;
    double factor, u_sum;
    struct m3_gate gate;
    struct m3_mlp_storage storage;
    int32_t ids[MANY * K];
    struct stored w[E][3];
    struct m3_expert experts[E];
};

static int call(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                const void *self)
{
    const struct layer *a = self;
    const struct m3_expert *e = a->experts;
    const struct m3_spread p = slice(of, a->T * K * a->H);
    if (a->what == ROUTE) return m3_propagate_route(ctx, out, x, of, a->ids, a->T, E, K);
    if (a->what == ROUTED)
        return m3_propagate_routed(ctx, out, x, x + a->T * K * a->H, of, &p, a->T, K, a->H, a->factor, a->u_sum);
    if (a->what == MLP)
        return m3_propagate_gated_mlp(ctx, out, x, of, &e->w1, &e->w3, &e->w2, &a->gate, a->T, &a->storage);
    return m3_propagate_experts(ctx, out, x, of, a->ids, e, &a->gate, a->T, E, K, &a->storage);
}

static long double clamp(long double x, long double low, long double high)
{
    return x < low ? low : x > high ? high : x;
}

static long double kept(long double x, double u) { return u > 0 ? to_bf16(x) : x; }

static long double act(long double z, long double w, const struct m3_gate *g, double u)
{
    if (g->oai) {
        z = clamp(z, g->clamp == M3_GATE_CLAMP_BOTH ? -g->limit : -HUGE_VALL, g->limit);
        w = kept(clamp(w, -g->limit, g->limit) + 1, u);
    }
    const long double s = kept(1 / (1 + expl(-kept((g->oai ? g->alpha : 1) * z, u))), u);
    return kept(w * kept(z * s, u), u);
}

static void expert(long double *y, const long double *x, const struct layer *a, int e, const struct m3_mlp_storage *s)
{
    long double mid[64];
    for (int64_t f = 0; f < a->F; f++) {
        long double z = 0, w = 0;
        for (int64_t i = 0; i < a->H; i++) {
            z += stored_value(&a->w[e][0], f, i) * x[i];
            w += stored_value(&a->w[e][1], f, i) * x[i];
        }
        mid[f] = kept(act(kept(z, s->gate), kept(w, s->up), &a->gate, s->chain), s->act);
    }
    for (int64_t i = 0; i < a->H; i++) {
        y[i] = 0;
        for (int64_t f = 0; f < a->F; f++) y[i] += stored_value(&a->w[e][2], i, f) * mid[f];
    }
}

static void layer(long double *y, const long double *x, const struct layer *a, double u_sum,
                  const struct m3_mlp_storage *s)
{
    const long double *p = x + a->T * K * a->H;
    for (int64_t t = 0; t < a->T; t++) {
        long double sum = 0;
        for (int k = 0; k < K; k++) {
            const int64_t slot = t * K + k;
            if (a->what == ROUTE) sum += x[t * E + a->ids[slot]];
            if (a->what == EXPERTS) expert(y + slot * a->H, x + t * a->H, a, a->ids[slot], s);
        }
        for (int k = 0; k < K && a->what == ROUTE; k++) y[t * K + k] = x[t * E + a->ids[t * K + k]] / sum;
        if (a->what == MLP) expert(y + t * a->H, x + t * a->H, a, 0, s);
        for (int64_t i = 0; i < a->H && a->what == ROUTED; i++) {
            long double all = 0;
            for (int64_t k = t * K; k < (t + 1) * K; k++) all = kept(all + kept(p[k] * x[k * a->H + i], u_sum), u_sum);
            y[t * a->H + i] = kept(a->factor * all, u_sum);
        }
    }
}

static const struct m3_mlp_storage nothing_stored = { 0 };

static void formula(long double *y, const long double *x, const void *self) { layer(y, x, self, 0, &nothing_stored); }

static void rounded(long double *y, const long double *x, const void *self)
{
    const struct layer *a = self;
    layer(y, x, a, a->u_sum, &a->storage);
}

static struct spread_case new_case(struct layer *a, uint64_t *state)
{
    const int64_t in[] = { a->T * E, a->T * K * (a->H + 1), a->T * a->H, a->T * a->H };
    const int64_t out[] = { a->T * K, a->T * a->H, a->T * a->H, a->T * K * a->H };
    struct spread_case c = spread_new("experts", in[a->what], out[a->what], call, formula, a);
    for (int64_t i = 0; i < c.in; i++) c.x[i] = a->what == ROUTE ? fabs(normal(state)) + 0.01 : normal(state);
    for (int64_t i = 0; i < c.in; i++) c.x[i] = (double)to_bf16(c.x[i]);
    for (int64_t i = 0; i < a->T * K; i++) {
        static const int32_t used[] = { 0, 3, 2, 0, 3, 2 };
        a->ids[i] = used[(i / K * 2 + i % K) % 6];
    }
    return c;
}

static void make_weights(struct layer *a, enum stored_kind kind, uint64_t *state)
{
    for (int e = 0; e < E; e++) {
        for (int i = 0; i < 3; i++) {
            stored_make(&a->w[e][i], kind, i == 2 ? a->H : a->F, i == 2 ? a->F : a->H);
            stored_random(&a->w[e][i], state);
            stored_give(&a->w[e][i], i);
        }
        a->experts[e] = (struct m3_expert){ a->w[e][0].weight, a->w[e][1].weight, a->w[e][2].weight };
    }
}

static void free_weights(struct layer *a)
{
    for (int e = 0; e < E; e++)
        for (int i = 0; i < 3; i++) ck_assert(stored_intact(&a->w[e][i]));
}

/* Goal:  weights of a choice and the sum of experts propagate errors as the slopes say.
 * Given: scores that were not chosen, off too; one expert's weight negative; factor 2 and 3.
 * Claim: spread_check at share 1; an id out of range is refused.
 * Seen to fail with e_k for (1 - p) e_k, p for p^2, e_p y for e_p |y|, no factor, ids not looked at. */
TEST(slopes)
{
    uint64_t state = 4600;
    for (int c = 0; c < 4; c++) {
        struct layer a = { .what = c % 2 ? ROUTED : ROUTE, .T = T, .H = H, .factor = c < 2 ? 2 : -3 };
        struct spread_case p = new_case(&a, &state);
        spread_errors(&p, 1e-6, &state);
        spread_nothing(&p);
        spread_check(&p, 1, &state);
        if (a.what == ROUTE) {
            struct m3_ctx ctx;
            struct m3_spread out = { p.error, p.variance }, of = { p.e, p.v };
            a.ids[3] = E;
            ck_assert_int_eq(m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS), 0);
            ck_assert_int_eq(call(&ctx, &out, p.x, &of, &a), M3_BAD_INPUT);
            m3_ctx_free(&ctx);
        }
        spread_free(&p);
    }
}

/* Goal:  scores that are far off leave bounds.
 * Given: errors of 10 % and 200 % of the scores, which stay above 0.
 * Claim: no corner moves a weight beyond its error; 0.9 of some error is reached at 10 %; no error above 1.
 * Seen to fail with the denominator S alone, without the limit 1. */
TEST(far)
{
    uint64_t state = 4610;
    for (int c = 0; c < 2; c++) {
        struct layer a = { .what = ROUTE, .T = T };
        struct spread_case p = new_case(&a, &state);
        double by[T * E], most = 0;
        for (int i = 0; i < T * E; i++) p.e[i] = (c ? 2 : 0.1) * p.x[i], p.v[i] = p.e[i] * p.e[i] / 3;
        spread_run(&p);
        long double *y = spread_values(&p, NULL);
        for (int n = 0; n < 300; n++) {
            for (int i = 0; i < T * E; i++) {
                by[i] = twin_draw(&state) < 0 ? -p.e[i] : p.e[i];
                if (by[i] <= -p.x[i]) by[i] = -0.999 * p.x[i];
            }
            most = fmax(most, spread_within(&p, y, by));
        }
        ck_assert_msg(most >= (c ? 0.5 : 0.9), "%g", most);
        for (int i = 0; i < T * K; i++) ck_assert(p.error[i] <= 1);
        free(y);
        spread_free(&p);
    }
}

/* Goal:  errors go through gated MLPs: no corner of x moves them further; variances are right in the mean over outputs.
 * Given: BF16 and MXFP8 weights, three gates; 5 rows, and 70, which come in pieces; an expert without a token.
 * Claim: the worst signs reach at least a tenth of the error; the mean over outputs of squares over variance, of 400
 *        random inputs, is 0.7 to 1.3 (errors of one x meet again, which the variance leaves out).
 * Seen to fail with w1 for w3, rows of the first piece for all, results at another slot, spreads of other tokens. */
TEST(composites)
{
    uint64_t state = 4620;
    for (int c = 0; c < 8; c++) {
        struct layer a = { .what = c % 2 ? EXPERTS : MLP, .T = c < 6 ? T : MANY, .H = H, .F = F, .gate = gates[c % 3] };
        make_weights(&a, c % 3 ? STORED_BF16 : STORED_F8_MX, &state);
        struct spread_case p = new_case(&a, &state);
        spread_errors(&p, 1e-6, &state);
        spread_nothing(&p);
        spread_run(&p);
        long double *y = spread_values(&p, NULL), *slopes = spread_slopes(&p);
        double *by = doubles(p.in), squares = 0, most = 0;
        for (int n = 0; n < 100; n++) {
            const int64_t o = n * p.out / 100;
            for (int64_t i = 0; i < p.in; i++) by[i] = slopes[i * p.out + o] < 0 ? -p.e[i] : p.e[i];
            most = fmax(most, spread_within(&p, y, by));
        }
        int64_t counted = 0;
        for (int n = 0; n < 400; n++) {
            for (int64_t i = 0; i < p.in; i++) by[i] = sqrt(3 * p.v[i]) * twin_fine(&state);
            long double *moved = spread_values(&p, by);
            for (int64_t o = 0; o < p.out; o++) {
                const double d = (double)(moved[o] - y[o]);
                if (p.variance[o] > 0) squares += d * d / p.variance[o], counted++;
            }
            free(moved);
        }
        squares /= (double)counted;
        ck_assert_msg(most >= 0.1 && squares >= 0.7 && squares <= 1.3, "%d: most %g, mean square %g", c, most, squares);
        free(y), free(slopes), free(by);
        spread_free(&p);
        free_weights(&a);
    }
}

/* Goal:  what a gated MLP and the sum of experts store is covered.
 * Given: gate, up, chain, act in bf16, each alone and all; sums in bf16 with factor 2.
 * Claim: spread_stored.
 * Seen to fail with gate, up, chain or act not counted, one rounding for K + 1, w1 for w3. */
TEST(storage)
{
    uint64_t state = 4630;
    for (int c = 0; c < 12; c++) {
        const double u = 0x1p-8;
        const int only = c % 6;                 /* 4: all; 5: the sum of experts */
        struct layer a = { .what = only == 5 ? ROUTED
                                   : c % 2   ? EXPERTS
                                             : MLP,
                           .T = 20,
                           .H = H,
                           .F = F,
                           .factor = 2,
                           .gate = gates[c % 3],
                           .u_sum = only == 5 ? u : 0 };
        a.storage = (struct m3_mlp_storage){ .gate = only == 0 || only == 4 ? u : 0,
                                             .up = only == 1 || only == 4 ? u : 0,
                                             .chain = only == 2 || only == 4 ? u : 0,
                                             .act = only >= 3 && only < 5 ? u : 0 };
        make_weights(&a, STORED_BF16, &state);
        struct spread_case p = new_case(&a, &state);
        spread_stored(&p, rounded, only == 5 ? 0.3 : 0.05);
        spread_free(&p);
        free_weights(&a);
    }
}
