/* How far a conforming implementation may be from the true result, operator by operator, on equal inputs. SPEC 7.1.
 *
 * Each function takes the operands of its operator (ops/ops.h) in double, and weights as they are stored. For each
 * element of the operator's output it computes the bound B: the operator applied to absolute values. The allowed error
 * is m3_bound_allowed(B, n + f, u), whatever the order of summation. Where there is no single number of steps
 * (attention, experts), B is the whole allowance divided by u, n = 0 and f = 1.
 *
 * Outputs never overlap inputs. Every function returns 0, or a status after m3_fail_at: memory is short, or ids do not
 * fit. No result depends on the number of threads. */
#ifndef M3_ORACLE_ERROR_BOUNDS_H
#define M3_ORACLE_ERROR_BOUNDS_H

#include <stdint.h>

#include "base/context.h"
#include "base/semantics.h"
#include "base/status.h"
#include "base/weight.h"
#include "ops/ops.h"

/* How programs form the frequencies theta^-h of float angles. SPEC 7.1 */
enum m3_float_frequency {
    M3_FREQUENCY_POW,           /* pow or exp of the exponent, each with an error of c u */
    M3_FREQUENCY_EXP2,          /* exp as 2 to the power of the exponent times log2(e), both rounded: as MLX */
    M3_FREQUENCY_RATIO,         /* powers of the rounded ratio theta^(-2/R), also by repeated products: as ggml */
};

/* The allowances for the arithmetic that is judged. */
struct m3_arithmetic {
    double u;                   /* unit roundoff: 2^-24, 2^-53, .. */
    int c;                      /* error of exp, ln, erf and the reciprocal root, in u; 4 is 2 ulp */
    int c_turn;                 /* error of sine and cosine; 1: computed in double, rounded once */
    enum m3_rope_angle angle;   /* M3_ANGLE_F32: angles may be formed in float, */
    enum m3_float_frequency frequency;  /* from frequencies that are formed like this */
    int tanh_scores;            /* router scores may be computed by a tanh: their error is u, not u s */
    double lambda;              /* for `suspect`: m3_lambda of the tap's elements */
};

/* The released reading in floats: c 4, c_turn 1, angles in double, lambda 7. */
struct m3_arithmetic m3_arithmetic_f32(void);

/* The outputs of a function. walk and suspect may be NULL. */
struct m3_bound {
    double *bound;              /* B */
    double *walk;               /* u walk / sqrt(3): standard deviation of the error, if roundings are independent */
    double *suspect;            /* attention only: the probable allowance over u, at lambda */
    double *largest;            /* gated MLPs: raised to the largest |act|; NULL: not wanted */
    int64_t n, f;               /* set by the function: length of the reduction, fixed roundings */
};

/* The smallest number above 0 in a format of unit roundoff u: 2^-149, and 2^-1074 for doubles. */
double m3_bound_eta(double u);
/* u steps B + 2^-53 steps B + (B > 0 ? steps eta : 0): the last term is for underflow, the second for the error of the
 * true result itself. */
double m3_bound_allowed(double bound, double steps, double u);
/* sqrt(2 ln(2 N / 1e-6)): with independent roundings, less than one in a million taps of N elements has an error
 * beyond lambda standard deviations. */
double m3_lambda(int64_t elements);

/* ---- 5.1, 5.21: copies. y [rows, w->cols] expanded rows of w. f = 1, B = |y| where the stored number is rounded */
int m3_bound_embed(struct m3_ctx *, struct m3_bound *, const int32_t *ids, const struct m3_weight *w, int64_t T,
                   const struct m3_arithmetic *);

/* ---- 5.2, 5.3, 5.17: x [T,H]; w, b [H]. offset 1: weights are offsets from 1 */
int m3_bound_rms_norm(struct m3_ctx *, struct m3_bound *, const double *x, const double *w, int64_t T, int64_t H,
                      double eps, int offset, const struct m3_arithmetic *);
int m3_bound_layer_norm(struct m3_ctx *, struct m3_bound *, const double *x, const double *w, const double *b,
                        int64_t T, int64_t H, double eps, const struct m3_arithmetic *);

/* ---- 5.4: x [T,cols]; bias [rows] or NULL. Roundings of a stored number on its way to a float: 0 or 1 */
int m3_bound_weight_roundings(const struct m3_weight *w, double u);
int m3_bound_linear(struct m3_ctx *, struct m3_bound *, const double *x, const struct m3_weight *w, const double *bias,
                    int64_t T, const struct m3_arithmetic *);

/* ---- 5.5, 5.18: the true table, and the largest error of an angle. cos, sin, error [T,R/2]; pos [T]; places [P,3] */
int m3_bound_angles(struct m3_ctx *, double *cos, double *sin, double *error, const int64_t *pos, int64_t T, int64_t R,
                    double theta, const struct m3_arithmetic *);
int m3_bound_angles_3d(struct m3_ctx *, double *cos, double *sin, double *error, const int64_t *places, int64_t P,
                       int64_t R, double theta, const struct m3_arithmetic *);
/* ---- 5.6: x [T,heads,D]. error NULL: both sides use the same tables */
int m3_bound_rope(struct m3_ctx *, struct m3_bound *, const double *x, const double *cos, const double *sin,
                  const double *error, int64_t T, int64_t heads, int64_t D, int64_t R, const struct m3_arithmetic *);

/* ---- 5.7, 5.10, 5.19: o [T,Q,D], lse [T,Q]; operands as in ops/ops.h. blocks NULL: full. lse may be NULL */
int m3_bound_attend(struct m3_ctx *, struct m3_bound *o, struct m3_bound *lse, const double *q, const double *k,
                    const double *v, const int32_t *blocks, const struct m3_attend *d, const struct m3_arithmetic *);
int m3_bound_attend_segments(struct m3_ctx *, struct m3_bound *o, const double *q, const double *k, const double *v,
                             const int64_t *ends, int64_t segments, int64_t A, int64_t U, const struct m3_arithmetic *);

/* ---- 5.8: m [T,G,B]; q [T,G,X]; k [p0+T,X]. Blocks without a visible key: 0 */
int m3_bound_block_scores(struct m3_ctx *, struct m3_bound *, const double *q, const double *k,
                          const struct m3_index *d, const struct m3_arithmetic *);

/* ---- 5.11, 5.12. struct m3_activation in double */
struct m3_gate {
    int oai;
    double alpha, limit;
    enum m3_gate_clamp clamp;
};
int m3_bound_activation(struct m3_ctx *, struct m3_bound *, const double *gate, const double *up, int64_t n,
                        const struct m3_gate *, const struct m3_arithmetic *);
/* ---- 5.13, 5.16, 5.20 */
int m3_bound_sigmoid(struct m3_ctx *, struct m3_bound *, const double *x, int64_t n, const struct m3_arithmetic *);
int m3_bound_add(struct m3_ctx *, struct m3_bound *, const double *a, const double *b, int64_t n);
int m3_bound_gelu(struct m3_ctx *, struct m3_bound *, const double *x, int64_t n, const struct m3_arithmetic *);

/* ---- 5.14: p [T,K] of given scores s [T,E] and ids [T,K] */
int m3_bound_route(struct m3_ctx *, struct m3_bound *, const double *s, const int32_t *ids, int64_t T, int64_t E,
                   int64_t K);
/* ---- 5.15: routed [T,H] of given each [T,K,H] and p [T,K] */
int m3_bound_routed(struct m3_ctx *, struct m3_bound *, const double *each, const double *p, int64_t T, int64_t K,
                    int64_t H, double factor);
/* each [T,K,H] of x [T,H] and ids [T,K]: composites. y [T,K,H] receives the experts' outputs, or is NULL. */
int m3_bound_experts(struct m3_ctx *, struct m3_bound *each, double *y, const double *x, const int32_t *ids,
                     const struct m3_expert *experts, const struct m3_gate *, int64_t T, int64_t E, int64_t K,
                     const struct m3_arithmetic *);
/* w2 act(w1 x, w3 x), the shared expert: a composite. x [T,H]; y [T,H] receives the output, or is NULL */
int m3_bound_gated_mlp(struct m3_ctx *, struct m3_bound *, double *y, const double *x, const struct m3_weight *w1,
                       const struct m3_weight *w3, const struct m3_weight *w2, const struct m3_gate *, int64_t T,
                       const struct m3_arithmetic *);

#endif
