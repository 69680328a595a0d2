/* The derivatives of operators that work row by row, TRAINING 19.2 to 19.5, 19.12 and 19.14: against the tape of
 * derivative_twin.h, and in double against slopes of the plain bodies. */
#include "derivative_twin.h"

#include <stdio.h>

TIMEOUT(60);

/* ---- norms */

enum norm { GEMMA, PLAIN, LAYER };
static const char *const norm_names[] = { "rms_norm", "rms_norm_plain", "layer_norm" };

struct norms {
    enum norm which;
    int64_t T, H;
    real eps;
    real *dy, *x, *w, *b, *dx, *dw, *db; /* dw is added to w, db to b */
};

static int norm_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct norms *c = self;
    const struct m3_backward_ops *back = back_of(plain);
    if (c->which == LAYER) return back->layer_norm(ctx, p[0], p[1], p[2], p[3], p[4], p[5], c->T, c->H, c->eps);
    return (c->which == GEMMA ? back->rms_norm : back->rms_norm_plain)(ctx, p[0], p[1], p[3], p[4], p[5], c->T, c->H,
                                                                       c->eps);
}

static int norm_forward(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct norms *c = self;
    const struct m3_ops *ops = ops_of(plain);
    if (c->which == LAYER) return ops->layer_norm(ctx, p[0], p[1], p[2], p[3], c->T, c->H, c->eps);
    return (c->which == GEMMA ? ops->rms_norm : ops->rms_norm_plain)(ctx, p[0], p[1], p[2], c->T, c->H, c->eps);
}

static struct norms draw_norm(enum norm which, int64_t T, int64_t H, double size)
{
    struct norms c = { .which = which, .T = T, .H = H, .eps = (real)1e-6 };
    c.dy = near_draw(T * H, 1), c.x = near_draw(T * H, size), c.w = near_draw(H, 1), c.b = near_draw(H, 1);
    c.dx = reals(T * H), c.dw = reals(H), c.db = reals(H);
    return c;
}

static void run_norm(const struct norms *c)
{
    const int64_t n = c->T * c->H, H = c->H;
    struct call call = CALL(norm_back, c, 3, 3, OPERAND(c->dx, n), ADDED(c->dw, H, c->w), ADDED(c->db, H, c->b),
                            OPERAND(c->dy, n), OPERAND(c->x, n), OPERAND(c->w, H));
    call.optional = 7;
    call_in_place(&call, 0, 0);
    call_all(&call);
}

/* Goal:  the three norms; dw and db are added to what is there.
 * Given: T and H 1, odd, prime, enough for four threads; x to 3, and to 0.001, where eps matters; dw and db not 0.
 * Claim: what rounding allows of the formula; with dx in the place of dy, too.
 * Seen to fail with: the term of mean(g n) dropped, w for 1 + w, no eps, no mean of g, dw or db stored. */
TEST(norm_formulas)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 3, 2 }, { 7, 33 }, { 41, 17 }, { 1037, 127 } };
    for (int k = 0; k < 5 * 3 * 2; k++) {
        const int64_t T = shapes[k % 5][0], H = shapes[k % 5][1], n = T * H;
        struct norms c = draw_norm((enum norm)(k / 5 % 3), T, H, k / 15 ? 0.001 : 3);
        struct near *dx = near_zeros(n), *dw = near_zeros(H), *db = near_zeros(H);
        run_norm(&c);
        twin_norm_back(dx, dw, db, widened(c.dy, n), widened(c.x, n), widened(c.w, H), T, H, (double)c.eps,
                       c.which == GEMMA, c.which == LAYER);
        near_check_all(norm_names[c.which], c.dx, dx, NULL, n, H);
        near_check_all("dw", c.dw, dw, c.w, H, H);
        near_check_all("db", c.db, db, c.b, H, H);
        rooms_free(0);
    }
}

/* Claim: the plain bodies have the slopes of dx, dw and db.  Seen to fail with: as norm_formulas, in double. */
TEST_IF(norm_slopes, sizeof(real) == sizeof(double))
{
    for (int k = 0; k < 3; k++) {
        struct norms c = draw_norm((enum norm)k, 5, 31, 3);
        struct near_forward f = { CALL(norm_forward, &c, 1, 3, OPERAND(reals(5 * 31), 5 * 31), OPERAND(c.x, 5 * 31),
                                       OPERAND(c.w, 31), OPERAND(c.b, 31)),
                                  { c.dy } };
        c.eps = (real)0.01;
        run_norm(&c);
        for (int64_t i = 0; i < c.H; i++) c.dw[i] -= c.w[i], c.db[i] -= c.b[i];
        near_check_forward(norm_names[k], &f, 1, c.dx);
        near_check_forward("dw", &f, 2, c.dw);
        if (c.which == LAYER) near_check_forward("db", &f, 3, c.db);
    }
    printf("  norms: slopes within %.1Le\n", near_worst_slope);
}

/* ---- linear */

struct linear {
    int64_t T, rows, cols;
    real *dy, *x, *w, *bias, *dx, *dw, *dbias; /* dw is added to w, dbias to bias */
    struct m3_weight weight; /* of w, or of what it was stored as */
};

/* x is only read for dw. */
static int linear_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct linear *c = self;
    return back_of(plain)->linear(ctx, p[0], p[1], p[2], p[3], p[1] ? p[4] : NULL, &c->weight, c->T);
}

static int linear_forward(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct linear *c = self;
    const struct m3_weight w = near_weight(p[2], c->rows, c->cols);
    return ops_of(plain)->linear(ctx, p[0], p[1], &w, p[3], c->T);
}

static struct linear draw_linear(int64_t T, int64_t rows, int64_t cols)
{
    struct linear c = { .T = T, .rows = rows, .cols = cols };
    c.dy = near_draw(T * rows, 1), c.x = near_draw(T * cols, 1);
    c.w = near_draw(rows * cols, 1), c.bias = near_draw(rows, 1);
    c.dx = reals(T * cols), c.dw = reals(rows * cols), c.dbias = reals(rows);
    c.weight = near_weight(c.w, rows, cols);
    return c;
}

static void run_linear(const struct linear *c)
{
    const int64_t n_x = c->T * c->cols, n_w = c->rows * c->cols;
    struct call call = CALL(linear_back, c, 3, 2, OPERAND(c->dx, n_x), ADDED(c->dw, n_w, c->w),
                            ADDED(c->dbias, c->rows, c->bias), OPERAND(c->dy, c->T * c->rows), OPERAND(c->x, n_x));
    call.optional = 7;
    call.linear = M3_LINEAR_ORDERED;
    call_all(&call);
}

/* The weight as BF16, the upper half of a float's bits. */
static void store_as_bf16(struct linear *c)
{
    const int64_t n = c->rows * c->cols;
    uint16_t *stored = room(n, sizeof *stored);
    for (int64_t i = 0; i < n; i++) {
        float value = (float)c->w[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        stored[i] = (uint16_t)(bits >> 16);
        bits = (uint32_t)stored[i] << 16;
        memcpy(&value, &bits, sizeof bits);
        c->w[i] = (real)value;
    }
    c->weight.data = stored;
    c->weight.dtype = M3_BF16;
}

/* Goal:  all three gradients; dw and dbias are added to; a weight as it is stored.
 * Given: T, rows and cols 1, odd, around the 16 rows of a piece, enough for four threads; dw and dbias not 0; a BF16
 *        weight.
 * Claim: what rounding allows of the sums.
 * Seen to fail with: columns of w shifted, dw or dbias stored, the last row of a piece left out. */
TEST(linear_formula)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },   { 2, 3, 5 },     { 15, 7, 4 },  { 16, 4, 7 },
                                         { 17, 33, 9 }, { 257, 61, 67 }, { 33, 67, 61 } };
    for (int k = 0; k < 7 * 2; k++) {
        const int64_t T = shapes[k % 7][0], N = shapes[k % 7][1], K = shapes[k % 7][2];
        struct linear c = draw_linear(T, N, K);
        if (k / 7) store_as_bf16(&c);
        struct near *dx = near_zeros(T * K), *dw = near_zeros(N * K), *dbias = near_zeros(N);
        run_linear(&c);
        twin_linear_back(dx, dw, dbias, widened(c.dy, T * N), widened(c.x, T * K), widened(c.w, N * K), T, N, K);
        near_check_all("dx", c.dx, dx, NULL, T * K, K);
        near_check_all("dw", c.dw, dw, c.w, N * K, K);
        near_check_all("dbias", c.dbias, dbias, c.bias, N, N);
        rooms_free(0);
    }
}

/* Claim: the plain body has the slopes of dx, dw and dbias.
 * Seen to fail with: columns of w shifted, dw or dbias stored. */
TEST_IF(linear_slopes, sizeof(real) == sizeof(double))
{
    struct linear c = draw_linear(9, 13, 11);
    struct near_forward f = { CALL(linear_forward, &c, 1, 3, OPERAND(reals(9 * 13), 9 * 13), OPERAND(c.x, 9 * 11),
                                   OPERAND(c.w, 13 * 11), OPERAND(c.bias, 13)),
                              { c.dy } };
    run_linear(&c);
    for (int64_t i = 0; i < c.rows * c.cols; i++) c.dw[i] -= c.w[i];
    for (int64_t i = 0; i < c.rows; i++) c.dbias[i] -= c.bias[i];
    near_check_forward("dx", &f, 1, c.dx);
    near_check_forward("dw", &f, 2, c.dw);
    near_check_forward("dbias", &f, 3, c.dbias);
    printf("  linear: slopes within %.1Le\n", near_worst_slope);
}

/* ---- rope */

struct ropes {
    int64_t T, heads, D, R;
};

static int rope_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct ropes *c = self;
    return back_of(plain)->rope(ctx, p[0], p[1], p[2], p[3], c->T, c->heads, c->D, c->R);
}

/* Goal:  the gradient is turned back; channels from R on are copied.
 * Given: R = D, R < D, one head and many, enough for four threads.
 * Claim: what rounding allows of the transposed matrix; channels from R on have the bits of dy; in place, too; in double
 *        the slopes of the plain body.
 * Seen to fail with: turned the same way again, zeros from R on. */
TEST(rope)
{
    static const struct ropes shapes[] = { { 1, 1, 2, 2 }, { 3, 2, 8, 4 }, { 7, 3, 20, 20 }, { 67, 64, 32, 16 } };
    for (int k = 0; k < 4; k++) {
        const struct ropes *c = &shapes[k];
        const int64_t n = c->T * c->heads * c->D, table = c->T * c->R / 2;
        real *dy = near_draw(n, 1), *x = near_draw(n, 1), *cosines = near_draw(table, 1000), *sines = reals(table),
             *dx = reals(n);
        for (int64_t i = 0; i < table; i++) {
            const double angle = (double)cosines[i];
            cosines[i] = (real)cos(angle);
            sines[i] = (real)sin(angle);
        }
        struct call call =
            CALL(rope_back, c, 1, 3, OPERAND(dx, n), OPERAND(dy, n), OPERAND(cosines, table), OPERAND(sines, table));
        call_in_place(&call, 0, 0);
        call_all(&call);
        struct near *want = near_zeros(n);
        twin_rope_back(want, widened(dy, n), widened(cosines, table), widened(sines, table), c->T, c->heads, c->D,
                       c->R);
        near_check_all("dx", dx, want, NULL, n, c->D);
        for (int64_t i = 0; i < n; i++)
            if (i % c->D >= c->R) ck_assert(same_reals(&dx[i], &dy[i], 1));
        struct near_forward f = { CALL(call_rope, KEPT(struct rope_values, c->T, c->heads, c->D, c->R), 1, 3,
                                       OPERAND(reals(n), n), OPERAND(x, n), OPERAND(cosines, table),
                                       OPERAND(sines, table)),
                                  { dy } };
        if (sizeof(real) == sizeof(double)) near_check_forward("rope", &f, 1, dx);
        rooms_free(0);
    }
}

/* ---- embed and scatter */

struct rows {
    int64_t T, H, V, M; /* V or M: rows of the embedding, or of the features */
    int32_t id;
};

static int embed_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct rows *c = self;
    return back_of(plain)->embed(ctx, p[0], p[1], p[2], c->T, c->V, c->H);
}

static int embed_forward(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct rows *c = self;
    const struct m3_weight w = near_weight(p[2], c->V, c->H);
    return ops_of(plain)->embed(ctx, p[0], p[1], &w, c->T);
}

static int scatter_back(struct m3_ctx *ctx, void *const *p, const void *self, int plain)
{
    const struct rows *c = self;
    return back_of(plain)->scatter(ctx, p[0], p[1], p[2], p[3], c->id, c->T, c->M, c->H);
}

/* Goal:  every row with an id adds to the row of that id.
 * Given: ids from a vocabulary of 1, 5 and 40, so that they repeat; 1, 7 and 300 rows; dw not 0.
 * Claim: what rounding allows of the sum; rows of ids that do not occur keep their bits; an id outside the vocabulary is
 *        refused with its row.
 * Seen to fail with: dw stored, the first row of an id alone, an id that is V let through. */
TEST(embed)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 7, 1, 3 }, { 7, 5, 17 }, { 300, 40, 449 } };
    for (int k = 0; k < 4; k++) {
        const struct rows c = { .T = shapes[k][0], .V = shapes[k][1], .H = shapes[k][2] };
        const int64_t n = c.T * c.H, n_w = c.V * c.H;
        real *dy = near_draw(n, 1), *before = near_draw(n_w, 1), *dw = reals(n_w);
        int32_t *ids = room(c.T, sizeof *ids);
        for (int64_t t = 0; t < c.T; t++) ids[t] = (int32_t)twin_pick(&near_state, k == 3 ? c.V - 1 : c.V);
        struct call call = CALL(embed_back, &c, 1, 2, ADDED(dw, n_w, before), OPERAND(dy, n), OPERAND(ids, c.T));
        call_all(&call);
        struct near *want = near_zeros(n_w);
        twin_embed_back(want, widened(dy, n), widened_ids(ids, c.T), c.T, c.H);
        near_check_all("dw", dw, want, before, n_w, c.H);
        for (int64_t row = 0; row < c.V; row++) {
            int64_t rows = 0;
            for (int64_t t = 0; t < c.T; t++) rows += ids[t] == row;
            ck_assert(rows || same_reals(dw + row * c.H, before + row * c.H, c.H));
        }
        ids[c.T - 1] = k % 2 ? -1 : (int32_t)c.V;
        call_refused(&call, M3_BAD_INPUT, c.T - 1, ANY, ANY);
        ck_assert_str_eq(call.failure.what, "id outside the vocabulary");
        rooms_free(0);
    }
}

/* Goal:  rows of the placeholder give their gradient to the features, in order, and nothing to the embedding.
 * Given: no, one, some and only placeholders in 1, 6 and 40 rows.
 * Claim: the bits of dy in df, exactly 0 in those rows of dx, the bits of dy in the others; either output alone; dx in
 *        place; another number of features is refused.
 * Seen to fail with: dx of the placeholder kept, df filled from the last row on. */
TEST(scatter)
{
    static const int64_t sizes[] = { 1, 6, 40 };
    for (int k = 0; k < 3 * 4; k++) {
        struct rows c = { .T = sizes[k % 3], .H = 5 + k, .id = 7 };
        int32_t *ids = room(c.T, sizeof *ids);
        for (int64_t t = 0; t < c.T; t++) {
            const int here = k / 3 == 3 || (k / 3 == 1 && t == c.T / 2) || (k / 3 == 2 && twin_pick(&near_state, 2));
            ids[t] = here ? 7 : (int32_t)t % 7;
            c.M += here;
        }
        const int64_t n = c.T * c.H;
        real *dy = near_draw(n, 1), *dx = reals(n), *df = reals(c.M * c.H);
        struct call call =
            CALL(scatter_back, &c, 2, 2, OPERAND(dx, n), OPERAND(df, c.M * c.H), OPERAND(dy, n), OPERAND(ids, c.T));
        call.optional = 3;
        call_in_place(&call, 0, 0);
        call_all(&call);
        for (int64_t t = 0, m = 0; t < c.T; t++) {
            if (ids[t] == 7) ck_assert(same_reals(df + m++ * c.H, dy + t * c.H, c.H));
            for (int64_t i = 0; i < c.H; i++) ck_assert(dx[t * c.H + i] == (ids[t] == 7 ? 0 : dy[t * c.H + i]));
        }
        c.M++;
        call_refused(&call, M3_BAD_INPUT, NOWHERE, ANY, ANY);
        ck_assert_str_eq(call.failure.what, "not as many placeholder ids as picture features");
    }
}

/* Claim: embed and scatter, two linear maps, have the slopes of dw, dx and df.
 * Seen to fail with: the first row of an id alone; as scatter. */
TEST_IF(rows_slopes, sizeof(real) == sizeof(double))
{
    enum { T = 23, H = 6, V = 4, N = T * H };
    int32_t ids[T];
    struct rows c = { .T = T, .H = H, .V = V };
    for (int t = 0; t < T; t++) ids[t] = (int32_t)twin_pick(&near_state, V), c.M += ids[t] == 0;
    real *dy = near_draw(N, 1), *w = near_draw(N, 1), *x = near_draw(N, 1), *dw = reals(N), *dx = reals(N);
    real *zeros = reals(N);
    struct call back = CALL(embed_back, &c, 1, 2, ADDED(dw, V * H, zeros), OPERAND(dy, N), OPERAND(ids, T));
    struct near_forward f = { CALL(embed_forward, &c, 1, 2, OPERAND(reals(N), N), OPERAND(ids, T), OPERAND(w, V * H)),
                              { dy } };
    call_with(&back, 1);
    near_check_forward("embed", &f, 2, dw);
    back = (struct call)CALL(scatter_back, &c, 2, 2, OPERAND(dx, N), OPERAND(dw, c.M * H), OPERAND(dy, N),
                             OPERAND(ids, T));
    f.call = (struct call)CALL(call_scatter, KEPT(struct scatter_values, 0, T, c.M, H), 1, 3, OPERAND(reals(N), N),
                               OPERAND(x, N), OPERAND(ids, T), OPERAND(w, c.M * H));
    call_with(&back, 1);
    near_check_forward("scatter, dx", &f, 1, dx);
    near_check_forward("scatter, df", &f, 3, dw);
}
