/* Cases in which every product and every partial sum is exact, in whatever order: results are judged bit for bit. */
#ifndef M3_ORACLE_OPERATORS_EXACT_H
#define M3_ORACLE_OPERATORS_EXACT_H

#include "oracle/operators/check.h"

/* Fails judged stages whose values are not the true ones, rounded once to the format in which the profile stores the
 * output. Does nothing under profiles that round operands or partial sums. Statuses as m3_check_call. */
int m3_check_exact(struct m3_finding *stages, int stage_count, const struct m3_fragment *fragment,
                   const struct m3_results *results, const struct m3_profile *profile, struct m3_ctx *ctx,
                   struct m3_error *error);

#endif
