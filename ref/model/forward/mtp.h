/* Multi-token prediction: modules after the main model that predict later tokens. SPEC 12. */
#ifndef M3_MODEL_MTP_H
#define M3_MODEL_MTP_H

#include "model/forward/layer.h"

/* Do the modules of this pass read scattered rows instead of embeddings? */
int m3_mtp_takes_rows(const struct m3_pass *f);

/* How many modules a pass runs: up to the last one with a wanted tap. */
int64_t m3_mtp_shown(struct m3_pass *f);

/* Runs the modules of the pass in order, up to the last one with a wanted tap. They do not fill the cache: from here
 * on the pass has none. hidden [T,H]: the main model's, after its final norm; embedded [T,H]: the input of its layer
 * 0, if m3_mtp_takes_rows. */
void m3_mtp_forward(struct m3_pass *f, struct m3_activations *a, const real *hidden, const real *embedded);

/* Runs one module over f->rows rows after f->p0 cached ones. */
void m3_mtp_module(struct m3_pass *f, struct m3_activations *a, const struct m3_mtp_request *r);

#endif
