#include "model/gradient.h"

int m3_gradient_check(const struct m3_semantics *s, struct m3_error *error)
{
    const char *refused = NULL;
    if (s->jitter != 0) refused = "jitter";
    else if (s->block_anchor != M3_ANCHOR_SEQUENCE) refused = "block_anchor=slot";
    else if (s->mtp_embed == M3_MTP_EMBED_FUSED) refused = "mtp_embed=fused";
    else if (s->mtp_zero_position0 == M3_MTP_ZERO_POSITION0) refused = "mtp_zero_position0=true";
    else if (s->mtp_join == M3_MTP_ADDITIVE) refused = "mtp_join=additive";
    if (!refused) return M3_OK;
    return m3_fail(error, M3_USAGE, "grad: got the reading %s, expected one whose gradient is implemented", refused);
}
