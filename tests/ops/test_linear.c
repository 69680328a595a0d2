/* linear, SPEC 5.4, both bodies: against the formula in long double, against the loop of "Order" in real, and with
 * integers, where every order of summation is exact. */
#include "op_driver.h"

#include <float.h>

#include "formula_twin.h"
#include "stored_twin.h"

TIMEOUT(120);

struct shape {
    int64_t T, rows, cols;
};

/* bias may be NULL. */
static void run(real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T, enum m3_linear body)
{
    const struct linear_values d = { T };
    struct call c = CALL(call_linear, &d, 1, 3, OPERAND(y, T * w->rows), OPERAND(x, T * w->cols), OPERAND(w, 1),
                         OPERAND(bias, bias ? w->rows : 0));
    c.linear = body;
    c.blas = body != M3_LINEAR_ORDERED;
    call_all(&c);
}

/* ---- the twins. w [rows,cols] holds the expanded matrix, each number rounded once to real. */

static real *expanded(const struct stored *s)
{
    real *w = reals(s->rows * s->cols);
    for (int64_t n = 0; n < s->rows; n++)
        for (int64_t k = 0; k < s->cols; k++) w[n * s->cols + k] = (real)stored_value(s, n, k);
    return w;
}

/* The bits of the ordered body: product and sum are rounded each (no compiler may contract: volatile). */
static real ordered(const real *x, const real *w, const real *bias, int64_t cols)
{
    real s = 0;
    for (int64_t k = 0; k < cols; k++) {
        volatile real product = w[k] * x[k];
        s = s + product;
    }
    return bias ? s + *bias : s;
}

/* A random matrix of this kind, random x and bias: both bodies, three numbers of threads, with and without bias. Any
 * order of summation stays within (cols + 1 for a bias) u B; that a scaled weight is rounded is in w already. */
static void check_shape(enum stored_kind kind, struct shape d, int shift, uint64_t *state)
{
    const char *name = stored_types[kind].name;
    const int64_t count = d.T * d.rows;
    struct stored s;
    stored_make(&s, kind, d.rows, d.cols);
    stored_random(&s, state);
    stored_give(&s, shift);
    real *w = expanded(&s), *x = drawn(d.T * d.cols, 1, state), *bias = drawn(d.rows, 1, state), *y = reals(count);
    long double *want = room(count, sizeof *want), *B = room(count, sizeof *B);
    const double *wide_x = widened(x, d.T * d.cols), *wide_w = widened(w, d.rows * d.cols);
    for (int64_t i = 0; i < count; i++)
        want[i] = twin_dot(&B[i], wide_w + i % d.rows * d.cols, wide_x + i / d.rows * d.cols, d.cols);
    for (int with_bias = 0; with_bias < 2; with_bias++)
        for (int body = M3_LINEAR_BLAS; body <= TWIN_LAST_BODY; body++) {
            run(y, x, &s.weight, with_bias ? bias : NULL, d.T, (enum m3_linear)body);
            for (int64_t i = 0; i < count; i++) {
                const int64_t t = i / d.rows, n = i % d.rows;
                const long double bias_n = with_bias ? bias[n] : 0;
                twin_check(name, t, n, y[i], want[i] + bias_n,
                           (d.cols + with_bias) * twin_roundoff() * (B[i] + fabsl(bias_n)));
                if (body == M3_LINEAR_ORDERED)
                    twin_check_same(name, t, n, y[i],
                                    ordered(x + t * d.cols, w + n * d.cols, with_bias ? bias + n : NULL, d.cols));
            }
        }
    ck_assert(stored_intact(&s));
    rooms_free(0);
}

/* Goal:  both bodies are the matrix product, whatever the shape against panels and vectors.
 * Given: F32, random; all rows and cols of 1, 3, 17, 127, 257, 521, and longer ones; T = 1, 2, 31, 32, 33, 67 in turn.
 * Claim: within (cols + 1 for a bias) u (|w| |x| + |bias|); `ordered` has the bits of the plain loop; threads change
 * no        bit of either.
 * Seen to fail with columns beyond 512 or an odd last one left out, the last row of a long matrix not written, a
 * transposed matrix, x rounded to BF16, no bias, one element too many, one bit off with five threads, all in either
 * body; in `ordered` alone with fused multiply-add, two partial sums, a sum in long double, the bias first. */
TEST(shapes_bodies_and_threads)
{
    static const int64_t sides[] = { 1, 3, 17, 127, 257, 521 }, heights[] = { 1, 2, 31, 32, 33, 67 };
    static const struct shape longer[] = { { 2, 5, 6151 }, { 3, 2053, 7 }, { 521, 17, 33 }, { 1, 2053, 521 } };
    uint64_t state = 54;
    for (int r = 0; r < 6; r++)
        for (int c = 0; c < 6; c++) {
            const struct shape d = { heights[(r + c) % 6], sides[r], sides[c] };
            check_shape(STORED_F32, d, r % 2, &state);
        }
    for (int T = 0; T < 6; T++) {
        const struct shape d = { heights[T], 127, 257 };
        check_shape(STORED_F32, d, 0, &state);
    }
    for (int i = 0; i < 4; i++) check_shape(STORED_F32, longer[i], 0, &state);
}

/* Goal:  many rows, which are cut as well as the outputs, and long ones, whose sums are cut: around the cuts, with more
 *        outputs than a panel, expanded or as stored.
 * Seen to fail with no bias, with the last row left out, with outputs beyond a panel left out, with the first piece of
 * x for all, with stored rows as far apart as an expanded piece, and with their first piece for all. */
TEST(many_rows)
{
    static const struct shape tall[] = { { 1023, 3, 5 },  { 1024, 641, 3 },  { 1537, 1283, 5 },
                                         { 6145, 17, 3 }, { 33, 259, 4099 }, { 1025, 3, 6151 } };
    uint64_t state = 55;
    for (int i = 0; i < 6; i += TWIN_IN_ORDER ? 1 : 5) {        /* kernels cut nothing: they get two */
        check_shape(STORED_F32, tall[i], 0, &state);
        check_shape(STORED_BF16, tall[i], i % 2, &state);
    }
}

/* Goal:  every stored type, unaligned too, with partial edge blocks of scales.
 * Given: random codes of all types; sides below, at and beyond 32 and 128; data 0 to 3 bytes off alignment.
 * Claim: as above, the weights being the stored numbers by their definition, rounded once to real.
 * Seen to fail with scales left out, divided by, transposed, or their number rounded down at the edge; weights rounded
 * to BF16, F64 truncated; in double weights by way of float. */
TEST(types_and_partial_blocks)
{
    static const struct shape shapes[] = {
        { 1, 1, 1 },     { 3, 3, 17 },    { 2, 127, 128 }, { 33, 129, 31 },  { 31, 131, 257 },
        { 1, 257, 521 }, { 5, 128, 127 }, { 2, 3, 6151 },  { 67, 257, 130 },
    };
    uint64_t state = 33;
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++)
        for (int i = 0; i < 9 && stored_taken(kind); i++) check_shape(kind, shapes[i], i % 4, &state);
}

/* Goal:  both bodies are exact where every order of summation is.
 * Given: integers of at most 31 in x, weights and bias: all partial sums are integers below 2^24.
 * Claim: equal to sums of 64-bit integers.
 * Seen to fail with columns beyond 512 or an odd last one left out, the last row of a long matrix not written,
 * products off by 2^-20, no bias, scales as above. */
TEST(integers_are_exact)
{
    static const struct shape shapes[] = {
        { 1, 1, 1 },      { 2, 3, 17 },    { 31, 17, 3 },  { 32, 127, 257 }, { 33, 257, 127 },
        { 17, 521, 521 }, { 1, 521, 521 }, { 2, 1, 6151 }, { 67, 1, 33 },
    };
    uint64_t state = 31;
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++)
        for (int i = 0; i < 9 && stored_taken(kind); i++) {
            const struct shape d = shapes[i];
            struct stored s;
            stored_make(&s, kind, d.rows, d.cols);
            stored_integers(&s, &state);
            stored_give(&s, (i + 1) % 4);
            real *x = reals(d.T * d.cols), *bias = reals(d.rows), *y = reals(d.T * d.rows), *w = expanded(&s);
            int64_t *sums = room(d.T * d.rows, sizeof *sums);
            for (int64_t j = 0; j < d.T * d.cols; j++) x[j] = (real)(twin_pick(&state, 63) - 31);
            for (int64_t j = 0; j < d.rows; j++) bias[j] = (real)(twin_pick(&state, 63) - 31);
            for (int64_t j = 0; j < d.T * d.rows; j++)
                for (int64_t k = 0; k < d.cols; k++)
                    sums[j] += (int64_t)x[j / d.rows * d.cols + k] * (int64_t)w[j % d.rows * d.cols + k];
            for (int call = 0; call < 4; call++) {
                const int with_bias = call % 2;
                const enum m3_linear body = call < 2 || !TWIN_LAST_BODY ? M3_LINEAR_BLAS : M3_LINEAR_ORDERED;
                run(y, x, &s.weight, with_bias ? bias : NULL, d.T, body);
                for (int64_t j = 0; j < d.T * d.rows; j++)
                    twin_check(stored_types[kind].name, j / d.rows, j % d.rows, y[j],
                               sums[j] + (with_bias ? bias[j % d.rows] : 0), 0);
            }
            ck_assert(stored_intact(&s));
            rooms_free(0);
        }
}

/* Goal:  with `ordered`, a row alone has the bits that it has in a batch.
 * Given: T = 67 rows at once; the same rows one by one, and in pieces of 32, 33 and 2.
 * Claim: equal bits, with every stored type.
 * Seen to fail with two partial sums from 33 rows on. */
TEST_IF(ordered_row_alone, TWIN_IN_ORDER)
{
    enum { T = 67, ROWS = 131, COLS = 257 };
    static real x[T * COLS], batch[T * ROWS], pieces[T * ROWS];
    static const int64_t cuts[][4] = { { 1, 1, 1, 64 }, { 32, 33, 1, 1 }, { 33, 32, 2, 0 } };
    uint64_t state = 67;
    for (int i = 0; i < T * COLS; i++) x[i] = (real)twin_fine(&state);
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++) {
        struct stored s;
        stored_make(&s, kind, ROWS, COLS);
        stored_random(&s, &state);
        stored_give(&s, 1);
        run(batch, x, &s.weight, NULL, T, M3_LINEAR_ORDERED);
        for (int cut = -1; cut < 3; cut++) {
            for (int64_t t = 0, piece = 0; t < T; piece++) {
                const int64_t height = cut < 0 ? 1 : cuts[cut][piece];
                run(pieces + t * ROWS, x + t * COLS, &s.weight, NULL, height, M3_LINEAR_ORDERED);
                t += height;
            }
            for (int i = 0; i < T * ROWS; i++)
                twin_check_same(stored_types[kind].name, i / ROWS, i % ROWS, pieces[i], batch[i]);
        }
        ck_assert(stored_intact(&s));
    }
}

/* Goal:  NaN in a code, a scale or x reaches what depends on it, and nothing else, even where it meets a 0.
 * Given: one fault at a time, in the last row and group of columns, both bodies. What it meets is 0 in even rows of x;
 *        1 in odd ones, with codes above 0, so that a scale of infinity gives infinity, not NaN.
 * Claim: NaN in exactly the outputs that the definition says, all others finite.
 * Seen to fail with products with a 0 in x skipped, NaN made 0, a neighbour made NaN too, a ue8m0 of 255 read as
 * infinity, the number of scales rounded down at the edge. */
TEST(nan_spreads_to_its_outputs)
{
    enum { T = 5, ROWS = 131, COLS = 259 };
    enum fault { CODE, SCALE, X, FAULTS };
    static real x[T * COLS], y[T * ROWS];
    uint64_t state = 55;
    for (enum stored_kind kind = 0; kind < STORED_KINDS; kind++)
        for (enum fault fault = CODE; fault < FAULTS; fault++)
            for (int body = M3_LINEAR_BLAS; body <= TWIN_LAST_BODY; body++) {
                const int scaled = kind == STORED_F8_BLOCK || kind == STORED_F8_MX;
                if ((fault == SCALE && !scaled) || !stored_taken(kind)) continue;
                struct stored s;
                stored_make(&s, kind, ROWS, COLS);
                stored_random(&s, &state);
                static const uint64_t nan_codes[] = { 0x7FC00000, 0x7FF8000000000000, 0x7E00, 0x7FC0, 0xFF, 0x7F };
                if (fault == CODE) s.codes[ROWS * COLS - 1] = nan_codes[kind];
                if (fault == SCALE) s.scales[s.scale_count - 1] = kind == STORED_F8_MX ? 255 : 0x7FC00000;
                for (int k = 256; fault == SCALE && k < COLS; k++) s.codes[(ROWS - 1) * COLS + k] &= 0x7F;
                stored_give(&s, 3);
                for (int i = 0; i < T * COLS; i++) x[i] = i % COLS < 256 ? (real)twin_fine(&state) : i / COLS % 2;
                if (fault == X) x[3 * COLS + 2] = NAN;
                run(y, x, &s.weight, NULL, T, (enum m3_linear)body);
                for (int64_t t = 0; t < T; t++)
                    for (int64_t n = 0; n < ROWS; n++) {
                        int nan = fault == X ? t == 3 : n == ROWS - 1;
                        if (fault == SCALE && kind == STORED_F8_BLOCK) nan = n >= 128;
                        if (nan ? !isnan(y[t * ROWS + n]) : !isfinite(y[t * ROWS + n]))
                            ck_abort_msg("%s, fault %d, body %d: [%d,%d] is %g", stored_types[kind].name, (int)fault,
                                         body, (int)t, (int)n, (double)y[t * ROWS + n]);
                    }
                ck_assert(stored_intact(&s));
            }
}

/* Goal:  overflow gives infinity, so does an infinite weight; infinity times 0, or less infinity, gives NaN; subnormal
 *        products are kept.
 * Given: rows of two columns times (2, 1) and (1, 0).
 * Claim: these values in both bodies.
 * Seen to fail with infinity clipped, subnormal products or weights flushed, products with a 0 in x skipped. */
TEST(overflow_and_underflow)
{
    enum { ROWS = 6, COLS = 2, T = 2 };
    const real big = sizeof(real) == 4 ? FLT_MAX : DBL_MAX, inf = INFINITY, least = (real)twin_least();
    const real w[ROWS * COLS] = { big, 0, big, big, inf, 0, inf, -inf, -inf, 1, least, -3 * least };
    const real x[T * COLS] = { 2, 1, 1, 0 };
    const real want[T * ROWS] = { inf, inf, inf, NAN, -inf, -least, big, big, inf, NAN, -inf, least };
    real y[T * ROWS];
    for (int body = M3_LINEAR_BLAS; body <= TWIN_LAST_BODY; body++) {
        struct stored s;
        stored_make(&s, sizeof(real) == 4 ? STORED_F32 : STORED_F64, ROWS, COLS);
        for (int i = 0; i < ROWS * COLS; i++) memcpy(&s.codes[i], &w[i], sizeof *w);      /* little-endian */
        stored_give(&s, 1);
        run(y, x, &s.weight, NULL, T, (enum m3_linear)body);
        for (int i = 0; i < T * ROWS; i++) twin_check_same("y", i / ROWS, i % ROWS, y[i], want[i]);
        ck_assert(stored_intact(&s));
    }
}
