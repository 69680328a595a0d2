/* The text model: embedding, fusion, layers, head. SPEC 6. */
#ifndef M3_MODEL_TEXT_H
#define M3_MODEL_TEXT_H

#include "model/forward/pass.h"

/* Rows [images + videos,H] that replace those of the placeholder ids; NULL, 0, 0 if there are no pictures. */
struct m3_features {
    real *rows;
    int64_t images, videos;
};

void m3_text_forward(struct m3_pass *f, const struct m3_features *features);

#endif
