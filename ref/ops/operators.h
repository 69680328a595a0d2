/* The bodies of every entry of struct m3_ops, and the code they share. ops.h says what each entry computes. */
#ifndef M3_OPS_OPERATORS_H
#define M3_OPS_OPERATORS_H

#include "ops/ops.h"

/* m3_NAME is the plain body, the definition. m3_fast_NAME (ops/fast/) gives the same bits, or results within the
 * bounds for the sum order `blas`; where it is missing, the plain body is fast enough. */
#define BODIES_PLAIN(name) m3_op_##name m3_##name;
#define BODIES_FAST(name) m3_op_##name m3_##name, m3_fast_##name;
#define BODIES(name, file, bodies, ...) BODIES_##bodies(name)
#define NONE(...)
M3_OPERATORS(BODIES, NONE)
#undef BODIES
#undef NONE

/* Not in the table: no model here calls it. It is the attention of MiniMax-Text-01, the start of the family. */
int m3_lightning_attention(struct m3_ctx *, real *o, real *state, const real *q, const real *k, const real *v,
                           const real *decay, int64_t T, int64_t Q, int64_t D);

/* The plain bodies, and the bodies that a pass uses by default. */
extern const struct m3_ops m3_plain_ops, m3_fast_ops;

/* routed [T,H] of the operator `experts` from `each` [T,K,H]: its second formula, with its order, for outputs of experts
 * that were computed elsewhere. The ids of a row are distinct. */
void m3_experts_sum(real *routed, const real *each, const int32_t *ids, const real *p, int64_t T, int64_t K, int64_t H,
                    real factor);

/* Refuse blocks [T,G,N] or ends [segments] that attention cannot use. Both return 0, or M3_WRONG after reporting the
 * place. */
int m3_check_blocks(struct m3_ctx *, const int32_t *blocks, const struct m3_attend *d);
int m3_check_segments(struct m3_ctx *, const int64_t *ends, int64_t segments);

#endif
