/* How much an output moves with its input, for comparisons without the weights. SPEC 7.8.
 *
 * The gain of a linear output is the length of its row of the matrix: |dy_i| <= gain_i |dx|. For the nonlinear outputs
 * of a gated MLP it is the root mean square over 16 probes of (f(x + s xi) - f(x)) / s, xi of +-1, s = 1e-6. */
#ifndef M3_ORACLE_ERROR_GAIN_H
#define M3_ORACLE_ERROR_GAIN_H

#include "oracle/error/recompute.h"

enum m3_gain_kind {
    M3_GAIN_NONE,               /* the tap can be recomputed without weights other than those of a norm */
    M3_GAIN_ROWS,               /* [width]: a linear operator */
    M3_GAIN_PROBED,             /* of the tap's shape: experts, shared expert */
};

/* `routed` is probed too if the outputs of the experts are not known. */
enum m3_gain_kind m3_gain_kind_of(const struct m3_setting *setting, enum m3_tap tap, int64_t layer, int knows_each);

/* gain [width] of the tap of a linear operator; for an additive join, of its hidden state. */
int m3_gain_rows(double *gain, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                 struct m3_error *error);

/* gain [T,K,H] of moe.expert_out, [T,H] of moe.shared and moe.routed; x [T,H] their input, ids, p [T,K] the selected
 * experts and weights. jitter is ignored. */
int m3_gain_probed(double *gain, const struct m3_setting *setting, enum m3_tap tap, int64_t layer, const double *x,
                   const int32_t *ids, const double *p, int64_t T, struct m3_error *error);

#endif
