/* The entries of the engine. */
#ifndef M3_MODEL_BACKWARD_GRADIENT_H
#define M3_MODEL_BACKWARD_GRADIENT_H

#include "model/derivative.h"
#include "model/gradient.h"

/* *losses is set, if the pass does not fail. M3_WRONG: NaN. */
int m3_gradient(const struct m3_model *model, const struct m3_gradient_request *request, struct m3_losses *losses,
                struct m3_error *error);

/* The derivative of one operator: one.c. M3_WRONG if it refuses its operands, M3_INTERNAL. */
int m3_differentiate(const struct m3_derivative_request *request, struct m3_error *error);

#endif
