#include "oracle/judge/rows/rows.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/minmax.h"
#include "oracle/judge/judge.h"
#include "oracle/judge/rows/copies.h"
#include "oracle/judge/rows/distances.h"
#include "oracle/judge/rows/local.h"

const char *const m3_row_names[M3_ROW_FIELDS] = { "row_size", "row_error", "row_runs", "row_others" };

int m3_is_row_statistic(const char *name)
{
    const char *end = strrchr(name, '.');
    for (int i = 0; end && i < M3_ROW_FIELDS; i++)
        if (end > name && strcmp(end + 1, m3_row_names[i]) == 0) return 1;
    return 0;
}

double m3_row_size(const struct m3_tensor *tensor, int64_t first, int64_t n, int64_t step)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i += step) {
        const double x = m3_decode(tensor->dtype, tensor->data, first + i);
        if (isfinite(x)) squares += x * x;
    }
    return sqrt(squares);
}

double m3_row_share(double length, double size) { return length == 0 ? 0 : length / size; }

/* The shares of rows at which distances are compared, and above which quotient they are suspect; the first can fail.
 * Where honest runs choose other experts in many rows, their high quantiles of errors differ by chance. */
enum { SHARES = 3 };
static const double shares[SHARES] = { 0.75, 0.5, 0.9 };
static const double suspect_errors[SHARES] = { 1.75, 1.75, 3 }, suspect_nearest[SHARES] = { 1.5, 1.5, 3 };
enum { FEW_ROWS = 16 };
static const double fails_above = 2;
/* A row in which at least so many choices may be others, on average, is no firm row: a program may choose otherwise in
 * all such rows, and honest runs in few. */
static const double may_choose = 0.01;
/* Rows that differ by less than so much of their length are alike. */
static const double alike_below = 0.2;
/* Rows that differ by so many usual errors differ in every honest program. */
static const double far_above = 4;
/* No choice of other experts moves a row by so many times its length. */
static const double garbage = 3;

/* One tap of both sides, and its statistic. */
struct judging {
    const struct m3_tensor *want, *got, *field[M3_ROW_FIELDS];
    int64_t runs, width, columns, step;
    int64_t rows, later;                /* rows compared; the first of their last quarter */
    struct m3_row_pair *pairs;          /* [rows] */
    struct m3_distances d;              /* of the runs and of the candidate, at these rows */
    struct m3_distances firm;           /* the same at firm rows; n 0: they are less than half */
};

static const struct m3_tensor *field_of(const struct m3_safetensors *file, const char *tap, enum m3_row_field field)
{
    char name[160];
    const int length = snprintf(name, sizeof name, "%s.%s", tap, m3_row_names[field]);
    return length > 0 && (size_t)length < sizeof name ? m3_safetensors_find(file, name) : NULL;
}

/* Finds the statistic; returns why it cannot be used, or NULL. */
static const char *find(struct judging *j, const struct m3_safetensors *file, const struct m3_matched *m)
{
    for (int i = 0; i < M3_ROW_FIELDS; i++) j->field[i] = field_of(file, m->want->name, (enum m3_row_field)i);
    const struct m3_tensor *size = j->field[M3_ROW_SIZE], *error = j->field[M3_ROW_ERROR],
                           *runs = j->field[M3_ROW_RUNS], *others = j->field[M3_ROW_OTHERS];
    if (size == NULL || error == NULL) return "honest implementations of the profile are not known for this tap";
    if (size->dtype != M3_F64 || size->rank != 1 || error->dtype != M3_F32 || error->rank != 2 ||
        error->shape[1] != size->shape[0] || error->shape[0] < 2)
        return "the honest implementations have another shape";
    if (others != NULL && (others->dtype != M3_F64 || others->rank != 1 || others->shape[0] != size->shape[0]))
        return "the honest implementations have another shape";
    j->runs = error->shape[0];
    if (runs == NULL) return NULL;
    if (runs->dtype != M3_BF16 || runs->rank != 3 || runs->shape[0] != j->runs || runs->shape[1] != size->shape[0])
        return "the honest implementations have another shape";
    j->columns = runs->shape[2];
    j->step = j->columns > 0 ? (j->width + j->columns - 1) / j->columns : 0;
    if (j->step == 0 || (j->width + j->step - 1) / j->step != j->columns)
        return "the honest implementations have another shape";
    return NULL;
}

/* Collects the rows that all sides hold. */
static int collect(struct judging *j, const struct m3_matched *m, struct m3_error *error)
{
    struct m3_row_walk walk;
    struct m3_row_pair pair;
    if (m3_row_walk_begin(&walk, m) != NULL) return M3_OK;
    const size_t room = (size_t)m3_row_walk_count(walk) + 1;
    j->pairs = malloc(room * sizeof *j->pairs);
    if (j->pairs == NULL) return m3_fail_memory(error, m->want->name, room * sizeof *j->pairs);
    while (m3_row_walk_next(&walk, &pair))
        if (pair.number < j->field[M3_ROW_SIZE]->shape[0]) j->pairs[j->rows++] = pair;
    j->later = j->rows - j->rows / 4;
    return m3_distances_new(&j->d, j->runs, j->rows, m->want->name, error);
}

static double difference(const struct judging *j, const struct m3_row_pair *pair, int64_t i)
{
    const double want = m3_decode(j->want->dtype, j->want->data, pair->want * j->width + i);
    const double got = m3_decode(j->got->dtype, j->got->data, pair->got * j->width + i);
    return isinf(want) && got == want ? 0 : got - want;
}

/* Is the statistic that of this reference? A reference that follows other choices has other rows. */
static int is_of(const struct judging *j)
{
    const struct m3_tensor *sizes = j->field[M3_ROW_SIZE];
    int64_t others = 0;
    for (int64_t r = 0; r < j->rows; r++) {
        const double size = m3_decode(sizes->dtype, sizes->data, j->pairs[r].number);
        others += !(fabs(m3_row_size(j->want, j->pairs[r].want * j->width, j->width, 1) - size) <= 1e-4 * size);
    }
    return others <= j->rows / 20;
}

static void measure_errors(const struct judging *j, int64_t r)
{
    const struct m3_row_pair *pair = &j->pairs[r];
    const struct m3_tensor *sizes = j->field[M3_ROW_SIZE], *errors = j->field[M3_ROW_ERROR];
    double squares = 0;
    for (int64_t i = 0; i < j->width; i++) {
        const double d = difference(j, pair, i);
        squares += d * d;
    }
    j->d.error[j->runs * j->rows + r] = m3_row_share(sqrt(squares), m3_decode(sizes->dtype, sizes->data, pair->number));
    for (int64_t i = 0; i < j->runs; i++)
        j->d.error[i * j->rows + r] = m3_decode(errors->dtype, errors->data, i * errors->shape[1] + pair->number);
}

static double square_between(const float *a, const float *b, int64_t n)
{
    float sum[4] = { 0 };
    double rest = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) {
            const float d = a[i + k] - b[i + k];
            sum[k] += d * d;
        }
    for (; i < n; i++) rest += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
    return rest + (double)sum[0] + (double)sum[1] + (double)sum[2] + (double)sum[3];
}

/* The distance of each run, and of the candidate, to the nearest other run. all: room for [runs + 1, columns]. */
static void measure_nearest(const struct judging *j, int64_t r, float *all)
{
    const struct m3_row_pair *pair = &j->pairs[r];
    const struct m3_tensor *runs = j->field[M3_ROW_RUNS];
    const double size = m3_row_size(j->want, pair->want * j->width, j->width, j->step);
    for (int64_t i = 0; i < j->runs; i++)
        for (int64_t k = 0; k < j->columns; k++)
            all[i * j->columns + k] =
                (float)m3_decode(runs->dtype, runs->data, (i * runs->shape[1] + pair->number) * j->columns + k);
    for (int64_t k = 0; k < j->columns; k++) all[j->runs * j->columns + k] = (float)difference(j, pair, k * j->step);
    for (int64_t i = 0; i <= j->runs; i++) j->d.nearest[i * j->rows + r] = INFINITY;
    for (int64_t i = 0; i <= j->runs; i++)
        for (int64_t k = 0; k < i; k++) {
            const double d =
                m3_row_share(sqrt(square_between(all + i * j->columns, all + k * j->columns, j->columns)), size);
            double *mine = &j->d.nearest[i * j->rows + r], *its = &j->d.nearest[k * j->rows + r];
            if (!(*mine <= d)) *mine = d;
            if (i < j->runs && !(*its <= d)) *its = d;
        }
    /* The truth is honest too: a program that skips roundings which all runs share is nearer to it than to them. */
    double squares = 0, *own = &j->d.nearest[j->runs * j->rows + r];
    for (int64_t k = 0; k < j->columns; k++)
        squares += (double)all[j->runs * j->columns + k] * (double)all[j->runs * j->columns + k];
    const double error = m3_row_share(sqrt(squares), size);
    if (error < *own) *own = error;
}

static int is_firm(const struct judging *j, int64_t r)
{
    const struct m3_tensor *others = j->field[M3_ROW_OTHERS];
    return !others || m3_decode(others->dtype, others->data, j->pairs[r].number) < may_choose;
}

static int take_firm(struct judging *j, struct m3_error *error)
{
    int64_t n = 0;
    for (int64_t r = 0; r < j->rows; r++) n += is_firm(j, r);
    if (2 * n < j->rows) return M3_OK;
    const int status = m3_distances_new(&j->firm, j->runs, n, j->want->name, error);
    for (int64_t a = 0, to = 0; a <= j->runs && !status; a++)
        for (int64_t r = 0; r < j->rows; r++) {
            if (!is_firm(j, r)) continue;
            j->firm.error[to] = j->d.error[a * j->rows + r];
            j->firm.nearest[to++] = j->d.nearest[a * j->rows + r];
        }
    return status;
}

static double beyond(double *own, double *largest, const struct judging *j, const double *of, int64_t first,
                     double share)
{
    return m3_distances_beyond(own, largest, &j->d, of, first, share, 0);
}

/* The worst of the quotients by which a tap can be suspect, in limits. A few rows have limits of at least `least`. */
static double worst_of(const struct judging *j, double least)
{
    double own, largest, worst = 0;
    for (int i = 0; i < SHARES; i++) {
        const struct m3_distances *d = i < 2 || j->firm.n == 0 ? &j->d : &j->firm;
        const double nearest = fmax(suspect_nearest[i], least), errors = fmax(suspect_errors[i], least);
        worst = fmax(worst, m3_distances_beyond(&own, &largest, d, d->error, 0, shares[i], 0) / errors);
        if (j->field[M3_ROW_RUNS] == NULL) continue;
        worst = fmax(worst, m3_distances_beyond(&own, &largest, d, d->nearest, 0, shares[i], 0) / nearest);
        if (i < 2 && j->rows - j->later >= 8)
            worst = fmax(worst, beyond(&own, &largest, j, j->d.nearest, j->later, shares[i]) / nearest);
    }
    return worst;
}

/* Over all rows of the statistic: some row may be the first to choose another expert, and a few rows are no proof below
 * that. */
static int usual_error(double *usual, const struct judging *j, struct m3_error *error)
{
    const struct m3_tensor *errors = j->field[M3_ROW_ERROR];
    const int64_t rows = errors->shape[1], n = j->runs * rows;
    double *all = malloc((size_t)(n + 2 * rows) * sizeof *all + 1);
    if (all == NULL) return m3_fail_memory(error, errors->name, (size_t)(n + 2 * rows) * sizeof *all);
    for (int64_t i = 0; i < n; i++) all[i] = m3_decode(errors->dtype, errors->data, i);
    *usual = m3_usual_error(all, j->runs, rows, all + n, all + n + rows);
    free(all);
    return M3_OK;
}

/* For a tap in which some honest run is as far off as zeros would be: near one of them is a pass all the same. */
static void weigh_wide(struct m3_row_verdict *out, const struct judging *j)
{
    const double usual =
        fails_above * (j->field[M3_ROW_RUNS] != NULL ? m3_distances_usual_nearest(&j->d, shares[0]) : INFINITY);
    if (usual < 1) {
        out->verdict = out->nearest <= usual ? M3_VERDICT_PASS : M3_VERDICT_SUSPECT;
        return;
    }
    out->verdict = M3_VERDICT_NOT_JUDGED;
    out->why = "honest implementations of the profile may be as far off as zeros";
}

static int is_alike(const struct judging *j, int64_t a, int64_t b)
{
    double squares = 0, off = 0;
    for (int64_t i = 0; i < j->width; i += j->step > 0 ? j->step : 1) {
        const double x = m3_decode(j->want->dtype, j->want->data, j->pairs[a].want * j->width + i);
        const double d = x - m3_decode(j->want->dtype, j->want->data, j->pairs[b].want * j->width + i);
        squares += x * x;
        off += d * d;
    }
    return off < alike_below * alike_below * squares;
}

/* alike [rows]: is the row like one of those before it? */
static void mark_alike(unsigned char *alike, const struct judging *j)
{
    for (int64_t r = 0; r < j->rows; r++) {
        alike[r] = 0;
        for (int64_t k = m3_max(0, r - M3_LOCAL_REACH); k < r && !alike[r]; k++)
            alike[r] = (unsigned char)is_alike(j, r, k);
    }
}

/* Rows that are off where the others are not. */
static int weigh_few(struct m3_row_verdict *out, const struct judging *j, struct m3_error *error)
{
    const struct m3_tensor *expected = j->field[M3_ROW_OTHERS];
    double *others = malloc((size_t)j->rows * sizeof *others + 1);
    unsigned char *alike = malloc((size_t)j->rows + 1);
    const struct m3_local_rules rules = { .has_nearest = j->field[M3_ROW_RUNS] != NULL,
                                          .others = expected ? others : NULL,
                                          .alike = alike,
                                          .blank = garbage };
    struct m3_local found;
    int status = M3_OK;
    if (!others || !alike) status = m3_fail_memory(error, j->want->name, (size_t)j->rows * sizeof *others);
    for (int64_t r = 0; r < j->rows && expected && !status; r++)
        others[r] = m3_decode(M3_F64, expected->data, j->pairs[r].number);
    if (!status) mark_alike(alike, j);
    if (!status) status = m3_local_find(&found, &j->d, &rules, error);
    free(others);
    free(alike);
    if (status != M3_OK || found.verdict == M3_VERDICT_PASS) return status;
    const int is_few = found.count <= j->rows / 2;
    if (m3_is_judged(out->verdict) && (found.verdict < out->verdict || (found.verdict == out->verdict && !is_few)))
        return M3_OK;
    out->verdict = found.verdict;
    out->why = NULL;
    out->first_bad = j->pairs[found.first].number;
    out->bad_rows = j->pairs[found.first + found.count - 1].number - out->first_bad + 1;
    out->times = found.times;
    out->share = found.times / fails_above;
    return M3_OK;
}

/* Names a row that is zeros or holds another's values, if nothing else names the wrong rows. */
static int weigh_copies(struct m3_row_verdict *out, const struct judging *j, const struct m3_matched *matched,
                        struct m3_error *error)
{
    int64_t pair;
    double largest = 0;
    for (int64_t a = 0; a < j->runs; a++) j->d.each[a] = m3_quantile(j->d.error + a * j->rows, j->rows, 0.5, j->d.room);
    const double usual = m3_quantile(j->d.each, j->runs, 0.5, j->d.room);
    const int status = m3_copies_find(&pair, matched, j->pairs, j->rows, far_above * usual, error);
    if (status != M3_OK || pair < 0 || out->verdict == M3_VERDICT_FAIL) return status;
    for (int64_t a = 0; a < j->runs; a++) largest = fmax(largest, j->d.error[a * j->rows + pair]);
    out->verdict = M3_VERDICT_FAIL;
    out->why = NULL;
    out->first_bad = j->pairs[pair].number;
    out->bad_rows = 1;
    out->times = j->d.error[j->runs * j->rows + pair] / largest;
    out->share = fmax(out->share, out->times / fails_above);
    return M3_OK;
}

static int weigh(struct m3_row_verdict *out, const struct judging *j, const struct m3_matched *matched,
                 struct m3_error *error)
{
    const int few = j->rows < FEW_ROWS, has_runs = j->field[M3_ROW_RUNS] != NULL;
    double fails = beyond(&out->error, &out->error_largest, j, j->d.error, 0, shares[0]);
    double near = 0;
    if (has_runs) near = beyond(&out->nearest, &out->nearest_largest, j, j->d.nearest, 0, shares[0]);
    double usual = 0;
    int status = few ? usual_error(&usual, j, error) : M3_OK;
    if (status != M3_OK) return status;
    fails = few ? m3_row_share(out->error, fmax(out->error_largest, usual)) : fmax(fails, near);
    const double worst = worst_of(j, few ? fails_above : 0);
    out->share = fails / fails_above;
    out->verdict = !(fails <= fails_above) ? M3_VERDICT_FAIL : !(worst <= 1) ? M3_VERDICT_SUSPECT : M3_VERDICT_PASS;
    const double least = has_runs ? fmin(out->error_largest, out->nearest_largest) : out->error_largest;
    if (out->verdict == M3_VERDICT_PASS && fails_above * least >= 1) weigh_wide(out, j);
    status = weigh_few(out, j, error);
    return status == M3_OK ? weigh_copies(out, j, matched, error) : status;
}

/* Of a tap that does not pass, by the largest error of an honest row. */
static int find_pattern(struct m3_row_verdict *out, const struct judging *j, const struct m3_matched *matched,
                        struct m3_error *error)
{
    double largest = 0;
    if (out->verdict != M3_VERDICT_FAIL && out->verdict != M3_VERDICT_SUSPECT) return M3_OK;
    for (int64_t i = 0; i < j->runs * j->rows; i++) largest = fmax(largest, j->d.error[i]);
    return m3_matched_pattern(&out->pattern, matched, largest, 1, error);
}

static int measure(struct m3_row_verdict *out, struct judging *j, const struct m3_matched *matched,
                   struct m3_error *error)
{
    const size_t bytes = (size_t)(j->runs + 1) * (size_t)j->columns * sizeof(float);
    int failed = 0;
    const int team = m3_team_of(omp_get_max_threads(), j->rows * (j->runs + 1) * (j->runs + 1) * j->columns);
#pragma omp parallel num_threads(team)
    {
        float *all = malloc(bytes + 1);
        if (all == NULL) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for
        for (int64_t r = 0; r < j->rows; r++) {
            measure_errors(j, r);
            if (all != NULL && j->field[M3_ROW_RUNS] != NULL) measure_nearest(j, r, all);
        }
        free(all);
    }
    if (failed) return m3_fail_memory(error, j->want->name, bytes);
    const int status = take_firm(j, error);
    return status == M3_OK ? weigh(out, j, matched, error) : status;
}

int m3_judge_rows(struct m3_row_verdict *out, const struct m3_safetensors *file, const struct m3_matched *matched,
                  struct m3_error *error)
{
    struct judging j = { .want = matched->want, .got = matched->got };
    *out = (struct m3_row_verdict){ .verdict = M3_VERDICT_NOT_JUDGED,
                                    .why = "no row in common",
                                    .error = NAN,
                                    .error_largest = NAN,
                                    .nearest = NAN,
                                    .nearest_largest = NAN };
    if (file == NULL || j.want->rank == 0 || j.want->shape[0] == 0) return M3_OK;
    j.width = j.want->count / j.want->shape[0];
    const char *why = find(&j, file, matched);
    int status = why == NULL ? collect(&j, matched, error) : M3_OK;
    out->rows = j.rows;
    if (why != NULL) out->why = why;
    else if (status == M3_OK && j.rows > 0 && !is_of(&j))
        out->why = "the honest implementations are those of a run with other choices";
    else if (status == M3_OK && j.rows > 0) {
        out->why = NULL;
        status = measure(out, &j, matched, error);
        if (status == M3_OK) status = find_pattern(out, &j, matched, error);
    }
    free(j.pairs);
    m3_distances_free(&j.d);
    m3_distances_free(&j.firm);
    return status;
}
