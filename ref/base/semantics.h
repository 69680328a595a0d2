/* Where public implementations read the model differently, the choice is a named value here. The first value of each
 * enumeration is the released reading; the two counts come from the config. SPEC 4 gives the sources. */
#ifndef M3_BASE_SEMANTICS_H
#define M3_BASE_SEMANTICS_H

#include <stdint.h>

enum m3_selection { M3_SELECT_GROUP, M3_SELECT_SHARED, M3_SELECT_UNION };
enum m3_pool { M3_POOL_MAX, M3_POOL_LSE };
enum m3_index_scale { M3_INDEX_SCALE_1, M3_INDEX_SCALE_RSQRT };
enum m3_gate_clamp { M3_GATE_CLAMP_UPPER, M3_GATE_CLAMP_BOTH };
enum m3_local_rule { M3_LOCAL_LAST, M3_LOCAL_OWN };
enum m3_rope_angle { M3_ANGLE_F64, M3_ANGLE_F32 };
enum m3_vision_boundary { M3_BOUNDARY_SEGMENT, M3_BOUNDARY_NONE };
enum m3_mtp_handover { M3_HANDOVER_PRE_NORM, M3_HANDOVER_POST_NORM };
enum m3_mtp_embed { M3_MTP_EMBED_ID, M3_MTP_EMBED_FUSED };
enum m3_mtp_zero_position0 { M3_MTP_KEEP_POSITION0, M3_MTP_ZERO_POSITION0 };
enum m3_mtp_join { M3_MTP_CONCAT, M3_MTP_ADDITIVE };
enum m3_block_anchor { M3_ANCHOR_SEQUENCE, M3_ANCHOR_SLOT };

struct m3_semantics {
    enum m3_selection selection;
    enum m3_pool pool;
    enum m3_index_scale index_scale;
    enum m3_gate_clamp gate_clamp;
    int64_t init_blocks;            /* released: 0 */
    int64_t local_blocks;           /* released: 1 */
    enum m3_local_rule local_rule;
    enum m3_rope_angle rope_angle;
    enum m3_vision_boundary vision_boundary;
    enum m3_mtp_handover mtp_handover;
    enum m3_mtp_embed mtp_embed;
    enum m3_mtp_zero_position0 mtp_zero_position0;
    enum m3_mtp_join mtp_join;
    enum m3_block_anchor block_anchor;      /* of sequences with padding before them */
    double jitter;                  /* 0: none, the value outside training */
    int64_t jitter_seed;
};

#endif
