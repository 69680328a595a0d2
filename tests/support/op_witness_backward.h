/* The derivatives of `m3ref op` once more, by the formulas of derivative_twin.h. */
#ifndef M3_TESTS_OP_WITNESS_BACKWARD_H
#define M3_TESTS_OP_WITNESS_BACKWARD_H

#include "op_cases.h"

#include "derivative_twin.h"

enum { BACK_OUTPUTS = 5 };

/* An operand of a case, released by rooms_free. */
static inline struct op_values w_in(const struct op_case *c, const char *name)
{
    struct op_values v = op_tensor(c->file, c->number, name);
    room_keep(v.x);
    return v;
}

/* ---- what a row sees; lists NULL: no blocks */

static inline int64_t *op_places(const struct op_values *v)
{
    int64_t *places = room(v->count, sizeof *places);
    for (int64_t i = 0; i < v->count; i++) places[i] = (int64_t)v->x[i];
    return places;
}

static inline int32_t *op_ids(const struct op_values *v)
{
    int32_t *ids = room(v->count, sizeof *ids);
    for (int64_t i = 0; i < v->count; i++) ids[i] = (int32_t)v->x[i];
    return ids;
}

/* Of T rows at the end of k [S,G,D]. */
static inline struct twin_view op_view(const struct op_case *c, const struct op_values *k, int64_t T,
                                       const struct op_values *blocks, const struct op_values *seen)
{
    struct twin_view view = { .p0 = k->shape[0] - T, .G = k->shape[1] };
    unsigned char *marks = seen->x ? room(seen->count, 1) : NULL;
    for (int64_t j = 0; marks && j < seen->count; j++) marks[j] = seen->x[j] != 0;
    view.seen = marks;
    if (!blocks->x) return view;
    view.lists = op_ids(blocks), view.N = blocks->shape[2], view.block = (int64_t)op_number(c, "block");
    view.any_group = op_word_is(c, "selection", "union");
    return view;
}

/* ---- derivatives */

/* The operands of a case, and what its outputs will be. */
struct back {
    struct op_case *c;
    struct op_values dy;
    struct near *out[BACK_OUTPUTS];
    int out_count;
};

/* Zeros, to which gradients are added. */
static inline struct near *b_out(struct back *b, const char *name, const struct op_values *of)
{
    const int64_t *s = of->shape;
    ck_assert(b->out_count < BACK_OUTPUTS && b->out_count == b->c->output_count);
    op_output(b->c, name, 0, s[0], of->rank > 1 ? s[1] : 0, of->rank > 2 ? s[2] : 0);
    return b->out[b->out_count++] = room(of->count, sizeof(struct near));
}

static inline void b_embed(struct back *b)
{
    struct op_values ids = w_in(b->c, "ids"), w = w_in(b->c, "w");
    twin_embed_back(b_out(b, "dw", &w), b->dy.x, ids.x, b->dy.shape[0], b->dy.shape[1]);
}

static inline void b_norm(struct back *b, double offset, int centred)
{
    struct op_values x = w_in(b->c, "x"), w = w_in(b->c, "w");
    struct near *dx = b_out(b, "dx", &x), *dw = b_out(b, "dw", &w), *db = centred ? b_out(b, "db", &w) : NULL;
    twin_norm_back(dx, dw, db, b->dy.x, x.x, w.x, x.shape[0], x.shape[1], op_number(b->c, "eps"), offset, centred);
}

static inline void b_linear(struct back *b, int has_bias)
{
    struct op_values x = w_in(b->c, "x"), w = w_in(b->c, "w");
    struct op_values bias = { .shape = { w.shape[0] }, .rank = 1, .count = w.shape[0] };
    struct near *dx = b_out(b, "dx", &x), *dw = b_out(b, "dw", &w), *dbias = has_bias ? b_out(b, "dbias", &bias) : NULL;
    twin_linear_back(dx, dw, dbias, b->dy.x, x.x, w.x, x.shape[0], w.shape[0], w.shape[1]);
}

static inline void b_rope(struct back *b)
{
    struct op_values c = w_in(b->c, "cos"), s = w_in(b->c, "sin");
    const int64_t *n = b->dy.shape;
    twin_rope_back(b_out(b, "dx", &b->dy), b->dy.x, c.x, s.x, n[0], n[1], n[2], 2 * c.shape[1]);
}

/* ---- attention */

static inline void b_attention(struct back *b, const struct twin_view *view)
{
    struct op_values q = w_in(b->c, "q"), k = w_in(b->c, "k"), v = w_in(b->c, "v"), dlse = w_in(b->c, "dlse");
    const int64_t Q = q.shape[1], D = q.shape[2], S = k.shape[0], G = k.shape[1];
    struct near *dq = b_out(b, "dq", &q), *dk = b_out(b, "dk", &k), *dv = b_out(b, "dv", &v);
    struct tape t = { 0 };
    unsigned char *sees = room(S, 1);
    for (int64_t r = 0; r < q.shape[0] * Q; r++) {
        const int64_t g = r % Q / (Q / G), at = g * D;
        for (int64_t j = 0; j < S; j++) sees[j] = (unsigned char)twin_sees(view, r / Q, g, j);
        twin_attend_back(&t, dq + r * D, dk + at, dv + at, b->dy.x + r * D, near_of(dlse.x ? dlse.x[r] : 0),
                         q.x + r * D, k.x + at, v.x + at, sees, S, D, G * D, 0);
    }
    t_free(&t);
}

static inline void b_causal(struct back *b)
{
    const struct op_values k = w_in(b->c, "k"), blocks = w_in(b->c, "blocks"), seen = w_in(b->c, "seen");
    const struct twin_view view = op_view(b->c, &k, b->dy.shape[0], &blocks, &seen);
    b_attention(b, &view);
}

static inline void b_segments(struct back *b)
{
    const struct op_values ends = w_in(b->c, "ends");
    const struct twin_view view = { .ends = op_places(&ends) };
    b_attention(b, &view);
}

/* ---- activations, router and experts */

static inline struct twin_gates b_gates(const struct op_case *c, int oai)
{
    if (!oai) return (struct twin_gates){ 0 };
    return (struct twin_gates){ 1, op_word_is(c, "gate_clamp", "both"), op_number(c, "alpha"), op_number(c, "limit") };
}

static inline void b_gated(struct back *b, int oai)
{
    struct op_values gate = w_in(b->c, "gate"), up = w_in(b->c, "up");
    const struct twin_gates act = b_gates(b->c, oai);
    struct near *dgate = b_out(b, "dgate", &gate), *dup = b_out(b, "dup", &up);
    twin_gated_back(dgate, dup, b->dy.x, gate.x, up.x, gate.count, &act);
}

static inline void b_each(struct back *b, int is_gelu)
{
    struct op_values x = w_in(b->c, "x");
    twin_each_back(b_out(b, "dx", &x), b->dy.x, x.x, x.count, is_gelu);
}

static inline void b_route(struct back *b)
{
    struct op_values s = w_in(b->c, "s"), ids = w_in(b->c, "ids");
    twin_route_back(b_out(b, "ds", &s), b->dy.x, ids.x, s.x, s.shape[0], s.shape[1], ids.shape[1]);
}

static inline void b_experts(struct back *b)
{
    struct op_values x = w_in(b->c, "x"), ids = w_in(b->c, "ids"), p = w_in(b->c, "p"), w1 = w_in(b->c, "w1"),
                     w3 = w_in(b->c, "w3"), w2 = w_in(b->c, "w2");
    struct twin_moe c = { x.shape[0], x.shape[1], ids.shape[1], w1.shape[1], .factor = op_number(b->c, "factor") };
    c.act = b_gates(b->c, op_word_is(b->c, "activation", "swiglu_oai"));
    c.dy = b->dy.x, c.x = x.x, c.ids = ids.x, c.p = p.x, c.w1 = w1.x, c.w3 = w3.x, c.w2 = w2.x;
    c.dx = b_out(b, "dx", &x), c.dp = b_out(b, "dp", &p), c.dw1 = b_out(b, "dw1", &w1);
    c.dw3 = b_out(b, "dw3", &w3), c.dw2 = b_out(b, "dw2", &w2);
    twin_experts_back(&c);
}

static inline void b_scatter(struct back *b)
{
    struct op_values ids = w_in(b->c, "ids"), f = w_in(b->c, "f");
    const int64_t H = b->dy.shape[1];
    struct near *dx = b_out(b, "dx", &b->dy), *df = b_out(b, "df", &f);
    for (int64_t r = 0, k = 0; r < ids.count; k += ids.x[r++] == op_number(b->c, "id"))
        for (int64_t i = 0; i < H; i++)
            *(ids.x[r] == op_number(b->c, "id") ? &df[k * H + i] : &dx[r * H + i]) = near_of(b->dy.x[r * H + i]);
}

/* Returns 0 for an operator that is not here. */
static inline int witness_backward(const char *op, struct op_case *c)
{
    const int mark = room_count;
    struct back b = { .c = c };
    int known = 1;
    b.dy = w_in(c, "dy");
    if (!strcmp(op, "embed_backward")) b_embed(&b);
    else if (!strcmp(op, "rms_norm_backward")) b_norm(&b, 1, 0);
    else if (!strcmp(op, "rms_norm_plain_backward")) b_norm(&b, 0, 0);
    else if (!strcmp(op, "layer_norm_backward")) b_norm(&b, 0, 1);
    else if (!strcmp(op, "linear_backward")) b_linear(&b, 0);
    else if (!strcmp(op, "linear_bias_backward")) b_linear(&b, 1);
    else if (!strcmp(op, "rope_backward")) b_rope(&b);
    else if (!strcmp(op, "attend_full_backward")) b_causal(&b);
    else if (!strcmp(op, "attend_blocks_backward")) b_causal(&b);
    else if (!strcmp(op, "attend_segments_backward")) b_segments(&b);
    else if (!strcmp(op, "swiglu_oai_backward")) b_gated(&b, 1);
    else if (!strcmp(op, "swiglu_backward")) b_gated(&b, 0);
    else if (!strcmp(op, "sigmoid_backward")) b_each(&b, 0);
    else if (!strcmp(op, "gelu_backward")) b_each(&b, 1);
    else if (!strcmp(op, "route_backward")) b_route(&b);
    else if (!strcmp(op, "experts_backward")) b_experts(&b);
    else if (!strcmp(op, "scatter_backward")) b_scatter(&b);
    else known = 0;
    for (int k = 0; k < b.out_count; k++)
        for (int64_t i = 0; i < c->outputs[k].count; i++) c->outputs[k].x[i] = (double)b.out[k][i].v;
    rooms_free(mark);
    return known;
}

#endif
