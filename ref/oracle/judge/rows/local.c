#include "oracle/judge/rows/local.h"

#include <math.h>
#include <stdlib.h>

/* So many places side by side are suspect if each is above the limit. Honest candidates stay below 2/3 of it. Two may
 * be a coincidence of choices: their limit is beyond what such rows usually have. */
struct window {
    int64_t places;
    double limit;
    int can_fail;
};
static const struct window windows[] = {
    { 1, 2.5, 1 },      /* where nothing is chosen upstream */
    { 2, 10, 0 },  { 3, 2, 0 }, { 4, 1.75, 1 }, { 8, 1.5, 1 },
};
/* Fails at so many limits. */
static const double fails_above = 2;
/* Runs differ in their choices at a place that is so many times as wide as usual: it says nothing of its neighbours. */
static const double wide = 5;
/* A place is bad, and belongs to the bad ones beside it. */
static const double bad_above = 1.5;
/* One place after choices is suspect beyond so many times the most of any run anywhere. */
static const double one_above = 2;

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

/* quotients [d->n]: how many times as far off the candidate is as the farthest honest run at the same place, by error
 * or by nearest, whichever is less. */
static void compare_places(double *quotients, const struct m3_distances *d, const struct m3_local_rules *rules)
{
    for (int64_t k = 0; k < d->n; k++) quotients[k] = INFINITY;
    lower(quotients, d, d->error, rules->resolution);
    if (rules->has_nearest) lower(quotients, d, d->nearest, rules->resolution);
}

/* at [count]: the places that say something, in order. Returns how many. */
static int64_t leave_out_wide(int64_t *at, const double *quotients, const struct m3_distances *d)
{
    const double usual = honest_at_all(d, d->error);
    int64_t count = 0;
    for (int64_t k = 0; k < d->n; k++)
        if (quotients[k] > bad_above || d->each[k] <= wide * usual) at[count++] = k;
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

static void take(struct m3_local *found, const struct window *w, double limits, int64_t from, const double *quotients,
                 const int64_t *at, int64_t count)
{
    int64_t first = from, last = from + w->places - 1;
    while (first > 0 && quotients[at[first - 1]] > bad_above) first--;
    while (last + 1 < count && quotients[at[last + 1]] > bad_above) last++;
    found->verdict = w->can_fail && limits > fails_above ? M3_VERDICT_FAIL : M3_VERDICT_SUSPECT;
    found->first = at[first];
    found->count = at[last] - at[first] + 1;
    found->times = limits * w->limit;
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
    double most = 1;
    compare_places(quotients, d, rules);
    const int64_t count = leave_out_wide(at, quotients, d);
    for (size_t i = rules->has_choices ? 1 : 0; i < sizeof windows / sizeof *windows; i++) {
        int64_t from = 0;
        const double limits = slide(&from, &windows[i], quotients, at, count);
        if (limits > most) most = limits, take(found, &windows[i], limits, from, quotients, at, count);
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
