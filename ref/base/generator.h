/* The counter-based generator behind synth and jitter. SPEC 3.6. */
#ifndef M3_BASE_GENERATOR_H
#define M3_BASE_GENERATOR_H

#include <stdint.h>

/* Where a tensor's numbers start: from its name, or that of a tap, and the seed. */
uint64_t m3_draw_key(uint64_t seed, const char *name);
/* An integer, uniform on 0 .. m-1: the i-th of the tensor with this key. */
uint64_t m3_draw(uint64_t key, uint64_t i, uint64_t m);
/* Is it the weight of a norm of the text model? Where such norms are plain, its values are 1 more. */
int m3_draw_is_norm(const char *name);
/* The exponent e of a tensor's values k/128 * 2^e, from its name and its number of columns. */
int m3_draw_exponent(const char *name, int64_t columns);

#endif
