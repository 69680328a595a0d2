#include "oracle/judge/rows/local.h"

#include <math.h>
#include <stdlib.h>

/* So many places side by side are suspect if each is above the limit, well beyond what honest candidates reach. Where
 * choices may differ, two bad ones may be a coincidence. Where they cannot, one is enough. */
struct window {
    double others;              /* fewer choices that differ are to be expected at each place */
    int64_t places;
    double limit;
    int can_fail;
};
static const struct window windows[] = {
    { 1e-12, 1, 3.2, 1 },    { 1e-7, 1, 3.2, 0 },     { 1e-3, 2, 2, 1 },       { 1e-3, 3, 1.75, 1 },
    { 1e-3, 4, 1.65, 1 },    { 0.1, 2, 2.4, 1 },      { 0.1, 3, 2.1, 1 },      { INFINITY, 2, 32, 0 },
    { INFINITY, 3, 3.4, 1 }, { INFINITY, 4, 2.2, 1 }, { INFINITY, 5, 1.9, 1 }, { INFINITY, 8, 1.6, 1 },
};
/* Fails at so many limits. */
static const double fails_above = 2;
/* Of runs that round alone, the farthest is so many times as far as usual from its nearest. */
static const double usual_spread = 2;
/* A place is bad, and belongs to the bad ones beside it. */
static const double bad_above = 1.5;
/* One place after choices is suspect beyond so many times the most of any run anywhere. */
static const double one_above = 3;
/* Rows attend to a bad one before them whose choices may differ, and may inherit this share of how far it is off. */
static const double inherited = 0.03, sure_below = 1e-7;
/* So many places tell whether the candidate is a little farther off than runs everywhere: that is no mistake of a few. */
enum { TELLING = 16 };

/* Of all runs at one place: the distance to the nearest other that three of four do not exceed: one that has chosen
 * otherwise does not widen it, nor do some that agree to the bit narrow it. Errors are not measured from the nearest: of
 * them the largest. */
static double honest_at(const struct m3_distances *d, const struct m3_local_rules *rules, int64_t k)
{
    const double *of = rules->has_nearest ? d->nearest : d->error;
    double largest = 0;
    for (int64_t a = 0; a < d->runs; a++) {
        d->each[a] = of[a * d->n + k];
        largest = fmax(largest, d->each[a]);
    }
    return rules->has_nearest ? m3_quantile(d->each, d->runs, 0.75, d->room) : largest;
}

static double median(const struct m3_distances *d, const double *numbers)
{
    return m3_quantile(numbers, d->n, 0.5, d->room);
}

/* Places after one that may have chosen otherwise count less. */
static void forgive_heirs(double *quotients, int64_t n, const double *others)
{
    double most = 0;
    for (int64_t k = 0; k < n; k++) {
        const double own = quotients[k];
        quotients[k] = own / fmax(1, inherited * most);
        if (isfinite(own) && !(others && others[k] < sure_below)) most = fmax(most, own);
    }
}

/* How many times as far as usual, `honest` [d->n] and at least `least`, runs are from their nearest others where their
 * choices are sure. Codes of inputs are the same or not: runs agree to the bit in most places, and are far off in others. */
static double spread_of(const struct m3_distances *d, const struct m3_local_rules *rules, const double *honest,
                        double least)
{
    double most = 1;
    for (int64_t a = 0; a < d->runs; a++)
        for (int64_t k = 0; k < d->n; k++)
            if (rules->others && rules->others[k] < sure_below)
                most = fmax(most, d->nearest[a * d->n + k] / fmax(honest[k], least));
    return most;
}

/* quotients [d->n]: how many times as far off the candidate is as honest runs are at the same place. A place where all
 * of them happen to be exact is not judged by zero. */
static void compare_places(double *quotients, const struct m3_distances *d, const struct m3_local_rules *rules)
{
    const double *own = (rules->has_nearest ? d->nearest : d->error) + d->runs * d->n;
    for (int64_t k = 0; k < d->n; k++) quotients[k] = honest_at(d, rules, k);
    const double least = (rules->has_nearest ? 0.5 : 0.25) * median(d, quotients);
    const double spread = rules->has_nearest ? fmax(1, spread_of(d, rules, quotients, least) / usual_spread) : 1;
    for (int64_t k = 0; k < d->n; k++) {
        const double rest = own[k] - rules->resolution;
        quotients[k] = rest <= 0 ? 0 : isnan(rest) ? INFINITY : rest / fmax(quotients[k], least) / spread;
    }
    const double level = d->n >= TELLING ? fmax(1, median(d, quotients)) : 1;
    for (int64_t k = 0; k < d->n && isfinite(level); k++) quotients[k] /= level;
    forgive_heirs(quotients, d->n, rules->others);
}

/* The least quotient of the places from `first` on to *last, without those that are like others; 0 if one of them may
 * well have chosen otherwise, or if there are too few. */
static double least_of(int64_t *last, const struct window *w, const double *quotients, int64_t first, int64_t n,
                       const struct m3_local_rules *rules)
{
    double least = INFINITY;
    int64_t count = 0;
    for (int64_t k = first; k < n && count < w->places; k++) {
        if (k > first && rules->alike && rules->alike[k]) continue;
        if (!isinf(w->others) && !(rules->others && rules->others[k] < w->others)) return 0;
        least = fmin(least, quotients[k]);
        count++;
        *last = k;
    }
    return count < w->places ? 0 : least;
}

/* Notes the places of the window that are farthest off, and the bad ones beside them, unless something worse is known. */
static void take(struct m3_local *found, double *most, const struct window *w, const double *quotients, int64_t n,
                 const struct m3_local_rules *rules)
{
    double limits = 0;
    int64_t first = 0, last = 0;
    for (int64_t i = 0, end = 0; i < n; i++) {
        const double own = least_of(&end, w, quotients, i, n, rules) / w->limit;
        if (own > limits) limits = own, first = i, last = end;
    }
    const enum m3_verdict verdict = w->can_fail && limits > fails_above ? M3_VERDICT_FAIL : M3_VERDICT_SUSPECT;
    if (!(limits > 1) || verdict < found->verdict || (verdict == found->verdict && limits <= *most)) return;
    while (first > 0 && quotients[first - 1] > bad_above) first--;
    while (last + 1 < n && quotients[last + 1] > bad_above) last++;
    *found = (struct m3_local){ verdict, first, last - first + 1, limits * w->limit };
    *most = limits;
}

/* One place after choices: it must be as wrong as another place's values, and beyond what any run is anywhere. */
static void find_one(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                     const double *quotients)
{
    const double *of = rules->has_nearest ? d->nearest : d->error, *own = of + d->runs * d->n;
    double largest = 0;
    for (int64_t i = 0; i < d->runs * d->n; i++) largest = fmax(largest, of[i]);
    for (int64_t k = 0; k < d->n; k++) {
        const double rest = own[k] - rules->resolution;
        const int is_far = rest > one_above * largest && rest >= rules->blank && quotients[k] > one_above;
        if ((!is_far && !isnan(rest)) || (found->count > 0 && quotients[k] <= found->times)) continue;
        *found = (struct m3_local){ M3_VERDICT_SUSPECT, k, 1, quotients[k] };
    }
}

static void find(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                 double *quotients)
{
    double most = 0;
    compare_places(quotients, d, rules);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        take(found, &most, &windows[i], quotients, d->n, rules);
    if (found->count == 0) find_one(found, d, rules, quotients);
}

int m3_local_find(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                  struct m3_error *error)
{
    const size_t n = (size_t)d->n + 1;
    double *quotients = malloc(n * sizeof *quotients);
    *found = (struct m3_local){ .verdict = M3_VERDICT_PASS };
    if (quotients && d->n > 0) find(found, d, rules, quotients);
    free(quotients);
    return quotients ? M3_OK : m3_fail_memory(error, "places", n * sizeof *quotients);
}
