/* The verdict on one tap, from its bounds: proven, probable, statistical. Pure functions on arrays. SPEC 7.2. */
#ifndef M3_ORACLE_ERROR_TIERS_H
#define M3_ORACLE_ERROR_TIERS_H

#include <stdint.h>

#include "base/status.h"
#include "base/weight.h"
#include "oracle/error/verdict.h"

/* HARD and GRID fail: no conforming implementation does that. The others assume roundings that are independent or
 * nearly so, and make a tap suspect. */
enum m3_tier {
    M3_TIER_HARD = 1,           /* an element is off by more than any order of summation allows */
    M3_TIER_GRID = 2,           /* all elements are numbers of a coarser format than declared */
    M3_TIER_SUSPECT = 4,        /* by more than lambda sqrt(n) + f roundings */
    M3_TIER_WALK = 8,           /* by more than lambda standard deviations, or 2 in the mean square */
    M3_TIER_VARIANCE = 16,      /* mean square of all errors, over the worst case */
    M3_TIER_BIAS = 32,          /* errors lean to one side */
};

/* One tap, N elements. NULL stands for zeros in extra and extra_variance, for "not known" in the others. */
struct m3_tap_values {
    const double *reference, *candidate, *bound;
    const double *walk;             /* else no WALK */
    const double *suspect;          /* the allowance over u that SUSPECT takes in place of lambda sqrt(n) + f steps */
    const double *extra, *extra_variance;   /* storage points and inherited error: allowance, variance */
    int64_t count, n, f;
    double u;                       /* unit roundoff of the candidate's arithmetic */
    enum m3_dtype stored;           /* of the candidate, by the profile: its largest number, and for GRID */
    int reference_f32;              /* the reference was rounded to F32 */
    int truncates;                  /* accumulators round towards 0: twice the steps, no BIAS */
    int flushes;                    /* subnormal numbers may be 0 */
    int tiers_off;                  /* of enum m3_tier: not for this case */
};

struct m3_tier_result {
    enum m3_verdict verdict;        /* PASS, SUSPECT, FAIL, NOT_JUDGED (no element was), NOT_COMPARABLE (NaN) */
    int tiers;                      /* of enum m3_tier: those that object */
    int no_hard_bound;              /* steps u >= 1: nothing is proven */
    int64_t judged, not_judged;     /* not judged: infinite where the format ends */
    int64_t hard, suspect, walk;    /* elements beyond each */
    int64_t worst;                  /* element of the largest |d| / A; -1: none; one that HARD refuses comes first */
    double headroom;                /* its |d| / A */
    double lambda;
    double z2;                      /* mean d^2 / sigma^2; NaN: no sigma */
    double largest_z;               /* |d| / sigma */
    double variance, bias;          /* over their limits; NaN: not taken */
    enum m3_dtype grid;             /* M3_DTYPES: none */
    enum m3_status status;          /* M3_INTERNAL: a bound that is not a finite number of at least 0 */
};

/* "hard", "walk", .. of a single tier. */
const char *m3_tier_name(enum m3_tier tier);
enum { M3_TIERS = 6 };

/* NaN in any argument: 0. Infinities are equal or not. */
int m3_element_ok(double candidate, double reference, double allowed);

/* Is x a number of that format, M3_BF16, M3_F16, M3_F32 or M3_F64? Its largest number is not looked at. */
int m3_on_grid(double x, enum m3_dtype dtype);
/* x as it is when it has been stored so. */
double m3_stored_as(double x, enum m3_dtype dtype);
/* Is that a sign of anything, in a result whose honest error is about `rounding`? */
int m3_grid_tells(double x, double rounding, enum m3_dtype dtype);

/* Which of BF16, F16 all values are numbers of that can tell, while the reference, rounded to `stored`, is not;
 * M3_DTYPES if none, or fewer than 64 values tell. */
enum m3_dtype m3_coarser_grid(const struct m3_tap_values *tap);

struct m3_tier_result m3_verdict_of(const struct m3_tap_values *tap);

#endif
