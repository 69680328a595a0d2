#include "oracle/judge/rows/distances.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int m3_distances_new(struct m3_distances *d, int64_t runs, int64_t n, const char *what, struct m3_error *error)
{
    const size_t all = (size_t)(runs + 1) * (size_t)n + 1, places = (size_t)(runs + n) + 1;
    *d = (struct m3_distances){ .runs = runs, .n = n };
    d->error = malloc(all * sizeof *d->error);
    d->nearest = malloc(all * sizeof *d->nearest);
    d->room = malloc(places * sizeof *d->room);
    d->each = malloc(places * sizeof *d->each);
    if (d->error && d->nearest && d->room && d->each) return M3_OK;
    return m3_fail_memory(error, what, all * sizeof *d->error);
}

void m3_distances_free(struct m3_distances *d)
{
    free(d->error);
    free(d->nearest);
    free(d->room);
    free(d->each);
    *d = (struct m3_distances){ 0 };
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double m3_quantile(const double *numbers, int64_t n, double share, double *room)
{
    const double at = share * (double)(n - 1);
    const int64_t low = (int64_t)at;
    memcpy(room, numbers, (size_t)n * sizeof *room);
    qsort(room, (size_t)n, sizeof *room, by_size);
    if (low + 1 >= n) return room[n - 1];
    return room[low] + (at - (double)low) * (room[low + 1] - room[low]);
}

double m3_distances_beyond(double *own, double *largest, const struct m3_distances *d, const double *of, int64_t first,
                           double share, double resolution)
{
    *largest = 0;
    for (int64_t a = 0; a < d->runs; a++) {
        const double q = m3_quantile(of + a * d->n + first, d->n - first, share, d->room);
        if (!(q <= *largest)) *largest = q;
    }
    *own = m3_quantile(of + d->runs * d->n + first, d->n - first, share, d->room);
    const double rest = *own - resolution;
    return rest <= 0 ? 0 : rest / *largest;
}

double m3_distances_usual_nearest(const struct m3_distances *d, double share)
{
    for (int64_t a = 0; a < d->runs; a++) d->each[a] = m3_quantile(d->nearest + a * d->n, d->n, share, d->room);
    return m3_quantile(d->each, d->runs, 0.5, d->room);
}

double m3_usual_error(const double *errors, int64_t runs, int64_t n, double *each, double *room)
{
    for (int64_t k = 0; k < n; k++) each[k] = 0;
    for (int64_t i = 0; i < runs * n; i++) each[i % n] = fmax(each[i % n], errors[i]);
    return m3_quantile(each, n, 0.9, room);
}
