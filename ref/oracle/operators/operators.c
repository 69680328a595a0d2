#include "oracle/operators/operators.h"

#include <string.h>

#define TAP(name, letters, tap, what) { name, M3_ROLE_TAP, letters, M3_TAP_##tap, 0, 0, what }
#define MAYBE(name, letters, tap, what) { name, M3_ROLE_TAP, letters, M3_TAP_##tap, 0, 1, what }
#define WEIGHT(name, letters, tap, i, what) { name, M3_ROLE_WEIGHT, letters, M3_TAP_##tap, i, 0, what }
#define SCALES(name, letters, tap, i, what) { name, M3_ROLE_SCALES, letters, M3_TAP_##tap, i, 0, what }
#define EXPERTS(name, letters, i) { name, M3_ROLE_EXPERTS, letters, M3_TAP_EXPERT_OUT, i, 0, "of every expert" }
#define GIVEN(name, role, letters, what) { name, M3_ROLE_##role, letters, M3_TAPS, 0, 0, what }
#define OPTION(name, role, letters, what) { name, M3_ROLE_##role, letters, M3_TAPS, 0, 1, what }

#define INCOMING(name, letters) { name, M3_ROLE_INCOMING, letters, M3_TAPS, 0, 0, "gradient of the output" }
#define DLSE { "dlse", M3_ROLE_INCOMING, "TQ", M3_TAPS, 0, 1, "gradient of lse" }
#define GRADIENT(name, letters) { name, M3_ROLE_GRADIENT, letters, M3_TAPS, 0, 0, "" }

#define SEEN OPTION("seen", SEEN, "S", "0: no row sees the place")
#define POSITIONS GIVEN("pos", POSITIONS, "T", "RoPE positions")
#define EXPERT_WEIGHTS EXPERTS("w1", "EFH", 0), EXPERTS("w3", "EFH", 1), EXPERTS("w2", "EHF", 2)

/* clang-format off */
static const struct m3_operator_row rows[] = {
    { "embed", "5.1 embed", "y := rows ids of w", 0, 0,
      { GIVEN("ids", IDS, "T", "token ids"), WEIGHT("w", "VH", EMBED, 0, "embedding table") },
      { TAP("y", "TH", EMBED, "") }, "", 0 },
    { "rms_norm", "5.2 rms_norm", "y := x / sqrt(mean x^2 + eps) (1 + w)", 0, M3_LAYER_GEMMA,
      { TAP("x", "TH", FUSED, ""), WEIGHT("w", "H", ATTN_NORM, 0, "offset from 1") },
      { TAP("y", "TH", ATTN_NORM, "") }, "eps", 0 },
    { "rms_norm_plain", "5.3 rms_norm_plain", "y := x / sqrt(mean x^2 + eps) w", 0, 0,
      { TAP("x", "TH", FUSED, ""), WEIGHT("w", "H", ATTN_NORM, 0, "") },
      { TAP("y", "TH", ATTN_NORM, "") }, "eps", 0 },
    { "linear", "5.4 linear", "y := x w'", 0, 0,
      { TAP("x", "TH", MLP_NORM, ""), WEIGHT("w", "IH", MLP_GATE, 0, "") },
      { TAP("y", "TI", MLP_GATE, "") }, "", 0 },
    { "linear_bias", "5.4 linear", "y := x w' + bias", 0, M3_LAYER_VISION,
      { TAP("x", "PW", NORM2, ""), WEIGHT("w", "LW", FC1, 0, ""), WEIGHT("bias", "L", FC1, 1, "") },
      { TAP("y", "PL", FC1, "") }, "", 0 },
    { "rope_table", "5.5 rope_table", "cos, sin of pos theta^(-2i/R)", 0, 0,
      { POSITIONS },
      { GIVEN("cos", COS, "Tr", ""), GIVEN("sin", SIN, "Tr", "") }, "R,theta,rope_angle", 0 },
    { "rope", "5.6 rope", "y := x, channels i and i + R/2 turned", 0, 0,
      { TAP("x", "TQD", Q_NORM, ""), GIVEN("cos", COS, "Tr", ""), GIVEN("sin", SIN, "Tr", "") },
      { TAP("y", "TQD", Q_ROPE, "") }, "", 0 },
    { "attend_full", "5.7 attend_full", "o := softmax(q k' / sqrt D) v, causal", 0, 0,
      { TAP("q", "TQD", Q_ROPE, ""), TAP("k", "SGD", K_ROPE, ""), TAP("v", "SGD", V_PROJ, ""), SEEN },
      { MAYBE("lse", "TQ", ATTN_LSE, "ln of the sum of exp"), TAP("o", "TQD", ATTN, "") }, "", 0 },
    { "block_scores", "5.8 block_scores", "m := pool of q k' over a block, causal", 0, M3_LAYER_SPARSE,
      { TAP("q", "TGX", INDEX_Q_ROPE, ""), TAP("k", "SX", INDEX_K_ROPE, ""), SEEN },
      { TAP("m", "TGB", INDEX_BLOCK_SCORES, "") }, "block,pool,index_scale", 0 },
    { "select_blocks", "5.9 select_blocks", "ids := the N best blocks, forced ones first", 0, M3_LAYER_SPARSE,
      { TAP("m", "TGB", INDEX_BLOCK_SCORES, "") },
      { TAP("ids", "TGN", INDEX_BLOCKS, "ascending, -1 at the end") },
      "block,N,p0,selection,init_blocks,local_blocks,local_rule", 0 },
    { "attend_blocks", "5.10 attend_blocks", "as attend_full, over the keys of the blocks", 0, M3_LAYER_SPARSE,
      { TAP("q", "TQD", Q_ROPE, ""), TAP("k", "SGD", K_ROPE, ""), TAP("v", "SGD", V_PROJ, ""),
        TAP("blocks", "TGN", INDEX_BLOCKS, "-1: none"), SEEN },
      { MAYBE("lse", "TQ", ATTN_LSE, "ln of the sum of exp"), TAP("o", "TQD", ATTN, "") }, "block,selection", 0 },
    { "swiglu_oai", "5.11 swiglu_oai", "y := (up + 1) gate sig(alpha gate), both clamped", 0, M3_LAYER_OAI,
      { TAP("gate", "TI", MLP_GATE, ""), TAP("up", "TI", MLP_UP, "") },
      { TAP("y", "TI", MLP_ACT, "") }, "alpha,limit,gate_clamp", 0 },
    { "swiglu", "5.12 swiglu", "y := up gate sig(gate)", 0, 0,
      { TAP("gate", "TI", MLP_GATE, ""), TAP("up", "TI", MLP_UP, "") },
      { TAP("y", "TI", MLP_ACT, "") }, "", 0 },
    { "sigmoid", "5.13 sigmoid", "y := 1 / (1 + exp(-x))", 0, M3_LAYER_MOE,
      { TAP("x", "TE", ROUTER_LOGITS, "") }, { TAP("y", "TE", ROUTER_SCORES, "") }, "", 0 },
    { "route", "5.14 route", "ids := the K best of s + bias, p := s / sum of the chosen", 0, M3_LAYER_MOE,
      { TAP("s", "TE", ROUTER_SCORES, ""), WEIGHT("bias", "E", EXPERTS, 0, "") },
      { TAP("ids", "TK", EXPERTS, ""), TAP("p", "TK", EXPERT_WEIGHTS, "") }, "K", 0 },
    { "experts", "5.15 experts", "routed := factor sum p w2 act(w1 x, w3 x)", 0, M3_LAYER_MOE,
      { TAP("x", "TH", MLP_NORM, ""), TAP("ids", "TK", EXPERTS, ""), TAP("p", "TK", EXPERT_WEIGHTS, ""),
        EXPERT_WEIGHTS },
      { MAYBE("each", "TKH", EXPERT_OUT, "every expert's output"), TAP("routed", "TH", ROUTED, "") },
      "factor,activation,alpha,limit,gate_clamp", 0 },
    { "add", "5.16 add", "y := a + b", 0, 0,
      { TAP("a", "TH", FUSED, ""), TAP("b", "TH", ATTN_OUT, "") }, { TAP("y", "TH", MID, "") }, "", 0 },
    { "layer_norm", "5.17 layer_norm", "y := (x - mean) / sqrt(var + eps) w + b", 0, M3_LAYER_VISION,
      { TAP("x", "PW", PATCH_EMBED, ""), WEIGHT("w", "W", PRE_NORM, 0, ""), WEIGHT("b", "W", PRE_NORM, 1, "") },
      { TAP("y", "PW", PRE_NORM, "") }, "eps=1e-5", 0 },
    { "rope_table_3d", "5.18 rope_table_3d", "cos, sin of place_a theta^(-2i/(R/3)), a: time, row, column", 0, M3_LAYER_VISION,
      { GIVEN("places", PLACES, "P3", "time, row, column of each patch") },
      { GIVEN("cos", COS, "Pr", ""), GIVEN("sin", SIN, "Pr", "") }, "R=78,theta=10000,rope_angle", 0 },
    { "rope_3d", "5.18 rope_table_3d", "y := x, turned by the time, row and column of its patch", 0, M3_LAYER_VISION,
      { TAP("x", "PAU", VISION_Q_PROJ, ""), GIVEN("grid", GRID, "n3", "time, height, width of each picture") },
      { TAP("y", "PAU", VISION_Q_ROPE, "") }, "theta=10000,rope_angle,vision_boundary,merge,segment_frames", 0 },
    { "attend_segments", "5.19 attend_segments", "as attend_full, over all keys of a segment", 0, M3_LAYER_VISION,
      { TAP("q", "PAU", VISION_Q_ROPE, ""), TAP("k", "PAU", VISION_K_ROPE, ""), TAP("v", "PAU", VISION_V_PROJ, ""),
        GIVEN("ends", ENDS, "n", "the row after each segment's last") },
      { TAP("o", "PAU", VISION_ATTN, "") }, "", 0 },
    { "gelu", "5.20 gelu", "y := x/2 (1 + erf(x / sqrt 2))", 0, M3_LAYER_VISION,
      { TAP("x", "PL", FC1, "") }, { TAP("y", "PL", VISION_ACT, "") }, "", 0 },
    { "scatter", "5.21 scatter", "y := x, its rows of one id := rows of f", 0, M3_LAYER_VISION,
      { TAP("x", "TH", EMBED, ""), GIVEN("ids", IDS, "T", "token ids"), TAP("f", "MH", PROJECTOR_OUT, "features") },
      { TAP("y", "TH", FUSED, "") }, "id", 0 },
    { "jitter", "5.22 jitter", "y := x (1 + eps (2 u - 1)), u drawn for seed 0, layers.0.mlp_norm", 0, M3_LAYER_MOE,
      { TAP("x", "TH", MLP_NORM, "") }, { GIVEN("y", NOISY, "TH", "") }, "eps_noise,p0", 0 },

    { "qk_norm_rope", "5.6 rope", "y := rope(rms_norm(x))", 1, M3_LAYER_GEMMA,
      { TAP("x", "TQD", Q_PROJ, ""), WEIGHT("w", "D", Q_NORM, 0, "offset from 1"), POSITIONS },
      { MAYBE("normed", "TQD", Q_NORM, "before the rotation"), TAP("y", "TQD", Q_ROPE, "") },
      "eps,theta,R,rope_angle", 0 },
    { "sparse_attention", "5.10 attend_blocks", "block_scores, select_blocks, attend_blocks", 1, M3_LAYER_SPARSE,
      { TAP("q", "TQD", Q_ROPE, ""), TAP("k", "SGD", K_ROPE, ""), TAP("v", "SGD", V_PROJ, ""),
        TAP("index_q", "TGX", INDEX_Q_ROPE, ""), TAP("index_k", "SX", INDEX_K_ROPE, ""), SEEN },
      { MAYBE("m", "TGB", INDEX_BLOCK_SCORES, ""), MAYBE("blocks", "TGN", INDEX_BLOCKS, ""),
        MAYBE("lse", "TQ", ATTN_LSE, ""), TAP("o", "TQD", ATTN, "") },
      "block,N,pool,index_scale,selection,init_blocks,local_blocks,local_rule", 0 },
    { "router", "5.14 route", "s := sig(logits); ids, p := route(s)", 1, M3_LAYER_MOE,
      { TAP("logits", "TE", ROUTER_LOGITS, ""), WEIGHT("bias", "E", EXPERTS, 0, "") },
      { MAYBE("s", "TE", ROUTER_SCORES, ""), TAP("ids", "TK", EXPERTS, ""), TAP("p", "TK", EXPERT_WEIGHTS, "") },
      "K", 0 },
    { "moe_block", "5.15 experts", "y := experts(x, route(sig(router x))) + shared expert", 1, M3_LAYER_MOE,
      { TAP("x", "TH", MLP_NORM, ""), WEIGHT("router", "EH", ROUTER_LOGITS, 0, ""),
        WEIGHT("bias", "E", EXPERTS, 0, ""), EXPERT_WEIGHTS, WEIGHT("gate", "JH", SHARED, 0, "shared expert"),
        WEIGHT("up", "JH", SHARED, 1, "shared expert"), WEIGHT("down", "HJ", SHARED, 2, "shared expert") },
      { MAYBE("ids", "TK", EXPERTS, ""), MAYBE("p", "TK", EXPERT_WEIGHTS, ""), MAYBE("routed", "TH", ROUTED, ""),
        MAYBE("shared", "TH", SHARED, ""), TAP("y", "TH", MLP, "") },
      "K,factor,activation,alpha,limit,gate_clamp", 0 },
    { "gated_mlp", "5.11 swiglu_oai", "y := down act(gate x, up x)", 1, M3_LAYER_MOE,
      { TAP("x", "TH", MLP_NORM, ""), WEIGHT("gate", "JH", SHARED, 0, ""), WEIGHT("up", "JH", SHARED, 1, ""),
        WEIGHT("down", "HJ", SHARED, 2, "") },
      { TAP("y", "TH", SHARED, "") }, "activation,alpha,limit,gate_clamp", 0 },
    { "linear_fp8", "5.4 linear", "y := x (codes times scales of 128 x 128 blocks)'", 1, 0,
      { TAP("x", "TH", MLP_NORM, ""), WEIGHT("w", "IH", MLP_GATE, 0, "E4M3 codes"),
        SCALES("scales", "__", MLP_GATE, 0, "F32 [ceil(I/128),ceil(H/128)]") },
      { TAP("y", "TI", MLP_GATE, "") }, "", 0 },
    { "linear_mxfp8", "5.4 linear", "y := x (codes times scales of 32 columns)'", 1, 0,
      { TAP("x", "TH", MLP_NORM, ""), WEIGHT("w", "IH", MLP_GATE, 0, "E4M3 codes"),
        SCALES("scales", "I_", MLP_GATE, 0, "ue8m0 bytes [I,ceil(H/32)]") },
      { TAP("y", "TI", MLP_GATE, "") }, "", 0 },
    { "vision_attention", "5.19 attend_segments", "rope_3d of q and k, then attend_segments", 1, M3_LAYER_VISION,
      { TAP("q", "PAU", VISION_Q_PROJ, ""), TAP("k", "PAU", VISION_K_PROJ, ""), TAP("v", "PAU", VISION_V_PROJ, ""),
        GIVEN("grid", GRID, "n3", "time, height, width of each picture") },
      { MAYBE("q_rope", "PAU", VISION_Q_ROPE, ""), MAYBE("k_rope", "PAU", VISION_K_ROPE, ""),
        TAP("o", "PAU", VISION_ATTN, "") }, "theta=10000,rope_angle,vision_boundary,merge,segment_frames", 0 },
    { "residual_norm", "5.2 rms_norm", "sum := a + b; y := rms_norm(sum)", 1, M3_LAYER_GEMMA,
      { TAP("a", "TH", FUSED, ""), TAP("b", "TH", ATTN_OUT, ""), WEIGHT("w", "H", MLP_NORM, 0, "offset from 1") },
      { MAYBE("sum", "TH", MID, ""), TAP("y", "TH", MLP_NORM, "") }, "eps", 0 },
    { "mtp_join", "12 Multi-token prediction", "y := eh_proj [norm of embedding ; norm of hidden]", 1,
      M3_LAYER_GEMMA | M3_LAYER_MODULE,
      { TAP("embedding", "TH", EMBED, "of the token after the row"), TAP("hidden", "TH", FINAL_NORM, ""),
        WEIGHT("enorm", "H", MTP_EMBED_NORM, 0, "offset from 1"),
        WEIGHT("hnorm", "H", MTP_HIDDEN_NORM, 0, "offset from 1"), WEIGHT("eh_proj", "H2H", MTP_EH_PROJ, 0, "") },
      { MAYBE("e", "TH", MTP_EMBED_NORM, ""), MAYBE("h", "TH", MTP_HIDDEN_NORM, ""), TAP("y", "TH", MTP_EH_PROJ, "") },
      "eps,mtp_join,mtp_zero_position0", 0 },

    { "embed_backward", "19.2 embed", "dw[id] := sum of its rows of dy", 0, 0,
      { INCOMING("dy", "TH"), GIVEN("ids", IDS, "T", "token ids"), WEIGHT("w", "VH", EMBED, 0, "embedding table") },
      { GRADIENT("dw", "VH") }, "", M3_DERIVATIVE_EMBED },
    { "rms_norm_backward", "19.3 rms_norm, rms_norm_plain", "dx, dw of x / sqrt(mean x^2 + eps) (1 + w)", 0,
      M3_LAYER_GEMMA,
      { INCOMING("dy", "TH"), TAP("x", "TH", FUSED, ""), WEIGHT("w", "H", ATTN_NORM, 0, "offset from 1") },
      { GRADIENT("dx", "TH"), GRADIENT("dw", "H") }, "eps", M3_DERIVATIVE_RMS_NORM },
    { "rms_norm_plain_backward", "19.3 rms_norm, rms_norm_plain", "dx, dw of x / sqrt(mean x^2 + eps) w", 0, 0,
      { INCOMING("dy", "TH"), TAP("x", "TH", FUSED, ""), WEIGHT("w", "H", ATTN_NORM, 0, "") },
      { GRADIENT("dx", "TH"), GRADIENT("dw", "H") }, "eps", M3_DERIVATIVE_RMS_NORM_PLAIN },
    { "linear_backward", "19.4 linear", "dx := dy w, dw := dy' x", 0, 0,
      { INCOMING("dy", "TI"), TAP("x", "TH", MLP_NORM, ""), WEIGHT("w", "IH", MLP_GATE, 0, "") },
      { GRADIENT("dx", "TH"), GRADIENT("dw", "IH") }, "", M3_DERIVATIVE_LINEAR },
    { "linear_bias_backward", "19.4 linear", "as linear, dbias := sum of the rows of dy", 0, M3_LAYER_VISION,
      { INCOMING("dy", "PL"), TAP("x", "PW", NORM2, ""), WEIGHT("w", "LW", FC1, 0, "") },
      { GRADIENT("dx", "PW"), GRADIENT("dw", "LW"), GRADIENT("dbias", "L") }, "", M3_DERIVATIVE_LINEAR },
    { "rope_backward", "19.5 rope", "dx := dy, turned back", 0, 0,
      { INCOMING("dy", "TQD"), GIVEN("cos", COS, "Tr", ""), GIVEN("sin", SIN, "Tr", "") },
      { GRADIENT("dx", "TQD") }, "", M3_DERIVATIVE_ROPE },
    { "attend_full_backward", "19.6 attend_full, attend_blocks, attend_segments", "dq, dk, dv of causal attention",
      0, 0,
      { INCOMING("dy", "TQD"), TAP("q", "TQD", Q_ROPE, ""), TAP("k", "SGD", K_ROPE, ""), TAP("v", "SGD", V_PROJ, ""),
        SEEN, DLSE },
      { GRADIENT("dq", "TQD"), GRADIENT("dk", "SGD"), GRADIENT("dv", "SGD") }, "", M3_DERIVATIVE_ATTEND_FULL },
    { "attend_blocks_backward", "19.6 attend_full, attend_blocks, attend_segments",
      "dq, dk, dv, through the chosen blocks only", 0, M3_LAYER_SPARSE,
      { INCOMING("dy", "TQD"), TAP("q", "TQD", Q_ROPE, ""), TAP("k", "SGD", K_ROPE, ""), TAP("v", "SGD", V_PROJ, ""),
        TAP("blocks", "TGN", INDEX_BLOCKS, "-1: none"), SEEN, DLSE },
      { GRADIENT("dq", "TQD"), GRADIENT("dk", "SGD"), GRADIENT("dv", "SGD") }, "block,selection",
      M3_DERIVATIVE_ATTEND_BLOCKS },
    { "attend_segments_backward", "19.6 attend_full, attend_blocks, attend_segments",
      "dq, dk, dv, through all keys of a segment", 0, M3_LAYER_VISION,
      { INCOMING("dy", "PAU"), TAP("q", "PAU", VISION_Q_ROPE, ""), TAP("k", "PAU", VISION_K_ROPE, ""),
        TAP("v", "PAU", VISION_V_PROJ, ""), GIVEN("ends", ENDS, "n", "the row after each segment's last") },
      { GRADIENT("dq", "PAU"), GRADIENT("dk", "PAU"), GRADIENT("dv", "PAU") }, "", M3_DERIVATIVE_ATTEND_SEGMENTS },
    { "swiglu_oai_backward", "19.7 swiglu_oai, swiglu", "dgate, dup of (up + 1) gate sig(alpha gate); 0 beyond a clamp",
      0, M3_LAYER_OAI,
      { INCOMING("dy", "TI"), TAP("gate", "TI", MLP_GATE, ""), TAP("up", "TI", MLP_UP, "") },
      { GRADIENT("dgate", "TI"), GRADIENT("dup", "TI") }, "alpha,limit,gate_clamp", M3_DERIVATIVE_SWIGLU_OAI },
    { "swiglu_backward", "19.7 swiglu_oai, swiglu", "dgate, dup of up gate sig(gate)", 0, 0,
      { INCOMING("dy", "TI"), TAP("gate", "TI", MLP_GATE, ""), TAP("up", "TI", MLP_UP, "") },
      { GRADIENT("dgate", "TI"), GRADIENT("dup", "TI") }, "", M3_DERIVATIVE_SWIGLU },
    { "sigmoid_backward", "19.8 sigmoid", "dx := dy sig(x) sig(-x)", 0, M3_LAYER_MOE,
      { INCOMING("dy", "TE"), TAP("x", "TE", ROUTER_LOGITS, "") }, { GRADIENT("dx", "TE") }, "",
      M3_DERIVATIVE_SIGMOID },
    { "route_backward", "19.9 route", "ds := (dp - sum of dp p) / sum of the chosen; 0 for the others", 0, M3_LAYER_MOE,
      { INCOMING("dy", "TK"), TAP("s", "TE", ROUTER_SCORES, ""), TAP("ids", "TK", EXPERTS, "the chosen experts") },
      { GRADIENT("ds", "TE") }, "K", M3_DERIVATIVE_ROUTE },
    { "experts_backward", "19.10 experts", "dx, dp and dw of factor sum p w2 act(w1 x, w3 x)", 0, M3_LAYER_MOE,
      { INCOMING("dy", "TH"), TAP("x", "TH", MLP_NORM, ""), TAP("ids", "TK", EXPERTS, ""),
        TAP("p", "TK", EXPERT_WEIGHTS, ""), EXPERT_WEIGHTS },
      { GRADIENT("dx", "TH"), GRADIENT("dp", "TK"), GRADIENT("dw1", "EFH"), GRADIENT("dw3", "EFH"),
        GRADIENT("dw2", "EHF") },
      "factor,activation,alpha,limit,gate_clamp", M3_DERIVATIVE_EXPERTS },
    { "layer_norm_backward", "19.12 layer_norm", "dx, dw, db of (x - mean) / sqrt(var + eps) w + b", 0, M3_LAYER_VISION,
      { INCOMING("dy", "PW"), TAP("x", "PW", PATCH_EMBED, ""), WEIGHT("w", "W", PRE_NORM, 0, "") },
      { GRADIENT("dx", "PW"), GRADIENT("dw", "W"), GRADIENT("db", "W") }, "eps=1e-5", M3_DERIVATIVE_LAYER_NORM },
    { "gelu_backward", "19.13 gelu", "dx of x/2 (1 + erf(x / sqrt 2))", 0, M3_LAYER_VISION,
      { INCOMING("dy", "PL"), TAP("x", "PL", FC1, "") }, { GRADIENT("dx", "PL") }, "", M3_DERIVATIVE_GELU },
    { "scatter_backward", "19.14 scatter", "df := rows of dy at one id, dx := the others, 0 there", 0, M3_LAYER_VISION,
      { INCOMING("dy", "TH"), GIVEN("ids", IDS, "T", "token ids"), TAP("f", "MH", PROJECTOR_OUT, "features") },
      { GRADIENT("dx", "TH"), GRADIENT("df", "MH") }, "id", M3_DERIVATIVE_SCATTER },
};
/* clang-format on */

enum { ROWS = sizeof rows / sizeof rows[0] };

int m3_operator_rows(void) { return ROWS; }

const struct m3_operator_row *m3_operator_at(int i) { return i >= 0 && i < ROWS ? &rows[i] : NULL; }

const struct m3_operator_row *m3_operator_named(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

int m3_operator_outputs(const struct m3_operator_row *op)
{
    int n = 0;
    while (n < M3_OPERATOR_OUTPUTS && op->outputs[n].role != M3_ROLE_NONE) n++;
    return n;
}

int m3_operator_by_row(const struct m3_operator_row *op)
{
    if (op->derivative) return 0;
    const char rows = op->outputs[0].letters[0];
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++) switch (op->operands[i].role) {
        case M3_ROLE_GRID:
        case M3_ROLE_ENDS:
        case M3_ROLE_PLACES: return 0;
        default: break;
        }
    return rows == 'T' || rows == 'P';
}

int m3_shape_by_letters(int64_t shape[M3_MAX_RANK], const char *letters, const int64_t *sizes)
{
    int rank = 0;
    for (; *letters && rank < M3_MAX_RANK; rank++) {
        const int64_t factor = *letters >= '0' && *letters <= '9' ? *letters++ - '0' : 1;
        shape[rank] = *letters ? factor * sizes[(unsigned char)*letters++] : factor;
    }
    return rank;
}

int m3_operand_named(const struct m3_operand_row *list, int most, const char *name)
{
    for (int i = 0; i < most && list[i].role != M3_ROLE_NONE; i++)
        if (strcmp(list[i].name, name) == 0) return i;
    return -1;
}
