/* A description of a candidate's errors: how large they are, and which arithmetic causes such errors. It takes one
 * pass over a tap, in pieces if needed, with constant memory. SPEC 7.9. */
#ifndef M3_ORACLE_ERROR_EFFECTIVE_PRECISION_H
#define M3_ORACLE_ERROR_EFFECTIVE_PRECISION_H

#include <stdint.h>

#include "base/weight.h"

/* ---- size: quantiles of |d| over the rms of the reference */

enum { M3_OCTAVES = 320, M3_OCTAVE_BINS = 32 };

/* Initialise to zero; about 80 kB. */
struct m3_errors {
    int64_t bins[M3_OCTAVES * M3_OCTAVE_BINS];  /* |d| from 2^-160 on, 32 per octave */
    int64_t zeros;                              /* below that; or equal, infinities too */
    int64_t wild;                               /* NaN or infinite on one side, or opposite infinities */
    int64_t count, finite;                      /* all elements; those with a finite reference */
    double squares, largest;                    /* sum of r^2; largest finite |d| */
};

void m3_errors_add(struct m3_errors *errors, const double *reference, const double *candidate, int64_t count);
void m3_errors_merge(struct m3_errors *errors, const struct m3_errors *more);
/* The value that this share (0 to 1] of all |d| does not exceed, over the rms of the reference. It is too high by at
 * most 3.2 %; for share 1 it is exact. 0 without error; infinite if too many elements are wild or the reference is 0;
 * NaN without elements. */
double m3_errors_quantile(const struct m3_errors *errors, double share);

/* ---- which arithmetic: roundings with unit roundoff u give errors of standard deviation 0.4245 u sigma; each place
 * where a rounding can occur has its own shape of sigma */

enum m3_shape {
    M3_SHAPE_STORE,             /* |r|: results are rounded on storing */
    M3_SHAPE_ACC,               /* walk: every partial sum is rounded */
    M3_SHAPE_INPUT,             /* sqrt(2 sum p^2): both factors of every product are rounded */
    M3_SHAPES,
};

/* Initialise to zero. */
struct m3_precision_sums {
    struct {
        double z2, stored;              /* sum d^2 / sigma^2, sum r^2 / sigma^2 */
        double mantissa;                /* with exponent: the product of all sigma^2; 0 means 1 */
        int64_t exponent;
    } shapes[M3_SHAPES];
    int64_t count;                      /* elements where all known shapes are above 0 */
    int64_t errors;                     /* those of them with d not 0 */
    int64_t off_grid[2], reference_off[2];      /* candidates that are not BF16, F16 values; references likewise */
    int has_walk, has_squares;
};

/* walk as in bounds.h; squares: sum p^2 of each element. Either may be NULL, but then in every call: its shape is not
 * considered. */
void m3_precision_add(struct m3_precision_sums *sums, const double *reference, const double *candidate,
                      const double *walk, const double *squares, int64_t count);
void m3_precision_merge(struct m3_precision_sums *sums, const struct m3_precision_sums *more);

/* The sum p^2 of a dot product of n terms, derived from its walk: exact where the mean over all orders determines the
 * walk, too high where the ascending order does. squares [count] may be walk. */
void m3_precision_squares(double *squares, const double *reference, const double *walk, int64_t n, int64_t count);

enum m3_effective {
    M3_EFFECTIVE_UNKNOWN,           /* fewer than 64 elements */
    M3_EFFECTIVE_EXACT,             /* no error at all */
    M3_EFFECTIVE_FLOAT,             /* float accumulation or better */
    M3_EFFECTIVE_STORE,
    M3_EFFECTIVE_ACC,
    M3_EFFECTIVE_INPUT,
};

struct m3_precision {
    enum m3_effective effective;
    double u[M3_SHAPES];        /* unit roundoff if this shape is the cause; NaN: not known */
    double score[M3_SHAPES];    /* log likelihood per element, up to a constant: the largest is most likely */
    int unclear;                /* the second best is nearly as good, as for values of one sign */
    enum m3_dtype grid;         /* M3_BF16, M3_F16: all candidates have such values; M3_DTYPES: neither */
    double hidden;              /* grid: an accumulation finer than this is invisible after storing */
    char words[96];             /* "fp32 accumulation, stored in bf16" */
};

void m3_precision_of(struct m3_precision *precision, const struct m3_precision_sums *sums);

#endif
