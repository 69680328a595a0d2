/* The reference body of every entry of struct m3_ops, and what they share. ops.h says what each means. */
#ifndef M3_OPS_OPERATORS_H
#define M3_OPS_OPERATORS_H

#include "ops/ops.h"

int m3_embed(struct m3_ctx *, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T);
int m3_rms_norm(struct m3_ctx *, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps);
int m3_rms_norm_plain(struct m3_ctx *, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps);
int m3_linear(struct m3_ctx *, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T);
int m3_rope_table(struct m3_ctx *, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                  enum m3_rope_angle angle);
int m3_rope(struct m3_ctx *, real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads,
            int64_t D, int64_t R);
int m3_attend_full(struct m3_ctx *, real *o, real *lse, const real *q, const real *k, const real *v,
                   const struct m3_attend *d);
int m3_attend_blocks(struct m3_ctx *, real *o, real *lse, const real *q, const real *k, const real *v,
                     const int32_t *blocks, const struct m3_attend *d);
int m3_block_scores(struct m3_ctx *, real *m, const real *q, const real *k, const struct m3_index *d);
int m3_select_blocks(struct m3_ctx *, int32_t *ids, const real *m, const struct m3_index *d);
int m3_swiglu_oai(struct m3_ctx *, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                  const struct m3_activation *act);
int m3_swiglu(struct m3_ctx *, real *y, const real *gate, const real *up, int64_t T, int64_t F);
int m3_gelu(struct m3_ctx *, real *y, const real *x, int64_t n);
int m3_sigmoid(struct m3_ctx *, real *y, const real *x, int64_t n);
int m3_route(struct m3_ctx *, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E, int64_t K);
int m3_experts(struct m3_ctx *, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
               const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
               real factor);
int m3_add(struct m3_ctx *, real *y, const real *a, const real *b, int64_t n);
int m3_layer_norm(struct m3_ctx *, real *y, const real *x, const real *w, const real *b, int64_t T, int64_t H,
                  real eps);
int m3_rope_table_3d(struct m3_ctx *, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R, double theta,
                     enum m3_rope_angle angle);
int m3_attend_segments(struct m3_ctx *, real *o, const real *q, const real *k, const real *v, const int64_t *ends,
                       int64_t segments, int64_t A, int64_t U);
int m3_scatter(struct m3_ctx *, real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T,
               int64_t M, int64_t H);
int m3_jitter(struct m3_ctx *, real *y, const real *x, int64_t T, int64_t H, int64_t p0, double eps, uint64_t key);

/* Not in the table: no model here calls it. It is how the family began. */
int m3_lightning_attention(struct m3_ctx *, real *o, real *state, const real *q, const real *k, const real *v,
                           const real *decay, int64_t T, int64_t Q, int64_t D);

/* The table of the above but that one. */
extern const struct m3_ops m3_reference_ops;

#endif
