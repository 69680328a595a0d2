/* Kernels: inner loops of bounds and verdicts over the elements of large arrays, compiled once for each instruction set
 * and chosen at run time. Each gives the bits of the function of one element that it stands for. */
#ifndef M3_ORACLE_ERROR_PRIVATE_KERNELS_H
#define M3_ORACLE_ERROR_PRIVATE_KERNELS_H

#include <stdint.h>

#include "oracle/error/parameters/filter_elements.h"
#include "oracle/error/private/allowance.h"
#include "oracle/error/private/gate.h"

struct m3_two_sides; /* tiers.h */

/* What elements add to the sums of a filter: 0 where they are left out. */
struct m3_filter_terms {
    double lines_up[M3_FILTER_PIECE], size[M3_FILTER_PIECE], biased[M3_FILTER_PIECE];
    double spread[M3_FILTER_PIECE], shape[M3_FILTER_PIECE], squares[M3_FILTER_PIECE];
    int64_t count;
};

/* How far honest errors are off, beside what a tap's bound says: shares of |y|, and of a pattern. */
struct m3_filter_rules {
    double most, of_walk, of_y, of_shape; /* most: u times the number of roundings that may go to one side */
};

/* Elements of a tap in a format of so many bits. */
struct m3_grid_counts {
    int64_t telling, off, reference_off; /* of those that tell: no numbers of the format */
};

/* The channels of a row of attention: sum p v, sum p |v|, the largest |v|; and with |v - o| in place of |v|, times the
 * error of the logit: sum, and sums of squares. */
struct m3_weighed {
    double *o, *mass, *top, *worst, *walk2, *probable2;
};

typedef void m3_gate_kernel(double *out, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g);

struct m3_error_kernels {
    const char *name; /* "avx512", "avx2", "portable" */

    /* Fills the terms of n elements, at most M3_PIECE, from `first` on. The tap has walk, no suspect, and its reference
     * is in double. Returns 0 if an element may be remarkable: infinite, without a sound allowance, or beyond a tier. */
    int (*terms)(struct m3_terms *to, const struct m3_two_sides *tap, const struct m3_allowing *k, int64_t first,
                 int64_t n);

    /* bound [n] of an operator on single elements: bounds.h. walk may be NULL. */
    void (*add)(double *bound, double *walk, const double *a, const double *b, int64_t n);
    void (*gate)(double *bound, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g,
                 double steps, double u);
    void (*gelu)(double *bound, const double *x, int64_t n);
    void (*sigmoid)(double *bound, const double *x, int64_t n, double steps, double u, int is_tanh);
    void (*scale)(double *out, const double *x, int64_t n, double factor);
    void (*sizes)(double *size, double *square, const double *x, int64_t n);

    /* Partial sums s become s + d after m more columns. *walked += the sum of their squares on the way, in the mean over
     * all orders of these columns; but for (m + 1) / 6 times the sum of the squares of what is added. */
    void (*walk)(double *sums, double *walked, const double *d, int64_t n, double m);

    /* Fills d, g, v, b and s of e->n elements from `first` on. Returns whether a g is not 0. */
    int (*filter_elements)(struct m3_filter_elements *e, const struct m3_two_sides *tap, const double *by,
                           const double *shape, const struct m3_filter_rules *rules, int64_t first);
    void (*filter_terms)(struct m3_filter_terms *to, const struct m3_filter_elements *e);

    /* a . b, in eight partial sums; *mass: |a| . |b|. */
    double (*dot)(double *mass, const double *a, const double *b, int64_t n);
    void (*add_scaled)(double *y, const double *x, double factor, int64_t n); /* y += factor x */

    /* Attention: a value v [n] of weight p; then how far it moves an output if its logit is off by so much. */
    void (*add_value)(const struct m3_weighed *to, const double *v, double p, int64_t n);
    void (*add_moved)(const struct m3_weighed *to, const double *v, double p, double eps, double walk, double probable,
                      int64_t n);

    /* Adds the counts of n elements from `first` on, all finite, in a format of so many bits, the last of them at least
     * 2^least. Returns 0, and adds nothing, if an element is too small for that many bits, or infinite. */
    int (*grid)(struct m3_grid_counts *to, const struct m3_two_sides *tap, int bits, int least, int64_t first,
                int64_t n);

    m3_gate_kernel *by_alpha, *by_beta, *by_limit_of_up,
        *by_limit_of_gate; /* gate.h; the first two: of one element alone */
};

/* The widest build that this processor can run. */
const struct m3_error_kernels *m3_error_kernels(void);

#endif
