/* Pictures to rows of the token stream: vision tower and projector. SPEC 6. */
#ifndef M3_MODEL_VISION_H
#define M3_MODEL_VISION_H

#include "model/text.h"

/* features->rows are to be freed; *features, which is zero before, stays so if the request has no pictures. */
void m3_vision_forward(struct m3_pass *f, struct m3_features *features);

#endif
