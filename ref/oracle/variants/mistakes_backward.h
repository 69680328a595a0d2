/* Deliberate mistakes in derivatives: errors that public backward passes have made, or easily could make. `m3ref op`
 * must find and name them. ref/train/TRAINING.md, section 19.22. */
#ifndef M3_ORACLE_VARIANTS_MISTAKES_BACKWARD_H
#define M3_ORACLE_VARIANTS_MISTAKES_BACKWARD_H

#include "model/derivative.h"
#include "oracle/variants/mistakes.h"

int m3_backward_mistakes(void);
const struct m3_mistake *m3_backward_mistake_at(int i);
/* Can it be made in this derivative? 0 also for mistakes of a forward pass. */
int m3_backward_mistake_is_of(const struct m3_mistake *mistake, enum m3_derivative of);
/* Computes the request with the mistake, in double. Its operands are overwritten. Statuses as m3_engine.differentiate. */
int m3_backward_mistake_run(const struct m3_mistake *mistake, struct m3_derivative_request *request,
                            struct m3_error *error);

#endif
