/* One text layer: attention (full, or over selected blocks) and MLP (dense, or of experts). It runs the layers of the
 * main model and of the MTP modules. SPEC 6. */
#ifndef M3_MODEL_LAYER_H
#define M3_MODEL_LAYER_H

#include "model/forward/activations.h"

/* Applies layer f->layer to a->hidden; its keys and values go into the cache if the pass has one. */
void m3_layer_run(struct m3_pass *f, struct m3_activations *a);

/* The same without the outputs of the MLP, which no derivative reads; the pages of the weights stay. */
void m3_layer_run_for_gradient(struct m3_pass *f, struct m3_activations *a);

#endif
