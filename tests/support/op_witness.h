/* Every operator and composite of `m3ref op` once more, by the formulas of formula_twin.h and derivative_twin.h, which use
 * nothing of ref/. Fills the outputs of a case. */
#ifndef M3_TESTS_OP_WITNESS_H
#define M3_TESTS_OP_WITNESS_H

#include "op_cases.h"
#include "op_witness_backward.h"

static inline double *w_room(int64_t count) { return room(count, sizeof(double)); }

static inline double w_sigmoid(double x) { return (double)twin_sigmoid(x); }

/* ---- norms */

static inline void w_store(double *to, const long double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = (double)from[i];
}

static inline void w_rms(double *y, const double *x, const double *w, int64_t rows, int64_t n, double eps, int offset)
{
    long double *exact = room(rows * n, sizeof *exact);
    for (int64_t t = 0; t < rows; t++) twin_rms(exact + t * n, x + t * n, w, n, eps, offset);
    w_store(y, exact, rows * n);
}

static inline void w_norm(struct op_case *c, int offset)
{
    struct op_values x = w_in(c, "x"), f = w_in(c, "w");
    w_rms(op_output(c, "y", 0, x.shape[0], x.shape[1], 0), x.x, f.x, x.shape[0], x.shape[1], op_number(c, "eps"),
          offset);
}

static inline void w_residual_norm(struct op_case *c)
{
    struct op_values a = w_in(c, "a"), b = w_in(c, "b"), f = w_in(c, "w");
    double *sum = op_output(c, "sum", 0, a.shape[0], a.shape[1], 0);
    for (int64_t i = 0; i < a.count; i++) sum[i] = a.x[i] + b.x[i];
    w_rms(op_output(c, "y", 0, a.shape[0], a.shape[1], 0), sum, f.x, a.shape[0], a.shape[1], op_number(c, "eps"), 1);
}

static inline void w_layer_norm(struct op_case *c)
{
    struct op_values x = w_in(c, "x"), f = w_in(c, "w"), b = w_in(c, "b");
    const int64_t T = x.shape[0], n = x.shape[1];
    long double *exact = room(x.count, sizeof *exact);
    for (int64_t t = 0; t < T; t++) twin_layer_norm(exact + t * n, x.x + t * n, f.x, b.x, n, op_number(c, "eps"));
    w_store(op_output(c, "y", 0, T, n, 0), exact, x.count);
}

/* ---- products */

static inline void w_product(double *y, const double *x, const double *w, const double *bias, int64_t rows,
                             int64_t cols, int64_t n)
{
    long double size;
    for (int64_t i = 0; i < rows * n; i++)
        y[i] = (double)(twin_dot(&size, x + i / n * cols, w + i % n * cols, cols) + (bias ? bias[i % n] : 0));
}

/* block 0: no scales; 128: of 128 x 128 codes; 32: ue8m0 bytes of 32 columns. */
static inline void w_linear(struct op_case *c, int block)
{
    struct op_values x = w_in(c, "x"), f = w_in(c, "w"), bias = w_in(c, "bias");
    const int64_t n = f.shape[0], cols = f.shape[1];
    if (block) {
        struct op_values s = w_in(c, "scales");
        for (int64_t o = 0; o < n; o++)
            for (int64_t k = 0; k < cols; k++)
                f.x[o * cols + k] *= block == 128 ? s.x[o / 128 * ((cols + 127) / 128) + k / 128]
                                                  : exp2(s.x[o * ((cols + 31) / 32) + k / 32] - 127);
    }
    w_product(op_output(c, "y", 0, x.shape[0], n, 0), x.x, f.x, bias.x, x.shape[0], cols, n);
}

/* ---- rotations */

static inline void w_rotate(double *y, const double *x, const double *cos, const double *sin, int64_t rows,
                            int64_t heads, int64_t D, int64_t R)
{
    long double size;
    for (int64_t i = 0; i < rows * heads * D; i++) {
        const int64_t head = i / D, at = head / heads * (R / 2);
        y[i] = (double)twin_turned(&size, x + head * D, cos + at, sin + at, i % D, R);
    }
}

static inline long double w_angle(const struct op_case *c, double pos, long double exponent)
{
    const long double frequency = powl((long double)op_number(c, "theta"), exponent);
    if (op_word_is(c, "rope_angle", "f32")) return (long double)twin_angle(pos, (double)frequency, 1);
    return (long double)pos * frequency;
}

/* places [rows,axes]; the columns are divided among the axes. */
static inline void w_angles(const struct op_case *c, double *cosines, double *sines, const double *places, int64_t rows,
                            int64_t R, int64_t axes)
{
    const int64_t half = R / 2, each = half / axes;
    for (int64_t i = 0; i < rows * half; i++) {
        const int64_t j = i % half;
        const long double angle = w_angle(c, places[i / half * axes + j / each], -2.0L * axes * (j % each) / R);
        cosines[i] = (double)cosl(angle);
        sines[i] = (double)sinl(angle);
    }
}

static inline void w_table(struct op_case *c, const char *places, int64_t axes)
{
    struct op_values at = w_in(c, places);
    const int64_t R = (int64_t)op_number(c, "R"), rows = at.count / axes;
    double *cosines = op_output(c, "cos", 0, rows, R / 2, 0);
    w_angles(c, cosines, op_output(c, "sin", 0, rows, R / 2, 0), at.x, rows, R, axes);
}

static inline void w_rope_table(struct op_case *c) { w_table(c, "pos", 1); }
static inline void w_rope_table_3d(struct op_case *c) { w_table(c, "places", 3); }

static inline void w_rope(struct op_case *c)
{
    struct op_values x = w_in(c, "x"), cosines = w_in(c, "cos"), sines = w_in(c, "sin");
    w_rotate(op_output(c, "y", 0, x.shape[0], x.shape[1], x.shape[2]), x.x, cosines.x, sines.x, x.shape[0], x.shape[1],
             x.shape[2], 2 * cosines.shape[1]);
}

static inline void w_qk_norm_rope(struct op_case *c)
{
    struct op_values x = w_in(c, "x"), f = w_in(c, "w"), pos = w_in(c, "pos");
    const int64_t T = x.shape[0], Q = x.shape[1], D = x.shape[2], R = (int64_t)op_number(c, "R");
    double *cosines = w_room(T * R), *sines = w_room(T * R), *normed = op_output(c, "normed", 0, T, Q, D);
    w_rms(normed, x.x, f.x, T * Q, D, op_number(c, "eps"), 1);
    w_angles(c, cosines, sines, pos.x, T, R, 1);
    w_rotate(op_output(c, "y", 0, T, Q, D), normed, cosines, sines, T, Q, D, R);
}

/* Places of the patches, and the number of each one's segment. SPEC 6.2: images first; with
 * vision_boundary=none all images are one segment, and all videos another. */
static inline void w_patches(struct op_case *c, double *places, double *segment)
{
    struct op_values grid = w_in(c, "grid");
    const int64_t m = (int64_t)op_number(c, "merge"), frames = (int64_t)op_number(c, "segment_frames");
    const int none = op_word_is(c, "vision_boundary", "none");
    int64_t row = 0, number = -1;
    for (int64_t i = 0; i < grid.shape[0]; i++)
        for (int64_t step = 0; step < (int64_t)grid.x[3 * i]; step++) {
            const int video = grid.x[3 * i] > 1;
            const int64_t in_segment = frames > 0 && video && !none ? step % frames : step;
            number = none ? video : number + (in_segment == 0);
            for (int64_t a = 0; a < (int64_t)grid.x[3 * i + 1] / m; a++)
                for (int64_t b = 0; b < (int64_t)grid.x[3 * i + 2] / m; b++)
                    for (int64_t i = 0; i < m * m; i++, row++) {
                        places[3 * row] = (double)in_segment;
                        places[3 * row + 1] = (double)(m * a + i / m);
                        places[3 * row + 2] = (double)(m * b + i % m);
                        segment[row] = (double)number;
                    }
        }
}

static inline void w_turn_3d(struct op_case *c, double *y, const struct op_values *x, const double *places)
{
    const int64_t P = x->shape[0], R = x->shape[2] / 6 * 6;
    double *cosines = w_room(P * R), *sines = w_room(P * R);
    w_angles(c, cosines, sines, places, P, R, 3);
    w_rotate(y, x->x, cosines, sines, P, x->shape[1], x->shape[2], R);
}

static inline void w_rope_3d(struct op_case *c)
{
    struct op_values x = w_in(c, "x");
    double *places = w_room(3 * x.shape[0]), *segment = w_room(x.shape[0]);
    w_patches(c, places, segment);
    w_turn_3d(c, op_output(c, "y", 0, x.shape[0], x.shape[1], x.shape[2]), &x, places);
}

/* ---- attention */

/* One row of one head over the keys that `sees` marks; key j is k + j * stride. Returns the log-sum-exp. */
static inline double w_head(double *o, const double *q, const double *k, const double *v, const unsigned char *sees,
                            int64_t S, int64_t D, int64_t stride)
{
    static int64_t keys[TWIN_MAX_KEYS];
    static struct twin_head head;
    int64_t L = 0;
    ck_assert(D <= TWIN_MAX_D && S <= TWIN_MAX_KEYS);
    for (int64_t j = 0; j < S; j++)
        if (sees[j]) keys[L++] = j;
    twin_attend(&head, q, k, v, keys, L, D, stride, 0, 0);
    for (int64_t d = 0; d < D; d++) o[d] = (double)head.o[d];
    return (double)head.lse;
}

/* All rows and heads of q, by what a row sees. lse NULL: not wanted. */
static inline void w_heads(double *o, double *lse, const double *q, const struct op_values *k,
                           const struct op_values *v, int64_t T, int64_t Q, const struct twin_view *view)
{
    const int64_t S = k->shape[0], G = k->shape[1], D = k->shape[2];
    unsigned char *sees = malloc((size_t)S);
    for (int64_t r = 0; r < T * Q; r++) {
        const int64_t g = r % Q / (Q / G);
        for (int64_t j = 0; j < S; j++) sees[j] = (unsigned char)twin_sees(view, r / Q, g, j);
        const double sum = w_head(o + r * D, q + r * D, k->x + g * D, v->x + g * D, sees, S, D, G * D);
        if (lse) lse[r] = sum;
    }
    free(sees);
}

/* blocks without x: all keys. */
static inline void w_attention(struct op_case *c, const struct op_values *blocks)
{
    struct op_values q = w_in(c, "q"), k = w_in(c, "k"), v = w_in(c, "v"), seen = w_in(c, "seen");
    const int64_t T = q.shape[0], Q = q.shape[1];
    const struct twin_view view = op_view(c, &k, T, blocks, &seen);
    double *lse = op_output(c, "lse", 0, T, Q, 0), *o = op_output(c, "o", 0, T, Q, q.shape[2]);
    w_heads(o, lse, q.x, &k, &v, T, Q, &view);
}

static inline void w_attend_full(struct op_case *c)
{
    const struct op_values none = { .x = NULL };
    w_attention(c, &none);
}

static inline void w_attend_blocks(struct op_case *c)
{
    struct op_values blocks = w_in(c, "blocks");
    w_attention(c, &blocks);
}

static inline double *w_block_scores(struct op_case *c, const char *q_name, const char *k_name)
{
    struct op_values q = w_in(c, q_name), k = w_in(c, k_name), seen = w_in(c, "seen");
    const int64_t T = q.shape[0], G = q.shape[1], X = q.shape[2], S = k.shape[0];
    const int64_t block = (int64_t)op_number(c, "block"), B = (S + block - 1) / block;
    const int rsqrt = op_word_is(c, "index_scale", "rsqrt"), lse = op_word_is(c, "pool", "lse");
    const struct twin_view view = op_view(c, &k, T, &(struct op_values){ .x = NULL }, &seen);
    double *m = op_output(c, "m", 0, T, G, B);
    for (int64_t i = 0; i < T * G * B; i++) {
        const int64_t first = i % B * block, own = S - T + i / B / G + 1,
                      end = first + block < own ? first + block : own;
        m[i] = (double)twin_block_score(q.x + i / B * X, k.x, view.seen, first, end, X, rsqrt, lse, 0, 0).value;
    }
    return m;
}

static inline void w_select(struct op_case *c, const double *m, int64_t T, int64_t G, int64_t B, int64_t p0,
                            const char *name)
{
    const int64_t N = (int64_t)op_number(c, "N"), block = (int64_t)op_number(c, "block");
    const struct twin_rules rules = { op_word_is(c, "selection", "shared"), op_word_is(c, "local_rule", "own"),
                                      (int64_t)op_number(c, "local_blocks"), (int64_t)op_number(c, "init_blocks") };
    double *ids = op_output(c, name, 1, T, G, N);
    int32_t *chosen = room(N, sizeof *chosen);
    for (int64_t r = 0; r < T * G; r++) {
        twin_select(chosen, m + r / G * G * B, r % G, G, B, (p0 + r / G) / block, N, &rules);
        for (int64_t n = 0; n < N; n++) ids[r * N + n] = (double)chosen[n];
    }
}

static inline void w_select_blocks(struct op_case *c)
{
    struct op_values m = w_in(c, "m");
    w_select(c, m.x, m.shape[0], m.shape[1], m.shape[2], (int64_t)op_number(c, "p0"), "ids");
}

static inline void w_sparse_attention(struct op_case *c)
{
    struct op_values q = w_in(c, "index_q"), k = w_in(c, "index_k");
    const int64_t T = q.shape[0], S = k.shape[0], block = (int64_t)op_number(c, "block");
    const double *m = w_block_scores(c, "index_q", "index_k");
    w_select(c, m, T, q.shape[1], (S + block - 1) / block, S - T, "blocks");
    w_attention(c, op_output_named(c, "blocks"));
}

static inline void w_attend_segments(struct op_case *c)
{
    struct op_values q = w_in(c, "q"), k = w_in(c, "k"), v = w_in(c, "v"), ends = w_in(c, "ends");
    const struct twin_view view = { .ends = op_places(&ends) };
    w_heads(op_output(c, "o", 0, q.shape[0], q.shape[1], q.shape[2]), NULL, q.x, &k, &v, q.shape[0], q.shape[1], &view);
}

/* Where the numbers of segments, which ascend, change. */
static inline int64_t *w_ends(const double *segment, int64_t P)
{
    int64_t *ends = room(P, sizeof *ends), count = 0;
    for (int64_t i = 1; i <= P; i++)
        if (i == P || segment[i] != segment[i - 1]) ends[count++] = i;
    return ends;
}

static inline void w_vision_attention(struct op_case *c)
{
    struct op_values q = w_in(c, "q"), k = w_in(c, "k"), v = w_in(c, "v");
    double *places = w_room(3 * q.shape[0]), *segment = w_room(q.shape[0]);
    w_patches(c, places, segment);
    double *turned = op_output(c, "q_rope", 0, q.shape[0], q.shape[1], q.shape[2]);
    w_turn_3d(c, turned, &q, places);
    struct op_values keys = k;
    keys.x = op_output(c, "k_rope", 0, q.shape[0], q.shape[1], q.shape[2]);
    w_turn_3d(c, keys.x, &k, places);
    const struct twin_view view = { .ends = w_ends(segment, q.shape[0]) };
    w_heads(op_output(c, "o", 0, q.shape[0], q.shape[1], q.shape[2]), NULL, turned, &keys, &v, q.shape[0], q.shape[1],
            &view);
}

/* ---- activations */

static inline void w_swiglu(struct op_case *c, int oai)
{
    struct op_values gate = w_in(c, "gate"), up = w_in(c, "up");
    double *y = op_output(c, "y", 0, gate.shape[0], gate.shape[1], 0);
    const struct twin_gates act = b_gates(c, oai);
    for (int64_t i = 0; i < gate.count; i++) y[i] = (double)twin_gated(gate.x[i], up.x[i], &act);
}

static inline double w_gelu(double x) { return (double)twin_gelu(x); }

/* y := f(x), element by element. */
static inline void w_each(struct op_case *c, double (*function)(double))
{
    struct op_values x = w_in(c, "x");
    double *y = op_output(c, "y", 0, x.shape[0], x.shape[1], 0);
    for (int64_t i = 0; i < x.count; i++) y[i] = function(x.x[i]);
}

static inline void w_mlp(struct op_case *c, double *y, const double *x, int64_t rows, int64_t H, int64_t F,
                         const double *gate, const double *up, const double *down)
{
    const int mark = room_count;
    double *g = w_room(rows * F), *u = w_room(rows * F);
    const struct twin_gates act = b_gates(c, op_word_is(c, "activation", "swiglu_oai"));
    w_product(g, x, gate, NULL, rows, H, F);
    w_product(u, x, up, NULL, rows, H, F);
    for (int64_t i = 0; i < rows * F; i++) g[i] = (double)twin_gated(g[i], u[i], &act);
    w_product(y, g, down, NULL, rows, F, H);
    rooms_free(mark);
}

static inline void w_gated_mlp(struct op_case *c, const char *output)
{
    struct op_values x = w_in(c, "x"), gate = w_in(c, "gate"), up = w_in(c, "up"), down = w_in(c, "down");
    w_mlp(c, op_output(c, output, 0, x.shape[0], x.shape[1], 0), x.x, x.shape[0], x.shape[1], gate.shape[0], gate.x,
          up.x, down.x);
}

/* ---- experts */

/* choice in float, as SPEC 5.14 says of the float engine; every score of the cases is an F32. */
static inline void w_route(struct op_case *c, const double *s, int64_t T, int64_t E)
{
    struct op_values bias = w_in(c, "bias");
    const int64_t K = (int64_t)op_number(c, "K");
    double *ids = op_output(c, "ids", 1, T, K, 0), *p = op_output(c, "p", 0, T, K, 0);
    double *choices = w_room(E);
    int32_t *chosen = room(K, sizeof *chosen);
    for (int64_t t = 0; t < T; t++) {
        double sum = 0;
        for (int64_t e = 0; e < E; e++) choices[e] = s[t * E + e] + bias.x[e];
        twin_choose(chosen, choices, E, K);
        for (int64_t k = 0; k < K; k++) sum += s[t * E + chosen[k]];
        for (int64_t k = 0; k < K; k++) {
            ids[t * K + k] = (double)chosen[k];
            p[t * K + k] = s[t * E + chosen[k]] / sum;
        }
    }
}

static inline void w_router(struct op_case *c)
{
    struct op_values logits = w_in(c, "logits");
    double *s = op_output(c, "s", 0, logits.shape[0], logits.shape[1], 0);
    for (int64_t i = 0; i < logits.count; i++) s[i] = w_sigmoid(logits.x[i]);
    w_route(c, s, logits.shape[0], logits.shape[1]);
}

static inline void w_experts_with(struct op_case *c, const double *ids, const double *p, int64_t K, int each_wanted)
{
    struct op_values x = w_in(c, "x"), w1 = w_in(c, "w1"), w3 = w_in(c, "w3"), w2 = w_in(c, "w2");
    const int64_t T = x.shape[0], H = x.shape[1], F = w1.shape[1];
    const double factor = op_number(c, "factor");
    double *each = each_wanted ? op_output(c, "each", 0, T, K, H) : w_room(T * K * H);
    double *routed = op_output(c, "routed", 0, T, H, 0);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t k = 0; k < K; k++) {
            const int64_t e = (int64_t)ids[t * K + k];
            w_mlp(c, each + (t * K + k) * H, x.x + t * H, 1, H, F, w1.x + e * F * H, w3.x + e * F * H,
                  w2.x + e * H * F);
        }
        for (int64_t i = 0; i < H; i++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += p[t * K + k] * each[(t * K + k) * H + i];
            routed[t * H + i] = factor * sum;
        }
    }
}

static inline void w_experts(struct op_case *c)
{
    struct op_values ids = w_in(c, "ids"), p = w_in(c, "p");
    w_experts_with(c, ids.x, p.x, ids.shape[1], 1);
}

static inline void w_moe_block(struct op_case *c)
{
    struct op_values x = w_in(c, "x"), router = w_in(c, "router");
    const int64_t T = x.shape[0], H = x.shape[1], E = router.shape[0], K = (int64_t)op_number(c, "K");
    double *s = w_room(T * E);
    w_product(s, x.x, router.x, NULL, T, H, E);
    for (int64_t i = 0; i < T * E; i++) s[i] = w_sigmoid(s[i]);
    w_route(c, s, T, E);
    w_experts_with(c, c->outputs[0].x, c->outputs[1].x, K, 0);
    w_gated_mlp(c, "shared");
    const double *routed = op_output_named(c, "routed")->x, *shared = op_output_named(c, "shared")->x;
    double *y = op_output(c, "y", 0, T, H, 0);
    for (int64_t i = 0; i < T * H; i++) y[i] = routed[i] + shared[i];
}

/* ---- the rest */

static inline void w_embed(struct op_case *c)
{
    struct op_values ids = w_in(c, "ids"), f = w_in(c, "w");
    const int64_t H = f.shape[1];
    double *y = op_output(c, "y", 0, ids.count, H, 0);
    for (int64_t t = 0; t < ids.count; t++)
        for (int64_t i = 0; i < H; i++) y[t * H + i] = f.x[(int64_t)ids.x[t] * H + i];
}

static inline void w_add(struct op_case *c)
{
    struct op_values a = w_in(c, "a"), b = w_in(c, "b");
    double *y = op_output(c, "y", 0, a.shape[0], a.shape[1], 0);
    for (int64_t i = 0; i < a.count; i++) y[i] = a.x[i] + b.x[i];
}

static inline void w_scatter(struct op_case *c)
{
    struct op_values x = w_in(c, "x"), ids = w_in(c, "ids"), f = w_in(c, "f");
    const int64_t H = x.shape[1];
    double *y = op_output(c, "y", 0, x.shape[0], H, 0);
    for (int64_t t = 0, row = 0; t < x.shape[0]; t++) {
        const int placed = ids.x[t] == op_number(c, "id");
        for (int64_t i = 0; i < H; i++) y[t * H + i] = placed ? f.x[row * H + i] : x.x[t * H + i];
        row += placed;
    }
}

/* The key is that of the tap layers.0.mlp_norm with seed 0. */
static inline void w_jitter(struct op_case *c)
{
    struct op_values x = w_in(c, "x");
    const int64_t H = x.shape[1], p0 = (int64_t)op_number(c, "p0");
    const double eps = op_number(c, "eps_noise");
    double *y = op_output(c, "y", 0, x.shape[0], H, 0);
    uint64_t key = UINT64_C(14695981039346656037);
    for (const char *at = "layers.0.mlp_norm"; *at; at++) key = (key ^ (unsigned char)*at) * UINT64_C(1099511628211);
    key = twin_mixed(key);
    for (int64_t i = 0; i < x.count; i++) y[i] = x.x[i] * twin_noise(key, (uint64_t)(p0 * H + i), eps);
}

static inline void w_mtp_join(struct op_case *c)
{
    struct op_values e = w_in(c, "embedding"), h = w_in(c, "hidden"), enorm = w_in(c, "enorm"),
                     hnorm = w_in(c, "hnorm"), proj = w_in(c, "eh_proj");
    const int64_t T = e.shape[0], H = e.shape[1];
    const double eps = op_number(c, "eps");
    double *first = op_output(c, "e", 0, T, H, 0), *second = op_output(c, "h", 0, T, H, 0);
    double *both = w_room(2 * T * H);
    if (op_word_is(c, "mtp_zero_position0", "true")) memset(e.x, 0, (size_t)H * sizeof *e.x);
    w_rms(first, e.x, enorm.x, T, H, eps, 1);
    w_rms(second, h.x, hnorm.x, T, H, eps, 1);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < H; i++)
            both[2 * t * H + i] = first[t * H + i], both[(2 * t + 1) * H + i] = second[t * H + i];
    w_product(op_output(c, "y", 0, T, H, 0), both, proj.x, NULL, T, 2 * H, H);
}

static inline void witness_clear(struct op_case *c)
{
    while (c->output_count > 0) free(c->outputs[--c->output_count].x);
}

static inline void w_route_of(struct op_case *c)
{
    struct op_values s = w_in(c, "s");
    w_route(c, s.x, s.shape[0], s.shape[1]);
}

/* Returns 0 for an operator that is not here. */
static inline int witness_case(const char *op, struct op_case *c)
{
    const struct {
        const char *name;
        void (*function)(struct op_case *);
    } all[] = {
        { "embed", w_embed },
        { "route", w_route_of },
        { "rope_table", w_rope_table },
        { "rope", w_rope },
        { "select_blocks", w_select_blocks },
        { "attend_full", w_attend_full },
        { "attend_blocks", w_attend_blocks },
        { "experts", w_experts },
        { "add", w_add },
        { "layer_norm", w_layer_norm },
        { "rope_table_3d", w_rope_table_3d },
        { "rope_3d", w_rope_3d },
        { "attend_segments", w_attend_segments },
        { "scatter", w_scatter },
        { "jitter", w_jitter },
        { "qk_norm_rope", w_qk_norm_rope },
        { "sparse_attention", w_sparse_attention },
        { "router", w_router },
        { "moe_block", w_moe_block },
        { "vision_attention", w_vision_attention },
        { "residual_norm", w_residual_norm },
        { "mtp_join", w_mtp_join },
    };
    const int mark = room_count;
    witness_clear(c);
    int known = 1;
    if (!strcmp(op, "rms_norm")) w_norm(c, 1);
    else if (!strcmp(op, "rms_norm_plain")) w_norm(c, 0);
    else if (!strcmp(op, "linear") || !strcmp(op, "linear_bias")) w_linear(c, 0);
    else if (!strcmp(op, "linear_fp8")) w_linear(c, 128);
    else if (!strcmp(op, "linear_mxfp8")) w_linear(c, 32);
    else if (!strcmp(op, "block_scores")) w_block_scores(c, "q", "k");
    else if (!strcmp(op, "swiglu_oai")) w_swiglu(c, 1);
    else if (!strcmp(op, "swiglu")) w_swiglu(c, 0);
    else if (!strcmp(op, "sigmoid")) w_each(c, w_sigmoid);
    else if (!strcmp(op, "gelu")) w_each(c, w_gelu);
    else if (!strcmp(op, "gated_mlp")) w_gated_mlp(c, "y");
    else known = witness_backward(op, c);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(op, all[i].name) == 0) all[i].function(c), known = 1;
    rooms_free(mark);
    return known;
}

static inline void witness_all(const char *op, struct op_set *set)
{
    for (int64_t i = 0; i < set->count; i++) ck_assert_msg(witness_case(op, &set->cases[i]), "no witness of %s", op);
}

#endif
