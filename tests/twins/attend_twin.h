/* Attention for the tests of attend_full and attend_blocks, written from SPEC 5.7 and 5.10: one row, one head, any
 * set of keys. Twice: the formula in long double with the errors that it allows, and the loop of "Order" in real. */
#ifndef M3_TESTS_ATTEND_TWIN_H
#define M3_TESTS_ATTEND_TWIN_H

#include "op_driver.h"

#include "ops/exp.h"

#include <stdio.h>

#include "formula_twin.h"

enum { ATTEND_MAX_D = 128 };

static uint64_t attend_state = 507;

/* ends: attend_segments, whose keys are its rows and which has no lse; blocks: attend_blocks; neither: attend_full. */
struct attend_case {
    struct m3_attend d;
    real *q, *k, *v;            /* [T,Q,D] [S,G,D] [S,G,D] */
    int32_t *blocks;            /* [T,G,N] */
    int64_t *ends, segments;
};

/* The operands as the formula takes them. */
struct attend_wide {
    const double *q, *k, *v;
};

struct attend_got {
    real *o, *lse;              /* [T,Q,D] [T,Q] */
};

/* ---- the twin */

/* The order of SPEC 5.7, for finite logits. In float its bits are demanded, with the brief exp of SPEC 8, which
 * tests/ops/test_math.c compares with MPFR; in double only where every exp is exact, for there the last bit of another
 * exp shows. */
static inline void attend_order(real *o, real *lse, const real *q, const real *k, const real *v, const int64_t *keys,
                                int64_t L, int64_t D, int64_t stride)
{
    static real e[TWIN_MAX_KEYS];
    const real scale = (real)(1 / sqrt((double)D));
    real m = -INFINITY;
    double c = 0;
    for (int64_t i = 0; i < L; i++) {
        real s = 0;
        for (int64_t d = 0; d < D; d++) s = s + q[d] * k[keys[i] * stride + d];
        e[i] = s * scale;
        if (e[i] > m) m = e[i];
    }
    for (int64_t i = 0; i < L; i++) {
        real x = e[i] - m;
        e[i] = (real)(sizeof(real) == 4 ? m3_exp_falling((float)x) : (double)expl((long double)x));
        c = c + (double)e[i];
    }
    *lse = (real)((double)m + (double)logl((long double)c));
    for (int64_t d = 0; d < D; d++) {
        real sum = 0;
        for (int64_t i = 0; i < L; i++) sum = sum + e[i] * v[keys[i] * stride + d];
        o[d] = L > 0 ? sum * (real)(1 / c) : 0;
    }
}

/* The keys of row t and group g, ascending; returns how many. */
static inline int64_t attend_keys(int64_t *keys, const struct attend_case *c, int64_t t, int64_t g)
{
    const struct m3_attend *d = &c->d;
    const struct twin_view view = { d->p0,   d->G,      d->N,   d->block, d->selection == M3_SELECT_UNION,
                                    d->seen, c->blocks, c->ends };
    return twin_keys(keys, &view, t, g, c->ends ? d->T : d->p0 + t + 1);
}

/* ---- cases */

/* Uniform in [-size, size), and now and then a zero of either sign. */
static inline real *attend_numbers(int64_t count, double size)
{
    real *x = reals(count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t kind = twin_pick(&attend_state, 50);
        x[i] = (real)(kind == 0 ? 0.0 : kind == 1 ? -0.0 : size * twin_draw(&attend_state));
    }
    return x;
}

static inline struct attend_case attend_draw(int64_t T, int64_t p0, int64_t ratio, int64_t G, int64_t D, double size)
{
    const int64_t n_k = (p0 + T) * G * D;
    return (struct attend_case){ .d = { .T = T, .p0 = p0, .Q = ratio * G, .G = G, .D = D },
                                 .q = attend_numbers(T * ratio * G * D, size),
                                 .k = attend_numbers(n_k, 1),
                                 .v = attend_numbers(n_k, 1) };
}

/* Rows [row, row + T) of a case, as a call of their own. The arrays stay those of the case. */
static inline struct attend_case attend_rows(const struct attend_case *c, int64_t row, int64_t T)
{
    struct attend_case part = *c;
    part.d.T = T;
    part.d.p0 += row;
    part.q += row * c->d.Q * c->d.D;
    if (c->blocks != NULL) part.blocks += row * c->d.G * c->d.N;
    return part;
}

/* Hides each place with probability `share`, and the first `none` in any case. */
static inline void attend_hide(struct attend_case *c, double share, int64_t none)
{
    const int64_t S = c->d.p0 + c->d.T;
    unsigned char *seen = room(S, 1);
    for (int64_t j = 0; j < S; j++) seen[j] = j >= none && (twin_draw(&attend_state) + 1) / 2 >= share;
    c->d.seen = seen;
}

/* What is hidden must not matter, whatever it is. */
static inline void attend_spoil(struct attend_case *c)
{
    const int64_t width = c->d.G * c->d.D;
    for (int64_t j = 0; j < c->d.p0 + c->d.T; j++)
        for (int64_t i = j * width; i < (j + 1) * width && !c->d.seen[j]; i++) c->k[i] = c->v[i] = NAN;
}

/* Rows and heads of c that see no key: o is 0 and lse -inf there. Returns how many rows. */
static inline int64_t attend_check_empty(const struct attend_case *c, const struct attend_got *got)
{
    static int64_t keys[TWIN_MAX_KEYS];
    int64_t empty = 0;
    for (int64_t t = 0; t < c->d.T; t++)
        for (int64_t h = 0; h < c->d.Q; h++) {
            if (attend_keys(keys, c, t, h / (c->d.Q / c->d.G)) > 0) continue;
            empty += h == 0;
            ck_assert(got->lse[t * c->d.Q + h] == -(real)INFINITY);
            for (int64_t i = 0; i < c->d.D; i++) ck_assert(got->o[(t * c->d.Q + h) * c->d.D + i] == 0);
        }
    return empty;
}

/* ---- the operator */

static inline struct call attend_call(const struct attend_case *c, struct attend_got *got)
{
    const int64_t n_q = c->d.T * c->d.Q, n_k = (c->d.p0 + c->d.T) * c->d.G * c->d.D;
    *got = (struct attend_got){ reals(n_q * c->d.D), reals(n_q) };
    struct call call =
        CALL(call_attend_full, KEPT(struct attend_full_values, &c->d), 2, 3, OPERAND(got->o, n_q * c->d.D),
             OPERAND(got->lse, n_q), OPERAND(c->q, n_q * c->d.D), OPERAND(c->k, n_k), OPERAND(c->v, n_k));
    if (c->ends)
        return (struct call)CALL(call_attend_segments, KEPT(struct attend_segments_values, c->segments, c->d.Q, c->d.D),
                                 1, 4, OPERAND(got->o, n_k), OPERAND(c->q, n_k), OPERAND(c->k, n_k), OPERAND(c->v, n_k),
                                 OPERAND(c->ends, c->segments > 0 ? c->segments : 0));
    if (!c->blocks) return call;
    call.body = call_attend_blocks;
    call.self = KEPT(struct attend_blocks_values, &c->d);
    call.p[2 + call.inputs++] = (struct operand)OPERAND(c->blocks, c->d.T * c->d.G * c->d.N);
    return call;
}

static inline struct attend_got attend_run(const struct attend_case *c, int threads)
{
    struct attend_got got;
    struct call call = attend_call(c, &got);
    call_with(&call, threads);
    return got;
}

static inline int attend_same_row(const struct attend_case *c, const struct attend_got *a, int64_t row_a,
                                  const struct attend_got *b, int64_t row_b)
{
    const int64_t n = c->d.Q * c->d.D;
    return memcmp(a->o + row_a * n, b->o + row_b * n, (size_t)n * sizeof(real)) == 0 &&
           memcmp(a->lse + row_a * c->d.Q, b->lse + row_b * c->d.Q, (size_t)c->d.Q * sizeof(real)) == 0;
}

static inline int attend_same(const struct attend_case *c, const struct attend_got *a, const struct attend_got *b)
{
    int same = 1;
    for (int64_t t = 0; t < c->d.T; t++) same &= attend_same_row(c, a, t, b, t);
    return same;
}

/* ---- judging: against the formula; in float also against the order; one, two and five threads alike */

static long double attend_worst;        /* greatest error, as a part of what is allowed */

static inline void attend_judge(const char *what, int64_t row, int64_t i, real got, long double want,
                                long double allowed)
{
    if (got == want) return;            /* also -inf, which is within nothing */
    if (allowed > 0) attend_worst = fmaxl(attend_worst, fabsl(got - want) / allowed);
    twin_check(what, row, i, got, want, allowed);
}

/* One head: what its operands and results begin with. */
static inline void attend_check_formula(const struct attend_wide *w, int64_t q, int64_t k, const int64_t *keys,
                                        int64_t L, int64_t D, int64_t stride, const real *o, const real *lse, int64_t t,
                                        int64_t h)
{
    static struct twin_head want;
    twin_attend(&want, w->q + q, w->k + k, w->v + k, keys, L, D, stride, twin_roundoff(),
                sizeof(real) == 4 ? 0x1p-126L : 0x1p-1022L);
    for (int64_t i = 0; i < D; i++) attend_judge("o", t, h * D + i, o[i], want.o[i], want.o_allowed[i]);
    if (lse) attend_judge("lse", t, h, *lse, want.lse, want.lse_allowed);
}

static inline void attend_check_head(const struct attend_case *c, const struct attend_wide *wide,
                                     const struct attend_got *got, int64_t t, int64_t h)
{
    static int64_t keys[TWIN_MAX_KEYS];
    const struct m3_attend *d = &c->d;
    const int64_t g = h / (d->Q / d->G), L = attend_keys(keys, c, t, g), stride = d->G * d->D;
    const real *q = c->q + (t * d->Q + h) * d->D, *k = c->k + g * d->D, *v = c->v + g * d->D,
               *o = got->o + (t * d->Q + h) * d->D, *lse = got->lse + t * d->Q + h;

    attend_check_formula(wide, (t * d->Q + h) * d->D, g * d->D, keys, L, d->D, stride, o, c->ends ? NULL : lse, t, h);
    if (TWIN_IN_ORDER && sizeof(real) == 4) {
        real o_order[ATTEND_MAX_D], lse_order;
        attend_order(o_order, &lse_order, q, k, v, keys, L, d->D, stride);
        for (int64_t i = 0; i < d->D; i++) twin_check_same("o in order", t, h * d->D + i, o[i], o_order[i]);
        if (!c->ends) twin_check_same("lse in order", t, h, *lse, lse_order);
    }
}

/* Rows 0, step, 2 step .., and those that begin or end a segment. */
static inline void attend_check_some(const struct attend_case *c, int64_t step)
{
    struct attend_got got;
    struct call call = attend_call(c, &got);
    const int64_t n_k = (c->d.p0 + c->d.T) * c->d.G * c->d.D;
    const struct attend_wide wide = { widened(c->q, c->d.T * c->d.Q * c->d.D), widened(c->k, n_k), widened(c->v, n_k) };
    call_all(&call);
    for (int64_t t = 0, s = 0; t < c->d.T; t++) {
        const int edge = c->ends && (t == c->ends[s] - 1 || t == (s ? c->ends[s - 1] : 0));
        s += c->ends && t == c->ends[s] - 1;
        for (int64_t h = 0; h < c->d.Q && (edge || t % step == 0); h++) attend_check_head(c, &wide, &got, t, h);
    }
}

static inline void attend_check(const struct attend_case *c) { attend_check_some(c, 1); }

/* Each row alone, and pieces of 1, 2, 3, .. rows, have the bits of the whole. */
static inline void attend_check_alone(const struct attend_case *c)
{
    struct attend_got whole = attend_run(c, 2);
    for (int growing = 0; growing < 2; growing++)
        for (int64_t t = 0, n = 1; t < c->d.T; t += n, n += growing) {
            struct attend_case piece = attend_rows(c, t, n < c->d.T - t ? n : c->d.T - t);
            struct attend_got got = attend_run(&piece, growing ? 5 : 1);
            for (int64_t i = 0; i < piece.d.T; i++)
                ck_assert_msg(attend_same_row(c, &whole, t + i, &got, i), "row %lld", (long long)(t + i));
        }
}

/* Hides places of c as attend_hide does and holds it against the twin; then, with the hidden keys spoilt, each row
 * alone against the same row of the whole. Returns how many rows see nothing. */
static inline int64_t attend_check_hidden(struct attend_case *c, double share, int64_t none)
{
    attend_hide(c, share, none);
    attend_check(c);
    struct attend_got whole = attend_run(c, 2);
    const int64_t empty = attend_check_empty(c, &whole);
    attend_spoil(c);
    attend_check(c);
    for (int64_t t = 0; TWIN_IN_ORDER && t < c->d.T; t++) {
        struct attend_case row = attend_rows(c, t, 1);
        struct attend_got got = attend_run(&row, 1);
        ck_assert_msg(attend_same_row(c, &whole, t, &got, 0), "row %lld", (long long)t);
    }
    c->d.seen = NULL;
    return empty;
}

#endif
