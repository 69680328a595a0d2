/* Errors carried through a gated linear unit at one place. Inside the oracle. */
#ifndef M3_ORACLE_ERROR_PRIVATE_PROPAGATE_ACTIVATION_H
#define M3_ORACLE_ERROR_PRIVATE_PROPAGATE_ACTIVATION_H

#include "oracle/error/propagate.h"

/* Element `at` of out, of gate and up and elements `from` of their spreads. u_chain as in m3_propagate_activation. */
void m3_propagate_gate(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_spread *of_gate,
                  const struct m3_spread *of_up, int64_t from, const struct m3_gate *g, double u_chain);

#endif
