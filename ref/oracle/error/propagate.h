/* Error propagation through operators: from the errors of the inputs to the error of the output, to first order. The
 * worst case uses absolute slopes, the variance squared slopes. Where a slope jumps (clamps, the largest of several)
 * the steepest side within reach of the error is used. SPEC 7.4.
 *
 * Operands and shapes as in bounds.h, all in double. Every function ADDS to *out, which the caller initialises to
 * zeros: the errors of several inputs and of storage points add up. An input spread may be empty (NULLs): that input
 * is exact. Returns 0, or a status after m3_fail_at. Results do not depend on the number of threads. */
#ifndef M3_ORACLE_ERROR_PROPAGATE_H
#define M3_ORACLE_ERROR_PROPAGATE_H

#include "model/graph/values.h"
#include "oracle/error/bounds.h"
#include "oracle/error/profile.h"
#include "oracle/partials/reduce.h"

/* Is the spread empty? NULL is empty. */
static inline int m3_is_exact(const struct m3_spread *s) { return !s || !s->error; }

/* A spread from element `at` on; an empty one stays empty. */
static inline struct m3_spread m3_spread_from(const struct m3_spread *s, int64_t at)
{
    return m3_is_exact(s) ? (struct m3_spread){ NULL, NULL } : (struct m3_spread){ s->error + at, s->variance + at };
}

/* A value rounded on storing: u |y|, variance (u y)^2 / 3. floor: half the smallest step of the format, in addition; a
 * 0 is stored as 0. */
void m3_propagate_store(struct m3_spread *out, const double *y, int64_t n, double u, double floor);
/* The `floor` of a format. */
double m3_store_floor(enum m3_dtype dtype);

int m3_propagate_rms_norm(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                          const double *w, int64_t T, int64_t H, double eps, int offset);
int m3_propagate_layer_norm(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                            const double *w, int64_t T, int64_t H, double eps);
int m3_propagate_linear(struct m3_ctx *, struct m3_spread *out, const struct m3_spread *of_x, const struct m3_weight *w,
                        int64_t T);
/* Weights [rows,cols] that are each off by as much as `floor`; x [T,cols]. */
void m3_propagate_weight_floor(struct m3_spread *out, const double *x, int64_t T, int64_t cols, int64_t rows,
                               double floor);
/* Adds what rounding the parts of a product costs, the rounding of the result included, beside m3_propagate_linear. y
 * is what is expected of x: where x is exact, it becomes the middle of the results that the roundings can have. NULL:
 * x is never exact. u: of the arithmetic that adds products. */
int m3_propagate_partials(struct m3_ctx *, struct m3_spread *out, double *y, const double *x,
                          const struct m3_spread *of_x, const struct m3_weight *w, const double *bias, int64_t T,
                          const struct m3_partials *how, double u);
/* u_turn: unit roundoff at which cosine and sine are stored; u_product: of the products and their sum; 0: none. */
int m3_propagate_rope(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                      const double *cos, const double *sin, int64_t T, int64_t heads, int64_t D, int64_t R,
                      double u_turn, double u_product);

/* Unit roundoffs of the intermediates that attention stores; 0: not coarser. */
struct m3_attend_storage {
    double logits; /* after the products and again after the scale */
    double p; /* weights, before they meet v */
    double partial; /* outputs of parts of the keys, before they are merged */
    double floor; /* half the smallest step of the coarsest of these formats */
    double lse; /* of the parts, by which their outputs are weighted */
    double sum; /* the running sum of weighted values, after every key */
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
/* u_score: unit roundoff with which a single score is stored before the largest is taken. */
int m3_propagate_block_scores(struct m3_ctx *, struct m3_spread *m, const double *q, const double *k,
                              const struct m3_spread *of_q, const struct m3_spread *of_k, const struct m3_index *d,
                              double u_score);
/* u_chain: unit roundoff of every step of the chain. */
int m3_propagate_activation(struct m3_ctx *, struct m3_spread *out, const double *gate, const double *up,
                            const struct m3_spread *of_gate, const struct m3_spread *of_up, int64_t n,
                            const struct m3_gate *, double u_chain);
int m3_propagate_sigmoid(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                         int64_t n);
int m3_propagate_gelu(struct m3_ctx *, struct m3_spread *out, const double *x, const struct m3_spread *of_x, int64_t n);
/* p [T,K] of scores s [T,E] and ids [T,K]. */
int m3_propagate_route(struct m3_ctx *, struct m3_spread *out, const double *s, const struct m3_spread *of_s,
                       const int32_t *ids, int64_t T, int64_t E, int64_t K);
/* u_sum: unit roundoff of each addition. */
int m3_propagate_routed(struct m3_ctx *, struct m3_spread *out, const double *each, const double *p,
                        const struct m3_spread *of_each, const struct m3_spread *of_p, int64_t T, int64_t K, int64_t H,
                        double factor, double u_sum);
void m3_propagate_add(struct m3_spread *out, const struct m3_spread *of_a, const struct m3_spread *of_b, int64_t n);

/* Unit roundoffs of the intermediates that a gated MLP stores; 0: not coarser. */
struct m3_mlp_storage {
    double gate, up, chain, act;
    double floor;                       /* half the smallest step of the coarsest of these formats */
    double weight_floor;                /* of that of the weights */
    double act_floor[2];                /* half a step of `act` as input of the last product: a share of the largest
                                         * number of its row, and of `largest` */
    struct m3_input_rounding act_input; /* how `act` is rounded for the last product, if that costs a share of the
                                         * largest number; codes 0: not */
    double largest;                     /* of `act` in all rows */
    struct m3_partials partials;        /* of the last product */
    double u;                           /* of the arithmetic: for partials only */
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
