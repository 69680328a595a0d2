/* The error of an expert or the shared expert if gate, up, the chain of the activation and its result are stored more
 * coarsely than they are computed, for comparisons without the weights. SPEC 7.8, 7.13. */
#ifndef M3_ORACLE_ERROR_INTERMEDIATES_H
#define M3_ORACLE_ERROR_INTERMEDIATES_H

#include "oracle/error/recompute.h"

/* It is computed with all four stored at this roundoff, and returned per unit of it. For roundoffs up to this one it
 * is a bound: slopes are the steepest within reach of the errors, and smaller errors reach less far. */
#define M3_INTERMEDIATES_U 0x1p-8

/* Does the operator have intermediates that a candidate may store? True for moe.expert_out and moe.shared. */
int m3_has_intermediates(const struct m3_setting *setting, enum m3_tap tap, int64_t layer);

/* error, walk [T,K,H] of moe.expert_out, [T,H] of moe.shared: with intermediates stored at roundoff u, the output's
 * error is at most u error, with standard deviation u walk / sqrt(3). x [T,H] is their input, without jitter; ids
 * [T,K]. */
int m3_intermediates(double *error, double *walk, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                     const double *x, const int32_t *ids, int64_t T, struct m3_error *message);

#endif
