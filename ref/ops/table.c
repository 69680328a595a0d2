#include "ops/operators.h"

const struct m3_ops m3_reference_ops = {
    .abi_version = M3_OPS_ABI,
    .real_bytes = sizeof(real),
    .embed = m3_embed,
    .rms_norm = m3_rms_norm,
    .rms_norm_plain = m3_rms_norm_plain,
    .linear = m3_linear,
    .rope_table = m3_rope_table,
    .rope = m3_rope,
    .attend_full = m3_attend_full,
    .block_scores = m3_block_scores,
    .select_blocks = m3_select_blocks,
    .attend_blocks = m3_attend_blocks,
    .swiglu_oai = m3_swiglu_oai,
    .swiglu = m3_swiglu,
    .sigmoid = m3_sigmoid,
    .route = m3_route,
    .experts = m3_experts,
    .add = m3_add,
};
