/* The bodies of every entry of struct m3_ops, and the code they share. ops.h says what each entry computes. */
#ifndef M3_OPS_OPERATORS_H
#define M3_OPS_OPERATORS_H

#include "ops/ops.h"

/* m3_NAME is the plain body, the definition. m3_fast_NAME (ops/fast/) gives the same bits, or results within the
 * bounds for the sum order `blas`; where it is missing, the plain body is fast enough. */
m3_op_embed m3_embed;
m3_op_rms_norm m3_rms_norm, m3_fast_rms_norm;
m3_op_rms_norm_plain m3_rms_norm_plain, m3_fast_rms_norm_plain;
m3_op_linear m3_linear, m3_fast_linear;
m3_op_rope_table m3_rope_table;
m3_op_rope m3_rope;
m3_op_attend_full m3_attend_full, m3_fast_attend_full;
m3_op_block_scores m3_block_scores, m3_fast_block_scores;
m3_op_select_blocks m3_select_blocks;
m3_op_attend_blocks m3_attend_blocks, m3_fast_attend_blocks;
m3_op_swiglu_oai m3_swiglu_oai, m3_fast_swiglu_oai;
m3_op_swiglu m3_swiglu, m3_fast_swiglu;
m3_op_sigmoid m3_sigmoid;
m3_op_route m3_route;
m3_op_experts m3_experts, m3_fast_experts;
m3_op_add m3_add;
m3_op_layer_norm m3_layer_norm, m3_fast_layer_norm;
m3_op_rope_table_3d m3_rope_table_3d;
m3_op_attend_segments m3_attend_segments, m3_fast_attend_segments;
m3_op_gelu m3_gelu, m3_fast_gelu;
m3_op_scatter m3_scatter;
m3_op_jitter m3_jitter;

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
