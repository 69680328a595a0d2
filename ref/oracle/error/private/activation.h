/* A gated linear unit at one place: value, bound, slope, propagated errors. */
#ifndef M3_ORACLE_ERROR_PRIVATE_ACTIVATION_H
#define M3_ORACLE_ERROR_PRIVATE_ACTIVATION_H

#include "oracle/error/propagate.h"

double m3_gate_value(double gate, double up, const struct m3_gate *g);
double m3_gate_bound(double gate, double up, const struct m3_gate *g, const struct m3_arithmetic *how);
int m3_gate_steps(const struct m3_arithmetic *how);
/* Largest |dy/dgate| and |dy/dup| while gate moves by at most h_gate and up by at most h_up. */
struct m3_gate_slopes {
    double by_gate, by_up;
};
struct m3_gate_slopes m3_gate_slopes(double gate, double up, double h_gate, double h_up, const struct m3_gate *g);
/* Element `at` of out, of gate and up and elements `from` of their spreads. u_chain as in m3_propagate_activation. */
/* Adds what the smallest steps of the chain's format cost; floor: half a step. */
void m3_propagate_gate_floor(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_gate *g,
                             double floor);
void m3_propagate_gate(struct m3_spread *out, int64_t at, double gate, double up, const struct m3_spread *of_gate,
                       const struct m3_spread *of_up, int64_t from, const struct m3_gate *g, double u_chain);

#endif
