#include "ops/outside.h"

#include <string.h>

#include "ops/operators.h"

static const enum m3_dtype real_dtype = sizeof(real) == sizeof(double) ? M3_F64 : M3_F32;

/* ---- operands and parameters of a call */

static struct m3_outside_operand *add(struct m3_outside_call *c, const char *name, enum m3_dtype dtype,
                                      const void *data, int rank, int64_t n0, int64_t n1, int64_t n2)
{
    struct m3_outside_operand *o = &c->operand[c->operands];
    c->operands += data != NULL;        /* an absent operand has no entry */
    *o = (struct m3_outside_operand){
        .name = name, .dtype = dtype, .rank = rank, .shape = { n0, n1, n2 }, .data = (void *)(uintptr_t)data
    };
    return o;
}

static void in1(struct m3_outside_call *c, const char *name, const real *x, int64_t n0)
{
    add(c, name, real_dtype, x, 1, n0, 0, 0);
}

static void in2(struct m3_outside_call *c, const char *name, const real *x, int64_t n0, int64_t n1)
{
    add(c, name, real_dtype, x, 2, n0, n1, 0);
}

static void in3(struct m3_outside_call *c, const char *name, const real *x, int64_t n0, int64_t n1, int64_t n2)
{
    add(c, name, real_dtype, x, 3, n0, n1, n2);
}

static struct m3_outside_operand *out1(struct m3_outside_call *c, const char *name, real *y, int64_t n0)
{
    struct m3_outside_operand *o = add(c, name, real_dtype, y, 1, n0, 0, 0);
    o->is_output = 1;
    return o;
}

static struct m3_outside_operand *out2(struct m3_outside_call *c, const char *name, real *y, int64_t n0, int64_t n1)
{
    struct m3_outside_operand *o = add(c, name, real_dtype, y, 2, n0, n1, 0);
    o->is_output = 1;
    return o;
}

static struct m3_outside_operand *out3(struct m3_outside_call *c, const char *name, real *y, int64_t n0, int64_t n1,
                                       int64_t n2)
{
    struct m3_outside_operand *o = add(c, name, real_dtype, y, 3, n0, n1, n2);
    o->is_output = 1;
    return o;
}

static void number(struct m3_outside_call *c, const char *name, double value)
{
    c->parameter[c->parameters++] = (struct m3_outside_parameter){ .name = name, .number = value };
}

static void word(struct m3_outside_call *c, const char *name, const char *value)
{
    c->parameter[c->parameters++] = (struct m3_outside_parameter){ .name = name, .word = value };
}

static void selection_word(struct m3_outside_call *c, enum m3_selection selection)
{
    static const char *const words[] = { "group", "shared", "union" };
    word(c, "selection", words[selection]);
}

static void activation_words(struct m3_outside_call *c, const struct m3_activation *act)
{
    number(c, "alpha", act->alpha);
    number(c, "limit", act->limit);
    word(c, "gate_clamp", act->clamp == M3_GATE_CLAMP_BOTH ? "both" : "upper");
}

/* A weight; its matrices are `step` bytes apart if it is one of several. */
static void weight(struct m3_outside_call *c, const char *name, const struct m3_weight *w, int rank, int64_t n0,
                   int64_t n1, int64_t n2)
{
    c->weight[c->operands] = w;
    add(c, name, real_dtype, w, rank, n0, n1, n2)->data = NULL;
}

/* The matrices of a weight operand as numbers, in scratch memory: one, or that of every expert. NULL: no memory. */
static real *expanded(struct m3_ctx *ctx, const struct m3_outside_operand *operand, const struct m3_weight *w)
{
    const int64_t count = operand->rank == 3 ? operand->shape[0] : 1, size = w->rows * w->cols;
    real *to = m3_scratch_take(ctx, count * size, sizeof *to);
    for (int64_t e = 0; to && e < count; e++) {
        const char *at = (const char *)w + (size_t)e * sizeof(struct m3_expert);
        const struct m3_weight *one = (const struct m3_weight *)(const void *)at;
        for (int64_t row = 0; row < w->rows; row++) {
            real *y = to + e * size + row * w->cols;
            if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)y, one, row, 0, w->cols);
            else m3_expand_f32((float *)(void *)y, one, row, 0, w->cols);
        }
    }
    return to;
}

static int compute_outside(struct m3_ctx *ctx, struct m3_outside_call *c)
{
    const struct m3_outside *outside = c->outside;
    const size_t mark = m3_scratch_mark(ctx);
    for (int i = 0; i < c->operands; i++)
        if (c->weight[i] && !(c->operand[i].data = expanded(ctx, &c->operand[i], c->weight[i]))) return M3_INTERNAL;
    const int status = outside->function(outside->self, c);
    m3_scratch_release(ctx, mark);
    return status ? m3_fail_at(ctx, status, "the function that replaces the operator failed", -1, -1, -1) : M3_OK;
}

/* Either computes the operator, and *inner is NULL; or prepares the call of *inner. */
static int enter(struct m3_ctx *ctx, struct m3_outside_call *c, const struct m3_ops **inner)
{
    struct m3_outside *outside = c->outside = ctx->plugin;
    *inner = NULL;
    if (outside->function) return compute_outside(ctx, c);
    const int status = outside->before(outside->self, c);
    if (status) return m3_fail_at(ctx, status, "no memory to watch the operator", -1, -1, -1);
    *inner = outside->inner;
    ctx->plugin = outside->inner_state;
    return M3_OK;
}

static int leave(struct m3_ctx *ctx, struct m3_outside_call *c, int status)
{
    ctx->plugin = c->outside;
    return c->outside->after(c->outside->self, c, ctx, status);
}

/* Where the operator finds an operand. */
static void *moved(const struct m3_outside_call *c, const void *data)
{
    for (int i = 0; data && i < c->operands; i++)
        if (c->operand[i].data == data && c->moved[i]) return c->moved[i];
    return (void *)(uintptr_t)data;
}

/* ---- norms, products, tables */

static int embed(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    struct m3_outside_call c = { .op = "embed" };
    const struct m3_ops *inner;
    add(&c, "ids", M3_I32, ids, 1, T, 0, 0);
    weight(&c, "w", w, 2, w->rows, w->cols, 0);
    out2(&c, "y", y, T, w->cols);
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->embed(ctx, moved(&c, y), moved(&c, ids), w, T)) : status;
}

static void norm(struct m3_outside_call *c, real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H,
                 real eps)
{
    in2(c, "x", x, T, H);
    in1(c, "w", w, H);
    in1(c, "b", b, H);
    out2(c, "y", y, T, H);
    number(c, "eps", eps);
}

static int rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    struct m3_outside_call c = { .op = "rms_norm" };
    const struct m3_ops *inner;
    norm(&c, y, x, w, NULL, T, H, eps);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->rms_norm(ctx, moved(&c, y), moved(&c, x), moved(&c, w), T, H, eps));
}

static int rms_norm_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    struct m3_outside_call c = { .op = "rms_norm_plain" };
    const struct m3_ops *inner;
    norm(&c, y, x, w, NULL, T, H, eps);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->rms_norm_plain(ctx, moved(&c, y), moved(&c, x), moved(&c, w), T, H, eps));
}

static int layer_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H,
                      real eps)
{
    struct m3_outside_call c = { .op = "layer_norm" };
    const struct m3_ops *inner;
    norm(&c, y, x, w, b, T, H, eps);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->layer_norm(ctx, moved(&c, y), moved(&c, x), moved(&c, w), moved(&c, b), T, H, eps));
}

static int linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    struct m3_outside_call c = { .op = "linear" };
    const struct m3_ops *inner;
    in2(&c, "x", x, T, w->cols);
    weight(&c, "w", w, 2, w->rows, w->cols, 0);
    in1(&c, "bias", bias, w->rows);
    out2(&c, "y", y, T, w->rows);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->linear(ctx, moved(&c, y), moved(&c, x), w, moved(&c, bias), T));
}

static void table(struct m3_outside_call *c, real *cos, real *sin, int64_t rows, int64_t R, double theta,
                  enum m3_rope_angle angle)
{
    out2(c, "cos", cos, rows, R / 2);
    out2(c, "sin", sin, rows, R / 2);
    number(c, "R", (double)R);
    number(c, "theta", theta);
    word(c, "rope_angle", angle == M3_ANGLE_F32 ? "f32" : "f64");
}

static int rope_table(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                      enum m3_rope_angle angle)
{
    struct m3_outside_call c = { .op = "rope_table" };
    const struct m3_ops *inner;
    add(&c, "pos", M3_I64, pos, 1, T, 0, 0);
    table(&c, cos, sin, T, R, theta, angle);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->rope_table(ctx, moved(&c, cos), moved(&c, sin), moved(&c, pos), T, R, theta, angle));
}

static int rope_table_3d(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                         double theta, enum m3_rope_angle angle)
{
    struct m3_outside_call c = { .op = "rope_table_3d" };
    const struct m3_ops *inner;
    add(&c, "places", M3_I64, places, 2, P, 3, 0);
    table(&c, cos, sin, P, R, theta, angle);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c,
                 inner->rope_table_3d(ctx, moved(&c, cos), moved(&c, sin), moved(&c, places), P, R, theta, angle));
}

static int rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads,
                int64_t D, int64_t R)
{
    struct m3_outside_call c = { .op = "rope" };
    const struct m3_ops *inner;
    in3(&c, "x", x, T, heads, D);
    in2(&c, "cos", cos, T, R / 2);
    in2(&c, "sin", sin, T, R / 2);
    out3(&c, "y", y, T, heads, D);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->rope(ctx, moved(&c, y), moved(&c, x), moved(&c, cos), moved(&c, sin), T, heads, D, R));
}

/* ---- attention */

static void attention(struct m3_outside_call *c, real *o, real *lse, const real *q, const real *k, const real *v,
                      const int32_t *blocks, const struct m3_attend *d)
{
    const int64_t S = d->p0 + d->T;
    in3(c, "q", q, d->T, d->Q, d->D);
    in3(c, "k", k, S, d->G, d->D);
    in3(c, "v", v, S, d->G, d->D);
    add(c, "blocks", M3_I32, blocks, 3, d->T, d->G, d->N);
    add(c, "seen", M3_U8, d->seen, 1, S, 0, 0);
    out2(c, "lse", lse, d->T, d->Q)->optional = 1;
    out3(c, "o", o, d->T, d->Q, d->D);
}

static int left_out(const struct m3_outside_call *c)
{
    int any = 0;
    for (int i = 0; i < c->operands; i++) any |= c->operand[i].left_out;
    return any;
}

static int attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                       const struct m3_attend *d)
{
    struct m3_outside_call c = { .op = "attend_full" };
    const struct m3_ops *inner;
    attention(&c, o, lse, q, k, v, NULL, d);
    const int status = enter(ctx, &c, &inner);
    if (inner) {
        struct m3_attend here = *d;
        here.seen = moved(&c, d->seen);
        return leave(
            ctx, &c,
            inner->attend_full(ctx, moved(&c, o), moved(&c, lse), moved(&c, q), moved(&c, k), moved(&c, v), &here));
    }
    if (status || !lse || !left_out(&c)) return status;
    const size_t mark = m3_scratch_mark(ctx);
    real *unused = m3_scratch_take(ctx, d->T * d->Q * d->D, sizeof *unused);
    const int filled = unused ? m3_fast_attend_full(ctx, unused, lse, q, k, v, d) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return filled;
}

static int attend_blocks(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                         const int32_t *blocks, const struct m3_attend *d)
{
    struct m3_outside_call c = { .op = "attend_blocks" };
    const struct m3_ops *inner;
    attention(&c, o, lse, q, k, v, blocks, d);
    number(&c, "block", (double)d->block);
    selection_word(&c, d->selection);
    const int status = enter(ctx, &c, &inner);
    if (inner) {
        struct m3_attend here = *d;
        here.seen = moved(&c, d->seen);
        return leave(ctx, &c,
                     inner->attend_blocks(ctx, moved(&c, o), moved(&c, lse), moved(&c, q), moved(&c, k), moved(&c, v),
                                          moved(&c, blocks), &here));
    }
    if (status || !lse || !left_out(&c)) return status;
    const size_t mark = m3_scratch_mark(ctx);
    real *unused = m3_scratch_take(ctx, d->T * d->Q * d->D, sizeof *unused);
    const int filled = unused ? m3_fast_attend_blocks(ctx, unused, lse, q, k, v, blocks, d) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return filled;
}

static int block_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    struct m3_outside_call c = { .op = "block_scores" };
    const struct m3_ops *inner;
    const int64_t S = d->p0 + d->T;
    in3(&c, "q", q, d->T, d->G, d->X);
    in2(&c, "k", k, S, d->X);
    add(&c, "seen", M3_U8, d->seen, 1, S, 0, 0);
    out3(&c, "m", m, d->T, d->G, d->B);
    number(&c, "block", (double)d->block);
    word(&c, "pool", d->semantics->pool == M3_POOL_LSE ? "lse" : "max");
    word(&c, "index_scale", d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? "rsqrt" : "1");
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    struct m3_index here = *d;
    here.seen = moved(&c, d->seen);
    return leave(ctx, &c, inner->block_scores(ctx, moved(&c, m), moved(&c, q), moved(&c, k), &here));
}

static int select_blocks(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    struct m3_outside_call c = { .op = "select_blocks" };
    const struct m3_ops *inner;
    in3(&c, "m", m, d->T, d->G, d->B);
    add(&c, "ids", M3_I32, ids, 3, d->T, d->G, d->N)->is_output = 1;
    number(&c, "block", (double)d->block);
    number(&c, "N", (double)d->N);
    number(&c, "p0", (double)d->p0);
    selection_word(&c, d->semantics->selection);
    number(&c, "init_blocks", (double)d->semantics->init_blocks);
    number(&c, "local_blocks", (double)d->semantics->local_blocks);
    word(&c, "local_rule", d->semantics->local_rule == M3_LOCAL_OWN ? "own" : "last");
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->select_blocks(ctx, moved(&c, ids), moved(&c, m), d)) : status;
}

static int attend_segments(struct m3_ctx *ctx, real *o, const real *q, const real *k, const real *v,
                           const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    struct m3_outside_call c = { .op = "attend_segments" };
    const struct m3_ops *inner;
    const int64_t P = ends[segments - 1];
    in3(&c, "q", q, P, A, U);
    in3(&c, "k", k, P, A, U);
    in3(&c, "v", v, P, A, U);
    add(&c, "ends", M3_I64, ends, 1, segments, 0, 0);
    out3(&c, "o", o, P, A, U);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c,
                 inner->attend_segments(ctx, moved(&c, o), moved(&c, q), moved(&c, k), moved(&c, v), moved(&c, ends),
                                        segments, A, U));
}

/* ---- elementwise */

static void gated(struct m3_outside_call *c, real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
    in2(c, "gate", gate, T, F);
    in2(c, "up", up, T, F);
    out2(c, "y", y, T, F);
}

static int swiglu_oai(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                      const struct m3_activation *act)
{
    struct m3_outside_call c = { .op = "swiglu_oai" };
    const struct m3_ops *inner;
    gated(&c, y, gate, up, T, F);
    activation_words(&c, act);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->swiglu_oai(ctx, moved(&c, y), moved(&c, gate), moved(&c, up), T, F, act));
}

static int swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
    struct m3_outside_call c = { .op = "swiglu" };
    const struct m3_ops *inner;
    gated(&c, y, gate, up, T, F);
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->swiglu(ctx, moved(&c, y), moved(&c, gate), moved(&c, up), T, F)) : status;
}

static int sigmoid(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    struct m3_outside_call c = { .op = "sigmoid" };
    const struct m3_ops *inner;
    in1(&c, "x", x, n);
    out1(&c, "y", y, n);
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->sigmoid(ctx, moved(&c, y), moved(&c, x), n)) : status;
}

static int gelu(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    struct m3_outside_call c = { .op = "gelu" };
    const struct m3_ops *inner;
    in1(&c, "x", x, n);
    out1(&c, "y", y, n);
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->gelu(ctx, moved(&c, y), moved(&c, x), n)) : status;
}

static int sum(struct m3_ctx *ctx, real *y, const real *a, const real *b, int64_t n)
{
    struct m3_outside_call c = { .op = "add" };
    const struct m3_ops *inner;
    in1(&c, "a", a, n);
    in1(&c, "b", b, n);
    out1(&c, "y", y, n);
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->add(ctx, moved(&c, y), moved(&c, a), moved(&c, b), n)) : status;
}

static int scatter(struct m3_ctx *ctx, real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T,
                   int64_t M, int64_t H)
{
    struct m3_outside_call c = { .op = "scatter" };
    const struct m3_ops *inner;
    in2(&c, "x", x, T, H);
    add(&c, "ids", M3_I32, ids, 1, T, 0, 0);
    in2(&c, "f", f, M, H);
    out2(&c, "y", y, T, H);
    number(&c, "id", id);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->scatter(ctx, moved(&c, y), moved(&c, x), moved(&c, ids), moved(&c, f), id, T, M, H));
}

/* The key of the generator has 64 bits: an operand, because a parameter is a double. */
static int jitter(struct m3_ctx *ctx, real *y, const real *x, int64_t T, int64_t H, int64_t p0, double eps,
                  uint64_t key)
{
    struct m3_outside_call c = { .op = "jitter" };
    const struct m3_ops *inner;
    in2(&c, "x", x, T, H);
    add(&c, "key", M3_I64, &key, 0, 0, 0, 0);
    out2(&c, "y", y, T, H);
    number(&c, "eps_noise", eps);
    number(&c, "p0", (double)p0);
    const int status = enter(ctx, &c, &inner);
    return inner ? leave(ctx, &c, inner->jitter(ctx, moved(&c, y), moved(&c, x), T, H, p0, eps, key)) : status;
}

/* ---- experts */

static int route(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                 int64_t K)
{
    struct m3_outside_call c = { .op = "route" };
    const struct m3_ops *inner;
    in2(&c, "s", s, T, E);
    in1(&c, "bias", bias, E);
    add(&c, "ids", M3_I32, ids, 2, T, K, 0)->is_output = 1;
    out2(&c, "p", p, T, K);
    number(&c, "K", (double)K);
    const int status = enter(ctx, &c, &inner);
    if (!inner) return status;
    return leave(ctx, &c, inner->route(ctx, moved(&c, ids), moved(&c, p), moved(&c, s), moved(&c, bias), T, E, K));
}

static int experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                   const struct m3_expert *all, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                   real factor)
{
    struct m3_outside_call c = { .op = "experts" };
    const struct m3_ops *inner;
    const int64_t F = all->w1.rows, H = all->w1.cols;
    in2(&c, "x", x, T, H);
    add(&c, "ids", M3_I32, ids, 2, T, K, 0);
    in2(&c, "p", p, T, K);
    weight(&c, "w1", &all->w1, 3, E, F, H);
    weight(&c, "w3", &all->w3, 3, E, F, H);
    weight(&c, "w2", &all->w2, 3, E, H, F);
    out3(&c, "each", each, T, K, H)->optional = 1;
    out2(&c, "routed", routed, T, H);
    number(&c, "factor", factor);
    word(&c, "activation", act->oai ? "swiglu_oai" : "swiglu");
    activation_words(&c, act);
    int status = enter(ctx, &c, &inner);
    if (inner)
        return leave(ctx, &c,
                     inner->experts(ctx, moved(&c, routed), moved(&c, each), moved(&c, x), moved(&c, ids), moved(&c, p),
                                    all, act, T, E, K, factor));
    if (status || !each || !left_out(&c)) return status;
    const size_t mark = m3_scratch_mark(ctx);
    real *unused = m3_scratch_take(ctx, T * H, sizeof *unused);
    status = unused ? m3_fast_experts(ctx, unused, each, x, ids, p, all, act, T, E, K, factor) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}

/* ---- the table */

static const struct m3_ops outside_ops = {
    .abi_version = M3_OPS_ABI,
    .real_bytes = sizeof(real),
    .embed = embed,
    .rms_norm = rms_norm,
    .rms_norm_plain = rms_norm_plain,
    .linear = linear,
    .rope_table = rope_table,
    .rope = rope,
    .attend_full = attend_full,
    .block_scores = block_scores,
    .select_blocks = select_blocks,
    .attend_blocks = attend_blocks,
    .swiglu_oai = swiglu_oai,
    .swiglu = swiglu,
    .sigmoid = sigmoid,
    .route = route,
    .experts = experts,
    .add = sum,
    .layer_norm = layer_norm,
    .rope_table_3d = rope_table_3d,
    .attend_segments = attend_segments,
    .gelu = gelu,
    .scatter = scatter,
    .jitter = jitter,
};

/* Names of the entries, in their order. */
static const char *const names[] = {
    "embed",           "rms_norm",     "rms_norm_plain", "linear",        "rope_table", "rope",
    "attend_full",     "block_scores", "select_blocks",  "attend_blocks", "swiglu_oai", "swiglu",
    "sigmoid",         "route",        "experts",        "add",           "layer_norm", "rope_table_3d",
    "attend_segments", "gelu",         "scatter",        "jitter",
};

static void replace(struct m3_ops *ops, size_t at)
{
    memcpy((char *)ops + at, (const char *)&outside_ops + at, sizeof(void (*)(void)));
}

int m3_outside_replace(struct m3_ops *ops, const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) {
            replace(ops, offsetof(struct m3_ops, embed) + i * sizeof(void (*)(void)));
            return M3_OK;
        }
    return M3_USAGE;
}

int m3_outside_replace_changed(struct m3_ops *ops, const struct m3_ops *inner, const struct m3_ops *own)
{
    int changed = 0;
    for (size_t at = offsetof(struct m3_ops, embed); at < sizeof *ops; at += sizeof(void (*)(void)))
        if (memcmp((const char *)inner + at, (const char *)own + at, sizeof(void (*)(void))) != 0) {
            replace(ops, at);
            changed++;
        }
    return changed;
}
