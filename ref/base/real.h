/* The number type of the operators and of the forward pass.
 *
 * ops/ and the engine part of model/ are compiled twice: once for float (the reference), and once with
 * M3_REAL_IS_DOUBLE for double (the ground truth). Nothing else in those sources depends on the choice. */
#ifndef M3_BASE_REAL_H
#define M3_BASE_REAL_H

#ifdef M3_REAL_IS_DOUBLE
typedef double real;
#define M3_ENGINE m3_engine_f64
#else
typedef float real;
#define M3_ENGINE m3_engine_f32
#endif

#endif
