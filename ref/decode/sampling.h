/* From logits to a token. All in double, sums ascending, with the project's own exp and ln: machines that compute the
 * same logits draw the same tokens. SPEC 13.1. */
#ifndef M3_DECODE_SAMPLING_H
#define M3_DECODE_SAMPLING_H

#include <stdint.h>

struct m3_sampling {
    double temperature;         /* 0: greedy, and the other fields are ignored */
    int64_t top_k;              /* 0: all */
    double top_p;               /* 0 < top_p <= 1 */
    uint64_t seed;
};

/* The use of a random number; numbers of one place and different uses are independent. */
enum m3_draw_use { M3_DRAW_TOKEN, M3_DRAW_DRAFT, M3_DRAW_ACCEPT, M3_DRAW_INSTEAD };

/* A number in [0,1) with 53 bits, determined by seed, use and place. */
double m3_uniform(uint64_t seed, enum m3_draw_use use, int64_t place);

/* The id of the largest logit [V], the lowest on a tie. */
int32_t m3_argmax(const double *logits, int64_t V);

/* Do the logits define a distribution: none is NaN and the largest is finite? Others may be -inf. */
int m3_logits_good(const double *logits, int64_t V);

/* p [V] := the distribution from which tokens are drawn: softmax of logits / temperature, then the top_k most likely,
 * then the smallest set of most likely ones whose sum is at least top_p, the lower id first on a tie; renormalised.
 * Greedy: probability 1 for the argmax. `order` [V] is scratch. */
void m3_distribution(double *p, int32_t *order, const double *logits, int64_t V, const struct m3_sampling *how);

/* The lowest id whose cumulative probability is above u; u in [0,1). Never an id of probability 0. */
int32_t m3_pick(const double *p, int64_t V, double u);

/* Tests a draft drawn from q against the target p: it is kept with probability min(1, p/q), otherwise replaced by a
 * token drawn from max(p - q, 0) normalised. The result is distributed as p (Leviathan et al., 2023). Returns the
 * token, which is the draft if *kept. rest [V] is scratch. Greedy distributions need no random number and return the
 * argmax of p. */
int32_t m3_accept(int *kept, int32_t draft, const double *p, const double *q, double *rest, int64_t V, uint64_t seed,
                  int64_t place);

/* ln of the softmax of logits at `id`; and by how much its logit exceeds the largest other one (negative: is below
 * it). */
double m3_logprob(const double *logits, int64_t V, int32_t id);
double m3_margin(const double *logits, int64_t V, int32_t id);

#endif
