/* A gated linear unit at one place: value, bound, slope. Inside the oracle. */
#ifndef M3_ORACLE_ERROR_PRIVATE_BOUNDS_ACTIVATION_H
#define M3_ORACLE_ERROR_PRIVATE_BOUNDS_ACTIVATION_H

#include "oracle/error/bounds.h"

double m3_gate_clamped(double gate, const struct m3_gate *g);
double m3_up_clamped(double up, const struct m3_gate *g);
double m3_gate_value(double gate, double up, const struct m3_gate *g);
double m3_gate_bound(double gate, double up, const struct m3_gate *g, const struct m3_arithmetic *how);
int m3_gate_steps(const struct m3_arithmetic *how);
/* Largest |dy/dgate| and |dy/dup| while gate moves by at most h_gate and up by at most h_up. */
struct m3_gate_slopes {
    double by_gate, by_up;
};
struct m3_gate_slopes m3_gate_slopes(double gate, double up, double h_gate, double h_up, const struct m3_gate *g);
double m3_logistic(double x);

#endif
