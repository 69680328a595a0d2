/* Error propagation through operators: from how far the inputs may be off to how far the output is, to first order. The
 * worst case goes through absolute slopes, the variance through squared ones. Where a slope jumps (clamps, the largest
 * of several) the steepest side within reach of the error counts. SPEC 7.4.
 *
 * Operands and shapes as in bounds.h, all in double. Every function ADDS to *out, which the caller has set (zeros at
 * first): several inputs add up, as do storage points. An input spread may be empty (NULLs): that input is exact.
 * Returns 0, or a status after m3_fail_at. No result depends on the number of threads. */
#ifndef M3_ORACLE_ERROR_PROPAGATE_H
#define M3_ORACLE_ERROR_PROPAGATE_H

#include "oracle/error/bounds.h"

/* How far the elements of an array may be off. */
struct m3_spread {
    double *error; /* at most; NULL, with variance NULL: not at all */
    double *variance; /* of an honest error */
};

/* No spread at all? NULL is none. */
static inline int m3_is_exact(const struct m3_spread *s) { return !s || !s->error; }

/* A spread from element `at` on; an empty one stays empty. */
static inline struct m3_spread m3_spread_from(const struct m3_spread *s, int64_t at)
{
    return m3_is_exact(s) ? (struct m3_spread){ NULL, NULL } : (struct m3_spread){ s->error + at, s->variance + at };
}

/* A value rounded on storing: u |y|, variance (u y)^2 / 3. floor: beside it, half the least step of the format; a 0 is
 * stored as 0. */
void m3_propagate_store(struct m3_spread *out, const double *y, int64_t n, double u, double floor);
/* That floor of a format. */
double m3_store_floor(enum m3_dtype dtype);

int m3_propagate_rms_norm(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                          const double *w, int64_t T, int64_t H, double eps, int offset);
int m3_propagate_layer_norm(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                            const double *w, int64_t T, int64_t H, double eps);
int m3_propagate_linear(struct m3_ctx *, struct m3_spread *out, const struct m3_spread *of_x, const struct m3_weight *w,
                        int64_t T);
/* u_turn: unit roundoff at which cosine and sine are stored; u_product: of the products and their sum; 0: not. */
int m3_propagate_rope(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                      const double *cos, const double *sin, int64_t T, int64_t heads, int64_t D, int64_t R,
                      double u_turn, double u_product);

/* Intermediates that attention stores: units of roundoff, 0: nothing coarser. */
struct m3_attend_storage {
    double logits; /* after the products and again after the scale */
    double p; /* weights, before they meet v */
    double partial; /* outputs of parts of the keys, before they are merged */
};

/* blocks NULL: full. Either output may be NULL; lse's spread is absolute. */
int m3_propagate_attend(struct m3_ctx *, struct m3_spread *o, struct m3_spread *lse, const double *q, const double *k,
                        const double *v, const struct m3_spread *of_q, const struct m3_spread *of_k,
                        const struct m3_spread *of_v, const int32_t *blocks, const struct m3_attend *d,
                        const struct m3_attend_storage *storage);
int m3_propagate_attend_segments(struct m3_ctx *, struct m3_spread *o, const double *q, const double *k,
                                 const double *v, const struct m3_spread *of_q, const struct m3_spread *of_k,
                                 const struct m3_spread *of_v, const int64_t *ends, int64_t segments, int64_t A,
                                 int64_t U, const struct m3_attend_storage *storage);
/* u_score: unit roundoff at which a single score is stored before the largest is taken. */
int m3_propagate_block_scores(struct m3_ctx *, struct m3_spread *m, const double *q, const double *k,
                              const struct m3_spread *of_q, const struct m3_spread *of_k, const struct m3_index *d,
                              double u_score);
/* u_chain: every step of the chain is rounded so. */
int m3_propagate_activation(struct m3_ctx *, struct m3_spread *out, const double *gate, const double *up,
                            const struct m3_spread *of_gate, const struct m3_spread *of_up, int64_t n,
                            const struct m3_gate *, double u_chain);
int m3_propagate_sigmoid(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                         int64_t n);
int m3_propagate_gelu(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x, int64_t n);
/* p [T,K] of scores s [T,E] and ids [T,K]. */
int m3_propagate_route(struct m3_ctx *, struct m3_spread *out, const double *s, const struct m3_spread *of_s,
                       const int32_t *ids, int64_t T, int64_t E, int64_t K);
/* u_sum: each addition is rounded so. */
int m3_propagate_routed(struct m3_ctx *, struct m3_spread *out, const double *each, const double *p,
                        const struct m3_spread *of_each, const struct m3_spread *of_p, int64_t T, int64_t K, int64_t H,
                        double factor, double u_sum);
void m3_propagate_add(struct m3_spread *out, const struct m3_spread *of_a, const struct m3_spread *of_b, int64_t n);

/* Intermediates that a gated MLP stores: units of roundoff, 0: nothing coarser. */
struct m3_mlp_storage {
    double gate, up, chain, act;
};
/* w2 act(w1 x, w3 x) of x [T,H]. */
int m3_propagate_gated_mlp(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                           const struct m3_weight *w1, const struct m3_weight *w3, const struct m3_weight *w2,
                           const struct m3_gate *, int64_t T, const struct m3_mlp_storage *storage);
/* each [T,K,H]; of x [T,H], ids [T,K]. */
int m3_propagate_experts(struct m3_ctx *, struct m3_spread *each, const double *x, const struct m3_spread *of_x,
                         const int32_t *ids, const struct m3_expert *experts, const struct m3_gate *, int64_t T,
                         int64_t E, int64_t K, const struct m3_mlp_storage *storage);

#endif
