/* The derivatives of `m3ref op` once more: forward formulas of SPEC 5 on a tape that differentiates itself, which uses
 * nothing of ref/ but the decoding of stored numbers. */
#ifndef M3_TESTS_OP_WITNESS_BACKWARD_H
#define M3_TESTS_OP_WITNESS_BACKWARD_H

#include "op_cases.h"

/* ---- the tape: each number with the two it was made of and the slopes by them; number 0 is a constant 0 */

struct tape_entry {
    int a, b;
    double by_a, by_b, value, gradient;
};

struct tape {
    struct tape_entry *at;
    int count, room;
};

static inline int t_made(struct tape *t, double value, int a, double by_a, int b, double by_b)
{
    if (t->count + 2 > t->room) {
        t->room = 2 * t->room + 1024;
        t->at = realloc(t->at, (size_t)t->room * sizeof *t->at);
        ck_assert_ptr_nonnull(t->at);
    }
    if (t->count == 0) t->at[t->count++] = (struct tape_entry){ 0 };
    t->at[t->count] = (struct tape_entry){ a, b, by_a, by_b, value, 0 };
    return t->count++;
}

static inline double t_at(const struct tape *t, int i) { return t->at[i].value; }
static inline int t_input(struct tape *t, double x) { return t_made(t, x, 0, 0, 0, 0); }
static inline int t_add(struct tape *t, int a, int b) { return t_made(t, t_at(t, a) + t_at(t, b), a, 1, b, 1); }
static inline int t_multiply(struct tape *t, int a, int b)
{
    return t_made(t, t_at(t, a) * t_at(t, b), a, t_at(t, b), b, t_at(t, a));
}
/* x by + plus */
static inline int t_line(struct tape *t, int x, double by, double plus)
{
    return t_made(t, t_at(t, x) * by + plus, x, by, 0, 0);
}
static inline int t_power(struct tape *t, int x, double n)
{
    return t_made(t, pow(t_at(t, x), n), x, n * pow(t_at(t, x), n - 1), 0, 0);
}
static inline int t_exp(struct tape *t, int x) { return t_made(t, exp(t_at(t, x)), x, exp(t_at(t, x)), 0, 0); }
static inline int t_log(struct tape *t, int x) { return t_made(t, log(t_at(t, x)), x, 1 / t_at(t, x), 0, 0); }
/* As PyTorch's clamp: at the limits the gradient passes. */
static inline int t_clamp(struct tape *t, int x, double low, double high)
{
    const double v = t_at(t, x);
    return t_made(t, v < low ? low : v > high ? high : v, x, v >= low && v <= high, 0, 0);
}
static inline int t_sigmoid(struct tape *t, int x)
{
    const double v = t_at(t, x), s = 1 / (1 + exp(-v)), rest = 1 / (1 + exp(v));
    return t_made(t, s, x, s * rest, 0, 0);
}
static inline int t_half_erfc(struct tape *t, int x)            /* (1 + erf(x / sqrt 2)) / 2 */
{
    const double v = t_at(t, x);
    return t_made(t, erfc(-v / sqrt(2)) / 2, x, exp(-v * v / 2) / sqrt(2 * M_PI), 0, 0);
}

/* n inputs from x on; the first of them. */
static inline int t_inputs(struct tape *t, const double *x, int64_t n)
{
    const int first = t->count ? t->count : 1;
    for (int64_t i = 0; i < n; i++) t_input(t, x[i]);
    return first;
}

static inline int t_dot(struct tape *t, int a, int step_a, int b, int step_b, int64_t n)
{
    int sum = t_input(t, 0);
    for (int64_t i = 0; i < n; i++) sum = t_add(t, sum, t_multiply(t, a + (int)i * step_a, b + (int)i * step_b));
    return sum;
}

static inline void t_backwards(struct tape *t)
{
    for (int i = t->count - 1; i > 0; i--) {
        const struct tape_entry e = t->at[i];
        if (e.gradient == 0) continue;
        if (e.a) t->at[e.a].gradient += e.gradient * e.by_a;
        if (e.b) t->at[e.b].gradient += e.gradient * e.by_b;
    }
}

/* Adds the gradients of n inputs from `first` on. */
static inline void t_take(double *to, const struct tape *t, int first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += t->at[first + i].gradient;
}

/* ---- operators, one row a tape */

struct back {
    struct op_case *c;
    struct tape tape;
    struct op_values dy;
    struct op_values in[8];
    int count;
};

static inline struct op_values b_in(struct back *b, const char *name)
{
    return b->in[b->count++] = op_tensor(b->c->file, b->c->number, name);
}

static inline double *b_out(struct back *b, const char *name, const struct op_values *of)
{
    const int64_t *s = of->shape;
    double *y = op_output(b->c, name, 0, s[0], of->rank > 1 ? s[1] : 0, of->rank > 2 ? s[2] : 0);
    memset(y, 0, (size_t)of->count * sizeof *y);
    return y;
}

static inline void b_embed(struct back *b)
{
    struct op_values ids = b_in(b, "ids"), w = b_in(b, "w");
    double *dw = b_out(b, "dw", &w);
    for (int64_t i = 0; i < b->dy.count; i++)
        dw[(int64_t)ids.x[i / w.shape[1]] * w.shape[1] + i % w.shape[1]] += b->dy.x[i];
}

static inline void b_norm(struct back *b, double offset, int centred)
{
    struct op_values x = b_in(b, "x"), w = b_in(b, "w");
    const int64_t n = x.shape[1];
    double *dx = b_out(b, "dx", &x), *dw = b_out(b, "dw", &w), *db = centred ? b_out(b, "db", &w) : NULL;
    struct tape *t = &b->tape;
    for (int64_t r = 0; r < x.shape[0]; r++) {
        t->count = 0;
        const int xs = t_inputs(t, x.x + r * n, n), ws = t_inputs(t, w.x, n);
        int mean = t_input(t, 0), sum = t_input(t, 0), c[512];
        for (int64_t i = 0; i < n && centred; i++) mean = t_add(t, mean, t_line(t, xs + (int)i, 1 / (double)n, 0));
        for (int64_t i = 0; i < n; i++) {
            c[i] = t_add(t, xs + (int)i, t_line(t, mean, -1, 0));
            sum = t_add(t, sum, t_multiply(t, c[i], c[i]));
        }
        const int scale = t_power(t, t_line(t, sum, 1 / (double)n, op_number(b->c, "eps")), -0.5);
        for (int64_t i = 0; i < n; i++) {
            const int y = t_multiply(t, t_multiply(t, c[i], scale), t_line(t, ws + (int)i, 1, offset));
            t->at[y].gradient = b->dy.x[r * n + i];
            if (db) db[i] += b->dy.x[r * n + i];
        }
        t_backwards(t);
        t_take(dx + r * n, t, xs, n);
        t_take(dw, t, ws, n);
    }
}

static inline void b_linear(struct back *b, int has_bias)
{
    struct op_values x = b_in(b, "x"), w = b_in(b, "w");
    const int64_t n = w.shape[0], cols = w.shape[1];
    struct op_values bias = { .shape = { n }, .rank = 1, .count = n };
    double *dx = b_out(b, "dx", &x), *dw = b_out(b, "dw", &w), *dbias = has_bias ? b_out(b, "dbias", &bias) : NULL;
    struct tape *t = &b->tape;
    for (int64_t r = 0; r < x.shape[0]; r++) {
        t->count = 0;
        const int xs = t_inputs(t, x.x + r * cols, cols), ws = t_inputs(t, w.x, w.count);
        for (int64_t o = 0; o < n; o++) {
            const int y = t_dot(t, xs, 1, ws + (int)(o * cols), 1, cols);
            t->at[y].gradient = b->dy.x[r * n + o];
            if (dbias) dbias[o] += b->dy.x[r * n + o];
        }
        t_backwards(t);
        t_take(dx + r * cols, t, xs, cols);
        t_take(dw, t, ws, w.count);
    }
}

static inline void b_rope(struct back *b)
{
    struct op_values c = b_in(b, "cos"), s = b_in(b, "sin");
    const int64_t Q = b->dy.shape[1], D = b->dy.shape[2], half = c.shape[1];
    double *dx = b_out(b, "dx", &b->dy);
    memcpy(dx, b->dy.x, (size_t)b->dy.count * sizeof *dx);
    for (int64_t r = 0; r < b->dy.shape[0] * Q; r++)
        for (int64_t i = 0; i < half; i++) {
            /* The transpose of [cos, -sin; sin, cos]. */
            const double *d = b->dy.x + r * D, cosine = c.x[r / Q * half + i], sine = s.x[r / Q * half + i];
            dx[r * D + i] = cosine * d[i] + sine * d[i + half];
            dx[r * D + i + half] = -sine * d[i] + cosine * d[i + half];
        }
}

/* ---- attention: `sees` says which keys */

struct b_mask {
    const double *seen, *ends, *lists;
    int64_t p0, block, N, G;
    int any_group;
};

static inline int b_sees(const struct b_mask *m, int64_t row, int64_t g, int64_t j)
{
    if (m->ends) {
        int s = 0, other = 0;
        while (row >= m->ends[s]) s++;
        while (j >= m->ends[other]) other++;
        return s == other;
    }
    if (j > m->p0 + row || (m->seen && m->seen[j] == 0)) return 0;
    if (!m->lists) return 1;
    for (int64_t i = 0; i < m->G * m->N; i++)
        if ((m->any_group || i / m->N == g) && m->lists[row * m->G * m->N + i] == (double)(j / m->block)) return 1;
    return 0;
}

static inline void b_attention(struct back *b, const struct b_mask *mask)
{
    struct op_values q = b_in(b, "q"), k = b_in(b, "k"), v = b_in(b, "v"), dlse = b_in(b, "dlse");
    const int64_t Q = q.shape[1], D = q.shape[2], S = k.shape[0], G = k.shape[1];
    double *dq = b_out(b, "dq", &q), *dk = b_out(b, "dk", &k), *dv = b_out(b, "dv", &v);
    struct tape *t = &b->tape;
    int *e = malloc((size_t)S * sizeof *e);
    for (int64_t r = 0; r < q.shape[0] * Q; r++) {
        const int64_t row = r / Q, g = r % Q / (Q / G);
        t->count = 0;
        const int qs = t_inputs(t, q.x + r * D, D), ks = t_inputs(t, k.x, k.count), vs = t_inputs(t, v.x, v.count);
        double most = -INFINITY;
        for (int64_t j = 0; j < S; j++) {
            e[j] = 0;
            if (!b_sees(mask, row, g, j)) continue;
            e[j] = t_line(t, t_dot(t, qs, 1, ks + (int)((j * G + g) * D), 1, D), 1 / sqrt((double)D), 0);
            most = fmax(most, t_at(t, e[j]));
        }
        if (most == -INFINITY) continue;
        int sum = t_input(t, 0);
        for (int64_t j = 0; j < S; j++)
            if (e[j]) e[j] = t_exp(t, t_line(t, e[j], 1, -most)), sum = t_add(t, sum, e[j]);
        const int over = t_power(t, sum, -1);
        for (int64_t i = 0; i < D; i++) {
            int o = t_input(t, 0);
            for (int64_t j = 0; j < S; j++)
                if (e[j]) o = t_add(t, o, t_multiply(t, t_multiply(t, e[j], over), vs + (int)((j * G + g) * D + i)));
            t->at[o].gradient = b->dy.x[r * D + i];
        }
        if (dlse.x) t->at[t_log(t, sum)].gradient = dlse.x[r];
        t_backwards(t);
        t_take(dq + r * D, t, qs, D);
        t_take(dk, t, ks, k.count);
        t_take(dv, t, vs, v.count);
    }
    free(e);
}

static inline void b_causal(struct back *b, int sparse)
{
    struct op_values k = b_in(b, "k"), blocks = b_in(b, "blocks"), seen = b_in(b, "seen");
    struct b_mask mask = { .seen = seen.x, .p0 = k.shape[0] - b->dy.shape[0], .G = k.shape[1] };
    if (sparse) {
        mask.lists = blocks.x, mask.N = blocks.shape[2], mask.block = (int64_t)op_number(b->c, "block");
        mask.any_group = op_word_is(b->c, "selection", "union");
    }
    b_attention(b, &mask);
}

static inline void b_segments(struct back *b)
{
    struct op_values ends = b_in(b, "ends");
    const struct b_mask mask = { .ends = ends.x };
    b_attention(b, &mask);
}

/* ---- activations */

static inline int t_gated(struct tape *t, const struct op_case *c, int gate, int up, int oai)
{
    if (!oai) return t_multiply(t, up, t_multiply(t, gate, t_sigmoid(t, gate)));
    const double limit = op_number(c, "limit"), low = op_word_is(c, "gate_clamp", "both") ? -limit : -INFINITY;
    const int g = t_clamp(t, gate, low, limit), u = t_clamp(t, up, -limit, limit);
    return t_multiply(t, t_line(t, u, 1, 1), t_multiply(t, g, t_sigmoid(t, t_line(t, g, op_number(c, "alpha"), 0))));
}

static inline void b_gated(struct back *b, int oai)
{
    struct op_values gate = b_in(b, "gate"), up = b_in(b, "up");
    double *dgate = b_out(b, "dgate", &gate), *dup = b_out(b, "dup", &up);
    struct tape *t = &b->tape;
    for (int64_t i = 0; i < gate.count; i++) {
        t->count = 0;
        const int g = t_input(t, gate.x[i]), u = t_input(t, up.x[i]);
        t->at[t_gated(t, b->c, g, u, oai)].gradient = b->dy.x[i];
        t_backwards(t);
        t_take(dgate + i, t, g, 1);
        t_take(dup + i, t, u, 1);
    }
}

static inline void b_each(struct back *b, int is_gelu)
{
    struct op_values x = b_in(b, "x");
    double *dx = b_out(b, "dx", &x);
    struct tape *t = &b->tape;
    for (int64_t i = 0; i < x.count; i++) {
        t->count = 0;
        const int v = t_input(t, x.x[i]), y = is_gelu ? t_multiply(t, v, t_half_erfc(t, v)) : t_sigmoid(t, v);
        t->at[y].gradient = b->dy.x[i];
        t_backwards(t);
        t_take(dx + i, t, v, 1);
    }
}

/* ---- router and experts */

static inline void b_route(struct back *b)
{
    struct op_values s = b_in(b, "s"), ids = b_in(b, "ids");
    const int64_t E = s.shape[1], K = ids.shape[1];
    double *ds = b_out(b, "ds", &s);
    struct tape *t = &b->tape;
    for (int64_t r = 0; r < s.shape[0]; r++) {
        t->count = 0;
        const int first = t_inputs(t, s.x + r * E, E);
        int sum = t_input(t, 0);
        for (int64_t k = 0; k < K; k++) sum = t_add(t, sum, first + (int)ids.x[r * K + k]);
        const int over = t_power(t, sum, -1);
        for (int64_t k = 0; k < K; k++)
            t->at[t_multiply(t, first + (int)ids.x[r * K + k], over)].gradient = b->dy.x[r * K + k];
        t_backwards(t);
        t_take(ds + r * E, t, first, E);
    }
}

/* One tape for each row and slot. */
static inline void b_experts(struct back *b)
{
    struct op_values x = b_in(b, "x"), ids = b_in(b, "ids"), p = b_in(b, "p"), w1 = b_in(b, "w1"), w3 = b_in(b, "w3"),
                     w2 = b_in(b, "w2");
    const int64_t H = x.shape[1], K = ids.shape[1], F = w1.shape[1], n = F * H;
    double *dx = b_out(b, "dx", &x), *dp = b_out(b, "dp", &p), *dw1 = b_out(b, "dw1", &w1);
    double *dw3 = b_out(b, "dw3", &w3), *dw2 = b_out(b, "dw2", &w2);
    const int oai = op_word_is(b->c, "activation", "swiglu_oai");
    struct tape *t = &b->tape;
    int *a = malloc((size_t)F * sizeof *a);
    for (int64_t i = 0; i < ids.count; i++) {
        const int64_t row = i / K, e = (int64_t)ids.x[i];
        t->count = 0;
        const int xs = t_inputs(t, x.x + row * H, H), weight = t_input(t, p.x[i]);
        const int g = t_inputs(t, w1.x + e * n, n), u = t_inputs(t, w3.x + e * n, n), d = t_inputs(t, w2.x + e * n, n);
        for (int64_t f = 0; f < F; f++) {
            const int gate = t_dot(t, xs, 1, g + (int)(f * H), 1, H), up = t_dot(t, xs, 1, u + (int)(f * H), 1, H);
            a[f] = t_gated(t, b->c, gate, up, oai);
        }
        for (int64_t h = 0; h < H; h++) {
            int y = t_input(t, 0);
            for (int64_t f = 0; f < F; f++) y = t_add(t, y, t_multiply(t, a[f], d + (int)(h * F + f)));
            y = t_line(t, t_multiply(t, y, weight), op_number(b->c, "factor"), 0);
            t->at[y].gradient = b->dy.x[row * H + h];
        }
        t_backwards(t);
        t_take(dx + row * H, t, xs, H);
        t_take(dp + i, t, weight, 1);
        t_take(dw1 + e * n, t, g, n);
        t_take(dw3 + e * n, t, u, n);
        t_take(dw2 + e * n, t, d, n);
    }
    free(a);
}

static inline void b_scatter(struct back *b)
{
    struct op_values ids = b_in(b, "ids"), f = b_in(b, "f");
    const int64_t H = b->dy.shape[1];
    double *dx = b_out(b, "dx", &b->dy), *df = b_out(b, "df", &f);
    for (int64_t r = 0, k = 0; r < ids.count; r++) {
        const int placeholder = ids.x[r] == op_number(b->c, "id");
        memcpy(placeholder ? df + k++ * H : dx + r * H, b->dy.x + r * H, (size_t)H * sizeof *dx);
    }
}

/* Returns 0 for an operator that is not here. */
static inline int witness_backward(const char *op, struct op_case *c)
{
    struct back b = { .c = c };
    int known = 1;
    b.dy = op_tensor(c->file, c->number, "dy");
    if (!strcmp(op, "embed_backward")) b_embed(&b);
    else if (!strcmp(op, "rms_norm_backward")) b_norm(&b, 1, 0);
    else if (!strcmp(op, "rms_norm_plain_backward")) b_norm(&b, 0, 0);
    else if (!strcmp(op, "layer_norm_backward")) b_norm(&b, 0, 1);
    else if (!strcmp(op, "linear_backward")) b_linear(&b, 0);
    else if (!strcmp(op, "linear_bias_backward")) b_linear(&b, 1);
    else if (!strcmp(op, "rope_backward")) b_rope(&b);
    else if (!strcmp(op, "attend_full_backward")) b_causal(&b, 0);
    else if (!strcmp(op, "attend_blocks_backward")) b_causal(&b, 1);
    else if (!strcmp(op, "attend_segments_backward")) b_segments(&b);
    else if (!strcmp(op, "swiglu_oai_backward")) b_gated(&b, 1);
    else if (!strcmp(op, "swiglu_backward")) b_gated(&b, 0);
    else if (!strcmp(op, "sigmoid_backward")) b_each(&b, 0);
    else if (!strcmp(op, "gelu_backward")) b_each(&b, 1);
    else if (!strcmp(op, "route_backward")) b_route(&b);
    else if (!strcmp(op, "experts_backward")) b_experts(&b);
    else if (!strcmp(op, "scatter_backward")) b_scatter(&b);
    else known = 0;
    free(b.dy.x);
    while (b.count > 0) free(b.in[--b.count].x);
    free(b.tape.at);
    return known;
}

#endif
