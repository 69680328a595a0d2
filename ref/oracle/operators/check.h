/* The verdict on one call of an operator: what `blame` says of the taps that its outputs are. SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_CHECK_H
#define M3_ORACLE_OPERATORS_CHECK_H

#include "oracle/error/profile.h"
#include "oracle/judge/compare.h"
#include "oracle/operators/fragment.h"

/* The results of one call, in the order of the operator's outputs; rank 0: an optional one that is not given. */
struct m3_results {
    struct m3_tensor outputs[M3_OPERATOR_OUTPUTS];
    const int64_t *rows;        /* [count] the rows that are judged, ascending; NULL: all */
    int64_t count;
};

/* Fills one stage per output; tap names are those of the outputs. `stages` [M3_OPERATOR_OUTPUTS] receives them,
 * *stage_count how many. A result that is missing, or has another shape or dtype, is not comparable and says so.
 * Statuses: M3_INTERNAL, M3_WRONG (the operator refuses the operands). */
int m3_check_call(struct m3_finding *stages, int *stage_count, const struct m3_fragment *fragment,
                  const struct m3_results *results, const struct m3_profile *profile, struct m3_ctx *ctx,
                  struct m3_error *error);

#endif
