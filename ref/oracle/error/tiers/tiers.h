/* The verdict on one tap, from its bounds: proven, probable, statistical. These are pure functions on arrays. SPEC
 * 7.2. */
#ifndef M3_ORACLE_ERROR_TIERS_H
#define M3_ORACLE_ERROR_TIERS_H

#include <stdint.h>

#include "base/status.h"
#include "base/weight.h"
#include "oracle/error/tiers/verdict.h"

/* HARD and GRID make a tap fail: no conforming implementation violates them. The others assume roundings that are
 * nearly independent, and make a tap suspect. */
enum m3_tier {
    M3_TIER_HARD = 1,           /* an element's error exceeds what any order of summation allows */
    M3_TIER_GRID = 2,           /* all elements are values of a coarser format than declared */
    M3_TIER_SUSPECT = 4,        /* an error exceeds lambda sqrt(n) + f roundings */
    M3_TIER_WALK = 8,           /* an error exceeds lambda standard deviations, or 2 in the mean square */
    M3_TIER_VARIANCE = 16,      /* mean square of all errors, relative to the worst case */
    M3_TIER_BIAS = 32,          /* the errors are biased to one side */
    M3_TIER_PARAMETER = 64,     /* the errors line up with the derivative by a parameter (parameters/) */
    M3_TIER_MISTAKE = 128,      /* the errors are those that a known mistake makes (cause/score.c): the tap fails */
};

/* A tap of a candidate beside what it should be, N elements. NULL means zeros for extra and extra_variance, "not known"
 * for the others. */
struct m3_two_sides {
    const double *reference, *candidate, *bound;
    const double *walk;             /* NULL: no WALK */
    const double *suspect;          /* allowance over u for SUSPECT, instead of lambda sqrt(n) + f steps */
    const double *extra, *extra_variance;   /* from storage points and inherited errors: allowance, variance */
    const unsigned char *repeated; /* [count / width]: rows that are like others, left out of sums; NULL: none */
    int64_t width; /* of a row */
    int64_t count, n, f;
    double u; /* unit roundoff of the candidate's arithmetic */
    enum m3_dtype stored; /* the candidate's format by the profile: its largest number, and for GRID */
    int reference_f32; /* the reference was rounded to F32 */
    int truncates; /* accumulators round towards 0: twice the steps, no BIAS */
    int flushes; /* subnormal numbers may be 0 */
    int tiers_off; /* of enum m3_tier: tiers that do not apply */
};

/* What looks like another value of a parameter of the model. */
struct m3_parameter {
    const char *name; /* static: "alpha"; NULL: nothing does */
    double expected, estimate, standard_error;
    double z; /* of the difference, in standard deviations of honest errors. Without a name: the
                                     * one farthest from 0 */
    int tested; /* number of parameters */
    int is_cap; /* the values are 1 / cap^2 */
};

struct m3_tier_result {
    enum m3_verdict verdict; /* PASS, SUSPECT, FAIL, NOT_JUDGED (no element judged), NOT_COMPARABLE (NaN) */
    int tiers; /* of enum m3_tier: those that object */
    int no_hard_bound; /* steps u >= 1: nothing is proven */
    int64_t judged, not_judged; /* not judged: infinite because of the range of the format */
    int64_t hard, suspect, walk; /* elements beyond each */
    int64_t worst; /* element with the largest |d| / A; -1: none; elements refused by HARD first */
    double headroom; /* its |d| / A */
    double lambda;
    double z2; /* mean d^2 / sigma^2; NaN: no sigma */
    double largest_z; /* |d| / sigma */
    double variance, bias; /* over their limits; NaN: not taken */
    enum m3_dtype grid; /* M3_DTYPES: none */
    struct m3_parameter parameter; /* of m3_parameters_test */
    enum m3_status status; /* M3_INTERNAL: a bound is not finite and >= 0 */
};

/* "hard", "walk", .. of a single tier. */
const char *m3_tier_name(enum m3_tier tier);
enum { M3_TIERS = 8 };

/* 0 if an argument is NaN. Infinities must be equal. */
int m3_element_ok(double candidate, double reference, double allowed);

/* Is x a value of that format, M3_BF16, M3_F16, M3_F32 or M3_F64? Overflow of the format is ignored. */
int m3_on_grid(double x, enum m3_dtype dtype);
/* The value of x after it has been stored in that format. */
double m3_stored_as(double x, enum m3_dtype dtype);
/* Does x being a value of the coarse format matter, in a result whose legitimate error is about `rounding`? */
int m3_grid_tells(double x, double rounding, enum m3_dtype dtype);

/* The format (BF16 or F16) to which all significant values belong, while the reference, rounded to `stored`, does not;
 * M3_DTYPES if none, or if fewer than 64 values are significant (m3_grid_tells). */
enum m3_dtype m3_coarser_grid(const struct m3_two_sides *tap);

struct m3_tier_result m3_verdict_of(const struct m3_two_sides *tap);

/* Of two hypotheses of one tap: does `other` explain as many elements, and better? Pass before suspect before fail. */
int m3_verdict_is_better(const struct m3_tier_result *other, const struct m3_tier_result *than);

#endif
