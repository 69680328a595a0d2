/* The derivatives of route and experts, TRAINING 19.9 and 19.10: against the tape of derivative_twin.h, and in double
 * against slopes of the plain bodies. */
#include "derivative_twin.h"

#include <stdio.h>

TIMEOUT(60);

/* K distinct experts of each row, in no order, from the first `used` of E. */
static int32_t *draw_ids(int64_t T, int64_t used, int64_t K)
{
    int32_t *ids = room(T * K, sizeof *ids);
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) {
            int again = 1;
            while (again) {
                ids[t * K + k] = (int32_t)twin_pick(&near_state, used);
                again = 0;
                for (int64_t m = 0; m < k; m++) again |= ids[t * K + m] == ids[t * K + k];
            }
        }
    return ids;
}

/* ---- route */

struct routes {
    int64_t T, E, K;
    real *dp, *s, *bias, *ds;
    int32_t *ids;
};

static int route_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct routes *c = self;
    return back_of(plain)->route(ctx, p[0], p[1], p[2], p[3], c->T, c->E, c->K);
}

/* The ids are an output; they must stay. */
static int route_forward(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct routes *c = self;
    int32_t *ids = room(c->T * c->K, sizeof *ids);
    const int status = ops_of(plain)->route(ctx, ids, p[0], p[1], p[2], c->T, c->E, c->K);
    ck_assert_mem_eq(ids, c->ids, (size_t)(c->T * c->K) * sizeof *ids);
    return status;
}

static struct routes draw_route(int64_t T, int64_t E, int64_t K)
{
    struct routes c = {
        T, E, K, near_draw(T * K, 1), near_draw(T * E, 0.45), reals(E), reals(T * E), draw_ids(T, E, K)
    };
    for (int64_t i = 0; i < T * E; i++) c.s[i] += (real)0.5; /* scores are sigmoids */
    return c;
}

static struct call route_call(const struct routes *c)
{
    return (struct call)CALL(route_back, c, 1, 3, OPERAND(c->ds, c->T * c->E), OPERAND(c->dp, c->T * c->K),
                             OPERAND(c->ids, c->T * c->K), OPERAND(c->s, c->T * c->E));
}

/* Goal:  every score; the renormalisation.
 * Given: K 1, 4 and all experts; E 1, 8, 33; scores in (0.05, 0.95).
 * Claim: what rounding allows of ds_j = sum over k of dp_k ([k = j] / S - c_k / S^2); exactly 0 for experts that are
 *        not chosen; the sum of c_k ds_k is 0 within rounding, and with K = 1 ds is 0.
 * Seen to fail with: the second term dropped, no division by S, scores of slots for scores of experts, other experts
 *        left as they were. */
TEST(route_formula)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 5, 8, 1 }, { 67, 33, 4 }, { 9, 8, 8 } };
    for (int k = 0; k < 4; k++) {
        const int64_t T = sizes[k][0], E = sizes[k][1], K = sizes[k][2], n = T * E;
        struct routes c = draw_route(T, E, K);
        struct call call = route_call(&c);
        struct near *want = near_zeros(n);
        call_all(&call);
        twin_route_back(want, widened(c.dp, T * K), widened_ids(c.ids, T * K), widened(c.s, n), T, E, K);
        near_check_all("ds", c.ds, want, NULL, n, E);
        for (int64_t t = 0; t < T; t++) {
            struct near along = near_of(0);
            long double sum = 0;
            for (int64_t e = 0; e < E; e++) {
                int chosen = 0;
                for (int64_t i = 0; i < K; i++) chosen |= c.ids[t * K + i] == e;
                ck_assert(chosen || c.ds[t * E + e] == 0);
                along = near_plus(along, near_times(near_of((double)c.s[t * E + e]), near_stored(want[t * E + e])));
                sum += (long double)c.s[t * E + e] * c.ds[t * E + e];
            }
            ck_assert(fabsl(sum) <= along.e);
        }
        rooms_free(0);
    }
}

/* Given: a bias that decides the choice alone, far apart, so that no step changes it.
 * Claim: the plain body has the slopes of ds.  Seen to fail with: as route_formula. */
TEST_IF(route_slopes, sizeof(real) == sizeof(double))
{
    struct routes c = draw_route(13, 9, 4);
    for (int64_t e = 0; e < c.E; e++) c.bias[e] = (real)(10 * ((e * 5 + 2) % 9));
    for (int64_t i = 0; i < c.T * c.K; i++) { /* the experts of the largest biases, 80, 70, .. */
        const int64_t rank = 8 - i % c.K;
        for (int64_t e = 0; e < c.E; e++)
            if ((e * 5 + 2) % 9 == rank) c.ids[i] = (int32_t)e;
    }
    struct call call = route_call(&c);
    struct near_forward f = { CALL(route_forward, &c, 1, 2, OPERAND(reals(13 * 4), 13 * 4), OPERAND(c.s, 13 * 9),
                                   OPERAND(c.bias, 9)),
                              { c.dp } };
    call_with(&call, 1);
    near_check_forward("route", &f, 1, c.ds);
    printf("  route: slopes within %.1Le\n", near_worst_slope);
}

/* Claim: ids that are no distinct experts are refused with their row, and scores whose sum is 0.
 * Seen to fail with: the sum not looked at. */
TEST(route_refusals)
{
    struct routes c = draw_route(5, 8, 3);
    struct call call = route_call(&c);
    const int32_t bad[][3] = { { 1, 2, 1 }, { 8, 0, 1 }, { 0, -1, 2 } };
    int32_t kept[3];
    memcpy(kept, c.ids + 3 * 3, sizeof kept);
    for (int k = 0; k < 3; k++) {
        memcpy(c.ids + 3 * 3, bad[k], sizeof bad[k]);
        call_refused(&call, M3_WRONG, 3, ANY, ANY);
        ck_assert_str_eq(call.failure.what, "ids are not distinct experts");
    }
    memcpy(c.ids + 3 * 3, kept, sizeof kept);
    for (int e = 0; e < 8; e++) c.s[2 * 8 + e] = 0;
    call_refused(&call, M3_WRONG, 2, ANY, ANY);
    ck_assert_str_eq(call.failure.what, "scores of the chosen experts sum to 0");
}

/* ---- experts */

struct moe {
    int64_t T, E, K, H, F;
    struct m3_activation act;
    real factor;
    real *dy, *x, *p; /* [T,H] [T,H] [T,K] */
    int32_t *ids;
    real *w1, *w3, *w2; /* [E,F,H] [E,F,H] [E,H,F] */
    real *dx, *dp, *dw1, *dw3, *dw2; /* gradients of matrices begin as the matrices: they are added to */
};

static struct m3_expert *table_of(const struct moe *c, const real *w1, const real *w3, const real *w2)
{
    struct m3_expert *table = room(c->E, sizeof *table);
    for (int64_t e = 0; e < c->E; e++) {
        const int64_t at = e * c->F * c->H;
        table[e].w1 = near_weight(w1 + at, c->F, c->H);
        table[e].w3 = near_weight(w3 + at, c->F, c->H);
        table[e].w2 = near_weight(w2 + at, c->H, c->F);
    }
    return table;
}

static int experts_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct moe *c = self;
    struct m3_expert_gradient *dw = room(c->E, sizeof *dw);
    for (int64_t e = 0; e < c->E; e++) {
        const int64_t at = e * c->F * c->H;
        dw[e].dw1 = p[2] ? (real *)p[2] + at : NULL;
        dw[e].dw3 = p[3] ? (real *)p[3] + at : NULL;
        dw[e].dw2 = p[4] ? (real *)p[4] + at : NULL;
    }
    return back_of(plain)->experts(ctx, p[0], p[1], p[2] || p[3] || p[4] ? dw : NULL, p[5], p[6], p[7], p[8],
                                   table_of(c, p[9], p[10], p[11]), &c->act, c->T, c->E, c->K, c->factor);
}

static int experts_forward(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct moe *c = self;
    return ops_of(plain)->experts(ctx, p[0], NULL, p[1], c->ids, p[2], table_of(c, p[3], p[4], p[5]), &c->act, c->T,
                                  c->E, c->K, c->factor);
}

static struct moe draw_moe(int64_t T, int64_t E, int64_t used, int64_t K, int64_t H, int64_t F, int oai)
{
    const int64_t n = E * F * H;
    struct moe c = { .T = T, .E = E, .K = K, .H = H, .F = F, .factor = 2 };
    c.act = (struct m3_activation){ oai, (real)1.702, (real)0.7, M3_GATE_CLAMP_UPPER };
    c.dy = near_draw(T * H, 1), c.x = near_draw(T * H, 1), c.p = near_draw(T * K, 1);
    c.ids = draw_ids(T, used, K);
    c.w1 = near_draw(n, 1), c.w3 = near_draw(n, 1), c.w2 = near_draw(n, 1);
    c.dx = reals(T * H), c.dp = reals(T * K);
    c.dw1 = reals(n), c.dw3 = reals(n), c.dw2 = reals(n);
    return c;
}

static struct call moe_call(const struct moe *c)
{
    const int64_t n = c->E * c->F * c->H, n_x = c->T * c->H, n_p = c->T * c->K;
    struct call call =
        CALL(experts_back, c, 5, 7, OPERAND(c->dx, n_x), OPERAND(c->dp, n_p), ADDED(c->dw1, n, c->w1),
             ADDED(c->dw3, n, c->w3), ADDED(c->dw2, n, c->w2), OPERAND(c->dy, n_x), OPERAND(c->x, n_x),
             OPERAND(c->ids, n_p), OPERAND(c->p, n_p), OPERAND(c->w1, n), OPERAND(c->w3, n), OPERAND(c->w2, n));
    call.optional = 31;
    call.linear = M3_LINEAR_ORDERED;
    return call;
}

static void check_moe(const struct moe *c)
{
    const int64_t n = c->E * c->F * c->H, n_x = c->T * c->H, n_p = c->T * c->K;
    struct twin_moe w = { c->T, c->H, c->K, c->F, .factor = (double)c->factor };
    w.act = (struct twin_gates){ c->act.oai, 0, (double)c->act.alpha, (double)c->act.limit };
    w.dy = widened(c->dy, n_x), w.x = widened(c->x, n_x), w.p = widened(c->p, n_p);
    w.ids = widened_ids(c->ids, n_p);
    w.w1 = widened(c->w1, n), w.w3 = widened(c->w3, n), w.w2 = widened(c->w2, n);
    w.dx = near_zeros(n_x), w.dp = near_zeros(n_p);
    w.dw1 = near_zeros(n), w.dw3 = near_zeros(n), w.dw2 = near_zeros(n);
    twin_experts_back(&w);
    near_check_all("dx", c->dx, w.dx, NULL, n_x, c->H);
    near_check_all("dp", c->dp, w.dp, NULL, n_p, c->K);
    near_check_all("dw1", c->dw1, w.dw1, c->w1, n, c->H);
    near_check_all("dw3", c->dw3, w.dw3, c->w3, n, c->H);
    near_check_all("dw2", c->dw2, w.dw2, c->w2, n, c->F);
    for (int64_t e = 0, size = c->F * c->H; e < c->E; e++) {
        int64_t rows = 0;
        for (int64_t i = 0; i < n_p; i++) rows += c->ids[i] == e;
        ck_assert_msg(rows || (same_reals(c->dw1 + e * size, c->w1 + e * size, size) &&
                               same_reals(c->dw3 + e * size, c->w3 + e * size, size) &&
                               same_reals(c->dw2 + e * size, c->w2 + e * size, size)),
                      "an expert without rows");
    }
}

/* Goal:  all gradients of the chosen experts, with both activations; matrices are added to.
 * Given: one expert and many, some without a row; K 1, 3 and all; T 1, 11, 40; values beyond the clamps of 0.7; a size
 *        with four threads.
 * Claim: what rounding allows of the formulas; experts without a row keep the bits of their gradients.
 * Seen to fail with: the factor dropped, p dropped in dw2, dp times p, dx stored for each expert, the part of w3
 *        missing in dx, every matrix gradient to expert 0. */
TEST(experts_formula)
{
    static const int64_t sizes[][6] = { { 1, 1, 1, 1, 3, 2 },
                                        { 11, 6, 4, 1, 7, 5 },
                                        { 11, 6, 5, 3, 8, 9 },
                                        { 40, 4, 4, 4, 17, 11 },
                                        { 40, 2, 2, 2, 67, 61 } };
    for (int k = 0; k < 5 * 2; k++) {
        const int64_t *n = sizes[k % 5];
        struct moe c = draw_moe(n[0], n[1], n[2], n[3], n[4], n[5], k / 5);
        struct call call = moe_call(&c);
        call_all(&call);
        check_moe(&c);
        rooms_free(0);
    }
}

/* Given: weights of 1/4, so that no gate or up comes near the limit of 7 that steps would cross.
 * Claim: the plain body has the slopes of every gradient.  Seen to fail with: as experts_formula. */
TEST_IF(experts_slopes, sizeof(real) == sizeof(double))
{
    for (int oai = 0; oai < 2; oai++) {
        struct moe c = draw_moe(9, 5, 4, 2, 6, 7, oai);
        const int64_t n = c.E * c.F * c.H;
        c.act.limit = 7;
        for (int64_t i = 0; i < n; i++) c.w1[i] *= (real)0.25, c.w3[i] *= (real)0.25;
        struct call call = moe_call(&c);
        struct near_forward f = { CALL(experts_forward, &c, 1, 5, OPERAND(reals(9 * 6), 9 * 6), OPERAND(c.x, 9 * 6),
                                       OPERAND(c.p, 9 * 2), OPERAND(c.w1, n), OPERAND(c.w3, n), OPERAND(c.w2, n)),
                                  { c.dy } };
        call_with(&call, 1);
        for (int64_t i = 0; i < n; i++) c.dw1[i] -= c.w1[i], c.dw3[i] -= c.w3[i], c.dw2[i] -= c.w2[i];
        near_check_forward("dx", &f, 1, c.dx);
        near_check_forward("dp", &f, 2, c.dp);
        near_check_forward("dw1", &f, 3, c.dw1);
        near_check_forward("dw3", &f, 4, c.dw3);
        near_check_forward("dw2", &f, 5, c.dw2);
    }
    printf("  experts: slopes within %.1Le\n", near_worst_slope);
}

/* Claim: ids that are no distinct experts are refused with their row. */
TEST(experts_refusals)
{
    struct moe c = draw_moe(5, 4, 4, 2, 3, 2, 1);
    struct call call = moe_call(&c);
    const int32_t bad[][2] = { { 1, 1 }, { 4, 0 }, { 0, -1 } };
    for (int k = 0; k < 3; k++) {
        memcpy(c.ids + 3 * 2, bad[k], sizeof bad[k]);
        call_refused(&call, M3_WRONG, 3, ANY, ANY);
        ck_assert_str_eq(call.failure.what, "ids are not distinct experts");
    }
}
