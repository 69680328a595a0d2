/* Known mistakes (SPEC 7.12) on one call of an operator: what each of them would give. */
#ifndef M3_ORACLE_OPERATORS_WHICH_H
#define M3_ORACLE_OPERATORS_WHICH_H

#include "oracle/operators/check.h"
#include "oracle/operators/evaluate.h"
#include "oracle/variants/mistakes.h"

/* The mistakes that a single operator can have: those of a forward pass, then those of derivatives. */
int m3_operator_mistakes(void);
const struct m3_mistake *m3_operator_mistake_at(int i);

/* Which mistakes can be made in this operator: those that first show in one of the taps that a call computes. *are_of
 * [m3_operator_mistakes()] is to be freed in any case. M3_INTERNAL. */
int m3_mistakes_of(unsigned char **are_of, const struct m3_operator_row *op, struct m3_error *error);

/* The call with the mistake, values rounded to float as they are computed. *applies is 0 if the mistake needs what the
 * call does not have, or refuses it. Statuses: M3_INTERNAL. Free the result in any case. */
int m3_mistake_evaluate(struct m3_evaluation *result, int *applies, const struct m3_fragment *fragment,
                        const struct m3_mistake *mistake, const int64_t *rows, int64_t count, struct m3_error *error);

/* How far two evaluations of one call are from each other: the largest over the outputs of |d| / |b| in L2, or of the
 * share of ids that differ; 0 for equal ones. Outputs that `a` does not have are left out. */
double m3_results_distance(const struct m3_results *a, const struct m3_evaluation *b);

#endif
