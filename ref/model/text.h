/* The text model's forward pass. SPEC 6. */
#ifndef M3_MODEL_TEXT_H
#define M3_MODEL_TEXT_H

#include "model/engine.h"

int m3_text_forward(const struct m3_model *model, const struct m3_request *request, struct m3_error *error);

#endif
