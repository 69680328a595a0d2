/* What the errors of an operator must do, as a table: a row has what differs from operator to operator, and one driver
 * per property checks it for all of them. Operands are drawn by the row, and stored flat, one after another; so are
 * outputs. Formulas are in long double and use nothing of ref/. */
#ifndef M3_TESTS_ERROR_TABLE_H
#define M3_TESTS_ERROR_TABLE_H

#include "propagate_twin.h"

enum property {
    FORMULAS,   /* bound, walk and suspect are those of the twin; the same bits for any number of threads */
    HONEST,     /* correct floats reach no tier */
    DEFECTS,    /* wrong floats do */
    SLOPES,     /* small errors go through as the slopes say, and exact inputs add nothing */
    CORNERS,    /* no corner of the inputs moves an output beyond its error, however large */
    STORED,     /* what is rounded inside is covered */
    PROPERTIES
};

/* One case of a row. */
struct subject {
    const void *self;               /* the options of the operator */
    int64_t in, out;
    double *x;                      /* [in]; HONEST, DEFECTS: floats */
    int64_t n, f;                   /* FORMULAS: steps */
    int way;                        /* HONEST, DEFECTS: number of a float implementation */
    int64_t first, count;           /* the outputs that are judged or limited; count 0: all */
    int tiers;                      /* HONEST: none of these */
    enum m3_verdict verdict;        /* DEFECTS: the verdict; */
    double least;                   /* at least this share beyond HARD; */
    int64_t hard;                   /* so many, if not 0; */
    int on_a_grid;                  /* is GRID reached? */
    double size;                    /* SLOPES, CORNERS: of the errors in x, */
    int64_t from, to;               /* which only these have; to 0: all */
    double share, used;             /* SLOPES: of the error, what the signs of the slopes reach; in the mean */
    double seen;                    /* CORNERS, STORED: the largest share of an error that must be seen */
    double limit;                   /* CORNERS: no error beyond, if not 0; */
    double low, high;               /* of random inputs, the mean square over the variance, if high is not 0 */
    int is_positive;                /* and no input below 0 */
};

struct error_row {
    const char *name;
    int what;                       /* for the functions below, where several rows share them */
    int cases[PROPERTIES];
    double near;                    /* FORMULAS: to so much */
    int without_walk, with_suspect; /* FORMULAS: what the twin does not know, and does */
    void (*make)(struct subject *, const struct error_row *, enum property, int number, uint64_t *state);
    void (*end)(const void *self);  /* or NULL */
    int (*bound)(struct m3_ctx *, struct m3_bound *, const double *x, const void *self);
    void (*twin)(long double *bound, long double *walk, long double *suspect, const double *x, const void *self);
    void (*way)(float *y, const float *x, const void *self, int way);
    spread_formula value, rounded;
    spread_call spread;
};

/* ---- bounds */

/* One call in guarded buffers. */
static inline void bound_once(struct m3_bound *to, const struct error_row *row, const struct subject *s, int threads,
                              int with_walk)
{
    struct guard guards[4];
    struct m3_ctx ctx;
    const size_t size = (size_t)s->out * sizeof(double);
    const double *x = guard_input(&guards[0], s->x, (size_t)s->in * sizeof(double));
    const struct m3_bound all = { .bound = guard_output(&guards[1], size),
                                  .walk = guard_output(&guards[2], size),
                                  .suspect = guard_output(&guards[3], size) };
    struct m3_bound asked = all;
    if (!with_walk) asked.walk = NULL;
    if (!row->with_suspect) asked.suspect = NULL;
    ck_assert_int_eq(m3_ctx_init(&ctx, threads, M3_LINEAR_BLAS), 0);
    ck_assert_int_eq(row->bound(&ctx, &asked, x, s->self), 0);
    m3_ctx_free(&ctx);
    memcpy(to->bound, all.bound, size);
    if (with_walk) memcpy(to->walk, all.walk, size);
    if (row->with_suspect) memcpy(to->suspect, all.suspect, size);
    to->n = asked.n;
    to->f = asked.f;
    for (int i = 0; i < 4; i++) ck_assert_msg(guard_intact(&guards[i]), "%s: guard %d", row->name, i);
}

static inline struct m3_bound bound_new(const struct error_row *row, int64_t n)
{
    return (struct m3_bound){ doubles(n), doubles(n), row->with_suspect ? doubles(n) : NULL, NULL, 0, 0 };
}

static inline void bound_free(struct m3_bound *b) { free(b->bound), free(b->walk), free(b->suspect); }

/* The same bits for any number of threads, and whether walk is wanted or not. */
static inline struct m3_bound bound_for_threads(const struct error_row *row, const struct subject *s)
{
    struct m3_bound first = bound_new(row, s->out), again = bound_new(row, s->out);
    const size_t size = (size_t)s->out * sizeof(double);
    bound_once(&first, row, s, 1, 1);
    for (int i = 0; i < 2 * TWIN_TEAMS; i++) {
        bound_once(&again, row, s, twin_threads[i % TWIN_TEAMS], i < TWIN_TEAMS);
        ck_assert_msg(memcmp(first.bound, again.bound, size) == 0, "%s: bound", row->name);
        ck_assert_msg(memcmp(first.walk, again.walk, size) == 0, "%s: walk", row->name);
        ck_assert_msg(!first.suspect || memcmp(first.suspect, again.suspect, size) == 0, "%s: suspect", row->name);
    }
    bound_free(&again);
    return first;
}

static inline void check_formulas(const struct error_row *row, const struct subject *s)
{
    struct m3_bound got = bound_for_threads(row, s);
    long double *want = need(3 * s->out, sizeof *want), *walk = want + s->out, *suspect = walk + s->out;
    ck_assert_msg(got.n == s->n && got.f == s->f, "%s: %d + %d steps, expected %d + %d", row->name, (int)got.n,
                  (int)got.f, (int)s->n, (int)s->f);
    row->twin(want, walk, suspect, s->x, s->self);
    for (int64_t i = 0; i < s->out; i++) {
        near(row->name, i, got.bound[i], want[i], row->near);
        if (!row->without_walk) near(row->name, i, got.walk[i], walk[i], row->near);
        if (row->with_suspect) near(row->name, i, got.suspect[i], suspect[i], row->near);
    }
    free(want);
    bound_free(&got);
}

/* The verdict on candidates y. */
static inline struct m3_tier_result verdict_on(const struct error_row *row, const struct subject *s, const double *y)
{
    struct m3_bound b = bound_new(row, s->out);
    long double *x = need(s->in, sizeof *x), *wide = need(s->out, sizeof *wide);
    double *truth = doubles(s->out);
    const int64_t at = s->first, n = s->count ? s->count : s->out;
    for (int64_t i = 0; i < s->in; i++) x[i] = s->x[i];
    row->value(wide, x, s->self);
    for (int64_t i = 0; i < s->out; i++) truth[i] = (double)wide[i];
    bound_once(&b, row, s, 2, 1);
    const struct m3_bound judged = { b.bound + at, b.walk + at, b.suspect ? b.suspect + at : NULL, NULL, b.n, b.f };
    const struct m3_tier_result result = judge_f32(truth + at, y + at, &judged, n);
    free(x), free(wide), free(truth);
    bound_free(&b);
    return result;
}

static inline struct m3_tier_result verdict_on_way(const struct error_row *row, const struct subject *s)
{
    float *x = floats(s->in), *y = floats(s->out);
    for (int64_t i = 0; i < s->in; i++) x[i] = (float)s->x[i];
    row->way(y, x, s->self, s->way);
    double *wide = widened(y, s->out);
    const struct m3_tier_result result = verdict_on(row, s, wide);
    free(x), free(y), free(wide);
    return result;
}

static inline void check_honest(const struct error_row *row, const struct subject *s)
{
    const struct m3_tier_result r = verdict_on_way(row, s);
    char what[100];
    snprintf(what, sizeof what, "%s, way %d", row->name, s->way);
    no_alarm(what, &r, s->tiers);
}

static inline void check_defect(const struct error_row *row, const struct subject *s)
{
    const struct m3_tier_result r = verdict_on_way(row, s);
    ck_assert_msg(r.verdict == s->verdict && (double)r.hard >= s->least * (double)r.judged,
                  "%s, way %d: verdict %d, %d of %d beyond HARD, %d suspect", row->name, s->way, r.verdict, (int)r.hard,
                  (int)r.judged, (int)r.suspect);
    if (s->hard) ck_assert_int_eq(r.hard, s->hard);
    ck_assert_msg(((r.tiers & M3_TIER_GRID) != 0) == s->on_a_grid, "%s, way %d: tiers %d", row->name, s->way, r.tiers);
}

/* ---- propagation */

static inline struct spread_case spread_of(const struct error_row *row, const struct subject *s, uint64_t *state)
{
    struct spread_case p = spread_new(row->name, s->in, s->out, row->spread, row->value, s->self);
    memcpy(p.x, s->x, (size_t)s->in * sizeof *p.x);
    spread_errors(&p, s->size, state);
    for (int64_t i = 0; i < p.in && s->to; i++)
        if (i < s->from || i >= s->to) p.e[i] = p.v[i] = 0;
    return p;
}

static inline void check_slopes(const struct error_row *row, const struct subject *s, uint64_t *state)
{
    struct spread_case p = spread_of(row, s, state);
    spread_nothing(&p);
    const double used = spread_check(&p, s->share, state);
    ck_assert_msg(used >= s->used, "%s: in the mean %g of the error", row->name, used);
    spread_free(&p);
}

/* The mean of squares over variances, of 400 random inputs. */
static inline double mean_square(const struct spread_case *p, const long double *y, double *by, uint64_t *state)
{
    double squares = 0;
    int64_t counted = 0;
    for (int n = 0; n < 400; n++) {
        for (int64_t i = 0; i < p->in; i++) by[i] = sqrt(3 * p->v[i]) * twin_fine(state);
        long double *moved = spread_values(p, by);
        for (int64_t o = 0; o < p->out; o++) {
            const double d = (double)(moved[o] - y[o]);
            if (p->variance[o] > 0) squares += d * d / p->variance[o], counted++;
        }
        free(moved);
    }
    return squares / (double)counted;
}

/* The signs of the slopes of every output in turn, and their opposites; random signs. */
static inline void check_corners(const struct error_row *row, const struct subject *s, uint64_t *state)
{
    struct spread_case p = spread_of(row, s, state);
    spread_run(&p);
    long double *y = spread_values(&p, NULL), *slopes = spread_slopes(&p);
    double *by = doubles(p.in), most = 0;
    for (int64_t n = 0; n < 200; n++) {
        const int64_t o = n / 2 * p.out / 100 % p.out;
        for (int64_t i = 0; i < p.in; i++) {
            by[i] = (n % 4 ? slopes[i * p.out + o] : (long double)twin_draw(state)) < 0 ? -p.e[i] : p.e[i];
            if (n % 4 == 3) by[i] = -by[i];
            if (s->is_positive && by[i] <= -p.x[i]) by[i] = -0.999 * p.x[i];
        }
        most = fmax(most, spread_within(&p, y, by));
    }
    ck_assert_msg(most >= s->seen, "%s: at most %g of the error", row->name, most);
    for (int64_t o = s->first; o < s->first + s->count && s->limit > 0; o++) ck_assert(p.error[o] <= s->limit);
    const double square = s->high > 0 ? mean_square(&p, y, by, state) : 0;
    ck_assert_msg(square >= s->low && square <= s->high, "%s: mean square %g", row->name, square);
    free(y), free(slopes), free(by);
    spread_free(&p);
}

static inline void check_stored(const struct error_row *row, const struct subject *s, uint64_t *state)
{
    struct spread_case p = spread_of(row, s, state);
    memset(p.e, 0, (size_t)p.in * sizeof *p.e), memset(p.v, 0, (size_t)p.in * sizeof *p.v);
    spread_stored(&p, row->rounded, s->seen);
    spread_free(&p);
}

/* ---- the table */

static inline void check_case(const struct error_row *row, enum property property, const struct subject *s,
                              uint64_t *state)
{
    if (property == FORMULAS) check_formulas(row, s);
    if (property == HONEST) check_honest(row, s);
    if (property == DEFECTS) check_defect(row, s);
    if (property == SLOPES) check_slopes(row, s, state);
    if (property == CORNERS) check_corners(row, s, state);
    if (property == STORED) check_stored(row, s, state);
}

static inline void check_rows(const struct error_row *rows, size_t count, enum property property)
{
    int cases = 0;
    for (const struct error_row *row = rows; row < rows + count; row++) {
        uint64_t state = 100 + (uint64_t)property;
        for (int c = 0; c < row->cases[property]; c++, cases++) {
            struct subject s = { .tiers = ~0, .verdict = M3_VERDICT_FAIL, .share = 1 };
            row->make(&s, row, property, c, &state);
            check_case(row, property, &s, &state);
            free(s.x);
            if (row->end) row->end(s.self);
        }
    }
    ck_assert_int_gt(cases, 0);
}

#define ERROR_TEST(name, rows, property)                                                                               \
    TEST(name) { check_rows(rows, sizeof(rows) / sizeof *(rows), property); }

#endif
