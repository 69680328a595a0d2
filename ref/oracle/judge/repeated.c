/* Rows that are alike, as those of equal tokens. */
#include <math.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/side_by_side.h"

struct row {
    double norm, rounding;      /* rounding: squared, of all elements */
    int64_t at;
};

static int by_norm(const void *a, const void *b)
{
    const double x = ((const struct row *)a)->norm, y = ((const struct row *)b)->norm;
    return (x > y) - (x < y);
}

static double square(double x) { return x * x; }

static struct row row_of(const struct m3_side_by_side *s, int64_t at, int64_t width, double u, double stored)
{
    struct row row = { .at = at };
    for (int64_t i = at * width; i < (at + 1) * width; i++) {
        row.norm += square(s->want[i]);
        row.rounding += m3_side_by_side_variance(s, i, u, stored);
    }
    if (!isfinite(row.norm)) row.norm = INFINITY;
    return row;
}

/* A number that is a fifth of a step away from another has a rounding of its own (the correlation of both is 0 at 0.21
 * steps); a squared difference of a quarter of the variance, a twelfth of a squared step, is 0.14 steps. */
static int is_alike(const struct m3_side_by_side *s, const struct row *a, const struct row *b)
{
    const int64_t width = s->count / s->rows;
    const double *x = s->want + a->at * width, *y = s->want + b->at * width, most = a->rounding / 4;
    double sum = 0;
    for (int64_t i = 0; i < width && sum <= most; i++) sum += square(x[i] - y[i]);
    return isfinite(most) && sum <= most;
}

int m3_side_by_side_mark(struct m3_side_by_side *s, double u, double stored, const char *tap, struct m3_error *error)
{
    enum { NEIGHBOURS = 8 };
    const int64_t width = s->rows > 0 ? s->count / s->rows : 0;
    struct row *rows = malloc((size_t)s->rows * sizeof *rows + 1);
    s->repeated = calloc((size_t)s->rows + 1, 1);
    if (!rows || !s->repeated) {
        free(rows);
        return m3_fail_memory(error, tap, (size_t)s->rows * sizeof *rows);
    }
    for (int64_t r = 0; r < s->rows; r++) rows[r] = row_of(s, r, width, u, stored);
    qsort(rows, (size_t)s->rows, sizeof *rows, by_norm);
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t k = m3_max(0, r - NEIGHBOURS); k < r && !s->repeated[rows[r].at]; k++)
            s->repeated[rows[r].at] = (unsigned char)is_alike(s, &rows[r], &rows[k]);
    free(rows);
    return M3_OK;
}
