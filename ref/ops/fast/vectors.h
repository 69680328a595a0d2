/* The vectors of an instruction set: files compiled for several of them include this. */
#ifndef M3_OPS_FAST_VECTORS_H
#define M3_OPS_FAST_VECTORS_H

#include <stdint.h>

#include "base/real.h"

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
enum { LANES = VECTOR_BYTES / (int)sizeof(real) };

/* Aligned as its elements: loads and stores may use any such address. */
typedef real vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

#endif
