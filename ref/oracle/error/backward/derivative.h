/* The bounds of backward.h for a request of model/derivative.h, in double. */
#ifndef M3_ORACLE_ERROR_BACKWARD_DERIVATIVE_H
#define M3_ORACLE_ERROR_BACKWARD_DERIVATIVE_H

#include "model/derivative.h"
#include "oracle/error/backward/backward.h"
#include "oracle/error/profile.h"

/* What a profile lets a backward pass round; NULL: nothing is stored coarser. */
struct m3_backward_arithmetic m3_backward_arithmetic_of(const struct m3_profile *profile, int in_vision,
                                                        const struct m3_arithmetic *how);

/* allowed [outputs] of the request's outputs; NULL for those that are not wanted. Statuses as in backward.h. */
int m3_error_derivative(struct m3_ctx *ctx, double *const *allowed, const struct m3_derivative_request *request,
                        const struct m3_backward_arithmetic *how);

#endif
