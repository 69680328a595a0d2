/* A filter for each known mistake: has the answer moved toward a run that makes it? Under a coarse profile honest runs
 * are far apart, but not in that direction. */
#include <math.h>
#include <stdlib.h>

#include "oracle/cause/answer.h"

/* One choice that differs must not decide: an entry counts at most so many standard deviations. */
static const double most = 3;

static double clipped(double x) { return x > most ? most : x < -most ? -most : x; }

struct direction {
    int64_t n, runs;
    double *mean, *deviation, *delta;   /* [entries] of the honest runs; the mistake's effect, in deviations */
};

static double along(const struct direction *d, const double *logprobs, const struct m3_weighing *w, int64_t left_out)
{
    double sum = 0;
    for (int64_t e = 0; e < d->n; e++) {
        double mean = d->mean[e];
        if (d->delta[e] == 0) continue;
        if (left_out >= 0) mean = (mean * (double)d->runs - w->runs[left_out].logprobs[e]) / (double)(d->runs - 1);
        sum += clipped((logprobs[e] - mean) / d->deviation[e]) * d->delta[e];
    }
    return sum;
}

static void find_direction(struct direction *d, const struct m3_weighing *w, const struct m3_told *wrong)
{
    for (int64_t e = 0; e < d->n; e++) {
        double sum = 0, squares = 0;
        for (int64_t a = 0; a < d->runs; a++) sum += w->runs[a].logprobs[e];
        const double mean = sum / (double)d->runs;
        for (int64_t a = 0; a < d->runs; a++) {
            const double off = w->runs[a].logprobs[e] - mean;
            squares += off * off;
        }
        d->mean[e] = mean;
        d->deviation[e] = sqrt(squares / (double)(d->runs - 1)) + w->resolution;
        d->delta[e] = clipped((wrong->logprobs[e] - w->truth.logprobs[e]) / d->deviation[e]);
        if (!isfinite(d->delta[e])) d->delta[e] = 0;
    }
}

int m3_weigh_toward(double *z, double *share, const struct m3_weighing *w, const struct m3_told *wrong,
                    struct m3_error *error)
{
    static const double least_effect = 0.1;     /* rms, in deviations */
    const size_t bytes = (size_t)w->question->entries * sizeof(double) + 1;
    struct direction d = { .n = w->question->entries,
                           .runs = w->run_count,
                           .mean = malloc(bytes),
                           .deviation = malloc(bytes),
                           .delta = malloc(bytes) };
    int status = d.mean && d.deviation && d.delta ? M3_OK : m3_fail_memory(error, "a direction", bytes);
    double squares = 0, sum = 0, deviations = 0;
    *z = *share = 0;
    if (!status) {
        find_direction(&d, w, wrong);
        for (int64_t e = 0; e < d.n; e++) squares += d.delta[e] * d.delta[e];
    }
    if (!status && d.n > 0 && squares >= least_effect * least_effect * (double)d.n) {
        const double own = along(&d, w->got, w, -1);
        for (int64_t a = 0; a < d.runs; a++) {
            const double t = along(&d, w->runs[a].logprobs, w, a);
            sum += t;
            deviations += t * t;
        }
        const double mean = sum / (double)d.runs;
        *share = own / squares;
        *z = (own - mean) / sqrt(deviations / (double)(d.runs - 1) - mean * mean);
    }
    free(d.mean);
    free(d.deviation);
    free(d.delta);
    return status;
}
