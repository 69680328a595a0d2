#include "oracle/judge/server/private/judge.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/minmax.h"
#include "oracle/judge/rows/local.h"

static const double shares[M3_SERVER_SHARES] = { 0.5, 0.75, 0.9, 1 };
static const char *const share_names[M3_SERVER_SHARES] = { "half of the positions", "75 % of the positions",
                                                           "90 % of the positions", "the farthest position" };
static const double fails_above = M3_SERVER_FAILS, suspect_above = M3_SERVER_SUSPECT, few_suspect_above = 2;
enum { FEW = 16, MIDDLE = 1 };
/* Distances end here: a token that is impossible on one side only. */
static const double farthest = 9999;

/* ---- distances */

enum metric { RMS, FARTHEST_ENTRY };

static double rms_between(const double *a, const double *b, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = isinf(a[i]) && b[i] < -farthest ? 0 : fmin(fabs(a[i] - b[i]), farthest);
        squares += d * d;
    }
    return sqrt(squares / (double)n);
}

/* The largest difference of a value. */
static double most_between(const double *a, const double *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, rms_between(a + i, b + i, 1));
    return most;
}

static double distance_by(enum metric metric, const struct m3_weighing *w, int64_t i, const double *a, const double *b)
{
    const struct m3_asked *asked = &w->question->asked[i];
    return (metric == RMS ? rms_between : most_between)(a + asked->first, b + asked->first, asked->count);
}

static double distance(const struct m3_weighing *w, int64_t i, const double *a, const double *b)
{
    return distance_by(RMS, w, i, a, b);
}

double m3_resolution_of(const double *got, int64_t n)
{
    double largest = 1, grain = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(got[i])) largest = fmax(largest, fabs(got[i]));
    for (int digits = 1; digits <= 5 && grain == 0 && n >= 16; digits++) {
        const double unit = pow(10, digits);
        int fits = 1;
        for (int64_t i = 0; i < n && fits; i++)
            fits = !isfinite(got[i]) || fabs(got[i] * unit - nearbyint(got[i] * unit)) <= 1e-9 * unit;
        if (fits) grain = 0.5 / unit;
    }
    return fmax(grain, largest * 0x1p-24);
}

/* ---- all distances of an answer: of each run, then of the server */

struct distances {
    const struct m3_weighing *w;
    int64_t *places;            /* [of.n] of the question: those with entries */
    unsigned char *alike;       /* [of.n] has one of the rows before it the same token? */
    double *others;             /* [of.n] of the weighing; infinite: not known */
    struct m3_distances of;
};

static void distances_free(struct distances *d)
{
    free(d->places);
    free(d->others);
    free(d->alike);
    m3_distances_free(&d->of);
}

static int is_alike(const struct m3_weighing *w, int64_t row)
{
    for (int64_t k = m3_max(0, row - M3_LOCAL_REACH); w->tokens && k < row; k++)
        if (w->tokens[k] == w->tokens[row]) return 1;
    return 0;
}

static int distances_new(struct distances *d, const struct m3_weighing *w, struct m3_error *error)
{
    const struct m3_question *q = w->question;
    int64_t n = 0;
    const size_t count = (size_t)q->count;
    *d = (struct distances){ .w = w,
                             .places = malloc(count * sizeof *d->places + 1),
                             .others = malloc(count * sizeof *d->others + 1),
                             .alike = malloc(count + 1) };
    if (!d->places || !d->others || !d->alike) return m3_fail_memory(error, "distances", count * sizeof *d->places);
    for (int64_t i = 0; i < q->count; i++) {
        if (q->asked[i].count == 0) continue;
        d->alike[n] = (unsigned char)is_alike(w, q->asked[i].row);
        d->others[n] = w->others ? w->others[q->asked[i].row] : INFINITY;
        d->places[n++] = i;
    }
    return m3_distances_new(&d->of, w->run_count, n, "distances", error);
}

/* The nearest other run of each run; the truth is honest too, and may be the nearest of the server's. */
static void measure(struct distances *d, enum metric metric)
{
    const struct m3_weighing *w = d->w;
    const int64_t runs = d->of.runs + 1;
#pragma omp parallel for num_threads(m3_team_of(omp_get_max_threads(), d->of.n * runs * runs * 64))
    for (int64_t k = 0; k < d->of.n; k++) {
        const int64_t i = d->places[k];
        for (int64_t a = 0; a <= d->of.runs; a++) {
            const double *mine = a < d->of.runs ? w->runs[a].logprobs : w->got;
            double *near = &d->of.nearest[a * d->of.n + k];
            d->of.error[a * d->of.n + k] = distance_by(metric, w, i, mine, w->truth.logprobs);
            *near = a == d->of.runs ? d->of.error[a * d->of.n + k] : INFINITY;
            for (int64_t b = 0; b < d->of.runs; b++)
                if (b != a) *near = fmin(*near, distance_by(metric, w, i, mine, w->runs[b].logprobs));
        }
    }
}

static double beyond(double *own, double *largest, const struct distances *d, const double *of, double share)
{
    return m3_distances_beyond(own, largest, &d->of, of, 0, share, d->w->resolution);
}

int m3_weigh_against(double *worst, const struct m3_weighing *w, const struct m3_told *told, int is_fine,
                     struct m3_error *error)
{
    struct distances d;
    const int status = distances_new(&d, w, error);
    *worst = NAN;
    if (!status && d.of.n > 0) {
        for (int64_t a = 0; a <= d.of.runs; a++)
            for (int64_t k = 0; k < d.of.n; k++)
                d.of.error[a * d.of.n + k] = distance(w, d.places[k], a < d.of.runs ? w->runs[a].logprobs : w->got,
                                                      a < d.of.runs ? w->truth.logprobs : told->logprobs);
        *worst = 0;
        for (int i = 0; i < M3_SERVER_SHARES - !is_fine; i++) {
            double own, largest;
            *worst = fmax(*worst, beyond(&own, &largest, &d, d.of.error, shares[i]));
        }
    }
    distances_free(&d);
    return status;
}

/* ---- verdicts */

/* What an answer to other tokens would be off by: three of four positions are at least so far. NaN: not known. */
static double blank_by(enum metric metric, const struct distances *d)
{
    const struct m3_told *truth = &d->w->truth;
    if (d->of.n < 2 || !truth->other) return NAN;
    for (int64_t k = 0; k < d->of.n; k++)
        d->of.each[k] = distance_by(metric, d->w, d->places[k], truth->logprobs, truth->other);
    return m3_quantile(d->of.each, d->of.n, 0.25, d->of.room);
}

static double usual_error(const struct distances *d)
{
    return m3_usual_error(d->of.error, d->of.runs, d->of.n, d->of.each, d->of.room);
}

static void weigh_distances(struct m3_server *r, const struct distances *d)
{
    const int few = d->of.n < FEW;
    double q[M3_SERVER_SHARES], error;
    for (int i = 0; i < M3_SERVER_SHARES; i++)
        q[i] = beyond(&r->nearest[i], &r->nearest_largest[i], d, d->of.nearest, shares[i]);
    error = beyond(&r->error, &r->error_largest, d, d->of.error, shares[MIDDLE]);
    r->by = share_names[MIDDLE];
    r->quotient = q[MIDDLE];
    for (int i = 0; i < M3_SERVER_SHARES - !r->is_fine; i++)
        if (!(q[i] <= r->quotient)) r->quotient = q[i], r->by = share_names[i];
    const int fails = few ? !(error <= fails_above) && !(r->error <= fails_above * usual_error(d))
                          : !(q[MIDDLE] <= fails_above) || !(error <= fails_above);
    const double blank = blank_by(RMS, d), usual = fails_above * m3_distances_usual_nearest(&d->of, shares[MIDDLE]);
    const int suspect = !(fmax(r->quotient, error) <= (few ? few_suspect_above : suspect_above));
    r->verdict = fails ? M3_VERDICT_FAIL : suspect ? M3_VERDICT_SUSPECT : M3_VERDICT_PASS;
    if (fails && !(q[MIDDLE] > fails_above)) r->by = share_names[MIDDLE], r->quotient = error;
    /* Honest runs so far apart that an answer to other tokens would pass prove nothing by themselves. */
    if (r->verdict != M3_VERDICT_PASS || !(fails_above * r->nearest_largest[MIDDLE] >= blank)) return;
    if (!(usual < blank)) r->verdict = M3_VERDICT_NOT_JUDGED;
    else if (!(r->nearest[MIDDLE] <= usual)) r->verdict = M3_VERDICT_SUSPECT;
}

/* Of few numbers the nearest run is near by chance, more at one place than at another. */
static int has_telling_nearest(const struct distances *d)
{
    enum { FEW = 8 };
    const struct m3_question *q = d->w->question;
    int64_t numbers = 0;
    for (int64_t k = 0; k < d->of.n; k++) numbers += q->asked[d->places[k]].count;
    return numbers >= FEW * d->of.n;
}

static int find_few(struct m3_local *found, const struct distances *d, enum metric metric, struct m3_error *error)
{
    const int has_nearest = has_telling_nearest(d);
    const struct m3_local_rules rules = { .has_nearest = has_nearest,
                                          .resolution = d->w->resolution,
                                          .others = has_nearest ? d->others : NULL,
                                          .alike = d->alike,
                                          .blank = blank_by(metric, d) };
    return m3_local_find(found, &d->of, &rules, error);
}

/* Positions that are off where the others are not. One value among many that are right counts too; this measures the
 * distances anew. */
static int weigh_few(struct m3_server *r, struct distances *d, struct m3_error *error)
{
    struct m3_local found;
    int status = find_few(&found, d, RMS, error);
    if (!status && found.verdict == M3_VERDICT_PASS) {
        measure(d, FARTHEST_ENTRY);
        status = find_few(&found, d, FARTHEST_ENTRY, error);
    }
    if (status || found.verdict == M3_VERDICT_PASS) return status;
    const int is_few = found.count <= d->of.n / 2;
    if (m3_is_judged(r->verdict) && (found.verdict < r->verdict || (found.verdict == r->verdict && !is_few)))
        return M3_OK;
    const struct m3_server_place *first = &r->places[d->places[found.first]];
    r->verdict = found.verdict;
    r->by = found.count > 1 ? "positions side by side" : "one position";
    r->quotient = found.times;
    r->first_bad = first->place;
    r->last_bad = r->places[d->places[found.first + found.count - 1]].place;
    for (int64_t k = found.first; k < found.first + found.count; k++) {
        struct m3_server_place *p = &r->places[d->places[k]];
        if (p->verdict == M3_VERDICT_PASS) p->verdict = M3_VERDICT_SUSPECT;
    }
    return M3_OK;
}

static void weigh_place(struct m3_server *r, const struct distances *d, int64_t k)
{
    const struct m3_asked *asked = &d->w->question->asked[d->places[k]];
    struct m3_server_place *p = &r->places[d->places[k]];
    double farthest_entry = -1;
    p->nearest = d->of.nearest[d->of.runs * d->of.n + k];
    p->honest = 0;
    for (int64_t a = 0; a < d->of.runs; a++) p->honest = fmax(p->honest, d->of.nearest[a * d->of.n + k]);
    for (int64_t e = asked->first; e < asked->first + asked->count; e++) {
        const double off = rms_between(&d->w->got[e], &d->w->truth.logprobs[e], 1);
        if (off <= farthest_entry) continue;
        farthest_entry = off;
        p->worst = d->w->question->ids[e];
        p->got = d->w->got[e];
        p->want = d->w->truth.logprobs[e];
    }
    const double most = fmax(p->honest, r->nearest_largest[MIDDLE]), rest = p->nearest - d->w->resolution;
    p->verdict = rest > fails_above * most     ? M3_VERDICT_FAIL
                 : rest > suspect_above * most ? M3_VERDICT_SUSPECT
                                               : M3_VERDICT_PASS;
}

/* ---- ranks */

static int32_t top_entry(const struct m3_weighing *w, int64_t i, const double *logprobs)
{
    const struct m3_asked *asked = &w->question->asked[i];
    int64_t best = asked->first;
    for (int64_t e = asked->first; e < asked->first + asked->count; e++)
        if (logprobs[e] > logprobs[best]) best = e;
    return w->question->ids[best];
}

static void weigh_ranks(struct m3_server *r, const struct m3_weighing *w)
{
    for (int64_t i = 0; i < w->question->count; i++) {
        if (w->question->asked[i].count < 2) continue;
        const int32_t own = top_entry(w, i, w->got);
        if (own == top_entry(w, i, w->truth.logprobs)) continue;
        int64_t a = 0;
        while (a < w->run_count && top_entry(w, i, w->runs[a].logprobs) != own) a++;
        r->rank_changes++;
        r->rank_unexplained += a == w->run_count;
    }
}

static void find_first(struct m3_server *r)
{
    const struct m3_server_place *farthest_place = NULL;
    double most = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const struct m3_server_place *p = &r->places[i];
        const double share = p->nearest / fmax(p->honest, r->nearest_largest[MIDDLE]);
        if (p->verdict == M3_VERDICT_FAIL) {
            r->first = p;
            return;
        }
        if (share > most) most = share, farthest_place = p;
    }
    r->first = farthest_place;
}

static void settle(struct m3_server *r, int has_distances)
{
    static const double improbable = 5;
    for (int64_t i = 0; i < r->count; i++) r->judged += m3_is_judged(r->places[i].verdict);
    r->distances = has_distances ? r->verdict : M3_VERDICT_PASS;
    r->verdict = r->distances;
    const int is_suspect =
        r->by_tokens == M3_VERDICT_SUSPECT || r->by_lists == M3_VERDICT_SUSPECT || fabs(r->z) > improbable;
    if (r->by_tokens == M3_VERDICT_FAIL || r->by_lists == M3_VERDICT_FAIL) r->verdict = M3_VERDICT_FAIL;
    else if (r->verdict != M3_VERDICT_FAIL && is_suspect) r->verdict = M3_VERDICT_SUSPECT;
    if (r->verdict == M3_VERDICT_NOT_JUDGED) r->judged = 0;
    if (r->verdict == M3_VERDICT_PASS && r->judged < r->stages) r->verdict = M3_VERDICT_PARTIAL;
    if (r->verdict == M3_VERDICT_NOT_JUDGED) r->verdict = M3_VERDICT_PARTIAL;
    for (int64_t i = 0; i < r->count; i++) {
        r->failed += r->places[i].verdict == M3_VERDICT_FAIL;
        r->suspect += r->places[i].verdict == M3_VERDICT_SUSPECT;
    }
    if (r->verdict == M3_VERDICT_FAIL || r->verdict == M3_VERDICT_SUSPECT) find_first(r);
    r->status = m3_run_status(r->verdict);
}

int m3_weigh(struct m3_server *r, const struct m3_weighing *w, struct m3_error *error)
{
    struct distances d;
    int status = distances_new(&d, w, error);
    if (!status && d.of.n > 0) {
        measure(&d, RMS);
        weigh_distances(r, &d);
        for (int64_t k = 0; k < d.of.n; k++) weigh_place(r, &d, k);
        weigh_ranks(r, w);
        status = weigh_few(r, &d, error);
    }
    if (!status) status = m3_weigh_tokens(r, w, error);
    if (!status) settle(r, d.of.n > 0);
    distances_free(&d);
    return status;
}
