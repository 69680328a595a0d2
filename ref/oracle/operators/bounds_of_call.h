/* How far an implementation of a profile may be from the true result of one call. */
#ifndef M3_ORACLE_OPERATORS_BOUNDS_OF_CALL_H
#define M3_ORACLE_OPERATORS_BOUNDS_OF_CALL_H

#include "oracle/error/profile.h"
#include "oracle/operators/fragment.h"

/* allowed [rows of the output, or `count`, width] of output number `output`. profile NULL: fp32. */
int m3_bounds_of_call(double *allowed, const struct m3_fragment *fragment, int output, const int64_t *rows,
                      int64_t count, const struct m3_profile *profile, struct m3_ctx *ctx, struct m3_error *error);

#endif
