/* The tolerance for a float tap of a whole pass without companions: the fp32 error that the reference states, scaled
 * up if a profile stores values more coarsely. SPEC 7.3. */
#ifndef M3_ORACLE_JUDGE_TOLERANCE_H
#define M3_ORACLE_JUDGE_TOLERANCE_H

#include "io/safetensors.h"
#include "model/taps.h"
#include "oracle/error/profile.h"

/* The roundings that are coarser than fp32. */
struct m3_coarseness {
    double before; /* largest unit roundoff of storing at this tap and at the places before it; 0: fp32 */
    double here; /* that of storing this tap */
};

/* The roundings of all taps of a profile; filled once. */
struct m3_coarse_table {
    const struct m3_profile *profile; /* NULL: fp32 */
    double upto[M3_TAPS]; /* in the first layer */
    double seen; /* of the taps queried so far, in execution order */
};

void m3_coarse_begin(struct m3_coarse_table *table, const struct m3_profile *profile);
/* At this tap alone. */
struct m3_coarseness m3_coarse_alone(const struct m3_coarse_table *table, const char *name, enum m3_tap tap,
                                     int64_t layer);
/* At this tap, after those that were queried before it. */
struct m3_coarseness m3_coarse_of(struct m3_coarse_table *table, const char *name, enum m3_tap tap, int64_t layer);

/* 4 times the error of public fp32 code that the reference states under "TAP.what" (f32_rel_l2, f32_max), plus 1e-7;
 * 1e-5 if it states none, as *stated tells. If values are stored more coarsely, the first term is multiplied by the
 * ratio of their unit roundoff to 2^-24, and one rounding at this tap is added. M3_BAD_INPUT for an invalid number. */
int m3_tolerance(double *allowed, int *stated, const struct m3_coarseness *coarse,
                 const struct m3_safetensors *reference, const char *tap, const char *what, struct m3_error *error);

#endif
