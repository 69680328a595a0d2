/* The counter-based random generator of synth and jitter. SPEC 3.6. */
#ifndef M3_BASE_GENERATOR_H
#define M3_BASE_GENERATOR_H

#include <stdint.h>

/* The key of a tensor's numbers, derived from the seed and the tensor's (or a tap's) name. */
uint64_t m3_draw_key(uint64_t seed, const char *name);
/* The i-th number of the tensor with this key: an integer, uniform on 0 .. m-1. */
uint64_t m3_draw(uint64_t key, uint64_t i, uint64_t m);
/* out [n] := the numbers first, first + 1, .. of the tensor; m is at most 2^32. */
void m3_draw_run(uint32_t *out, uint64_t key, uint64_t first, int64_t n, uint64_t m);
/* Is this the weight of a norm of the text model? Plain norms add 1 to its values. */
int m3_draw_is_norm(const char *name);
/* The exponent e of a tensor's values k/128 * 2^e, from its name and its number of columns. */
int m3_draw_exponent(const char *name, int64_t columns);

#endif
