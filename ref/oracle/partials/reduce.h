/* A product computed in N parts along its columns: each part is rounded to the stored format, and the rounded parts
 * are added, in one step or from rank to rank in a ring. SPEC 7.5. */
#ifndef M3_ORACLE_PARTIALS_REDUCE_H
#define M3_ORACLE_PARTIALS_REDUCE_H

#include <stdint.h>

#include "base/weight.h"

enum { M3_RANKS = 64 };         /* the most ranks */

enum m3_reduce {
    M3_REDUCE_ANY,              /* one-shot, a ring, or no rounding before the result's own */
    M3_REDUCE_ONE_SHOT,         /* all parts are added in float, and the sum is rounded once */
    M3_REDUCE_RING,             /* the running sum is rounded after each addition; any rank may be the first */
};

struct m3_partials {
    int ranks;                  /* 0: the product is computed in one part */
    enum m3_reduce reduce;
    enum m3_dtype dtype;        /* in which parts and sums are stored */
};

/* Columns [first, end) of rank r. Widths that the ranks do not divide are cut to equal parts, rounded up, and the last
 * ones are shorter or empty; or, if `even`, to parts that differ by one column at most. */
void m3_partials_cut(int64_t *first, int64_t *end, int64_t cols, int ranks, int r, int even);

/* The results that are possible where part r is within `h` of p[r] before it is rounded. */
struct m3_range {
    double low, high;
};
/* A bias is part of p[0], or is added to the sum: before that is rounded, if it is rounded once, or after it. */
struct m3_range m3_partials_reduce(const double *p, const double *h, double bias, const struct m3_partials *how,
                                   double u);
/* The smallest range that contains both. */
struct m3_range m3_range_join(struct m3_range a, struct m3_range b);
/* x as the nearest number of the format, ties to even; numbers beyond its largest stay finite. */
double m3_rounded_to(double x, enum m3_dtype dtype);
double m3_partials_roundoff(enum m3_dtype dtype);           /* unit roundoff */

/* Variance of the roundings of the parts p and of their sums over the square of the roundoff, if all are
 * independent. */
double m3_partials_variance(const double *p, const struct m3_partials *how);

/* What is known of the terms p_k of a sum without its parts: sum |p_k|, sum p_k^2 and the sum itself. */
struct m3_sum_sizes {
    double mass, squares, sum;
};
/* The same variance for terms in random order, and the largest error over the roundoff; without the rounding of the
 * result itself. */
void m3_partials_estimate(double *error, double *variance, const struct m3_sum_sizes *of,
                          const struct m3_partials *how);
#endif
