/* The entry of the engine. */
#ifndef M3_MODEL_BACKWARD_GRADIENT_H
#define M3_MODEL_BACKWARD_GRADIENT_H

#include "model/gradient.h"

/* *losses is set, if the pass does not fail. M3_WRONG: NaN. */
int m3_gradient(const struct m3_model *model, const struct m3_gradient_request *request, struct m3_losses *losses,
                struct m3_error *error);

#endif
