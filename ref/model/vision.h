/* Pictures to rows of the token stream: vision tower and projector. SPEC 6. */
#ifndef M3_MODEL_VISION_H
#define M3_MODEL_VISION_H

#include "model/pass.h"

/* *features [M,H], to be freed; NULL if the request has no pictures. */
void m3_vision_forward(struct m3_pass *f, real **features);

#endif
