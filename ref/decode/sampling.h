/* From logits to a token. All in double, sums ascending, exp and ln our own: the same tokens on every machine that
 * computes the same logits. SPEC 13.1. */
#ifndef M3_DECODE_SAMPLING_H
#define M3_DECODE_SAMPLING_H

#include <stdint.h>

struct m3_sampling {
    double temperature;         /* 0: greedy, and the rest is not used */
    int64_t top_k;              /* 0: all */
    double top_p;               /* 0 < top_p <= 1 */
    uint64_t seed;
};

/* What a random number is for; those of one place and different uses are independent. */
enum m3_draw_use { M3_DRAW_TOKEN, M3_DRAW_DRAFT, M3_DRAW_ACCEPT, M3_DRAW_INSTEAD };

/* [0,1), 53 bits: a function of seed, use and place alone. */
double m3_uniform(uint64_t seed, enum m3_draw_use use, int64_t place);

/* The id of the greatest logit [V], the lowest on a tie. */
int32_t m3_argmax(const double *logits, int64_t V);

/* Is the greatest logit a number? Others may be -inf. Without it there is no distribution. */
int m3_logits_good(const double *logits, int64_t V);

/* p [V] := the distribution that tokens are drawn from: softmax of logits / temperature, then the top_k likeliest, then
 * the fewest likeliest whose sum is at least top_p, the lower id first on a tie; renormalised. Greedy: all on the
 * argmax. `order` [V] is scratch. */
void m3_distribution(double *p, int32_t *order, const double *logits, int64_t V, const struct m3_sampling *how);

/* The lowest id whose cumulative probability is above u; u in [0,1). Never an id of probability 0. */
int32_t m3_pick(const double *p, int64_t V, double u);

/* A draft drawn from q is put to the test of the target p: kept with probability min(1, p/q), else replaced by a token
 * drawn from max(p - q, 0) normalised; so the result is distributed as p (Leviathan et al., 2023). Returns the token,
 * which is the draft if *kept. rest [V] is scratch. Greedy distributions need no random number and give the argmax of
 * p. */
int32_t m3_accept(int *kept, int32_t draft, const double *p, const double *q, double *rest, int64_t V, uint64_t seed,
                  int64_t place);

/* ln of the softmax of logits at `id`; and how far above the best other logit it is (negative: below). */
double m3_logprob(const double *logits, int64_t V, int32_t id);
double m3_margin(const double *logits, int64_t V, int32_t id);

#endif
