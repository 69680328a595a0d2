/* Goal:  the fast body of an operator computes what its plain body says, with the kernels of every instruction set.
 * Given: sizes of one, odd, prime and around every tile; places before the first row; hidden keys; numbers beyond the
 *        clamps, denormal, infinite, NaN; operands that both must refuse. Outputs start differently in both.
 * Claim: the same bits, the same status and the same place of a failure; for `blas` sums, the bounds.
 *
 * Seen to fail with: in attend.c the largest score above 0 (1), the sum in real (2), values divided before they are
 * summed (3); in visible.c the union, the mask, or later rows of a segment forgotten; in linear.c the bias added first.
 * In fast/: attend.c with a second run of values that begins a key late, with a row that sees the next one's key;
 * seen.h with hidden keys counted; linear.c with a third run of k not added, a bias lost in the first panel of `blas`;
 * layer_norm.c with the seventh row taken for the eighth; block_scores.c without the last block of a piece, and naming
 * the last NaN; experts.c with the factor inside the sum; kernels.c, for AVX-512 alone, with a gate always clamped
 * below, and a narrow tile without its last k. */
#include "ops/operators.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "drawn_bodies.h"
#include "guard.h"
#include "stored_twin.h"
#include "twin.h"

TIMEOUT(120);

/* ---- both bodies of one call */

struct call {
    int (*run)(const struct m3_ops *ops, struct m3_ctx *ctx, real *first, real *second, const void *operands);
    const void *operands;
    int64_t first, second;          /* numbers of outputs */
    enum m3_linear linear;
};

struct got {
    real *first, *second;
    struct guard first_guard, second_guard;
    struct m3_failure failure;
    int status;
};

static void run(struct got *got, const struct m3_ops *ops, const struct call *call, int threads, int poison)
{
    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, threads, call->linear), 0);
    got->first = guard_output(&got->first_guard, (size_t)call->first * sizeof(real));
    got->second = guard_output(&got->second_guard, (size_t)call->second * sizeof(real));
    memset(got->first, poison, (size_t)call->first * sizeof(real));
    memset(got->second, poison, (size_t)call->second * sizeof(real));
    got->status = call->run(ops, &ctx, got->first, got->second, call->operands);
    got->failure = ctx.failure;
    m3_ctx_free(&ctx);
}

/* Runs both and compares; `allowed` [first]: how far they may be apart, or NULL: not at all. Returns the status. */
static int both(const char *what, const struct call *call, const double *allowed)
{
    struct got plain, fast;
    run(&plain, &m3_plain_ops, call, 3, 0xFF);
    run(&fast, &m3_fast_ops, call, 2, 0x11);
    ck_assert_msg(plain.status == fast.status, "%s: status %d for %d", what, fast.status, plain.status);
    if (plain.status) {
        const struct m3_failure *a = &plain.failure, *b = &fast.failure;
        ck_assert_str_eq(a->what, b->what);
        ck_assert_msg(a->row == b->row && a->group == b->group && a->block == b->block,
                      "%s: fails at %d, %d, %d for %d, %d, %d", what, (int)b->row, (int)b->group, (int)b->block,
                      (int)a->row, (int)a->group, (int)a->block);
    }
    for (int64_t i = 0; i < call->first && !plain.status; i++) {
        if (allowed) twin_check(what, 0, i, fast.first[i], plain.first[i], allowed[i]);
        else twin_check_same(what, 0, i, fast.first[i], plain.first[i]);
    }
    for (int64_t i = 0; i < call->second && !plain.status; i++)
        twin_check_same(what, 1, i, fast.second[i], plain.second[i]);
    ck_assert(guard_intact(&plain.first_guard) && guard_intact(&plain.second_guard));
    ck_assert(guard_intact(&fast.first_guard) && guard_intact(&fast.second_guard));
    return plain.status;
}

/* ---- attention */

struct attention {
    struct m3_attend d;
    real *q, *k, *v;
    int32_t *blocks;
};

static int attend_full(const struct m3_ops *ops, struct m3_ctx *ctx, real *o, real *lse, const void *operands)
{
    const struct attention *a = operands;
    return ops->attend_full(ctx, o, lse, a->q, a->k, a->v, &a->d);
}

static int attend_blocks(const struct m3_ops *ops, struct m3_ctx *ctx, real *o, real *lse, const void *operands)
{
    const struct attention *a = operands;
    return ops->attend_blocks(ctx, o, lse, a->q, a->k, a->v, a->blocks, &a->d);
}

static void make_attention(struct attention *a, int64_t T, int64_t p0, int64_t Q, int64_t G, int64_t D)
{
    const enum numbers kind = (enum numbers)twin_pick(&state, KINDS);
    a->d = (struct m3_attend){ .T = T, .p0 = p0, .Q = Q, .G = G, .D = D, .seen = hidden(p0 + T) };
    a->q = reals(T * Q * D, kind);
    a->k = reals((p0 + T) * G * D, kind == SPECIAL ? LARGE : kind);
    a->v = reals((p0 + T) * G * D, kind);
    if (kind == SPECIAL) a->k[twin_pick(&state, (p0 + T) * G * D)] = (real)NAN;
    a->blocks = NULL;
}

static void free_attention(struct attention *a)
{
    free((void *)(uintptr_t)a->d.seen);
    free(a->q);
    free(a->k);
    free(a->v);
    free(a->blocks);
}

static void check_full(int64_t T, int64_t p0, int64_t Q, int64_t G, int64_t D)
{
    struct attention a;
    char what[100];
    make_attention(&a, T, p0, Q, G, D);
    snprintf(what, sizeof what, "%s attend_full T %d p0 %d Q %d G %d D %d", chosen->name, (int)T, (int)p0, (int)Q,
             (int)G, (int)D);
    ck_assert_int_eq(both(what, &(struct call){ attend_full, &a, T * Q * D, T * Q, 0 }, NULL), 0);
    free_attention(&a);
}

/* Beside drawn sizes: more keys than stay in a near cache, and so many that a tile has fewer rows. */
LOOP_TEST(full_attention, BUILDS)
{
    for (int i = 0; choose(_i) && i < 150; i++) {
        const int64_t h = twin_pick(&state, 6);
        check_full(PICK(rows_of), PICK(places_of), heads_of[h].Q, heads_of[h].G, PICK(channels_of));
    }
    static const int64_t near[] = { 255, 256, 257, 511, 512, 513 };
    for (int i = 0; choose(_i) && i < 6; i++) check_full(3, near[i] - 1, 4, 2, 5);
    if (choose(_i)) check_full(9, 16500, 8, 1, 2);
}

LOOP_TEST(block_attention, BUILDS)
{
    static const int64_t block_of[] = { 1, 2, 3, 4, 7, 64, 128, 1000 }, N_of[] = { 1, 2, 3, 5, 16 };
    int refused = 0, cases = choose(_i) ? 300 : 0;
    for (int i = 0; i < cases; i++) {
        const int64_t h = twin_pick(&state, 6), T = PICK(rows_of), D = PICK(channels_of), Q = heads_of[h].Q;
        struct attention a;
        char what[120];
        make_attention(&a, T, PICK(places_of), Q, heads_of[h].G, D);
        a.d.block = PICK(block_of);
        a.d.N = PICK(N_of);
        a.d.selection = i % 3 ? M3_SELECT_GROUP : M3_SELECT_UNION;
        a.blocks = block_lists(&a.d);
        snprintf(what, sizeof what, "%s attend_blocks T %d p0 %d Q %d D %d block %d N %d", chosen->name, (int)T,
                 (int)a.d.p0, (int)Q, (int)D, (int)a.d.block, (int)a.d.N);
        refused += both(what, &(struct call){ attend_blocks, &a, T * Q * D, T * Q, 0 }, NULL) == M3_WRONG;
        free_attention(&a);
    }
    ck_assert(cases == 0 || (refused > 5 && refused < cases / 2));
}

struct segments {
    real *q, *k, *v;
    int64_t ends[8], count, A, U;
};

static int attend_segments(const struct m3_ops *ops, struct m3_ctx *ctx, real *o, real *none, const void *operands)
{
    const struct segments *s = operands;
    (void)none;
    return ops->attend_segments(ctx, o, s->q, s->k, s->v, s->ends, s->count, s->A, s->U);
}

LOOP_TEST(segments, BUILDS)
{
    static const int64_t length_of[] = { 1, 1, 2, 3, 7, 16, 63, 64, 65, 257 }, heads[] = { 1, 2, 3, 16 };
    int refused = 0, cases = choose(_i) ? 150 : 0;
    for (int i = 0; i < cases; i++) {
        struct segments s = { .count = 1 + twin_pick(&state, 5), .A = PICK(heads), .U = PICK(channels_of) };
        const enum numbers kind = (enum numbers)twin_pick(&state, KINDS);
        int64_t P = 0;
        for (int64_t n = 0; n < s.count; n++) s.ends[n] = P += PICK(length_of);
        s.q = reals(P * s.A * s.U, kind);
        s.k = reals(P * s.A * s.U, kind);
        s.v = reals(P * s.A * s.U, kind);
        if (i % 20 == 7) s.ends[0] = 0;
        if (i % 20 == 17) s.count = 0;
        char what[100];
        snprintf(what, sizeof what, "%s attend_segments %d of %d rows, A %d U %d", chosen->name, (int)s.count, (int)P,
                 (int)s.A, (int)s.U);
        refused += both(what, &(struct call){ attend_segments, &s, P * s.A * s.U, 0, 0 }, NULL) == M3_WRONG;
        free(s.q);
        free(s.k);
        free(s.v);
    }
    ck_assert(cases == 0 || refused == 15);
}

/* ---- scores of blocks */

struct scores {
    struct m3_index d;
    struct m3_semantics semantics;
    real *q, *k;
};

static int block_scores(const struct m3_ops *ops, struct m3_ctx *ctx, real *m, real *none, const void *operands)
{
    const struct scores *s = operands;
    struct m3_index d = s->d;
    (void)none;
    d.semantics = &s->semantics;
    return ops->block_scores(ctx, m, s->q, s->k, &d);
}

/* Also more blocks than a piece has (64), and one row alone. */
LOOP_TEST(scores, BUILDS)
{
    static const int64_t block_of[] = { 1, 2, 3, 4, 7, 16, 128 }, groups[] = { 1, 2, 3, 4, 5 },
                         far[] = { 0, 1, 61, 300 };
    int refused = 0, cases = choose(_i) ? 300 : 0;
    for (int i = 0; i < cases; i++) {
        const int64_t T = PICK(rows_of), p0 = PICK(far), G = PICK(groups), X = PICK(channels_of);
        const enum numbers kind = (enum numbers)twin_pick(&state, KINDS);
        struct scores s = { .d = { .T = T, .p0 = p0, .G = G, .X = X, .block = PICK(block_of), .N = 1 },
                            .semantics = { .pool = i % 2 ? M3_POOL_LSE : M3_POOL_MAX,
                                           .index_scale = i % 3 ? M3_INDEX_SCALE_1 : M3_INDEX_SCALE_RSQRT } };
        unsigned char *seen = hidden(p0 + T);
        s.d.seen = seen;
        s.d.B = (p0 + T + s.d.block - 1) / s.d.block + twin_pick(&state, 3);
        s.q = reals(T * G * X, kind == SPECIAL ? LARGE : kind);
        s.k = reals((p0 + T) * X, kind == SPECIAL ? LARGE : kind);
        if (kind == SPECIAL) s.k[twin_pick(&state, (p0 + T) * X)] = i % 4 ? (real)NAN : (real)INFINITY;
        char what[120];
        snprintf(what, sizeof what, "%s block_scores T %d p0 %d G %d X %d block %d", chosen->name, (int)T, (int)p0,
                 (int)G, (int)X, (int)s.d.block);
        refused += both(what, &(struct call){ block_scores, &s, T * G * s.d.B, 0, 0 }, NULL) == M3_WRONG;
        free(seen);
        free(s.q);
        free(s.k);
    }
    ck_assert(cases == 0 || (refused > 5 && refused < cases / 2));
}

/* ---- linear, experts */

struct product {
    const struct m3_weight *w;
    real *x, *bias;
    int64_t T;
};

static int linear(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct product *p = operands;
    (void)none;
    return ops->linear(ctx, y, p->x, p->w, p->bias, p->T);
}

/* Twice what any order of summation may be off: both sums have errors. */
static double *allowed_of(const struct product *p, const struct stored *s)
{
    double *allowed = new(p->T * s->rows, sizeof *allowed);
    for (int64_t i = 0; i < p->T * s->rows; i++) {
        long double size = p->bias ? fabsl((long double)p->bias[i % s->rows]) : 0;
        for (int64_t k = 0; k < s->cols; k++)
            size += fabsl(stored_value(s, i % s->rows, k) * p->x[i / s->rows * s->cols + k]);
        allowed[i] = (double)(2 * (s->cols + 2) * twin_roundoff() * size);
    }
    return allowed;
}

static void check_linear(int64_t T, int64_t rows, int64_t cols, int with_bias)
{
    struct stored s;
    const enum stored_kind stored = (enum stored_kind)twin_pick(&state, STORED_KINDS);
    const enum numbers kind = (enum numbers)twin_pick(&state, KINDS);
    stored_make(&s, stored, rows, cols);
    stored_random(&s, &state);
    stored_give(&s, (int)twin_pick(&state, 2));
    struct product p = { &s.weight, reals(T * cols, kind), with_bias ? reals(rows, ORDINARY) : NULL, T };
    char what[120];
    snprintf(what, sizeof what, "%s linear %s T %d rows %d cols %d", chosen->name, stored_types[stored].name, (int)T,
             (int)rows, (int)cols);
    both(what, &(struct call){ linear, &p, T * rows, 0, M3_LINEAR_ORDERED }, NULL);
    if (kind == ORDINARY || kind == LARGE || kind == INTEGERS) {
        double *allowed = allowed_of(&p, &s);
        both(what, &(struct call){ linear, &p, T * rows, 0, M3_LINEAR_BLAS }, allowed);
        free(allowed);
    }
    ck_assert(stored_intact(&s));
    free(p.x);
    free(p.bias);
}

LOOP_TEST(products, BUILDS)
{
    static const int64_t T_of[] = { 1, 2, 3, 7, 16, 31, 32, 33 }, rows_in[] = { 1, 3, 15, 16, 17, 63, 64, 65, 130 };
    static const int64_t cols_in[] = { 1, 3, 31, 32, 33, 127, 128, 129, 255, 256, 257, 300, 513 };
    for (int i = 0; choose(_i) && i < 200; i++) check_linear(PICK(T_of), PICK(rows_in), PICK(cols_in), i % 2);
    for (int i = 0; choose(_i) && i < 3; i++) check_linear(1024 + i, 3, 5, i % 2);
}

struct mixture {
    struct m3_expert experts[7];
    struct m3_activation act;
    real *x, *p;
    int32_t *ids;
    int64_t T, E, K;
    int each;
    int apart;          /* the sum by m3_experts_sum, against that of the plain body */
};

static int experts(const struct m3_ops *ops, struct m3_ctx *ctx, real *routed, real *each, const void *operands)
{
    const struct mixture *m = operands;
    const int status = ops->experts(ctx, routed, m->each ? each : NULL, m->x, m->ids, m->p, m->experts, &m->act, m->T,
                                    m->E, m->K, (real)1.7);
    if (!status && m->apart && ops != &m3_plain_ops)
        m3_experts_sum(routed, each, m->ids, m->p, m->T, m->K, m->experts[0].w1.cols, (real)1.7);
    return status;
}

static int check_experts(int64_t T, int64_t E, int64_t K, int64_t H, int64_t F, int i)
{
    struct mixture m = { .T = T,
                         .E = E,
                         .K = K,
                         .each = i % 2,
                         .apart = i % 4 == 1,
                         .act = { .oai = i % 3 > 0, .alpha = (real)1.702, .limit = 7, .clamp = i % 5 == 0 } };
    struct stored matrices[7][3];
    for (int64_t e = 0; e < E; e++)
        for (int w = 0; w < 3; w++) {
            struct stored *s = &matrices[e][w];
            stored_make(s, (enum stored_kind)(i % STORED_KINDS), w == 2 ? H : F, w == 2 ? F : H);
            stored_random(s, &state);
            stored_give(s, 0);
            *(w == 0 ? &m.experts[e].w1 : w == 1 ? &m.experts[e].w3 : &m.experts[e].w2) = s->weight;
        }
    m.x = reals(T * H, (enum numbers)twin_pick(&state, KINDS));
    m.p = reals(T * K, ORDINARY);
    m.ids = new(T * K, sizeof *m.ids);
    for (int64_t t = 0; t < T; t++) {
        const int64_t first = twin_pick(&state, E), step = 1 + twin_pick(&state, 2) * (E % 2) * (E > 1);
        for (int64_t k = 0; k < K; k++) m.ids[t * K + k] = (int32_t)((first + k * step) % E);
    }
    if (i % 10 == 9) m.ids[twin_pick(&state, T * K)] = (int32_t)(i % 20 == 9 ? E : -1);
    char what[100];
    snprintf(what, sizeof what, "%s experts T %d E %d K %d H %d F %d", chosen->name, (int)T, (int)E, (int)K, (int)H,
             (int)F);
    const int status =
        both(what, &(struct call){ experts, &m, T * H, m.each ? T * K * H : 0, M3_LINEAR_ORDERED }, NULL);
    for (int64_t e = 0; e < E; e++)
        for (int w = 0; w < 3; w++) ck_assert(stored_intact(&matrices[e][w]));
    free(m.x);
    free(m.p);
    free(m.ids);
    return status;
}

/* Beside drawn sizes: more tokens of one expert than are gathered at a time (1024). */
LOOP_TEST(mixtures, BUILDS)
{
    static const int64_t wide[] = { 1, 2, 5, 16, 17, 33, 130 };
    int refused = 0, cases = choose(_i) ? 60 : 0;
    for (int i = 0; i < cases; i++) {
        const int64_t E = 1 + twin_pick(&state, 7), K = 1 + twin_pick(&state, E);
        refused += check_experts(PICK(rows_of), E, K, PICK(wide), PICK(wide), i) == M3_WRONG;
    }
    if (cases) check_experts(1100, 1, 1, 3, 2, 0);
    ck_assert_int_eq(refused, cases / 10);
}

/* ---- activations and the norm */

struct pointwise {
    real *gate, *up;
    int64_t T, F;
    struct m3_activation act;
};

static int swiglu_oai(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct pointwise *p = operands;
    (void)none;
    return ops->swiglu_oai(ctx, y, p->gate, p->up, p->T, p->F, &p->act);
}

static int swiglu(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct pointwise *p = operands;
    (void)none;
    return ops->swiglu(ctx, y, p->gate, p->up, p->T, p->F);
}

static int gelu(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct pointwise *p = operands;
    (void)none;
    return ops->gelu(ctx, y, p->gate, p->T * p->F);
}

LOOP_TEST(activations, BUILDS)
{
    static const int64_t wide[] = { 1, 2, 3, 8, 15, 16, 17, 33, 4095, 4096, 4097, 9001 };
    for (int i = 0; choose(_i) && i < 120; i++) {
        struct pointwise p = { .T = 1 + i % 3,
                               .F = wide[i / 3 % 12],
                               .act = { .alpha = (real)1.702, .limit = 7, .clamp = i % 2 } };
        p.gate = reals(p.T * p.F, (enum numbers)(i % KINDS));
        p.up = reals(p.T * p.F, (enum numbers)(i % KINDS));
        both("swiglu_oai", &(struct call){ swiglu_oai, &p, p.T * p.F, 0, 0 }, NULL);
        both("swiglu", &(struct call){ swiglu, &p, p.T * p.F, 0, 0 }, NULL);
        both("gelu", &(struct call){ gelu, &p, p.T * p.F, 0, 0 }, NULL);
        free(p.gate);
        free(p.up);
    }
}

struct norm {
    real *x, *w, *b;
    int64_t T, H;
};

static int layer_norm(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct norm *n = operands;
    (void)none;
    return ops->layer_norm(ctx, y, n->x, n->w, n->b, n->T, n->H, (real)1e-5);
}

static int rms_norm(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct norm *n = operands;
    (void)none;
    return ops->rms_norm(ctx, y, n->x, n->w, n->T, n->H, (real)1e-6);
}

static int rms_norm_plain(const struct m3_ops *ops, struct m3_ctx *ctx, real *y, real *none, const void *operands)
{
    const struct norm *n = operands;
    (void)none;
    return ops->rms_norm_plain(ctx, y, n->x, n->w, n->T, n->H, (real)1e-6);
}

LOOP_TEST(norms, BUILDS)
{
    for (int i = 0; choose(_i) && i < 200; i++) {
        struct norm n = { .T = PICK(rows_of), .H = i % 10 ? PICK(channels_of) : 509 + i % 7 };
        n.x = reals(n.T * n.H, (enum numbers)(i % KINDS));
        n.w = reals(n.H, ORDINARY);
        n.b = reals(n.H, ORDINARY);
        both("layer_norm", &(struct call){ layer_norm, &n, n.T * n.H, 0, 0 }, NULL);
        both("rms_norm", &(struct call){ rms_norm, &n, n.T * n.H, 0, 0 }, NULL);
        both("rms_norm_plain", &(struct call){ rms_norm_plain, &n, n.T * n.H, 0, 0 }, NULL);
        free(n.x);
        free(n.w);
        free(n.b);
    }
}

/* Claim: these are all operators that have two bodies; another one needs its test here. */
TEST(no_other_has_two)
{
    void (*plain)(void), (*fast)(void);
    int differing = 0;
    for (size_t at = offsetof(struct m3_ops, embed); at < sizeof m3_plain_ops; at += sizeof plain) {
        memcpy(&plain, (const char *)&m3_plain_ops + at, sizeof plain);
        memcpy(&fast, (const char *)&m3_fast_ops + at, sizeof fast);
        ck_assert(plain && fast);
        differing += plain != fast;
    }
    ck_assert_int_eq(differing, 12);
}
