/* Multi-token prediction: modules after the main model that predict tokens further on. SPEC 12. */
#ifndef M3_MODEL_MTP_H
#define M3_MODEL_MTP_H

#include "model/layer.h"

/* Do this pass's modules take scattered rows instead of embeddings? */
int m3_mtp_takes_rows(const struct m3_pass *f);

/* The modules of the pass, one after the other, as far as a tap of theirs is shown. None fills the cache: from here on
 * the pass is without one. hidden [T,H]: the main model's after its final norm; embedded [T,H]: what entered
 * its layer 0, where m3_mtp_takes_rows. */
void m3_mtp_forward(struct m3_pass *f, struct m3_activations *a, const real *hidden, const real *embedded);

/* One module over f->rows rows after f->p0 cached ones. */
void m3_mtp_module(struct m3_pass *f, struct m3_activations *a, const struct m3_mtp_request *r);

#endif
