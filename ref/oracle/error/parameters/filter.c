#include "oracle/error/parameters/filter.h"

#include <math.h>

#include "oracle/error/private/kernels.h"

void m3_filter_add(struct m3_filter *filter, const struct m3_filter_elements *e)
{
    struct m3_filter_terms t;
    struct m3_filter f = *filter;
    m3_error_kernels()->filter_terms(&t, e);
    for (int64_t i = 0; i < e->n; i++) {
        f.all.lines_up += t.lines_up[i];
        f.all.size += t.size[i];
        f.biased += t.biased[i];
        f.spread += t.spread[i];
        f.shape += t.shape[i];
        f.squares += t.squares[i];
        f.rows[e->row[i]].lines_up += t.lines_up[i];
        f.rows[e->row[i]].size += t.size[i];
        f.columns[e->column[i]].lines_up += t.lines_up[i];
        f.columns[e->column[i]].size += t.size[i];
    }
    f.count += t.count;
    *filter = f;
}

/* The jackknife: how far the estimate moves as each group is left out. Unlike residuals after the fit, it is not fooled
 * by one group that outweighs the others. */
struct grouped {
    double standard_error, freedom;     /* freedom: the number of groups that matter, less 1 */
};

static struct grouped jackknife(const struct m3_filter_group *groups, int64_t count, const struct m3_filter_group *all)
{
    const double estimate = all->lines_up / all->size;
    double moved = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        const double rest = all->size - groups[i].size;
        if (groups[i].size == 0) continue;
        if (!(rest > 1e-9 * all->size)) return (struct grouped){ INFINITY, 0 };
        const double move = (groups[i].lines_up - estimate * groups[i].size) / rest;
        moved += move * move;
        squares += groups[i].size * groups[i].size;
    }
    return (struct grouped){ sqrt(moved), all->size / squares * all->size - 1 };
}

/* What a quotient t by a standard error of so many degrees of freedom is in standard deviations: Wallace's
 * approximation of Student's distribution. */
static double deviations(double t, double freedom)
{
    if (!(freedom > 0) || !(t > 0)) return 0;
    return (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log1p(t * t / freedom));
}

struct m3_fit m3_filter_fit(const struct m3_filter *filter)
{
    enum { MANY = 64 };         /* with fewer elements, their spread says nothing */
    const double ROUNDED = 1. / 16; /* roundings of numbers with few bits have a mean: at most so much of their size */
    struct m3_fit fit = { 0 };
    const struct m3_filter_group *all = &filter->all;
    if (!(all->size > 0) || !isfinite(all->size)) return fit;
    const double n = (double)filter->count;
    fit.change = all->lines_up / all->size;
    fit.explained = filter->squares > 0 ? fit.change * all->lines_up / filter->squares : 0;
    const double rest = filter->squares * fmax(0, 1 - fit.explained);

    /* Variances are often larger than those of the errors, but not where few elements say so. */
    const double scale = filter->count >= MANY ? fmin(1, sqrt(rest / n)) : 1;
    const double alone = scale / sqrt(all->size);
    const struct grouped rows = jackknife(filter->rows, filter->row_count, all);
    const struct grouped columns = jackknife(filter->columns, filter->column_count, all);
    const int by_column = filter->column_count > 1;
    const double mean = filter->biased + ROUNDED * scale * filter->spread + fabs(filter->shape);
    fit.mean = mean / all->size;
    fit.length = 1 / alone;
    const double beyond = fabs(fit.change) - fit.mean;
    double z = beyond > 0 ? fmin(beyond / alone, deviations(beyond / rows.standard_error, rows.freedom)) : 0;
    if (by_column) z = fmin(z, deviations(beyond / columns.standard_error, columns.freedom));
    fit.z = z > 0 ? copysign(z, fit.change) : 0;

    /* Where rounding does not explain the rest, the effect is not proportional to the change. */
    const double bend = rest > n ? fabs(fit.change) * sqrt((rest - n) / filter->squares) : 0;
    fit.standard_error = fmax(alone, rows.standard_error);
    if (by_column) fit.standard_error = fmax(fit.standard_error, columns.standard_error);
    fit.standard_error = hypot(fit.standard_error, bend);
    return fit;
}
