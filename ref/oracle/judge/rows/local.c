#include "oracle/judge/rows/local.h"

#include <math.h>
#include <stdlib.h>

/* So many places side by side are suspect if each is above the limit, well beyond what honest candidates reach. Where
 * choices may differ, two bad ones may be a coincidence. Where they cannot, a place may still attend to one that chose
 * otherwise. */
struct window {
    enum m3_sure sure;          /* places at least so sure; those that are less are left out */
    int64_t places;
    double limit;
    int can_fail;
};
static const struct window windows[] = {
    { M3_SURE_NOT, 2, 8, 0 },         { M3_SURE_NOT, 3, 1.7, 0 },       { M3_SURE_NOT, 4, 1.5, 1 },
    { M3_SURE_NOT, 8, 1.4, 1 },       { M3_SURE_LIKELY, 2, 3, 0 },      { M3_SURE, 1, 5, 0 },
    { M3_SURE, 2, 2.5, 0 },           { M3_SURE_NO_CHOICE, 1, 2.2, 1 }, { M3_SURE_NO_CHOICE, 2, 1.8, 1 },
    { M3_SURE_NO_CHOICE, 3, 1.6, 1 }, { M3_SURE_NO_CHOICE, 4, 1.4, 1 },
};
/* Fails at so many limits. */
static const double fails_above = 2;
/* Runs differ in their choices at a place that is so many times as wide as usual: it says nothing of its neighbours. */
static const double wide = 5;
/* A place is bad, and belongs to the bad ones beside it. */
static const double bad_above = 1.2;
/* One place after choices is suspect beyond so many times the most of any run anywhere. */
static const double one_above = 3;
/* Rows attend to a bad one before them, and may inherit this share of how far it is off. */
static const double inherited = 0.1;

/* Of all runs at one place. A place where all happen to be exact is not judged by zero. */
static double honest_at(const struct m3_distances *d, const double *of, int64_t k)
{
    double largest = 0;
    for (int64_t a = 0; a < d->runs; a++) largest = fmax(largest, of[a * d->n + k]);
    return largest;
}

/* each [n]: the largest distance of a run at each place. Returns the median. */
static double honest_at_all(const struct m3_distances *d, const double *of)
{
    for (int64_t k = 0; k < d->n; k++) d->each[k] = honest_at(d, of, k);
    return m3_quantile(d->each, d->n, 0.5, d->room);
}

/* Lowers the quotients to those of `of`. */
static void lower(double *quotients, const struct m3_distances *d, const double *of, double resolution)
{
    const double least = 0.25 * honest_at_all(d, of);
    for (int64_t k = 0; k < d->n; k++) {
        const double rest = of[d->runs * d->n + k] - resolution;
        const double quotient = rest <= 0 ? 0 : isnan(rest) ? INFINITY : rest / fmax(d->each[k], least);
        if (!(quotient >= quotients[k])) quotients[k] = quotient;
    }
}

/* Places after one that may have chosen otherwise count less. */
static void forgive_heirs(double *quotients, int64_t n, const unsigned char *sure)
{
    double most = 0;
    for (int64_t k = 0; k < n; k++) {
        const double own = quotients[k];
        quotients[k] = own / fmax(1, inherited * most);
        if (isfinite(own) && (sure == NULL || sure[k] < M3_SURE)) most = fmax(most, own);
    }
}

/* quotients [d->n]: how many times as far off the candidate is as the farthest honest run at the same place, by error
 * or by nearest, whichever is less. */
static void compare_places(double *quotients, const struct m3_distances *d, const struct m3_local_rules *rules)
{
    for (int64_t k = 0; k < d->n; k++) quotients[k] = INFINITY;
    lower(quotients, d, d->error, rules->resolution);
    if (rules->has_nearest) lower(quotients, d, d->nearest, rules->resolution);
    forgive_heirs(quotients, d->n, rules->sure);
}

/* at [count]: the places that say something and are so sure, in order. Returns how many. */
static int64_t list_places(int64_t *at, const double *quotients, const struct m3_distances *d,
                           const unsigned char *sure, enum m3_sure least)
{
    const double usual = honest_at_all(d, d->error);
    int64_t count = 0;
    for (int64_t k = 0; k < d->n; k++)
        if (least > M3_SURE_NOT ? sure[k] >= least : quotients[k] > bad_above || d->each[k] <= wide * usual)
            at[count++] = k;
    return count;
}

/* The places whose least quotient is the most limits. */
static double slide(int64_t *best, const struct window *w, const double *quotients, const int64_t *at, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i + w->places <= count; i++) {
        double least = INFINITY;
        for (int64_t k = i; k < i + w->places; k++) least = fmin(least, quotients[at[k]]);
        if (least / w->limit > most) most = least / w->limit, *best = i;
    }
    return most;
}

/* Notes the places from `from` on, and the bad ones beside them, unless something worse is known. */
static void take(struct m3_local *found, double *most, const struct window *w, double limits, int64_t from,
                 const double *quotients, const int64_t *at, int64_t count)
{
    int64_t first = from, last = from + w->places - 1;
    const enum m3_verdict verdict = w->can_fail && limits > fails_above ? M3_VERDICT_FAIL : M3_VERDICT_SUSPECT;
    if (!(limits > 1) || verdict < found->verdict || (verdict == found->verdict && limits <= *most)) return;
    while (first > 0 && quotients[at[first - 1]] > bad_above) first--;
    while (last + 1 < count && quotients[at[last + 1]] > bad_above) last++;
    *found = (struct m3_local){ verdict, at[first], at[last] - at[first] + 1, limits * w->limit };
    *most = limits;
}

/* One place after choices: it must be as wrong as another place's values, and beyond what any run is anywhere. */
static void find_one(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                     const double *quotients)
{
    const double *of = rules->has_nearest ? d->nearest : d->error, *own = of + d->runs * d->n;
    double largest = 0;
    for (int64_t k = 0; k < d->n; k++) largest = fmax(largest, honest_at(d, of, k));
    for (int64_t k = 0; k < d->n; k++) {
        const double rest = own[k] - rules->resolution;
        const int is_far = rest > one_above * largest && rest >= rules->blank && quotients[k] > one_above;
        if ((!is_far && !isnan(rest)) || (found->count > 0 && quotients[k] <= found->times)) continue;
        *found = (struct m3_local){ M3_VERDICT_SUSPECT, k, 1, quotients[k] };
    }
}

static void find(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                 double *quotients, int64_t *at)
{
    double most = 0;
    compare_places(quotients, d, rules);
    for (int sure = rules->sure != NULL ? M3_SURE_NO_CHOICE : M3_SURE_NOT; sure >= M3_SURE_NOT; sure--) {
        const int64_t count = list_places(at, quotients, d, rules->sure, (enum m3_sure)sure);
        for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
            int64_t from = 0;
            if ((int)windows[i].sure != sure) continue;
            const double limits = slide(&from, &windows[i], quotients, at, count);
            take(found, &most, &windows[i], limits, from, quotients, at, count);
        }
    }
    if (found->count == 0) find_one(found, d, rules, quotients);
}

int m3_local_find(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                  struct m3_error *error)
{
    const size_t n = (size_t)d->n + 1;
    double *quotients = malloc(n * sizeof *quotients);
    int64_t *at = malloc(n * sizeof *at);
    *found = (struct m3_local){ .verdict = M3_VERDICT_PASS };
    const int status = quotients && at ? M3_OK : m3_fail_memory(error, "places", n * sizeof *at);
    if (status == M3_OK && d->n > 0) find(found, d, rules, quotients, at);
    free(quotients);
    free(at);
    return status;
}
