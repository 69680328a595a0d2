/* experts against the formula and the order of SPEC 5.15, including 5.4, 5.11 and 5.12. */
#include "op_driver.h"

#include <stdio.h>

#include "stored_twin.h"

TIMEOUT(300);

static uint64_t state = 515;

enum matrix { W1, W3, W2 };     /* gate [F,H], up [F,H], down [H,F] */

/* How ids are drawn. Slots are in no order of ids. */
enum routing { SPREAD, ALL_TO_ONE, ONE_ALWAYS };

struct moe {
    int64_t T, E, K, H, F;
    struct m3_activation act;
    real factor;
    real *x, *p;                /* [T,H] [T,K] */
    int32_t *ids;               /* [T,K] */
    struct stored *stored;      /* W1, W3, W2 of expert 0, of expert 1, .. at odd addresses */
    real **w;                   /* the same, expanded */
};

struct moe_got {
    real *routed, *each;        /* [T,H] [T,K,H] */
};

static real weight(const struct moe *c, int64_t e, enum matrix which, int64_t i) { return c->w[e * 3 + which][i]; }

static void draw_ids(struct moe *c, enum routing routing)
{
    const int32_t one = (int32_t)twin_pick(&state, c->E);
    int32_t *deck = room(c->E, sizeof *deck);
    for (int64_t e = 0; e < c->E; e++) deck[e] = (int32_t)e;
    for (int64_t t = 0; t < c->T; t++) {
        for (int64_t k = 0; k < c->K && (routing != ALL_TO_ONE || t == 0); k++) {
            const int64_t from = k + twin_pick(&state, c->E - k);
            const int32_t e = deck[from];
            deck[from] = deck[k];
            deck[k] = e;
        }
        memcpy(c->ids + t * c->K, deck, (size_t)c->K * sizeof *deck);
        int there = 0;
        for (int64_t k = 0; k < c->K; k++) there |= deck[k] == one;
        if (routing == ONE_ALWAYS && !there) c->ids[t * c->K + twin_pick(&state, c->K)] = one;
    }
}

static void draw_matrices(struct moe *c, enum stored_kind kind)
{
    c->stored = room(c->E * 3, sizeof *c->stored);
    c->w = room(c->E * 3, sizeof *c->w);
    for (int64_t i = 0; i < c->E * 3; i++) {
        struct stored *s = &c->stored[i];
        stored_make(s, kind, i % 3 == W2 ? c->H : c->F, i % 3 == W2 ? c->F : c->H);
        stored_random(s, &state);
        stored_give(s, 1);
        c->w[i] = reals(c->F * c->H);
        for (int64_t n = 0; n < c->F * c->H; n++) c->w[i][n] = (real)stored_value(s, n / s->cols, n % s->cols);
    }
}

/* M3's activation and factor; gates and ups of about `size`; equal p where T ends in 2 or 7. */
static struct moe draw(int64_t T, int64_t E, int64_t K, int64_t H, int64_t F, enum stored_kind kind,
                       enum routing routing, double size)
{
    struct moe c = { .T = T, .E = E, .K = K, .H = H, .F = F, .factor = 2 };
    c.act = (struct m3_activation){ .oai = 1, .alpha = (real)1.702, .limit = 7 };
    c.x = drawn(T * H, 3 * size / sqrt((double)H), &state);
    c.p = reals(T * K);
    c.ids = room(T * K, sizeof *c.ids);
    for (int64_t i = 0; i < T * K; i++) c.p[i] = T % 5 == 2 ? (real)0.25 : (real)(0.5 + 0.5 * twin_draw(&state));
    draw_matrices(&c, kind);
    draw_ids(&c, routing);
    return c;
}

/* The matrices are unchanged. */
static void end(struct moe *c)
{
    for (int64_t i = 0; i < c->E * 3; i++) ck_assert(stored_intact(&c->stored[i]));
    rooms_free(0);
}

/* Experts that no row has chosen get no data: reading it would crash. */
static struct m3_expert *table_of(const struct moe *c)
{
    struct m3_expert *table = room(c->E, sizeof *table);
    for (int64_t e = 0; e < c->E; e++) {
        struct m3_weight *const w[3] = { &table[e].w1, &table[e].w3, &table[e].w2 };
        int64_t chosen = 0;
        for (int64_t i = 0; i < c->T * c->K; i++) chosen += c->ids[i] == e;
        for (int i = 0; i < 3; i++) {
            *w[i] = c->stored[e * 3 + i].weight;
            if (!chosen) w[i]->data = w[i]->scales = NULL;
        }
    }
    return table;
}

static struct call call_of(const struct moe *c, struct moe_got *got, enum m3_linear linear)
{
    const int64_t n = c->T * c->K;
    *got = (struct moe_got){ reals(c->T * c->H), reals(n * c->H) };
    struct call call = CALL(call_experts, KEPT(struct experts_values, &c->act, c->T, c->E, c->K, c->factor), 2, 4,
                            OPERAND(got->routed, c->T * c->H), OPERAND(got->each, n * c->H), OPERAND(c->x, c->T * c->H),
                            OPERAND(c->ids, n), OPERAND(c->p, n), OPERAND(table_of(c), c->E));
    call.optional = 1 << 1;
    call.linear = linear;
    call.blas = linear != M3_LINEAR_ORDERED;
    return call;
}

static struct moe_got run(const struct moe *c, enum m3_linear linear, int threads)
{
    struct moe_got got;
    struct call call = call_of(c, &got, linear);
    call_with(&call, threads);
    return got;
}

/* ---- the twin */

static long double worst;       /* greatest error of `each`, as a part of what is allowed */

/* A number and what it may be off by. */
struct about {
    long double is, off;
};

static struct about dot(const struct moe *c, int64_t e, enum matrix which, int64_t f, const real *x_t)
{
    struct about s = { 0, 0 };
    for (int64_t i = 0; i < c->H; i++) {
        const long double term = (long double)weight(c, e, which, f * c->H + i) * x_t[i];
        s.is += term;
        s.off += c->H * twin_roundoff() * fabsl(term);
    }
    return s;
}

/* A clamp moves nothing apart: what is off by more than the distance to the limit is cut, never stretched. */
static struct about clamp(struct about x, long double low, long double high)
{
    struct about y = { fminl(fmaxl(x.is, low), high), x.off };
    if (x.is - x.off > high || x.is + x.off < low) y.off = 0;
    return y;
}

static struct about activation(const struct moe *c, struct about gate, struct about up)
{
    const long double limit = c->act.oai ? (long double)c->act.limit : INFINITY, alpha = c->act.oai ? c->act.alpha : 1;
    const struct about g = clamp(gate, c->act.oai && c->act.clamp == M3_GATE_CLAMP_BOTH ? -limit : -INFINITY, limit),
                       u = clamp(up, -limit, limit);
    const long double sig = 1 / (1 + expl(-alpha * g.is)), linear = c->act.oai ? u.is + 1 : u.is,
                      y = linear * g.is * sig;
    const long double dy_dg = linear * sig * (1 + alpha * g.is * (1 - sig)), dy_du = g.is * sig;
    return (struct about){ y, fabsl(dy_dg) * g.off + fabsl(dy_du) * u.off +
                                  9 * twin_roundoff() * fabsl(y) * (1 + fabsl(alpha * g.is) * (1 - sig)) };
}

/* Row t, slot k of each. */
static void check_formula(const struct moe *c, const real *each, int64_t t, int64_t k)
{
    const int64_t e = c->ids[t * c->K + k];
    struct about *y = room(c->F, sizeof *y);
    for (int64_t f = 0; f < c->F; f++)
        y[f] = activation(c, dot(c, e, W1, f, c->x + t * c->H), dot(c, e, W3, f, c->x + t * c->H));
    for (int64_t i = 0; i < c->H; i++) {
        long double want = 0, allowed = twin_least();
        for (int64_t f = 0; f < c->F; f++) {
            const long double w = weight(c, e, W2, i * c->F + f);
            want += w * y[f].is;
            allowed += fabsl(w) * (y[f].off + c->F * twin_roundoff() * fabsl(y[f].is));
        }
        const real got = each[(t * c->K + k) * c->H + i];
        worst = fmaxl(worst, fabsl(got - want) / allowed);
        twin_check("each", t * c->K + k, i, got, want, allowed);
    }
}

/* What the ordered body computes, number by number. */
static void check_order(const struct moe *c, const real *each, int64_t t, int64_t k)
{
    const int64_t e = c->ids[t * c->K + k];
    const struct m3_activation *a = &c->act;
    real *y = reals(c->F);
    for (int64_t f = 0; f < c->F; f++) {
        real g = 0, u = 0;
        for (int64_t i = 0; i < c->H; i++) g = g + weight(c, e, W1, f * c->H + i) * c->x[t * c->H + i];
        for (int64_t i = 0; i < c->H; i++) u = u + weight(c, e, W3, f * c->H + i) * c->x[t * c->H + i];
        if (a->oai && g > a->limit) g = a->limit;
        if (a->oai && a->clamp == M3_GATE_CLAMP_BOTH && g < -a->limit) g = -a->limit;
        if (a->oai && u > a->limit) u = a->limit;
        if (a->oai && u < -a->limit) u = -a->limit;
        const real z = a->oai ? a->alpha * g : g;
        const real s = (real)(1 / (1 + (double)expl(-(long double)z)));
        y[f] = a->oai ? ((u + 1) * g) * s : (u * g) * s;
    }
    for (int64_t i = 0; i < c->H; i++) {
        real s = 0;
        for (int64_t f = 0; f < c->F; f++) s = s + weight(c, e, W2, i * c->F + f) * y[f];
        twin_check_same("each in order", t * c->K + k, i, each[(t * c->K + k) * c->H + i], s);
    }
}

/* routed from each and p, slots by ascending expert: in order every bit is fixed, whatever made `each`. */
static void check_routed(const struct moe *c, const struct moe_got *got, int64_t t)
{
    for (int64_t i = 0; i < c->H; i++) {
        real a = 0, size = 0;
        for (int64_t e = 0; e < c->E; e++)
            for (int64_t k = 0; k < c->K; k++) {
                if (c->ids[t * c->K + k] != e) continue;
                const real term = c->p[t * c->K + k] * got->each[(t * c->K + k) * c->H + i];
                a = a + term;
                size += (real)fabs(term);
            }
        if (TWIN_IN_ORDER) twin_check_same("routed", t, i, got->routed[t * c->H + i], c->factor * a);
        else
            twin_check("routed", t, i, got->routed[t * c->H + i], c->factor * a,
                       2 * (c->K + 2) * twin_roundoff() * fabs(c->factor) * size);
    }
}

static void check_case(struct moe *c)
{
    for (int body = 0; body <= TWIN_LAST_BODY; body++) {
        struct moe_got got;
        struct call call = call_of(c, &got, body ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS);
        call_all(&call);
        for (int64_t t = 0; t < c->T; t++) {
            for (int64_t k = 0; k < c->K; k++) {
                check_formula(c, got.each, t, k);
                /* in double the last bit of another exp shows, unless alpha is 0 */
                if (body && (sizeof(real) == 4 || (c->act.oai && c->act.alpha == 0))) check_order(c, got.each, t, k);
            }
            check_routed(c, &got, t);
        }
    }
    end(c);
}

/* ---- tests */

static void check_drawn(int64_t T, int64_t E, int64_t K, int64_t H, int64_t F, int i)
{
    static const struct m3_activation acts[5] = {
        { .oai = 1, .alpha = (real)1.702, .limit = 7 },
        { .oai = 0 },
        { .oai = 1, .alpha = (real)1.702, .limit = (real)0.75, .clamp = M3_GATE_CLAMP_BOTH },
        { .oai = 1, .alpha = 0, .limit = 3, .clamp = M3_GATE_CLAMP_UPPER },
        { .oai = 1, .alpha = (real)0.5, .limit = (real)0.75, .clamp = M3_GATE_CLAMP_UPPER },
    };
    const enum stored_kind kind = TWIN_READINGS ? (enum stored_kind)(i % STORED_KINDS)
                                  : i % 2       ? STORED_BF16
                                                : STORED_F32;
    struct moe c = draw(T, E, K, H, F, kind, (enum routing)(i % 3), i % 7 == 0 ? 6 : 1);
    c.act = acts[i % 5];
    c.factor = (real)(1 + i / 2 % 3);
    check_case(&c);
}

/* Goal:  each is the expert's MLP, routed the weighted sum.
 * Given: T 1 2 7, E 1 2 5 16, K 1 to 4, H 1 3 20 67, F 1 7 64; sizes 67, 131 and 128; T = E, T = K = E, H = F; slots
 *        in no order; every stored type at odd addresses; both activations with several alphas, limits and both clamps;
 *        factor 1 2 3; equal and different p; rows spread, all to the same experts, and one expert in every row.
 *        Experts without rows have no data.
 * Claim: with both bodies each is within the bound of SPEC; with the ordered one it has the bits of plain loops (in
 *        double: with alpha 0); routed has the bits of its loop over each; `each` NULL or not, and 1, 2 or 5 threads,
 *        give the same bits.
 * Seen to fail with the factor left out or put on each term, w1 and w3 exchanged, either activation for the other,
 *        no +1, no alpha, clamps exchanged, experts in descending order, `each` weighted by p, another sum without
 *        `each`, and an idle expert read. */
TEST(formula_and_order)
{
    static const int64_t rows[3] = { 1, 2, 7 }, experts[4] = { 1, 2, 5, 16 }, hidden[4] = { 1, 3, 20, 67 },
                         widths[3] = { 1, 7, 64 };
    for (int i = 0; i < 3 * 4 * 4 * 3 * 2; i += TWIN_STEP) {
        const int64_t E = experts[i / 3 % 4], K = 1 + (i + i / 7) % 4;
        check_drawn(rows[i % 3], E, K < E ? K : E, hidden[i / 12 % 4], widths[i / 48 % 3], i / 5);
    }
    check_drawn(67, 128, 4, 67, 20, 0);
    check_drawn(131, 5, 3, 128, 67, 1);
    check_drawn(131, 16, 4, 20, 131, 2);
    check_drawn(16, 16, 1, 20, 7, 3);
    check_drawn(4, 4, 4, 64, 64, 4);
    printf("  experts: at most %.1Lf %% of the allowed error of each\n", 100 * worst);
}

/* Goal:  more rows of one expert than any panel holds.
 * Given: 1100 and 2500 rows that all go to one expert, alone and beside others; 5 channels, width 3.
 * Claim: as above.
 * Seen to fail with rows after the first 1024 dropped, taken from the first panel, and missing in `each`. */
TEST(crowded_expert)
{
    for (int i = 0; i < 6; i++) {
        struct moe c = draw(i % (TWIN_IN_ORDER ? 3 : 6) ? 1100 : 2500, 3, 1 + i % 2, 5, 3,
                            i % 2 ? STORED_F32 : STORED_BF16, i < 3 ? ALL_TO_ONE : ONE_ALWAYS, 2);
        check_case(&c);
    }
}

/* Goal:  with the ordered body a row does not know what it is computed with.
 * Given: 67 rows, uneven routing; each row alone.
 * Claim: the bits of the batch.
 * Seen to fail with the row of a slot taken as slot mod T, and with an idle expert read. */
TEST_IF(alone_as_in_a_batch, TWIN_IN_ORDER)
{
    struct moe c = draw(67, 5, 3, 67, 20, STORED_BF16, ONE_ALWAYS, 3);
    struct moe_got whole = run(&c, M3_LINEAR_ORDERED, 2);
    for (int64_t t = 0; t < 67; t++) {
        struct moe row = c;
        row.T = 1;
        row.x += t * 67;
        row.p += t * 3;
        row.ids += t * 3;
        struct moe_got got = run(&row, M3_LINEAR_ORDERED, 1);
        ck_assert_msg(memcmp(got.routed, whole.routed + t * 67, 67 * sizeof(real)) == 0, "routed %lld", (long long)t);
        ck_assert_msg(memcmp(got.each, whole.each + t * 3 * 67, 3 * 67 * sizeof(real)) == 0, "each %lld", (long long)t);
    }
    end(&c);
}

/* Goal:  rows do not leak into each other.
 * Given: one row of x that is NaN, or its weights p; both bodies.
 * Claim: that row is NaN (with p: routed only), all others keep their bits.
 * Seen to fail with the row of a slot taken as slot mod T, and with `each` weighted by p. */
TEST(one_bad_row)
{
    struct moe c = draw(37, 5, 3, 20, 64, STORED_F32, ONE_ALWAYS, 1);
    struct moe_got of_body[2] = { run(&c, M3_LINEAR_BLAS, 1),
                                  run(&c, TWIN_LAST_BODY ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS, 1) };
    for (int i = 0; i < 37 * 4; i += 2 - TWIN_LAST_BODY) {
        const enum m3_linear body = i % 2 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS;
        const struct moe_got clean = of_body[i % 2];
        const int in_p = i / 2 % 2;
        const int64_t bad = i / 4;
        struct moe dirty = c;
        dirty.x = reals(37 * 20);
        dirty.p = reals(37 * 3);
        memcpy(dirty.x, c.x, 37 * 20 * sizeof *dirty.x);
        memcpy(dirty.p, c.p, 37 * 3 * sizeof *dirty.p);
        for (int64_t k = 0; k < 3 && in_p; k++) dirty.p[bad * 3 + k] = NAN;
        for (int64_t k = 0; k < 20 && !in_p; k++) dirty.x[bad * 20 + k] = NAN;
        struct moe_got got = run(&dirty, body, 2);
        for (int64_t t = 0; t < 37; t++) {
            const real *each = got.each + t * 60;
            if (t != bad || in_p) ck_assert_mem_eq(each, clean.each + t * 60, 60 * sizeof *each);
            else
                for (int64_t n = 0; n < 60; n++) ck_assert(isnan(each[n]));
            const real *routed = got.routed + t * 20;
            if (t != bad) ck_assert_mem_eq(routed, clean.routed + t * 20, 20 * sizeof *routed);
            else
                for (int64_t n = 0; n < 20; n++) ck_assert(isnan(routed[n]));
        }
    }
    end(&c);
}

/* Given: an id of -1, E, the least or the largest int32 in any row and slot, and others in later rows; both bodies.
 * Claim: an error that names the first such row.
 * Seen to fail with E and -1 accepted, the slot for the row, and the last row named. */
TEST(ids_out_of_range)
{
    static const int32_t wrong[4] = { -1, 5, INT32_MIN, INT32_MAX };
    for (int i = 0; i < 37 * 3 * 4; i++) {
        struct moe c = draw(37, 5, 3, 20, 7, STORED_F32, SPREAD, 1);
        for (int at = i / 4; at < 37 * 3; at += 5 + i % 11) c.ids[at] = wrong[(i + at) % 4];
        struct moe_got got;
        struct call call = call_of(&c, &got, i % 2 && TWIN_LAST_BODY ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS);
        call_refused(&call, ANY, i / 4 / 3, ANY, ANY);
        end(&c);
    }
}
