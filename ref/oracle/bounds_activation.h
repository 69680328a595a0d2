/* A gated linear unit at one place: value, bound, slope. Inside the oracle. */
#ifndef M3_ORACLE_BOUNDS_ACTIVATION_H
#define M3_ORACLE_BOUNDS_ACTIVATION_H

#include "oracle/bounds.h"

double m3_gate_clamped(double gate, const struct m3_gate *g);
double m3_up_clamped(double up, const struct m3_gate *g);
double m3_gate_value(double gate, double up, const struct m3_gate *g);
double m3_gate_bound(double gate, double up, const struct m3_gate *g, const struct m3_arithmetic *how);
int m3_gate_steps(const struct m3_arithmetic *how);
/* Largest |d/dz of z sig(alpha z)| while the gate moves by at most h. */
double m3_gate_slope(double gate, double h, const struct m3_gate *g);

#endif
