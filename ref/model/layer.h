/* One text layer: attention, full or over chosen blocks, and MLP, dense or of experts. The main model's layers and
 * those of the MTP modules run here. SPEC 6. */
#ifndef M3_MODEL_LAYER_H
#define M3_MODEL_LAYER_H

#include "model/activations.h"

/* a->hidden through layer f->layer, its keys and values into the cache if the pass has one. */
void m3_layer_run(struct m3_pass *f, struct m3_activations *a);

#endif
