/* Final norm and logits: the end of the main model, and of every MTP module, with the same lm_head. */
#ifndef M3_MODEL_HEAD_H
#define M3_MODEL_HEAD_H

#include "model/forward/pass.h"

/* normed [T,H] := norm of hidden [T,H] with weights w [H]. Logits are computed in pieces, as far as the tap is shown
 * or `logits` wants them: [rows,V], the last rows of the T; or NULL. */
void m3_head(struct m3_pass *f, real *normed, const real *hidden, const struct m3_weight *w, enum m3_tap norm_tap,
             enum m3_tap logits_tap, double *logits, int64_t rows);

#endif
