#ifndef INTERIM_H
#define INTERIM_H
#include "ops/ops.h"
int b_embed(struct m3_ctx *, real *dw, const real *dy, const int32_t *ids, int64_t T, int64_t H);
int b_linear(struct m3_ctx *, real *dx, real *dw, real *db, const real *dy, const real *x, const struct m3_weight *w,
             int64_t T);
int b_rms_norm(struct m3_ctx *, real *dx, real *dw, const real *dy, const real *x, const real *w, int64_t T, int64_t H,
               real eps, int gemma);
int b_layer_norm(struct m3_ctx *, real *dx, real *dw, real *db, const real *dy, const real *x, const real *w, int64_t T,
                 int64_t H, real eps);
int b_rope(struct m3_ctx *, real *dx, const real *dy, const real *cos, const real *sin, int64_t T, int64_t heads,
           int64_t D, int64_t R);
int b_attend(struct m3_ctx *, real *dq, real *dk, real *dv, const real *dy, const real *q, const real *k, const real *v,
             const int32_t *blocks, const struct m3_attend *d);
int b_segments(struct m3_ctx *, real *dq, real *dk, real *dv, const real *dy, const real *q, const real *k,
               const real *v, const int64_t *ends, int64_t segments, int64_t A, int64_t U);
int b_gated(struct m3_ctx *, real *dg, real *du, const real *dy, const real *gate, const real *up, int64_t n,
            const struct m3_activation *act);
int b_gelu(struct m3_ctx *, real *dx, const real *dy, const real *x, int64_t n);
int b_sigmoid(struct m3_ctx *, real *dx, const real *dy, const real *y, int64_t n);
int b_route(struct m3_ctx *, real *ds, const real *dp, const int32_t *ids, const real *s, int64_t T, int64_t E,
            int64_t K);
int b_experts(struct m3_ctx *, real *dx, real *dp, real *const *dw1, real *const *dw3, real *const *dw2, const real *dy,
              const real *x, const int32_t *ids, const real *p, const struct m3_expert *experts,
              const struct m3_activation *act, int64_t T, int64_t E, int64_t K, real factor);
#endif
