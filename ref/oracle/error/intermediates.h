/* What it costs an expert or the shared expert to store gate, up, the chain of the activation and its result coarser
 * than they were computed, for those who compare without the weights. SPEC 7.8, 7.13. */
#ifndef M3_ORACLE_ERROR_INTERMEDIATES_H
#define M3_ORACLE_ERROR_INTERMEDIATES_H

#include "oracle/error/recompute.h"

/* It is measured with all four stored at this roundoff, and given per unit of it. Up to here it is a bound: slopes are
 * the steepest within reach of the errors, and less is within reach of smaller ones. */
#define M3_INTERMEDIATES_U 0x1p-8

/* Has the operator intermediates that a candidate may store? moe.expert_out, moe.shared. */
int m3_has_intermediates(const struct m3_setting *setting, enum m3_tap tap, int64_t layer);

/* error, walk [T,K,H] of moe.expert_out, [T,H] of moe.shared: stored with roundoff u, the output is off by at most
 * u error, with standard deviation u walk / sqrt(3). x [T,H] their input, without jitter; ids [T,K]. */
int m3_intermediates(double *error, double *walk, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                     const double *x, const int32_t *ids, int64_t T, struct m3_error *message);

#endif
