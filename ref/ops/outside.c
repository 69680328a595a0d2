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

static void angle_word(struct m3_outside_call *c, enum m3_rope_angle angle)
{
    word(c, "rope_angle", angle == M3_ANGLE_F32 ? "f32" : "f64");
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

static int call(struct m3_ctx *ctx, struct m3_outside_call *c)
{
    const struct m3_outside *outside = ctx->plugin;
    const int status = outside->function(outside->self, c);
    return status ? m3_fail_at(ctx, status, "the function that replaces the operator failed", -1, -1, -1) : M3_OK;
}

/* The weight as numbers, in scratch memory; NULL: there is none. */
static real *expanded(struct m3_ctx *ctx, const struct m3_weight *w)
{
    real *to = m3_scratch_take(ctx, w->rows * w->cols, sizeof *to);
    for (int64_t row = 0; to && row < w->rows; row++) {
        if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)(to + row * w->cols), w, row, 0, w->cols);
        else m3_expand_f32((float *)(void *)(to + row * w->cols), w, row, 0, w->cols);
    }
    return to;
}

/* ---- norms, products, tables */

static int embed(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    struct m3_outside_call c = { .op = "embed" };
    const size_t mark = m3_scratch_mark(ctx);
    const real *table = expanded(ctx, w);
    if (!table) return M3_INTERNAL;
    add(&c, "ids", M3_I32, ids, 1, T, 0, 0);
    in2(&c, "w", table, w->rows, w->cols);
    out2(&c, "y", y, T, w->cols);
    const int status = call(ctx, &c);
    m3_scratch_release(ctx, mark);
    return status;
}

static int norm(struct m3_ctx *ctx, const char *op, real *y, const real *x, const real *w, const real *b, int64_t T,
                int64_t H, real eps)
{
    struct m3_outside_call c = { .op = op };
    in2(&c, "x", x, T, H);
    in1(&c, "w", w, H);
    in1(&c, "b", b, H);
    out2(&c, "y", y, T, H);
    number(&c, "eps", eps);
    return call(ctx, &c);
}

static int rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return norm(ctx, "rms_norm", y, x, w, NULL, T, H, eps);
}

static int rms_norm_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return norm(ctx, "rms_norm_plain", y, x, w, NULL, T, H, eps);
}

static int layer_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H,
                      real eps)
{
    return norm(ctx, "layer_norm", y, x, w, b, T, H, eps);
}

static int linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    struct m3_outside_call c = { .op = "linear" };
    const size_t mark = m3_scratch_mark(ctx);
    const real *matrix = expanded(ctx, w);
    if (!matrix) return M3_INTERNAL;
    in2(&c, "x", x, T, w->cols);
    in2(&c, "w", matrix, w->rows, w->cols);
    in1(&c, "bias", bias, w->rows);
    out2(&c, "y", y, T, w->rows);
    const int status = call(ctx, &c);
    m3_scratch_release(ctx, mark);
    return status;
}

static int rope_table(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                      enum m3_rope_angle angle)
{
    struct m3_outside_call c = { .op = "rope_table" };
    add(&c, "pos", M3_I64, pos, 1, T, 0, 0);
    out2(&c, "cos", cos, T, R / 2);
    out2(&c, "sin", sin, T, R / 2);
    number(&c, "R", (double)R);
    number(&c, "theta", theta);
    angle_word(&c, angle);
    return call(ctx, &c);
}

static int rope_table_3d(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                         double theta, enum m3_rope_angle angle)
{
    struct m3_outside_call c = { .op = "rope_table_3d" };
    add(&c, "places", M3_I64, places, 2, P, 3, 0);
    out2(&c, "cos", cos, P, R / 2);
    out2(&c, "sin", sin, P, R / 2);
    number(&c, "R", (double)R);
    number(&c, "theta", theta);
    angle_word(&c, angle);
    return call(ctx, &c);
}

static int rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads,
                int64_t D, int64_t R)
{
    struct m3_outside_call c = { .op = "rope" };
    in3(&c, "x", x, T, heads, D);
    in2(&c, "cos", cos, T, R / 2);
    in2(&c, "sin", sin, T, R / 2);
    out3(&c, "y", y, T, heads, D);
    return call(ctx, &c);
}

/* ---- attention */

static void attention(struct m3_outside_call *c, const real *q, const real *k, const real *v, const int32_t *blocks,
                      const struct m3_attend *d)
{
    const int64_t S = d->p0 + d->T;
    in3(c, "q", q, d->T, d->Q, d->D);
    in3(c, "k", k, S, d->G, d->D);
    in3(c, "v", v, S, d->G, d->D);
    add(c, "blocks", M3_I32, blocks, 3, d->T, d->G, d->N);
    add(c, "seen", M3_U8, d->seen, 1, S, 0, 0);
}

static int attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                       const struct m3_attend *d)
{
    struct m3_outside_call c = { .op = "attend_full" };
    attention(&c, q, k, v, NULL, d);
    struct m3_outside_operand *sums = out2(&c, "lse", lse, d->T, d->Q);
    sums->optional = 1;
    out3(&c, "o", o, d->T, d->Q, d->D);
    const int status = call(ctx, &c);
    if (status || !lse || !sums->left_out) return status;
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
    attention(&c, q, k, v, blocks, d);
    struct m3_outside_operand *sums = out2(&c, "lse", lse, d->T, d->Q);
    sums->optional = 1;
    out3(&c, "o", o, d->T, d->Q, d->D);
    number(&c, "block", (double)d->block);
    selection_word(&c, d->selection);
    const int status = call(ctx, &c);
    if (status || !lse || !sums->left_out) return status;
    const size_t mark = m3_scratch_mark(ctx);
    real *unused = m3_scratch_take(ctx, d->T * d->Q * d->D, sizeof *unused);
    const int filled = unused ? m3_fast_attend_blocks(ctx, unused, lse, q, k, v, blocks, d) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return filled;
}

static int block_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    struct m3_outside_call c = { .op = "block_scores" };
    const int64_t S = d->p0 + d->T;
    in3(&c, "q", q, d->T, d->G, d->X);
    in2(&c, "k", k, S, d->X);
    add(&c, "seen", M3_U8, d->seen, 1, S, 0, 0);
    out3(&c, "m", m, d->T, d->G, d->B);
    number(&c, "block", (double)d->block);
    word(&c, "pool", d->semantics->pool == M3_POOL_LSE ? "lse" : "max");
    word(&c, "index_scale", d->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? "rsqrt" : "1");
    return call(ctx, &c);
}

static int select_blocks(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    struct m3_outside_call c = { .op = "select_blocks" };
    in3(&c, "m", m, d->T, d->G, d->B);
    add(&c, "ids", M3_I32, ids, 3, d->T, d->G, d->N)->is_output = 1;
    number(&c, "block", (double)d->block);
    number(&c, "N", (double)d->N);
    number(&c, "p0", (double)d->p0);
    selection_word(&c, d->semantics->selection);
    number(&c, "init_blocks", (double)d->semantics->init_blocks);
    number(&c, "local_blocks", (double)d->semantics->local_blocks);
    word(&c, "local_rule", d->semantics->local_rule == M3_LOCAL_OWN ? "own" : "last");
    return call(ctx, &c);
}

static int attend_segments(struct m3_ctx *ctx, real *o, const real *q, const real *k, const real *v,
                           const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    struct m3_outside_call c = { .op = "attend_segments" };
    const int64_t P = ends[segments - 1];
    in3(&c, "q", q, P, A, U);
    in3(&c, "k", k, P, A, U);
    in3(&c, "v", v, P, A, U);
    add(&c, "ends", M3_I64, ends, 1, segments, 0, 0);
    out3(&c, "o", o, P, A, U);
    return call(ctx, &c);
}

/* ---- elementwise */

static int swiglu_oai(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                      const struct m3_activation *act)
{
    struct m3_outside_call c = { .op = "swiglu_oai" };
    in2(&c, "gate", gate, T, F);
    in2(&c, "up", up, T, F);
    out2(&c, "y", y, T, F);
    activation_words(&c, act);
    return call(ctx, &c);
}

static int swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F)
{
    struct m3_outside_call c = { .op = "swiglu" };
    in2(&c, "gate", gate, T, F);
    in2(&c, "up", up, T, F);
    out2(&c, "y", y, T, F);
    return call(ctx, &c);
}

static int elementwise(struct m3_ctx *ctx, const char *op, real *y, const real *x, int64_t n)
{
    struct m3_outside_call c = { .op = op };
    in1(&c, "x", x, n);
    out1(&c, "y", y, n);
    return call(ctx, &c);
}

static int sigmoid(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    return elementwise(ctx, "sigmoid", y, x, n);
}

static int gelu(struct m3_ctx *ctx, real *y, const real *x, int64_t n) { return elementwise(ctx, "gelu", y, x, n); }

static int sum(struct m3_ctx *ctx, real *y, const real *a, const real *b, int64_t n)
{
    struct m3_outside_call c = { .op = "add" };
    in1(&c, "a", a, n);
    in1(&c, "b", b, n);
    out1(&c, "y", y, n);
    return call(ctx, &c);
}

static int scatter(struct m3_ctx *ctx, real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T,
                   int64_t M, int64_t H)
{
    struct m3_outside_call c = { .op = "scatter" };
    in2(&c, "x", x, T, H);
    add(&c, "ids", M3_I32, ids, 1, T, 0, 0);
    in2(&c, "f", f, M, H);
    out2(&c, "y", y, T, H);
    number(&c, "id", id);
    return call(ctx, &c);
}

/* The key of the generator has 64 bits: an operand, because a parameter is a double. */
static int jitter(struct m3_ctx *ctx, real *y, const real *x, int64_t T, int64_t H, int64_t p0, double eps,
                  uint64_t key)
{
    struct m3_outside_call c = { .op = "jitter" };
    in2(&c, "x", x, T, H);
    add(&c, "key", M3_I64, &key, 0, 0, 0, 0);
    out2(&c, "y", y, T, H);
    number(&c, "eps_noise", eps);
    number(&c, "p0", (double)p0);
    return call(ctx, &c);
}

/* ---- experts */

static int route(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                 int64_t K)
{
    struct m3_outside_call c = { .op = "route" };
    in2(&c, "s", s, T, E);
    in1(&c, "bias", bias, E);
    add(&c, "ids", M3_I32, ids, 2, T, K, 0)->is_output = 1;
    out2(&c, "p", p, T, K);
    number(&c, "K", (double)K);
    return call(ctx, &c);
}

/* One matrix of every expert, side by side. */
static real *expanded_all(struct m3_ctx *ctx, const struct m3_expert *experts, int64_t E, int which)
{
    const struct m3_weight *first = which == 1 ? &experts->w1 : which == 3 ? &experts->w3 : &experts->w2;
    const int64_t size = first->rows * first->cols;
    real *to = m3_scratch_take(ctx, E * size, sizeof *to);
    for (int64_t e = 0; to && e < E; e++) {
        const size_t mark = m3_scratch_mark(ctx);
        const struct m3_expert *x = &experts[e];
        const real *one = expanded(ctx, which == 1 ? &x->w1 : which == 3 ? &x->w3 : &x->w2);
        if (!one) return NULL;
        memcpy(to + e * size, one, (size_t)size * sizeof *to);
        m3_scratch_release(ctx, mark);
    }
    return to;
}

static int experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                   const struct m3_expert *all, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                   real factor)
{
    struct m3_outside_call c = { .op = "experts" };
    const int64_t F = all->w1.rows, H = all->w1.cols;
    const size_t mark = m3_scratch_mark(ctx);
    const real *w1 = expanded_all(ctx, all, E, 1), *w3 = expanded_all(ctx, all, E, 3);
    const real *w2 = expanded_all(ctx, all, E, 2);
    if (!w1 || !w3 || !w2) return M3_INTERNAL;
    in2(&c, "x", x, T, H);
    add(&c, "ids", M3_I32, ids, 2, T, K, 0);
    in2(&c, "p", p, T, K);
    in3(&c, "w1", w1, E, F, H);
    in3(&c, "w3", w3, E, F, H);
    in3(&c, "w2", w2, E, H, F);
    struct m3_outside_operand *outputs = out3(&c, "each", each, T, K, H);
    outputs->optional = 1;
    out2(&c, "routed", routed, T, H);
    number(&c, "factor", factor);
    word(&c, "activation", act->oai ? "swiglu_oai" : "swiglu");
    activation_words(&c, act);
    int status = call(ctx, &c);
    if (!status && each && outputs->left_out) {
        real *unused = m3_scratch_take(ctx, T * H, sizeof *unused);
        status = unused ? m3_fast_experts(ctx, unused, each, x, ids, p, all, act, T, E, K, factor) : M3_INTERNAL;
    }
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

int m3_outside_replace(struct m3_ops *ops, const char *name)
{
    void (*entry)(void);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t at = offsetof(struct m3_ops, embed) + i * sizeof entry;
        if (strcmp(names[i], name) != 0) continue;
        memcpy((char *)ops + at, (const char *)&outside_ops + at, sizeof entry);
        return M3_OK;
    }
    return M3_USAGE;
}
