/* The text model: embedding, fusion, layers, head. SPEC 6. */
#ifndef M3_MODEL_TEXT_H
#define M3_MODEL_TEXT_H

#include "model/pass.h"

/* `features` [M,H] replace the rows of the placeholder ids, those of images first; NULL if there are no pictures. */
void m3_text_forward(struct m3_pass *f, const real *features);

#endif
