/* Kernels: inner loops of bounds and verdicts over the elements of large arrays, compiled once for each instruction set
 * and chosen at run time. Each gives the bits of the function of one element that it stands for. */
#ifndef M3_ORACLE_ERROR_PRIVATE_KERNELS_H
#define M3_ORACLE_ERROR_PRIVATE_KERNELS_H

#include <stdint.h>

#include "oracle/error/private/allowance.h"
#include "oracle/error/private/gate.h"

typedef void m3_gate_kernel(double *out, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g);

struct m3_error_kernels {
    const char *name;           /* "avx512", "avx2", "portable" */

    /* Fills the terms of n elements, at most M3_PIECE, from `first` on. The tap has walk, no suspect, and its reference
     * is in double. Returns 0 if an element may be remarkable: infinite, without a sound allowance, or beyond a tier. */
    int (*terms)(struct m3_terms *to, const struct m3_tap_values *tap, const struct m3_allowing *k, int64_t first,
                 int64_t n);

    /* bound [n] of an operator on single elements: bounds.h. walk may be NULL. */
    void (*add)(double *bound, double *walk, const double *a, const double *b, int64_t n);
    void (*gate)(double *bound, const double *gate, const double *up, int64_t n, const struct m3_gate_form *g,
                 double steps, double u);
    void (*gelu)(double *bound, const double *x, int64_t n);
    void (*sigmoid)(double *bound, const double *x, int64_t n, double steps, double u, int is_tanh);
    void (*scale)(double *out, const double *x, int64_t n, double factor);

    m3_gate_kernel *by_alpha, *by_limit_of_up, *by_limit_of_gate;       /* gate.h; alpha: of one element alone */
};

/* The widest build that this processor can run. */
const struct m3_error_kernels *m3_error_kernels(void);

#endif
