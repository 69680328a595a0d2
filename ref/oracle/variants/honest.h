/* A legitimate implementation drawn at random from those that a profile allows: the float engine with its sums in
 * another order, values rounded at random where the profile stores them more coarsely, some of those roundings
 * skipped, and the selections of a given run. SPEC 7.10. */
#ifndef M3_ORACLE_VARIANTS_HONEST_H
#define M3_ORACLE_VARIANTS_HONEST_H

#include "io/safetensors.h"
#include "model/engine.h"
#include "oracle/error/profile.h"

struct m3_honest;

/* For passes over T tokens from place 0. `choices`: a dump with every index.blocks and moe.experts of the model and
 * case; NULL: each implementation chooses itself, and rounds to nearest instead of at random, as programs do.
 * M3_BAD_INPUT: a profile whose arithmetic is not float with rounding to nearest; missing selections. All arguments
 * must outlive it. */
int m3_honest_new(struct m3_honest **honest, const struct m3_model *model, const struct m3_semantics *semantics,
                  const struct m3_profile *profile, const struct m3_safetensors *choices, int64_t T,
                  struct m3_error *error);
void m3_honest_free(struct m3_honest *honest);                         /* NULL is fine */

/* From the next draw on no rounding is skipped: what a dump shows is what the pass went on with, so that each operator
 * can be recomputed from a full dump. */
void m3_honest_skip_nothing(struct m3_honest *honest);
/* Draws the implementation with this number; the same seed and number give the same. To be called before each pass. */
void m3_honest_draw(struct m3_honest *honest, uint64_t seed, int64_t number);
/* For the pass: replacement and force of the float engine. */
void m3_honest_request(struct m3_honest *honest, struct m3_request *request);
/* out [n]: elements of a tap from `first` on as a dump would hold them: rounded, even if the pass itself continues
 * with the unrounded values. */
void m3_honest_show(const struct m3_honest *honest, const char *tap, float *out, const float *x, int64_t first,
                    int64_t n);
/* Have values been rounded at random so far in the pass? If so, errors are sqrt(2) times those of rounding to
 * nearest. */
int m3_honest_rounds(const struct m3_honest *honest);

#endif
