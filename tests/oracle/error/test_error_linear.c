/* Linear operators: bounds (SPEC 5.4, 7.1) and propagation (7.4). */
#include "error_table.h"

#include "model/engine.h"
#include "stored_twin.h"
#include "walk_twin.h"

#include "oracle/partials/reduce.h"

TIMEOUT(120);

/* Weights as they are stored, or floats. */
struct linear {
    int64_t T, rows, cols;
    struct stored stored;
    long double *values;        /* what is stored there */
    float *floats;
    struct m3_weight weight;
    int with_bias;
    double bias[257];
};

static int bound(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const void *self)
{
    const struct linear *a = self;
    const struct m3_arithmetic how = m3_arithmetic_f32();
    return m3_bound_linear(ctx, out, x, &a->weight, a->with_bias ? a->bias : NULL, a->T, &how);
}

static int propagate(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of,
                     const void *self)
{
    const struct linear *a = self;
    (void)x;
    return m3_propagate_linear(ctx, out, of, &a->weight, a->T);
}

static long double weight(const struct linear *a, int64_t row, int64_t k)
{
    return a->floats ? (long double)a->floats[row * a->cols + k] : a->values[row * a->cols + k];
}

static void value(long double *y, const long double *x, const void *self)
{
    const struct linear *a = self;
    for (int64_t i = 0; i < a->T * a->rows; i++) {
        y[i] = a->with_bias ? a->bias[i % a->rows] : 0;
        for (int64_t k = 0; k < a->cols; k++) y[i] += weight(a, i % a->rows, k) * x[i / a->rows * a->cols + k];
    }
}

/* Does storing as float round a number of this matrix? The scales of stored_random are no powers of two. */
static int rounded_on_the_way(const struct linear *a)
{
    return !a->floats && (a->stored.kind == STORED_F64 || a->stored.kind == STORED_F8_BLOCK);
}

static void twin(long double *want, long double *walk, long double *suspect, const double *x, const void *self)
{
    const struct linear *a = self;
    (void)suspect;
    for (int64_t i = 0; i < a->T * a->rows; i++) {
        const long double b = a->with_bias ? a->bias[i % a->rows] : 0;
        struct twin_dot dot = { 0 };
        for (int64_t k = 0; k < a->cols; k++)
            twin_dot_add(&dot, weight(a, i % a->rows, k) * x[i / a->rows * a->cols + k]);
        long double w2 = twin_dot_walk2(&dot);
        w2 += rounded_on_the_way(a) * dot.squares + (a->with_bias ? (dot.sum + b) * (dot.sum + b) : 0);
        want[i] = dot.mass + fabsl(b);
        walk[i] = sqrtl(w2);
    }
}

/* ---- float sums */

enum order { ORDERED, BLAS, LANES8, FMA, PAIRWISE, DESCENDING, ORDERS };

static float pairwise(const float *w, const float *x, int64_t n)
{
    if (n == 1) return w[0] * x[0];
    return pairwise(w, x, n / 2) + pairwise(w + n / 2, x + n / 2, n - n / 2);
}

static float one_sum(const float *w, const float *x, int64_t n, enum order order)
{
    float s = 0, lanes[8] = { 0 };
    if (order == PAIRWISE) return pairwise(w, x, n);
    for (int64_t k = 0; k < n; k++) {
        if (order == LANES8) lanes[k % 8] = lanes[k % 8] + w[k] * x[k];
        else if (order == FMA) s = fmaf(w[k], x[k], s);
        else s = s + w[n - 1 - k] * x[n - 1 - k];
    }
    for (int l = 0; l < 8 && order == LANES8; l++) s = s + lanes[l];
    return s;
}

static void float_way(float *y, const float *x, const void *self, int way)
{
    const struct linear *a = self;
    struct m3_ctx ctx;
    for (int64_t i = 0; i < a->T * a->rows && way > BLAS; i++)
        y[i] = one_sum(a->floats + i % a->rows * a->cols, x + i / a->rows * a->cols, a->cols, (enum order)way);
    if (way > BLAS) return;
    ck_assert_int_eq(m3_ctx_init(&ctx, 2, way == ORDERED ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS), 0);
    ck_assert_int_eq(m3_engine_f32()->ops->linear(&ctx, y, x, &a->weight, NULL, a->T), 0);
    m3_ctx_free(&ctx);
}

/* ---- cases */

static struct linear the_linear;

/* x [T,n] and w [rows,n]; of cancelling products both of a pair have the same factor. */
static void draw_floats(struct subject *s, struct linear *a, enum kind kind, uint64_t *state)
{
    float *x = floats(s->in);
    a->floats = floats(a->rows * a->cols);
    fill(x, s->in, kind == CANCELLING ? POSITIVE : kind, state);
    for (int64_t i = 0; i + 1 < s->in && kind == CANCELLING; i += 2) x[i + 1] = x[i];
    for (int64_t r = 0; r < a->rows; r++) fill(a->floats + r * a->cols, a->cols, kind, state);
    a->weight = (struct m3_weight){ .data = a->floats, .dtype = M3_F32, .rows = a->rows, .cols = a->cols, .id = 1 };
    widen(s->x, x, s->in);
    free(x);
}

static void draw_stored(struct subject *s, struct linear *a, enum stored_kind kind, int shift, uint64_t *state)
{
    stored_make(&a->stored, kind, a->rows, a->cols);
    stored_random(&a->stored, state);
    stored_give(&a->stored, shift);
    a->values = need(a->rows * a->cols, sizeof *a->values);
    for (int64_t k = 0; k < a->rows * a->cols; k++) a->values[k] = stored_value(&a->stored, k / a->cols, k % a->cols);
    a->weight = a->stored.weight;
    for (int64_t k = 0; k < s->in; k++) s->x[k] = (float)normal(state);
    for (int64_t k = 0; k < a->rows && a->with_bias; k++) a->bias[k] = (float)normal(state);
}

static void begin(struct subject *s, struct linear *a, int64_t T, int64_t rows, int64_t cols)
{
    *a = (struct linear){ .T = T, .rows = rows, .cols = cols };
    s->self = a, s->in = T * cols, s->out = T * rows;
    s->x = doubles(s->in);
}

/* Sides 1, odd, prime, beyond a panel of rows. */
static void make(struct subject *s, const struct error_row *row, enum property property, int c, uint64_t *state)
{
    static const int64_t bounded[][3] = {
        { 1, 1, 1 }, { 3, 17, 5 }, { 2, 131, 257 }, { 7, 129, 130 }, { 200, 67, 521 }
    };
    static const int64_t spread[][3] = { { 1, 1, 1 }, { 3, 17, 5 }, { 2, 9, 37 }, { 4, 8, 11 } };
    static const int64_t lengths[] = { 1, 2, 64, 3072, 12288 };
    struct linear *a = &the_linear;
    (void)row;
    if (property == FORMULAS) {
        const int64_t *shape = bounded[c / 2 % 5];
        begin(s, a, shape[0], shape[1], shape[2]);
        a->with_bias = c % 2;
        draw_stored(s, a, (enum stored_kind)(c / 10), c / 2 % 4, state);
        s->n = a->cols, s->f = a->with_bias + rounded_on_the_way(a);
    } else if (property == HONEST) {
        const enum kind kind = (enum kind)(c / ORDERS % KINDS);
        begin(s, a, 33, 17, lengths[c / ORDERS / KINDS]);
        draw_floats(s, a, kind, state);
        s->way = c % ORDERS;
        if (kind == EQUAL || (kind == CANCELLING && s->way == LANES8)) s->tiers = M3_TIER_HARD | M3_TIER_GRID;
    } else {
        const int64_t *shape = spread[c % 4];
        begin(s, a, shape[0], shape[1], shape[2]);
        draw_stored(s, a, (enum stored_kind)(c / 4), c % 4, state);
        s->size = property == CORNERS ? 1 : 1e-3;
        s->seen = 0.9;
        if (c / 4 % 2) s->to = a->cols; /* all rows but the first are exact */
    }
}

static void end(const void *self)
{
    const struct linear *a = self;
    free(a->floats), free(a->values);
    if (!a->floats) ck_assert(stored_intact(&the_linear.stored));
}

static const struct error_row rows[] = {
    { "linear",
      0,
      { 10 * STORED_KINDS, 5 * KINDS * ORDERS, 0, 4 * STORED_KINDS, 4, 0 },
      1e-12,
      0,
      0,
      make,
      end,
      bound,
      twin,
      float_way,
      value,
      NULL,
      propagate },
};

/* Every stored type; with and without bias. Seen to fail with the bias left out of B; sum s_k^2 without sum p_k^2; n/3
 * for n/6; F64 taken for exact. */
ERROR_TEST(formulas, rows, FORMULAS)

/* No correct float sum is refused, and on random data none is suspect: six orders, two of them the operator's own
 * bodies; data of mixed sign, positive, cancelling, with outliers. Two structures are not foreseen by the statistics:
 * equal products, and neighbours that cancel while each lane holds one sign.
 * Seen to fail with B of half the products, with B of squares, with walk = B. */
ERROR_TEST(honest_sums, rows, HONEST)

/* Seen to fail with w for |w|, |w| for w^2, rows taken one after the other, = for +=. */
ERROR_TEST(matrices, rows, SLOPES)
ERROR_TEST(corners, rows, CORNERS)

/* Goal:  only a scale that is no power of two rounds.
 * Claim: f = 0 for scales 1/4 and 2, 1 with a third among them; a double is rounded to a float, not to a double.
 * Seen to fail with a power of two told by its last bit, with the first scale looked at alone. */
TEST(scales)
{
    const unsigned char codes[130 * 3] = { 0x38 };
    float scales[2] = { 0.25f, 2 };
    struct m3_weight w = { .data = codes,
                           .scales = scales,
                           .dtype = M3_F8_E4M3,
                           .scaling = M3_SCALE_128X128,
                           .rows = 130,
                           .cols = 3,
                           .id = 1 };
    ck_assert_int_eq(m3_bound_weight_roundings(&w, 0x1p-24), 0);
    scales[1] = 1 / 3.0f;
    ck_assert_int_eq(m3_bound_weight_roundings(&w, 0x1p-24), 1);
    ck_assert_int_eq(m3_bound_weight_roundings(&w, 0x1p-53), 0);
    const double number = 1 / 3.0;
    const struct m3_weight wide = { .data = &number, .dtype = M3_F64, .rows = 1, .cols = 1, .id = 1 };
    ck_assert_int_eq(m3_bound_weight_roundings(&wide, 0x1p-24), 1);
    ck_assert_int_eq(m3_bound_weight_roundings(&wide, 0x1p-53), 0);
}

/* Goal:  a weight stored as a double is rounded on its way into a float product: at n = 1 that is a second rounding.
 * Claim: HARD admits what the operator gives, and would not without f = 1.
 * Seen to fail with F64 taken for exact. */
TEST(doubles_are_rounded)
{
    enum { N = 1000 };
    static double w[N], truth[N], bound[N], walk[N];
    static float y[N];
    const float x = 1.2345678f;
    uint64_t state = 73;
    for (int i = 0; i < N; i++) {
        w[i] = normal(&state);
        truth[i] = (double)((long double)w[i] * x);
    }
    const struct m3_weight weight = { .data = w, .dtype = M3_F64, .rows = N, .cols = 1, .id = 1 };
    const double wide = (double)x;
    const struct m3_arithmetic how = m3_arithmetic_f32();
    struct m3_bound out = { .bound = bound, .walk = walk };
    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, 1, M3_LINEAR_ORDERED), 0);
    ck_assert_int_eq(m3_bound_linear(&ctx, &out, &wide, &weight, NULL, 1, &how), 0);
    ck_assert_int_eq(m3_engine_f32()->ops->linear(&ctx, y, &x, &weight, NULL, 1), 0);
    m3_ctx_free(&ctx);
    struct m3_tier_result r = judge_floats(truth, y, &out, N);
    no_alarm("F64 weights", &r, ~0);
    out.f = 0;
    r = judge_floats(truth, y, &out, N);
    ck_assert_int_gt(r.hard, 0);
}

/* ---- defects */

enum defect { BF16_SUMS, LAST_DROPPED, ONE_DROPPED, ZEROS, PREVIOUS_ROW, BF16_STORE, TF32_INPUTS, DEFECTIVE };
static const char *const defect_names[] = {
    "bf16 accumulation", "last product dropped", "average product dropped", "zeros", "previous row",
    "bf16 store",        "tf32 inputs"
};

/* The candidate: float sums in ascending order, except for the defect. */
static double defective(const struct subject *s, int64_t i, enum defect defect)
{
    const struct linear *a = s->self;
    const int64_t t = i / a->rows;
    const float *w = a->floats + i % a->rows * a->cols;
    const double *x = s->x + (defect == PREVIOUS_ROW ? (t + a->T - 1) % a->T : t) * a->cols;
    float sum = 0, mass = 0;
    if (defect == ZEROS) return 0;
    for (int64_t k = 0; k < a->cols - (defect == LAST_DROPPED); k++) {
        double p = (double)w[k], q = x[k];
        if (defect == TF32_INPUTS) p = to_bits(p, 11), q = to_bits(q, 11);
        if (defect == BF16_SUMS) sum = (float)to_bits((double)sum + p * q, 8);
        else sum = sum + (float)p * (float)q;
        mass += fabsf(w[k] * (float)q);
    }
    if (defect == ONE_DROPPED && i == 17) sum = sum - mass / (float)a->cols;
    return defect == BF16_STORE ? to_bits((double)sum, 8) : (double)sum;
}

/* Is a defect of 1000 elements seen as often as the table says? */
static void check_table(const struct subject *s, enum defect defect, const int counts[2])
{
    const int n = (int)((const struct linear *)s->self)->cols;
    double *y = doubles(s->out);
    for (int64_t j = 0; j < s->out; j++) y[j] = defective(s, j, defect);
    const struct m3_tier_result r = verdict_on(rows, s, y);
    const int64_t seen[2] = { r.hard, r.suspect };
    for (int tier = 0; tier < 2; tier++) {
        const double want = counts[tier], least = want - 5 * sqrt(want * (1 - want / 1000) + 1);
        ck_assert_msg((double)seen[tier] >= (defect == ONE_DROPPED ? want : least),
                      "n %d, %s, tier %d: saw %d, the table says %d", n, defect_names[defect], tier, (int)seen[tier],
                      counts[tier]);
    }
    if (defect != ONE_DROPPED) ck_assert_msg(r.tiers & M3_TIER_WALK, "n %d, %s: no WALK", n, defect_names[defect]);
    ck_assert((defect == BF16_STORE || defect == BF16_SUMS) == (r.grid == M3_BF16));
    ck_assert(r.verdict != M3_VERDICT_PASS);
    free(y);
}

/* Goal:  what a defect costs is seen as numerics.md, section 14, tells it: elements of 1000 beyond HARD, SUSPECT.
 * Given: normal data of mixed sign; n 64 to 12288; the defects of that table.
 * Claim: no fewer elements than the table says, less five standard deviations of such a count; correct sums: none. bf16
 *        stores are seen by GRID too. tf32 inputs, which HARD and SUSPECT miss at 12288, are seen by WALK.
 * Seen to fail with B of squares, lambda n for lambda sqrt(n), GRID of 7 bits for 8. */
TEST(defects)
{
    static const struct {
        int64_t n;
        int counts[DEFECTIVE][2];
    } table[] = {
        { 64, { { 998, 998 }, { 1000, 1000 }, { 1, 1 }, { 1000, 1000 }, { 1000, 1000 }, { 971, 975 }, { 945, 956 } } },
        { 128, { { 996, 999 }, { 996, 997 }, { 1, 1 }, { 1000, 1000 }, { 1000, 1000 }, { 911, 936 }, { 846, 906 } } },
        { 3072, { { 892, 988 }, { 502, 896 }, { 1, 1 }, { 996, 1000 }, { 994, 1000 }, { 8, 491 }, { 0, 12 } } },
        { 6144, { { 757, 979 }, { 123, 754 }, { 0, 1 }, { 986, 1000 }, { 991, 999 }, { 0, 230 }, { 0, 0 } } },
        { 12288, { { 568, 968 }, { 0, 528 }, { 0, 1 }, { 966, 998 }, { 980, 1000 }, { 0, 77 }, { 0, 0 } } },
    };
    uint64_t state = 74;
    for (int i = 0; i < 5; i++) {
        struct subject s = { 0 };
        begin(&s, &the_linear, 10, 100, table[i].n);
        draw_floats(&s, &the_linear, MIXED, &state);
        for (enum defect defect = 0; defect < DEFECTIVE; defect++) check_table(&s, defect, table[i].counts[defect]);
        free(s.x);
        end(s.self);
    }
}

/* Goal:  sums that cancel are the hard case: zeros are within n u B, and only WALK sees them.
 * Given: numerics.md, section 14: n = 12288, cancelling data.
 * Claim: zeros pass HARD and SUSPECT; WALK objects (there to 2,073 as the mean of d^2/sigma^2).
 * Seen to fail with walk 64 times as large. */
TEST(cancelling_zeros)
{
    uint64_t state = 75;
    struct subject s = { 0 };
    begin(&s, &the_linear, 10, 100, 12288);
    draw_floats(&s, &the_linear, CANCELLING, &state);
    double *y = doubles(s.out);
    const struct m3_tier_result r = verdict_on(rows, &s, y);
    ck_assert_int_eq(r.hard, 0);
    ck_assert(r.tiers & M3_TIER_WALK);
    free(y), free(s.x);
    end(s.self);
}

/* Goal:  ranks without columns add nothing, whatever the memory held before.
 * Given: 10 columns cut for 8 ranks, and for 16; scratch memory full of 1e30.
 * Claim: the middle of the results is the sum within the roundings of its parts, and so are the errors.
 * Seen to fail with sums of empty ranges that are not cleared. */
TEST(ranks_without_columns)
{
    enum { T = 3, ROWS = 5, COLS = 10, DIRTY = 1 << 18 };
    uint64_t state = 19;
    struct stored s;
    stored_make(&s, STORED_F32, ROWS, COLS);
    stored_random(&s, &state);
    stored_give(&s, 0);
    double x[T * COLS];
    for (int i = 0; i < T * COLS; i++) x[i] = (float)normal(&state);
    for (int ranks = 8; ranks <= 16; ranks += 8) {
        const struct m3_partials how = { ranks, M3_REDUCE_ONE_SHOT, M3_BF16 };
        double error[T * ROWS] = { 0 }, variance[T * ROWS] = { 0 }, y[T * ROWS];
        struct m3_spread out = { error, variance };
        struct m3_ctx ctx;
        ck_assert_int_eq(m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS), 0);
        const size_t mark = m3_scratch_mark(&ctx);
        double *dirty = m3_scratch_take(&ctx, DIRTY, sizeof *dirty);
        for (int i = 0; i < DIRTY; i++) dirty[i] = 1e30;
        m3_scratch_release(&ctx, mark);
        ck_assert_int_eq(m3_propagate_partials(&ctx, &out, y, x, NULL, &s.weight, NULL, T, &how, 0x1p-24), 0);
        for (int i = 0; i < T * ROWS; i++) {
            long double sum = 0, mass = 0;
            for (int k = 0; k < COLS; k++) {
                const long double p = stored_value(&s, i % ROWS, k) * x[i / ROWS * COLS + k];
                sum += p, mass += fabsl(p);
            }
            ck_assert(fabsl(y[i] - sum) <= mass * 0x1p-6L && error[i] <= (double)mass * 0x1p-5);
            ck_assert_msg(error[i] >= 0 && variance[i] >= 0 && variance[i] <= (double)(mass * mass) * 0x1p-12,
                          "%g %g %Lg", error[i], variance[i], mass);
        }
        m3_ctx_free(&ctx);
    }
    ck_assert(stored_intact(&s));
}
