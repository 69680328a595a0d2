/* The derivatives of operators that work row by row, TRAINING 19.2 to 19.5, 19.12 and 19.14: against formulas in long
 * double, and in double against slopes of the plain bodies. */
#include "ops/backward.h"
#include "ops/operators.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

#include "near_twin.h"

TIMEOUT(60);

/* ---- norms */

enum norm { GEMMA, PLAIN, LAYER };
static const char *const norm_names[] = { "rms_norm", "rms_norm_plain", "layer_norm" };

struct norms {
    enum norm which;
    int64_t T, H;
    real eps;
    real *dy, *x, *w, *b;
};

struct norm_gradients {
    real *dx, *dw, *db;         /* dw and db hold numbers already */
};

static struct norms draw_norm(enum norm which, int64_t T, int64_t H, double size)
{
    return (struct norms){
        which, T, H, (real)1e-6, near_draw(T * H, 1), near_draw(T * H, size), near_draw(H, 1), near_draw(H, 1)
    };
}

static void free_norm(struct norms *c)
{
    real *all[] = { c->dy, c->x, c->w, c->b };
    for (int i = 0; i < 4; i++) free(all[i]);
}

static int call_norm(struct m3_ctx *ctx, const struct norms *c, real *dx, real *dw, real *db, const real *dy,
                     const real *x, const real *w)
{
    if (c->which == GEMMA) return m3_rms_norm_backward(ctx, dx, dw, dy, x, w, c->T, c->H, c->eps);
    if (c->which == PLAIN) return m3_rms_norm_plain_backward(ctx, dx, dw, dy, x, w, c->T, c->H, c->eps);
    return m3_layer_norm_backward(ctx, dx, dw, db, dy, x, w, c->T, c->H, c->eps);
}

/* wanted: 1 dx, 2 dw, 4 db. dw begins as w, db as b: both are added to. */
static struct norm_gradients run_norm(const struct norms *c, int wanted, int threads)
{
    const size_t row = (size_t)c->H * sizeof(real), all = row * (size_t)c->T;
    struct norm_gradients got = { near_room(c->T * c->H, sizeof(real)), near_room(c->H, sizeof(real)),
                                  near_room(c->H, sizeof(real)) };
    struct guard zones[6];
    real *dx = guard_output(&zones[0], all), *dw = guard_output(&zones[1], row), *db = guard_output(&zones[2], row);
    const real *dy = guard_input(&zones[3], c->dy, all), *x = guard_input(&zones[4], c->x, all),
               *w = guard_input(&zones[5], c->w, row);
    memcpy(dw, c->w, row);
    memcpy(db, c->b, row);
    struct m3_ctx ctx = near_ctx(threads);
    near_done(&ctx,
              call_norm(&ctx, c, wanted & 1 ? dx : NULL, wanted & 2 ? dw : NULL, wanted & 4 ? db : NULL, dy, x, w));
    memcpy(got.dx, dx, all);
    memcpy(got.dw, dw, row);
    memcpy(got.db, db, row);
    for (int i = 0; i < 6; i++) ck_assert_msg(guard_intact(&zones[i]), "guard or input %d", i);
    return got;
}

static void free_norm_gradients(struct norm_gradients *g)
{
    real *all[] = { g->dx, g->dw, g->db };
    for (int i = 0; i < 3; i++) free(all[i]);
}

/* n [H] := the normalised row t; returns what x - mean was multiplied by. */
static struct near normalised(struct near *n, const struct norms *c, int64_t t)
{
    const real *x = c->x + t * c->H;
    const struct near H = near_of((double)c->H);
    struct near mean = near_of(0), squares = near_of(0);
    for (int64_t i = 0; i < c->H && c->which == LAYER; i++) mean = near_plus(mean, near_of((double)x[i]));
    mean = near_over(mean, H);
    for (int64_t i = 0; i < c->H; i++) {
        n[i] = near_plus(near_of((double)x[i]), near_minus(mean));
        squares = near_plus(squares, near_times(n[i], n[i]));
    }
    const struct near r = near_over(near_of(1), near_root(near_plus(near_over(squares, H), near_of((double)c->eps))));
    for (int64_t i = 0; i < c->H; i++) n[i] = near_times(n[i], r);
    return r;
}

/* dx [H] of row t by the matrix of derivatives, r ([i = j] - n_i n_j / H), in layer_norm also - r / H. */
static void norm_formula(struct near *dx, const struct norms *c, int64_t t, const struct near *n, struct near r)
{
    const struct near H = near_of((double)c->H), one = near_of(c->which == GEMMA);
    for (int64_t j = 0; j < c->H; j++) {
        dx[j] = near_of(0);
        for (int64_t i = 0; i < c->H; i++) {
            const struct near g =
                near_times(near_of((double)c->dy[t * c->H + i]), near_plus(one, near_of((double)c->w[i])));
            struct near by = near_minus(near_over(near_times(n[i], n[j]), H));
            if (c->which == LAYER) by = near_plus(by, near_minus(near_over(near_of(1), H)));
            if (i == j) by = near_plus(by, near_of(1));
            dx[j] = near_plus(dx[j], near_times(g, near_times(r, by)));
        }
    }
}

static void check_norm(const struct norms *c, const struct norm_gradients *got)
{
    const int64_t T = c->T, H = c->H;
    struct near *n = near_room(H, sizeof *n), *dx = near_room(H, sizeof *n), *dw = near_room(H, sizeof *n),
                *db = near_room(H, sizeof *n);
    for (int64_t t = 0; t < T; t++) {
        const struct near r = normalised(n, c, t);
        const int looked_at = T < 100 || t % 16 == 0;       /* H^2 products a row */
        if (looked_at) norm_formula(dx, c, t, n, r);
        for (int64_t i = 0; i < H; i++) {
            const struct near dy = near_of((double)c->dy[t * H + i]);
            if (looked_at) near_check(norm_names[c->which], t, i, got->dx[t * H + i], near_stored(dx[i]));
            dw[i] = near_plus(dw[i], near_times(dy, n[i]));
            db[i] = near_plus(db[i], dy);
        }
    }
    for (int64_t i = 0; i < H; i++) {
        near_check("dw", 0, i, got->dw[i], near_stored(near_plus(near_of((double)c->w[i]), dw[i])));
        if (c->which == LAYER)
            near_check("db", 0, i, got->db[i], near_stored(near_plus(near_of((double)c->b[i]), db[i])));
    }
    void *all[] = { n, dx, dw, db };
    for (int i = 0; i < 4; i++) free(all[i]);
}

/* Goal:  the three norms; dw and db are added to what is there.
 * Given: T and H 1, odd, prime, enough for four threads; x to 3, and to 0.001, where eps matters; dw and db not 0.
 * Claim: what rounding allows of the matrix of derivatives; the same bits with 4 threads, for one output alone, and
 *        with dx in the place of dy.
 * Seen to fail with: the term of mean(g n) dropped, w for 1 + w, no eps, no mean of g, dw or db stored. */
TEST(norm_formulas)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 3, 2 }, { 7, 33 }, { 41, 17 }, { 1037, 127 } };
    for (int k = 0; k < 5 * 3 * 2; k++) {
        const int64_t T = shapes[k % 5][0], H = shapes[k % 5][1];
        struct norms c = draw_norm((enum norm)(k / 5 % 3), T, H, k / 15 ? 0.001 : 3);
        struct norm_gradients got = run_norm(&c, 7, 1), four = run_norm(&c, 7, 4);
        check_norm(&c, &got);
        ck_assert(near_same(got.dx, four.dx, T * H) && near_same(got.dw, four.dw, H));
        if (c.which == LAYER) ck_assert(near_same(got.db, four.db, H));
        for (int wanted = 1; wanted <= 4; wanted *= 2) {
            struct norm_gradients part = run_norm(&c, wanted, 1);
            ck_assert(wanted != 1 || near_same(got.dx, part.dx, T * H));
            ck_assert(near_same(wanted == 2 ? got.dw : c.w, part.dw, H));
            if (c.which == LAYER) ck_assert(near_same(wanted == 4 ? got.db : c.b, part.db, H));
            free_norm_gradients(&part);
        }
        struct m3_ctx ctx = near_ctx(4);
        near_done(&ctx, call_norm(&ctx, &c, c.dy, c.w, c.b, c.dy, c.x, memcpy(four.dw, c.w, (size_t)H * sizeof(real))));
        ck_assert(near_same(got.dx, c.dy, T * H) && near_same(got.dw, c.w, H));
        free_norm_gradients(&got);
        free_norm_gradients(&four);
        free_norm(&c);
    }
}

static long double norm_loss(void *self)
{
    const struct norms *c = self;
    real *y = near_room(c->T * c->H, sizeof *y);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, c->which == GEMMA   ? m3_rms_norm(&ctx, y, c->x, c->w, c->T, c->H, c->eps)
                    : c->which == PLAIN ? m3_rms_norm_plain(&ctx, y, c->x, c->w, c->T, c->H, c->eps)
                                        : m3_layer_norm(&ctx, y, c->x, c->w, c->b, c->T, c->H, c->eps));
    for (int64_t i = 0; i < c->T * c->H; i++) sum += (long double)c->dy[i] * y[i];
    free(y);
    return sum;
}

/* Claim: the plain bodies have the slopes of dx, dw and db.  Seen to fail with: as norm_formulas, in double. */
TEST_IF(norm_slopes, sizeof(real) == sizeof(double))
{
    for (int k = 0; k < 3; k++) {
        struct norms c = draw_norm((enum norm)k, 5, 31, 3);
        c.eps = (real)0.01;
        struct norm_gradients got = run_norm(&c, 7, 1);
        for (int64_t i = 0; i < c.H; i++) got.dw[i] -= c.w[i], got.db[i] -= c.b[i];
        near_check_slopes(norm_names[k], c.x, got.dx, c.T * c.H, norm_loss, &c);
        near_check_slopes("dw", c.w, got.dw, c.H, norm_loss, &c);
        if (c.which == LAYER) near_check_slopes("db", c.b, got.db, c.H, norm_loss, &c);
        free_norm_gradients(&got);
        free_norm(&c);
    }
    printf("  norms: slopes within %.1Le\n", near_worst_slope);
}

/* ---- linear */

struct linear {
    int64_t T, rows, cols;
    real *dy, *x, *w, *bias;
    struct m3_weight weight;    /* of w, or of what it was stored as */
};

struct linear_gradients {
    real *dx, *dw, *dbias;
};

static struct linear draw_linear(int64_t T, int64_t rows, int64_t cols)
{
    struct linear c = {
        T,    rows, cols, near_draw(T * rows, 1), near_draw(T * cols, 1), near_draw(rows * cols, 1), near_draw(rows, 1),
        { 0 }
    };
    c.weight = near_weight(c.w, rows, cols);
    return c;
}

static void free_linear(struct linear *c)
{
    real *all[] = { c->dy, c->x, c->w, c->bias };
    for (int i = 0; i < 4; i++) free(all[i]);
}

/* wanted: 1 dx, 2 dw, 4 dbias. dw begins as w, dbias as bias. */
static struct linear_gradients run_linear(const struct linear *c, int wanted, int threads)
{
    const int64_t T = c->T, N = c->rows, K = c->cols;
    struct linear_gradients got = { near_room(T * K, sizeof(real)), near_room(N * K, sizeof(real)),
                                    near_room(N, sizeof(real)) };
    struct guard zones[5];
    real *dx = guard_output(&zones[0], (size_t)(T * K) * sizeof(real)),
         *dw = guard_output(&zones[1], (size_t)(N * K) * sizeof(real)),
         *dbias = guard_output(&zones[2], (size_t)N * sizeof(real));
    const real *dy = guard_input(&zones[3], c->dy, (size_t)(T * N) * sizeof(real)),
               *x = guard_input(&zones[4], c->x, (size_t)(T * K) * sizeof(real));
    memcpy(dw, c->w, (size_t)(N * K) * sizeof(real));
    memcpy(dbias, c->bias, (size_t)N * sizeof(real));
    struct m3_ctx ctx = near_ctx(threads);
    near_done(&ctx, m3_linear_backward(&ctx, wanted & 1 ? dx : NULL, wanted & 2 ? dw : NULL, wanted & 4 ? dbias : NULL,
                                       dy, wanted & 2 ? x : NULL, &c->weight, T));
    memcpy(got.dx, dx, (size_t)(T * K) * sizeof(real));
    memcpy(got.dw, dw, (size_t)(N * K) * sizeof(real));
    memcpy(got.dbias, dbias, (size_t)N * sizeof(real));
    for (int i = 0; i < 5; i++) ck_assert_msg(guard_intact(&zones[i]), "guard or input %d", i);
    return got;
}

static void free_linear_gradients(struct linear_gradients *g)
{
    real *all[] = { g->dx, g->dw, g->dbias };
    for (int i = 0; i < 3; i++) free(all[i]);
}

static void check_linear(const struct linear *c, const struct linear_gradients *got)
{
    const int64_t T = c->T, N = c->rows, K = c->cols;
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) {
            struct near sum = near_of(0);
            for (int64_t n = 0; n < N; n++)
                sum = near_plus(sum, near_times(near_of((double)c->dy[t * N + n]), near_of((double)c->w[n * K + k])));
            near_check("dx", t, k, got->dx[t * K + k], near_stored(sum));
        }
    for (int64_t n = 0; n < N; n++) {
        struct near sum_b = near_of(0);
        for (int64_t k = 0; k < K; k++) {
            struct near sum = near_of(0);
            for (int64_t t = 0; t < T; t++)
                sum = near_plus(sum, near_times(near_of((double)c->dy[t * N + n]), near_of((double)c->x[t * K + k])));
            near_check("dw", n, k, got->dw[n * K + k], near_stored(near_plus(near_of((double)c->w[n * K + k]), sum)));
        }
        for (int64_t t = 0; t < T; t++) sum_b = near_plus(sum_b, near_of((double)c->dy[t * N + n]));
        near_check("dbias", 0, n, got->dbias[n], near_stored(near_plus(near_of((double)c->bias[n]), sum_b)));
    }
}

/* Goal:  all three gradients; dw and dbias are added to; a weight as it is stored.
 * Given: T, rows and cols 1, odd, around the 16 rows of a piece, enough for four threads; dw and dbias not 0; a BF16
 *        weight.
 * Claim: what rounding allows of the sums; the same bits with 4 threads and for one output alone.
 * Seen to fail with: columns of w shifted, dw or dbias stored, the last row of a piece left out. */
TEST(linear_formula)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },   { 2, 3, 5 },     { 15, 7, 4 },  { 16, 4, 7 },
                                         { 17, 33, 9 }, { 257, 61, 67 }, { 33, 67, 61 } };
    for (int k = 0; k < 7 * 2; k++) {
        struct linear c = draw_linear(shapes[k % 7][0], shapes[k % 7][1], shapes[k % 7][2]);
        const int64_t n_dx = c.T * c.cols, n_dw = c.rows * c.cols;
        uint16_t *stored = near_room(n_dw, sizeof *stored);
        if (k / 7) {            /* the weight is bf16: the upper half of a float's bits */
            for (int64_t i = 0; i < n_dw; i++) {
                float value = (float)c.w[i];
                uint32_t bits;
                memcpy(&bits, &value, sizeof bits);
                stored[i] = (uint16_t)(bits >> 16);
                bits = (uint32_t)stored[i] << 16;
                memcpy(&value, &bits, sizeof bits);
                c.w[i] = (real)value;
            }
            c.weight.data = stored;
            c.weight.dtype = M3_BF16;
        }
        struct linear_gradients got = run_linear(&c, 7, 1), four = run_linear(&c, 7, 4);
        check_linear(&c, &got);
        ck_assert(near_same(got.dx, four.dx, n_dx) && near_same(got.dw, four.dw, n_dw) &&
                  near_same(got.dbias, four.dbias, c.rows));
        for (int wanted = 1; wanted <= 4; wanted *= 2) {
            struct linear_gradients part = run_linear(&c, wanted, 1);
            ck_assert(wanted != 1 || near_same(got.dx, part.dx, n_dx));
            ck_assert(near_same(wanted == 2 ? got.dw : c.w, part.dw, n_dw));
            ck_assert(near_same(wanted == 4 ? got.dbias : c.bias, part.dbias, c.rows));
            free_linear_gradients(&part);
        }
        free_linear_gradients(&got);
        free_linear_gradients(&four);
        free(stored);
        free_linear(&c);
    }
}

static long double linear_loss(void *self)
{
    const struct linear *c = self;
    real *y = near_room(c->T * c->rows, sizeof *y);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, m3_linear(&ctx, y, c->x, &c->weight, c->bias, c->T));
    for (int64_t i = 0; i < c->T * c->rows; i++) sum += (long double)c->dy[i] * y[i];
    free(y);
    return sum;
}

/* Claim: the plain body has the slopes of dx, dw and dbias.
 * Seen to fail with: columns of w shifted, dw or dbias stored. */
TEST_IF(linear_slopes, sizeof(real) == sizeof(double))
{
    struct linear c = draw_linear(9, 13, 11);
    struct linear_gradients got = run_linear(&c, 7, 1);
    for (int64_t i = 0; i < c.rows * c.cols; i++) got.dw[i] -= c.w[i];
    for (int64_t i = 0; i < c.rows; i++) got.dbias[i] -= c.bias[i];
    near_check_slopes("dx", c.x, got.dx, c.T * c.cols, linear_loss, &c);
    near_check_slopes("dw", c.w, got.dw, c.rows * c.cols, linear_loss, &c);
    near_check_slopes("dbias", c.bias, got.dbias, c.rows, linear_loss, &c);
    free_linear_gradients(&got);
    free_linear(&c);
    printf("  linear: slopes within %.1Le\n", near_worst_slope);
}

/* ---- rope */

struct ropes {
    int64_t T, heads, D, R;
    real *dy, *x, *cos, *sin;
};

static struct ropes draw_rope(int64_t T, int64_t heads, int64_t D, int64_t R)
{
    struct ropes c = { T,
                       heads,
                       D,
                       R,
                       near_draw(T * heads * D, 1),
                       near_draw(T * heads * D, 1),
                       near_draw(T * R / 2, 1),
                       near_draw(T * R / 2, 1) };
    for (int64_t i = 0; i < T * R / 2; i++) {
        const double angle = 1000 * (double)c.cos[i];
        c.cos[i] = (real)cos(angle);
        c.sin[i] = (real)sin(angle);
    }
    return c;
}

static void free_rope(struct ropes *c)
{
    real *all[] = { c->dy, c->x, c->cos, c->sin };
    for (int i = 0; i < 4; i++) free(all[i]);
}

static real *run_rope(const struct ropes *c, int threads)
{
    const size_t size = (size_t)(c->T * c->heads * c->D) * sizeof(real),
                 table = (size_t)(c->T * c->R / 2) * sizeof(real);
    real *got = near_room(c->T * c->heads * c->D, sizeof *got);
    struct guard zones[4];
    real *dx = guard_output(&zones[0], size);
    const real *dy = guard_input(&zones[1], c->dy, size), *cosines = guard_input(&zones[2], c->cos, table),
               *sines = guard_input(&zones[3], c->sin, table);
    struct m3_ctx ctx = near_ctx(threads);
    near_done(&ctx, m3_rope_backward(&ctx, dx, dy, cosines, sines, c->T, c->heads, c->D, c->R));
    memcpy(got, dx, size);
    for (int i = 0; i < 4; i++) ck_assert_msg(guard_intact(&zones[i]), "guard or input %d", i);
    return got;
}

/* What channel j of a head gives channel i in the forward pass. */
static double turned(const struct ropes *c, int64_t t, int64_t i, int64_t j)
{
    const int64_t half = c->R / 2;
    if (i >= c->R || j >= c->R) return i == j;
    const double co = (double)c->cos[t * half + j % half], si = (double)c->sin[t * half + j % half];
    if (i % half != j % half) return 0;
    return i == j ? co : i < j ? -si : si;
}

static long double rope_loss(void *self)
{
    const struct ropes *c = self;
    const int64_t n = c->T * c->heads * c->D;
    real *y = near_room(n, sizeof *y);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, m3_rope(&ctx, y, c->x, c->cos, c->sin, c->T, c->heads, c->D, c->R));
    for (int64_t i = 0; i < n; i++) sum += (long double)c->dy[i] * y[i];
    free(y);
    return sum;
}

/* Goal:  the gradient is turned back; channels from R on are copied.
 * Given: R = D, R < D, one head and many, enough for four threads.
 * Claim: what rounding allows of the transposed matrix; channels from R on have the bits of dy; the same bits with 4
 *        threads and in place; in double the slopes of the plain body.
 * Seen to fail with: turned the same way again, zeros from R on. */
TEST(rope)
{
    static const int64_t shapes[][4] = { { 1, 1, 2, 2 }, { 3, 2, 8, 4 }, { 7, 3, 20, 20 }, { 67, 64, 32, 16 } };
    for (int k = 0; k < 4; k++) {
        struct ropes c = draw_rope(shapes[k][0], shapes[k][1], shapes[k][2], shapes[k][3]);
        const int64_t D = c.D, rows = c.T * c.heads;
        real *got = run_rope(&c, 1), *four = run_rope(&c, 4);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t j = 0; j < D; j++) {
                struct near want = near_of(0);
                for (int64_t i = 0; i < D; i++)
                    want = near_plus(want, near_stored(near_times(near_of((double)c.dy[row * D + i]),
                                                                  near_of(turned(&c, row / c.heads, i, j)))));
                near_check("dx", row, j, got[row * D + j], near_stored(want));
                if (j >= c.R) ck_assert(got[row * D + j] == c.dy[row * D + j]);
            }
        ck_assert(near_same(got, four, rows * D));
        if (sizeof(real) == sizeof(double)) near_check_slopes("rope", c.x, got, rows * D, rope_loss, &c);
        struct m3_ctx ctx = near_ctx(4);
        near_done(&ctx, m3_rope_backward(&ctx, c.dy, c.dy, c.cos, c.sin, c.T, c.heads, c.D, c.R));
        ck_assert(near_same(got, c.dy, rows * D));
        free(got);
        free(four);
        free_rope(&c);
    }
}

/* ---- embed and scatter */

/* Goal:  every row with an id adds to the row of that id.
 * Given: ids from a vocabulary of 1, 5 and 40, so that they repeat; 1, 7 and 300 rows; dw not 0; four threads.
 * Claim: what rounding allows of the sum; rows of ids that do not occur keep their bits; the same bits with 4 threads;
 *        an id outside the vocabulary is refused with its row.
 * Seen to fail with: dw stored, the first row of an id alone, an id that is V let through. */
TEST(embed)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 7, 1, 3 }, { 7, 5, 17 }, { 300, 40, 449 } };
    for (int k = 0; k < 4; k++) {
        const int64_t T = shapes[k][0], V = shapes[k][1], H = shapes[k][2];
        real *source = near_draw(T * H, 1), *before = near_draw(V * H, 1), *four = near_room(V * H, sizeof *four);
        int32_t *ids = near_room(T, sizeof *ids);
        for (int64_t t = 0; t < T; t++) ids[t] = (int32_t)twin_pick(&near_state, k == 3 ? V - 1 : V);
        struct guard zones[3];
        real *dw = guard_output(&zones[0], (size_t)(V * H) * sizeof *dw);
        const real *dy = guard_input(&zones[1], source, (size_t)(T * H) * sizeof *dy);
        const int32_t *held = guard_input(&zones[2], ids, (size_t)T * sizeof *ids);
        struct m3_ctx ctx = near_ctx(1);
        memcpy(dw, before, (size_t)(V * H) * sizeof *dw);
        near_done(&ctx, m3_embed_backward(&ctx, dw, dy, held, T, V, H));
        for (int64_t i = 0; i < V * H; i++) {
            struct near sum = near_of(0);
            int64_t rows = 0;
            for (int64_t t = 0; t < T; t++)
                if (ids[t] == i / H) sum = near_plus(sum, near_of((double)source[t * H + i % H])), rows++;
            if (rows) near_check("dw", i / H, i % H, dw[i], near_stored(near_plus(near_of((double)before[i]), sum)));
            else ck_assert(memcmp(&dw[i], &before[i], sizeof *dw) == 0);
        }
        ctx = near_ctx(4);
        memcpy(four, before, (size_t)(V * H) * sizeof *dw);
        near_done(&ctx, m3_embed_backward(&ctx, four, dy, held, T, V, H));
        ck_assert(near_same(dw, four, V * H));
        for (int i = 0; i < 3; i++) ck_assert(guard_intact(&zones[i]));
        ctx = near_ctx(1);
        ids[T - 1] = k % 2 ? -1 : (int32_t)V;
        near_refused(&ctx, m3_embed_backward(&ctx, four, source, ids, T, V, H), M3_BAD_INPUT,
                     "id outside the vocabulary", T - 1);
        void *all[] = { source, before, four, ids };
        for (int i = 0; i < 4; i++) free(all[i]);
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
        const int64_t T = sizes[k % 3], H = 5 + k;
        int32_t *ids = near_room(T, sizeof *ids);
        int64_t M = 0;
        for (int64_t t = 0; t < T; t++) {
            ids[t] = k / 3 == 3 || (k / 3 == 1 && t == T / 2) || (k / 3 == 2 && twin_pick(&near_state, 2))
                         ? 7
                         : (int32_t)t % 7;
            M += ids[t] == 7;
        }
        real *dy = near_draw(T * H, 1), *placed = near_room(T * H, sizeof *placed);
        struct guard zones[3];
        real *dx = guard_output(&zones[0], (size_t)(T * H) * sizeof *dx),
             *df = guard_output(&zones[1], (size_t)(M * H) * sizeof *df);
        const int32_t *held = guard_input(&zones[2], ids, (size_t)T * sizeof *ids);
        struct m3_ctx ctx = near_ctx(1);
        ck_assert_int_eq(m3_scatter_backward(&ctx, dx, NULL, dy, held, 7, T, M, H), M3_OK);
        ck_assert_int_eq(m3_scatter_backward(&ctx, NULL, df, dy, held, 7, T, M, H), M3_OK);
        for (int64_t t = 0, m = 0; t < T; t++)
            for (int64_t i = 0; i < H; i++) {
                const int feature = ids[t] == 7;
                if (feature) ck_assert(df[m * H + i] == dy[t * H + i]);
                ck_assert(dx[t * H + i] == (feature ? 0 : dy[t * H + i]));
                m += feature && i == H - 1;
            }
        memcpy(placed, dy, (size_t)(T * H) * sizeof *dy);
        memset(df, 0xFF, (size_t)(M * H) * sizeof *df);
        ck_assert_int_eq(m3_scatter_backward(&ctx, placed, df, placed, held, 7, T, M, H), M3_OK);
        ck_assert(near_same(placed, dx, T * H));
        for (int64_t t = 0, m = 0; t < T; t++)
            if (ids[t] == 7) ck_assert(near_same(df + m++ * H, dy + t * H, H));
        near_refused(&ctx, m3_scatter_backward(&ctx, dx, df, dy, held, 7, T, M + 1, H), M3_BAD_INPUT,
                     "not as many placeholder ids as picture features", -1);
        for (int i = 0; i < 3; i++) ck_assert(guard_intact(&zones[i]));
        void *all[] = { dy, placed, ids };
        for (int i = 0; i < 3; i++) free(all[i]);
    }
}

/* Two linear maps, whose slopes are exact up to rounding. */
struct rows {
    int64_t T, H, V;
    int scatters;
    int32_t *ids;
    real *dy, *w, *x;           /* w: the embedding [V,H], or the features [M,H] */
    int64_t M;
};

static long double rows_loss(void *self)
{
    const struct rows *c = self;
    const struct m3_weight w = near_weight(c->w, c->V, c->H);
    real *y = near_room(c->T * c->H, sizeof *y);
    long double sum = 0;
    struct m3_ctx ctx = near_ctx(1);
    near_done(&ctx, c->scatters ? m3_scatter(&ctx, y, c->x, c->ids, c->w, 0, c->T, c->M, c->H)
                                : m3_embed(&ctx, y, c->ids, &w, c->T));
    for (int64_t i = 0; i < c->T * c->H; i++) sum += (long double)c->dy[i] * y[i];
    free(y);
    return sum;
}

/* Claim: embed and scatter have the slopes of dw, dx and df.
 * Seen to fail with: the first row of an id alone; as scatter. */
TEST_IF(rows_slopes, sizeof(real) == sizeof(double))
{
    enum { T = 23, H = 6, V = 4 };
    int32_t ids[T];
    struct rows c = { T, H, V, 0, ids, near_draw(T * H, 1), near_draw(T * H, 1), near_draw(T * H, 1), 0 };
    for (int t = 0; t < T; t++) ids[t] = (int32_t)twin_pick(&near_state, V), c.M += ids[t] == 0;
    real *dw = near_room(T * H, sizeof *dw), *dx = near_room(T * H, sizeof *dx);
    struct m3_ctx ctx = near_ctx(1);
    ck_assert_int_eq(m3_embed_backward(&ctx, dw, c.dy, ids, T, V, H), M3_OK);
    near_check_slopes("embed", c.w, dw, V * H, rows_loss, &c);
    c.scatters = 1;
    near_done(&ctx, m3_scatter_backward(&ctx, dx, dw, c.dy, ids, 0, T, c.M, H));
    near_check_slopes("scatter, dx", c.x, dx, T * H, rows_loss, &c);
    near_check_slopes("scatter, df", c.w, dw, c.M * H, rows_loss, &c);
    void *all[] = { c.dy, c.w, c.x, dw, dx };
    for (int i = 0; i < 5; i++) free(all[i]);
}
